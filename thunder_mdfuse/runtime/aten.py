"""The torch-call table: one row per op of ``ir/ops.py``, meaning what the eager function means.

A row is called with the operands (tensors or Python numbers), the attribute record with every size
an int (``binding.evaluate_attrs``), the dtypes of the results, and, for ops without a tensor
operand, the device. It returns a tuple of results. Views share their operand's storage as torch's
do; everything else is fresh. A number beside a tensor is a Python scalar to torch; numbers alone
are computed as 0-dim f64, i64 or bool tensors and come back as numbers. ``reference.py`` runs
programs with these rows, and the ATen steps of every backend are these rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir.graph import number
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime import aten_index, aten_matmul, aten_shape
from thunder_mdfuse.runtime.binding import python_number
from thunder_mdfuse.runtime.dtypes import IR_DTYPES as IR_DTYPES
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES as TORCH_DTYPES

Args = Sequence[Any]


class Call(Protocol):
    """A row: operands, evaluated attributes, result dtypes and device in, results out."""

    def __call__(
        self, args: Args, attrs: Any, dtypes: Sequence[DType], device: torch.device | None = None
    ) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class NotCalled:
    """The row of an op that no torch call stands for; ``reason`` says who executes it."""

    reason: str

    def __call__(
        self, args: Args, attrs: Any, dtypes: Sequence[DType], device: torch.device | None = None
    ) -> tuple[Any, ...]:
        raise ProgramError(f"this op has no torch call: {self.reason}")


ATEN: dict[str, Call] = {}


def _row(name: str, function: Callable[[Args, Any, Sequence[DType], Any], Any]) -> None:
    """A row whose function returns its only result."""
    ATEN[name] = lambda args, attrs, dtypes, device=None: (function(args, attrs, dtypes, device),)


def _elementwise(name: str, function: Callable[..., torch.Tensor], numbers: bool = True) -> None:
    """``numbers``: ``function`` takes Python scalars beside tensors, else they become tensors."""

    def call(
        args: Args, attrs: Any, dtypes: Sequence[DType], device: torch.device | None = None
    ) -> tuple[Any, ...]:
        like = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if like is None:
            result = function(*(_as_tensor(a) for a in args))
            return (python_number(result.item(), dtypes[0]),)
        return (function(*(_beside(a, like, numbers) for a in args)),)

    ATEN[name] = call


def _as_tensor(value: Any) -> torch.Tensor:
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    return torch.tensor(value, dtype=kinds[type(value)])


def _beside(value: Any, like: torch.Tensor, numbers: bool) -> Any:
    """A number as what the tensor ``like`` makes of it: never a reason to promote the tensor."""
    if isinstance(value, torch.Tensor):
        return value
    value = python_number(value, IR_DTYPES[like.dtype]) if _promotes(value, like.dtype) else value
    return value if numbers else torch.tensor(value, dtype=like.dtype, device=like.device)


def _promotes(value: bool | int | float | complex, dtype: torch.dtype) -> bool:
    if isinstance(value, complex):
        return not dtype.is_complex
    if isinstance(value, float):
        return not (dtype.is_floating_point or dtype.is_complex)
    return dtype == torch.bool and not isinstance(value, bool)


def _named(names: str, numbers: bool = True) -> None:
    for name in names.split():
        _elementwise(name, getattr(torch, name), numbers)


_named(
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma floor ceil round trunc frac sign "
    "bitwise_not digamma isfinite isnan isinf signbit logical_not real imag"
)
# Torch has these for tensors only, or only with a tensor first.
_named("atan2 nextafter maximum minimum copysign gcd logical_and logical_or fmod", numbers=False)


def _in_f32(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``function``, which torch does not have for half types, computed in f32 and rounded."""

    def call(*args: Any) -> torch.Tensor:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        half = tensors[0].dtype in (torch.float16, torch.bfloat16)
        wide = [a.float() if half and isinstance(a, torch.Tensor) else a for a in args]
        result = function(*wide)
        return result.to(tensors[0].dtype) if half else result

    return call


