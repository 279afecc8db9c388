"""Sizes made concrete: symbols from the shapes of actual inputs, attribute records with integers.

``bind`` and ``check`` are given what a program was called with and say in one error what was found
and what was needed; ``evaluate_attrs`` turns every size of a record into an int.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import torch

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import Attrs
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.sizes import Expr, Size, Sym
from thunder_mdfuse.ir.types import DType, ScalarType, TensorType
from thunder_mdfuse.runtime.dtypes import IR_DTYPES, TORCH_DTYPES

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "complex": (complex, float, int),
}


def bind(
    fusion: Fusion, inputs: Sequence[Any], symbols: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The value of every size symbol that the shapes of ``inputs`` fix, added to ``symbols``.

    An input dim that is one symbol (times and plus integers) fixes it; every other dim is then
    checked. Raises ``ProgramError`` when ``inputs`` do not fit the signature.
    """
    if len(inputs) != len(fusion.inputs):
        raise ProgramError(f"the program takes {len(fusion.inputs)} inputs, found {len(inputs)}")
    found = dict(symbols or {})
    pairs = [(i, fusion.nodes[n].types[0], inputs[i]) for i, n in enumerate(fusion.inputs)]
    for i, t, value in pairs:
        _check_kind(i, t, value)
        if isinstance(t, TensorType):
            for size, extent in zip(t.shape, value.shape, strict=True):
                _solve(size, extent, found)
    for i, t, value in pairs:
        if isinstance(t, TensorType):
            _check_shape(i, t, value, found)
    return found


def _check_kind(i: int, t: TensorType | ScalarType, value: Any) -> None:
    if isinstance(t, ScalarType):
        if type(value) not in _PYTHON_TYPES[t.dtype.kind]:
            raise ProgramError(f"input {i} must be a number of dtype {t}, found {described(value)}")
        return
    if not isinstance(value, torch.Tensor):
        raise ProgramError(f"input {i} must be a tensor {t}, found {described(value)}")
    if (value.ndim, value.dtype) != (t.ndim, TORCH_DTYPES[t.dtype]):
        do = f"cast it to {TORCH_DTYPES[t.dtype]}" if value.ndim == t.ndim else "reshape it"
        raise ProgramError(f"input {i} must be a tensor {t}, found {described(value)}; {do}")


def _solve(size: Size, extent: int, found: dict[str, int]) -> None:
    """Note the value of the symbol of ``size`` where ``size`` is ``k*symbol + c`` and it is new."""
    if not isinstance(size, Expr):
        return
    bare = [m[0] for m, _ in size.terms if len(m) == 1 and isinstance(m[0], Sym)]
    constant = sum(c for m, c in size.terms if not m)
    if len(bare) != 1 or len(size.terms) > (2 if constant else 1) or bare[0].name in found:
        return
    scale = next(c for m, c in size.terms if m)
    if scale and (extent - constant) % scale == 0 and (extent - constant) // scale >= 0:
        found[bare[0].key] = (extent - constant) // scale


def _check_shape(i: int, t: TensorType, value: torch.Tensor, found: Mapping[str, int]) -> None:
    unknown = sorted({n for s in t.shape for n in sizes.symbols(s)} - found.keys())
    if unknown:
        raise ProgramError(
            f"input {i} of type {t}: the shape {list(value.shape)} does not tell "
            f"{', '.join(unknown)}; make each symbol a dim of some input, or pass its value"
        )
    needed = [sizes.evaluate(s, found) for s in t.shape]
    if needed != list(value.shape):
        values = ", ".join(f"{n}={found[n]}" for s in t.shape for n in sorted(sizes.symbols(s)))
        raise ProgramError(
            f"input {i} must have shape {needed} ({t}" + (f" with {values}" if values else "") + ")"
            f", found {list(value.shape)}"
        )


def described(value: Any) -> str:
    """What a value that was given is, as the types of programs are written: ``f32[2, 3]``."""
    if isinstance(value, torch.Tensor):
        return f"{IR_DTYPES.get(value.dtype, value.dtype)}{list(value.shape)}"
    return f"{value!r} of type {type(value).__name__}"


def evaluate_attrs(attrs: Attrs, symbols: Mapping[str, int]) -> Any:
    """``attrs`` with every size an int, and this rank's ``position`` filled in where it has one."""
    changes: dict[str, Any] = {}
    record: Any = type(attrs)
    names = _names(record)
    for name in names:
        value = getattr(attrs, name)
        concrete = _evaluate(value, symbols)
        if concrete is not value:
            changes[name] = concrete
    team = f"@{getattr(attrs, 'team', '')}"
    if "position" in names and team in symbols:
        changes["position"] = symbols[team]
    return replace(attrs, **changes) if changes else attrs


def _evaluate(value: Any, symbols: Mapping[str, int]) -> Any:
    if isinstance(value, Expr):
        return sizes.evaluate(value, symbols)
    if isinstance(value, tuple) and any(isinstance(item, Expr) for item in value):
        return tuple(_evaluate(item, symbols) for item in value)
    return value


@cache
def _names(record: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record))


def python_number(
    value: bool | int | float | complex, dtype: DType
) -> bool | int | float | complex:
    """``value`` as the Python number that a scalar of ``dtype`` is."""
    if isinstance(value, complex):
        value = value if dtype.is_complex else value.real
    if dtype.is_complex or isinstance(value, complex):
        return complex(value)
    if dtype.is_float:
        return float(value)
    return bool(value) if dtype is DType.BOOL else int(value)
