"""Doors for DTensors: arithmetic with Python numbers, and one clear error for what Thunder lacks.

Thunder 0.2.6 traces few functions of DTensors. Its add and mul need the tensor first and a number
of the tensor's own kind: ``x * 2`` and ``2.0 + x`` fail while they are traced. Here the number is
put into that form before Thunder sees it. Operators that it lacks, and a DTensor beside a plain
tensor, end in an ``AssertionError`` that names neither function nor tensors; here they are refused
first, with both.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.jit_ext import record_source_loc_in_symbol_header as located
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.extend import FusionExecutor
from thunder.torch import _torch_to_thunder_function_map as _functions
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.langctx import _method_name_to_fn_map as _methods

from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.dtensor import described, described_mesh

# What Thunder 0.2.6 traces for DTensors, as a user calls it.
SUPPORTED = (
    *("x + y", "x * y", "-x", "torch.add", "torch.mul", "torch.neg", "torch.exp"),
    *("torch.reciprocal", "torch.reshape", "torch.transpose", "F.linear", "F.silu", "x.to(dtype)"),
    *("x.redistribute", "x.to_local", "DTensor.from_local"),
)
# Both operand orders of each operator are one function: the operators commute.
ARITHMETIC = {"add": ("__add__", "__radd__"), "mul": ("__mul__", "__rmul__")}
FUNCTIONS: dict[str, Callable[..., Any]] = {"add": torch.add, "mul": torch.mul}
SIGNS = {"__add__": "+", "__radd__": "+", "__mul__": "*", "__rmul__": "*"}
# Operators of a tensor that Thunder has for plain tensors only, with the sign that a user writes.
# Not among them are comparisons and abs: Thunder's interpreter calls those without asking for a
# door.
BINARY = {
    "sub": "-",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
IN_PLACE = {"add": "+=", "sub": "-=", "mul": "*=", "truediv": "/=", "pow": "**="}
REFUSED = {
    **{f"__{order}{name}__": sign for name, sign in BINARY.items() for order in ("", "r")},
    **{f"__i{name}__": sign for name, sign in IN_PLACE.items()},
    "__invert__": "~",
    "__getitem__": "indexing",
    "__setitem__": "assignment to an index",
}


def open_doors(executor: FusionExecutor) -> None:
    """Give ``executor`` a door for each operator, and for the functions of several tensors."""
    doors = executor._lookasides
    for name, dunders in ARITHMETIC.items():
        forward = located(getattr(TensorProxy, dunders[0]))
        for dunder in dunders:
            original = getattr(TensorProxy, dunder)
            doors[original] = _door(SIGNS[dunder], located(original), forward)
        # A method of a proxy is looked up under Thunder's function, an unbound one under torch's.
        for key in (FUNCTIONS[name], getattr(torch.Tensor, name), _methods[name]):
            doors[key] = _door(f"torch.{name}", located(_functions[FUNCTIONS[name]]), forward)
    doors[F.linear] = _door("F.linear", located(_functions[F.linear]))
    for dunder, sign in REFUSED.items():
        original = getattr(TensorProxy, dunder)
        doors[original] = _door(sign, located(original), refused=True)


def _door(
    name: str,
    original: Callable[..., Any],
    forward: Callable[..., Any] | None = None,
    refused: bool = False,
) -> Callable[..., Any]:
    """``original`` behind a check of its operands; ``forward`` is for a tensor and a number."""

    def door(*args: Any, **kwargs: Any) -> Any:
        _check(name, args, kwargs, refused)
        if forward is not None and len(args) == 2 and not kwargs:
            for a, b in (args, args[::-1]):
                if isinstance(a, DTensorProxy) and isinstance(b, bool | int | float):
                    return forward(a, _of_its_kind(a, b))
        return original(*args, **kwargs)

    return door


def _check(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], refused: bool) -> None:
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, TensorProxy)]
    placed = [t for t in tensors if isinstance(t, DTensorProxy)]
    if not placed:
        return
    operands = " and ".join(map(_operand, tensors))
    if len(placed) < len(tensors):
        raise ExecutorError(
            f"{name} of {operands}: an operation takes DTensors or plain tensors, not both. Make "
            "the plain one a DTensor (torch.distributed.tensor.distribute_tensor before the call, "
            "DTensor.from_local in the function), or the DTensor a plain one (to_local)"
        )
    if refused:
        raise ExecutorError(
            f"{name} of {operands}: for DTensors Thunder 0.2.6 has only {', '.join(SUPPORTED)}. "
            "Write it with these (x - y as x + -1.0 * y, x / y as x * torch.reciprocal(y)), or "
            "compute it on to_local(), or outside of the jitted function"
        )


def _operand(p: TensorProxy) -> str:
    if isinstance(p, DTensorProxy):
        return f"a DTensor ({described(p)}, {described_mesh(p.spec._o.mesh)})"
    return f"a plain tensor ({described(p)})"


def _of_its_kind(a: TensorProxy, number: bool | int | float) -> bool | int | float:
    """An integer beside a tensor of floats is a float to torch."""
    return float(number) if dtypes.is_float_dtype(a.dtype) else number