def _div(a: Any, b: Any) -> torch.Tensor:
    """True division of floats, of integers rounded towards zero (Thunder's ``prims.div``)."""
    dtype = next(x for x in (a, b) if isinstance(x, torch.Tensor)).dtype
    exact = not (dtype.is_floating_point or dtype.is_complex)
    return torch.div(a, b, rounding_mode="trunc") if exact else torch.true_divide(a, b)


_elementwise("div", _div)
_elementwise("floor_div", torch.floor_divide)
_elementwise("trunc_div", lambda a, b: torch.div(a, b, rounding_mode="trunc"))
_elementwise("shift_left", torch.bitwise_left_shift)
_elementwise("shift_right", torch.bitwise_right_shift)
_elementwise("ndtri", _in_f32(torch.special.ndtri))
_elementwise("zeta", _in_f32(torch.special.zeta))
_elementwise("mantissa", lambda x: torch.frexp(x).mantissa)
_elementwise("exponent", lambda x: torch.frexp(x).exponent)
# erfc(y) = x means y = -ndtri(x / 2) / sqrt(2): precise near 0, where erfinv(1 - x) is not.
_elementwise("erfcinv", _in_f32(lambda x: torch.special.ndtri(x * 0.5) * -(0.5**0.5)))
# Operators, not torch's functions: with a number first they do what a user's ``0.1 * x`` does,
# where ``torch.mul(0.1, x)`` would round the number to a half type and ``torch.lt`` refuse it.
_elementwise("add", lambda a, b: a + b)
_elementwise("sub", lambda a, b: a - b)
_elementwise("mul", lambda a, b: a * b)
_elementwise("pow", lambda a, b: a**b)
_elementwise("remainder", lambda a, b: a % b)
_elementwise("bitwise_and", lambda a, b: a & b)
_elementwise("bitwise_or", lambda a, b: a | b)
_elementwise("bitwise_xor", lambda a, b: a ^ b)
_elementwise("eq", lambda a, b: a == b)
_elementwise("ne", lambda a, b: a != b)
_elementwise("lt", lambda a, b: a < b)
_elementwise("le", lambda a, b: a <= b)
_elementwise("gt", lambda a, b: a > b)
_elementwise("ge", lambda a, b: a >= b)


def _lerp(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> Any:
    like = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if like is None:
        return torch.lerp(*map(_as_tensor, args)).item()
    a, b = (_beside(x, like, numbers=False) for x in args[:2])
    return torch.lerp(a, b, args[2])


def _where(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> Any:
    condition, a, b = args
    if not any(isinstance(x, torch.Tensor) for x in args):
        return a if condition else b
    like = next(x for x in args if isinstance(x, torch.Tensor))
    if not isinstance(condition, torch.Tensor):
        condition = torch.tensor(condition, device=like.device)
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        other = a if isinstance(a, torch.Tensor) else b
        return torch.where(condition, _beside(a, other, True), _beside(b, other, True))
    a, b = (torch.tensor(x, dtype=TORCH_DTYPES[dtypes[0]], device=like.device) for x in (a, b))
    return torch.where(condition, a, b)


def _cast(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> Any:
    (x,) = args
    if not isinstance(x, torch.Tensor):
        x = x.real if isinstance(x, complex) and not attrs.dtype.is_complex else x
        return python_number(_as_tensor(x).to(TORCH_DTYPES[attrs.dtype]).item(), attrs.dtype)
    # Torch warns where it drops imaginary parts; here the program says so.
    x = x.real if x.is_complex() and not attrs.dtype.is_complex else x
    return x.to(TORCH_DTYPES[attrs.dtype], copy=True)


_row("lerp", _lerp)
_row("where", _where)
_row("cast", _cast)
_row("const", lambda args, attrs, dtypes, device: number(attrs))
_row("size", lambda args, attrs, dtypes, device: attrs.size)
for _op, _call in (aten_shape.ROWS | aten_index.ROWS | aten_matmul.ROWS).items():
    ATEN[_op] = _call

ATEN["input"] = NotCalled("inputs are given by the caller")
for _op in ("from_local", "to_local", "reshard"):
    ATEN[_op] = NotCalled("it ends with the localize stage, before anything is executed")
_COLLECTIVES = "all_gather all_reduce reduce_scatter all_to_all broadcast permute_ranks wait"
for _op in _COLLECTIVES.split():
    ATEN[_op] = NotCalled("collectives are started and waited for by the program")
