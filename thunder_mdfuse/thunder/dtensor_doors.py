"""Doors for DTensors: every torch function, method and operator that Thunder has for tensors.

A call with a DTensor among its arguments becomes a twin (``dtensor_twins.py``); all others go where
they went before. A plain tensor beside DTensors is taken for the same on all ranks.
"""

from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core import prims
from thunder.core.jit_ext import record_source_loc_in_symbol_header as located
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import FusionExecutor
from thunder.torch import _torch_to_thunder_function_map as _functions
from thunder.torch.experimental import dtensor_torch_and_prims as stock
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.langctx import _method_name_to_fn_map as _methods
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.thunder import dtensor_eager as eager
from thunder_mdfuse.thunder import dtensor_twins as twins

_BOTH = "add sub mul truediv floordiv pow matmul and or xor lshift rshift"
OPERATORS = (
    *(f"__{order}{name}__" for name in _BOTH.split() for order in ("", "r")),
    *(f"__i{name}__" for name in ["add", "sub", "mul", "truediv", "pow"]),
    *("__neg__", "__invert__", "__abs__", "__getitem__", "__setitem__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
# Types of torch's functions and methods that Thunder may have no symbol for, as torch.rms_norm.
_TORCHS_OWN = (BuiltinFunctionType, MethodDescriptorType)
_OPAQUE = ("torch.utils.checkpoint", "torch.autograd")


def open_doors(executor: FusionExecutor) -> None:
    """Give ``executor`` a door for each function, method and operator of tensors."""
    doors = executor._lookasides
    for own in [f for f in doors if isinstance(f, _TORCHS_OWN) and f not in _functions]:
        doors[own] = _door(executor, own, doors[own], doors[own])
    for function, found in list(_functions.items()):
        module = str(getattr(function, "__module__", ""))
        plain = _dispatched(function, found) or found
        stocked = str(getattr(plain, "id", "")).startswith("dtensor.")
        opaque = module.startswith(_OPAQUE) or isinstance(function, torch._ops.HigherOrderOperator)
        if not stocked and not opaque:
            doors[function] = _door(executor, function, plain, doors.get(function))
    for name, method in list(_methods.items()):
        function = getattr(torch.Tensor, name, None)
        if function is not None and callable(function):
            plain = _dispatched(function, method) or method
            doors[method] = _door(executor, function, plain, doors.get(method))
    for name in OPERATORS:
        original = getattr(TensorProxy, name, None)
        if original is not None and hasattr(torch.Tensor, name):
            function = _assigned if name == "__setitem__" else getattr(torch.Tensor, name)
            doors[original] = _door(executor, function, original)
    for name in ("T", "mT", "real", "imag"):
        read = getattr(TensorProxy, name).fget
        doors[read] = _door(executor, _reader(name), read)
    known = doors[TensorProxy.float]
    doors[TensorProxy.float] = _door(executor, torch.Tensor.float, known, known)
    _open_placement_doors(executor)


def _assigned(x: Any, key: Any, value: Any) -> Any:
    """Python's assignment to an index, which returns the tensor as Thunder's symbol does."""
    x[key] = value
    return x


def _reader(name: str) -> Callable[..., Any]:
    """What reads the attribute ``name`` of a torch tensor."""

    def read(x: Any) -> Any:
        return getattr(x, name)

    read.__name__ = name
    return read


def _dispatched(function: Any, found: Any) -> Any:
    """Thunder's symbol for plain tensors, where it has a DTensor's beside it."""
    stocked = getattr(found, "__qualname__", "").startswith("dispatch_to_impl")
    return getattr(ltorch, function.__name__) if stocked else None


def _door(
    executor: FusionExecutor,
    function: Callable[..., Any],
    plain: Callable[..., Any],
    known: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """``plain`` behind a look at its arguments; ``known``: the door that it had before."""
    otherwise = known or located(plain)

    def door(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, DTensorProxy) for x in tree_flatten((args, kwargs))[0]):
            return twins.call(executor, function, known or plain, args, kwargs)
        return otherwise(*args, **kwargs)

    return door


def _open_placement_doors(executor: FusionExecutor) -> None:
    """What only DTensors have."""
    doors = executor._lookasides

    def redistribute(
        x: Any, device_mesh: Any = None, placements: Any = None, *, async_op: bool = False
    ) -> Any:
        kwargs = {"device_mesh": device_mesh, "placements": placements}
        return twins.call(executor, DTensor.redistribute, _same, (x,), kwargs)

    def full_tensor(x: Any, *, grad_placements: Any = None) -> Any:
        whole = redistribute(x, None, [Replicate()] * twins.mesh_in([x]).ndim)
        return stock.dtensor_to_local_prim(whole, grad_placements=grad_placements)

    for key in (DTensor.redistribute, DTensorProxy.redistribute):
        doors[key] = redistribute
    doors[DTensor.full_tensor] = doors[full_tensor] = full_tensor
    _methods["full_tensor"] = full_tensor
    doors[DTensorProxy.placements.fget] = lambda x: tuple(x.spec._o.placements)
    doors[DTensorProxy.device_mesh.fget] = lambda x: x.spec._o.mesh
    executor.register_supported("dtensor_to_local", None, grad_transform=_to_local_rule)
    executor.register_supported(
        "dtensor_from_local", None, grad_transform=_from_local_rule(executor)
    )


def _same(x: Any, **_: Any) -> Any:
    return prims.shallow_copy(x)


def _to_local_rule(x: Any, *, grad_placements: Any = None) -> Any:
    out = stock.dtensor_to_local_prim(x, grad_placements=grad_placements)
    spec = x.spec._o
    placements = tuple(grad_placements or eager.of_cotangent(spec).placements)
    shape, stride = torch.Size(spec.shape), tuple(spec.tensor_meta.stride)
    g = stock.dtensor_from_local_prim(
        get_grad(out), spec.mesh, list(placements), run_check=False, shape=shape, stride=stride
    )
    put_grad(x, g)
    return out


def _from_local_rule(executor: FusionExecutor) -> Callable[..., Any]:
    def rule(x: Any, mesh: Any, placements: Any, **kwargs: Any) -> Any:
        out = stock.dtensor_from_local_prim(x, mesh, placements, **kwargs)
        spec: DTensorSpec = eager.of_cotangent(out.spec._o)
        g = get_grad(out)
        where = {"placements": list(spec.placements)}
        aligned = twins.call(executor, DTensor.redistribute, _same, (g,), where)
        put_grad(x, stock.dtensor_to_local_prim(aligned))
        return out

    return rule
