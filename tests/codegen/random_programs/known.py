"""What a value of a random program has to be: the eager tensor, the f64 value, the doubt about it.

The doubt of an element follows the operands' doubts by evaluating the op in f64 at the ends of
their intervals, so it knows by itself where a comparison, a floor or a pole makes an element
unpredictable (doubt infinity), and it widens by the rounding of the result's dtype.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# A few units in the last place of the dtype in which an op's result may be kept.
_UNIT = {
    torch.float64: 2.0**-49,
    torch.float32: 2.0**-20,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float8_e4m3fn: 2.0**-3,
    torch.float8_e5m2: 2.0**-2,
}


def unit(dtype: torch.dtype) -> float:
    """How far a rounded number of ``dtype`` may be off, as a part of it."""
    return _UNIT[dtype]


@dataclass(frozen=True)
class Known:
    """``value`` is f64 for floats, else of the eager dtype; ``doubt`` is f64 and at least 0."""

    eager: torch.Tensor
    value: torch.Tensor
    doubt: torch.Tensor

    @property
    def is_float(self) -> bool:
        return self.eager.is_floating_point()

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Known":
        """The same elements elsewhere: ``move`` is a view, a copy or a rearrangement."""
        return Known(move(self.eager), move(self.value), move(self.doubt))


def exactly(eager: torch.Tensor) -> Known:
    """A value that is given, not computed."""
    value = eager.double() if eager.is_floating_point() else eager
    return Known(eager, value, torch.zeros(eager.shape, dtype=torch.float64))


def rounding(value: torch.Tensor, doubt: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``doubt`` with what keeping ``value`` in ``dtype`` adds; infinite where it may overflow."""
    limits = torch.finfo(dtype)
    wider = doubt + value.abs() * _UNIT[dtype] + limits.smallest_normal * _UNIT[dtype]
    over = (value.abs() + wider > limits.max) & value.isfinite()
    wider = torch.where(over, torch.inf, wider)
    return torch.where(value.isfinite(), wider, doubt)


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far two f64 tensors are apart; 0 where both are NaN, infinite where one is."""
    same = (a == b) | (a.isnan() & b.isnan())
    apart = (a - b).abs()
    return torch.where(same, 0.0, torch.where(apart.isnan(), torch.inf, apart))


def elementwise(
    function: Callable[..., torch.Tensor], args: Sequence[Known], eager: torch.Tensor
) -> Known:
    """``function`` of ``args``; ``eager`` is what eager torch made of their eager tensors."""
    value = function(*(a.value for a in args))
    doubt = torch.zeros(value.shape, dtype=torch.float64)
    doubtful = [a for a in args if a.is_float and bool((a.doubt > 0).any())]
    for signs in itertools.product((-1.0, 1.0), repeat=len(doubtful)):
        shift = dict(zip(map(id, doubtful), signs, strict=True))
        corner = function(*(_shifted(a, shift.get(id(a), 0.0)) for a in args))
        doubt = torch.maximum(doubt, distance(corner.double(), value.double()))
    for a in args:
        if not a.is_float:
            doubt = torch.where(a.doubt > 0, torch.inf, doubt)
        doubt = torch.where(a.doubt.isinf(), torch.inf, doubt)
    return settled(value, doubt * 1.1, eager)


def _shifted(a: Known, sign: float) -> torch.Tensor:
    if not sign:
        return a.value
    return a.value + sign * torch.where(a.doubt.isinf(), 0.0, a.doubt)


def settled(value: torch.Tensor, doubt: torch.Tensor, eager: torch.Tensor) -> Known:
    """A result in the eager dtype: rounded, or of no use where an integer may be another one."""
    if eager.is_floating_point():
        value = value.double()
        if eager.dtype is torch.float8_e4m3fn:  # it has no infinities
            value = torch.where(value.isinf(), torch.nan, value)
        return Known(eager, value, rounding(value, doubt, eager.dtype))
    return Known(eager, value.to(eager.dtype), torch.where(doubt > 0, torch.inf, 0.0))


def doubted(x: Known, more: torch.Tensor) -> Known:
    """``x`` with ``more`` doubt."""
    return Known(x.eager, x.value, x.doubt + more)


def cast(x: Known, eager: torch.Tensor) -> Known:
    """``x`` in the dtype of ``eager``."""
    dtype = eager.dtype
    if not x.is_float:
        value = x.value.double() if dtype.is_floating_point else x.value.to(dtype)
        doubt = torch.where(x.doubt > 0, torch.inf, 0.0)
        return settled(value, doubt, eager)
    if dtype.is_floating_point:
        return settled(x.value, x.doubt, eager)
    if dtype == torch.bool:
        unclear = (x.doubt > 0) & (x.value.abs() <= x.doubt)
        unclear |= x.doubt.isinf()
        return Known(eager, x.value != 0, torch.where(unclear, torch.inf, 0.0))
    limits = torch.iinfo(dtype)
    low, high = (x.value - x.doubt).trunc(), (x.value + x.doubt).trunc()
    # What lies outside of the dtype is undefined in torch, and differs between its devices.
    inside = (low >= limits.min) & (high <= min(limits.max, 2**53)) & (low == high)
    value = torch.where(inside, x.value, 0.0).to(dtype)
    return Known(eager, value, torch.where(inside, 0.0, torch.inf))


def where(condition: Known, a: Known, b: Known, eager: torch.Tensor) -> Known:
    """``a`` where the condition holds, else ``b``."""
    value = torch.where(condition.value, a.value, b.value)
    doubt = torch.where(condition.value, a.doubt, b.doubt)
    doubt = torch.where(condition.doubt > 0, torch.inf, doubt)
    return settled(value, doubt, eager)


def reduction(name: str, x: Known, dims: tuple[int, ...], eager: torch.Tensor) -> Known:
    """``sum``, ``prod``, ``amax`` or ``amin`` of ``x`` over ``dims``."""
    if not x.is_float:
        value = _reduced(name, x.value, dims, eager.dtype)
        doubt = _reduced("sum", x.doubt, dims, torch.float64)
        return Known(eager, value, torch.where(doubt > 0, torch.inf, 0.0))
    value = _reduced(name, x.value, dims, torch.float64)
    count = 1
    for d in dims:
        count *= x.value.shape[d]
    # Sums run in f32 (f64 for f64) in an order of the kernel's own.
    step = unit(torch.float64 if eager.dtype is torch.float64 else torch.float32)
    if name == "sum":
        doubt = _reduced("sum", x.doubt, dims, torch.float64)
        doubt = doubt + count * step * _reduced("sum", x.value.abs(), dims, torch.float64)
    elif name == "prod":
        most = _reduced("prod", x.value.abs() + x.doubt, dims, torch.float64)
        doubt = most * (1 + count * step) - value.abs()
    else:
        ends = [_reduced(name, x.value + s * x.doubt, dims, torch.float64) for s in (-1, 1)]
        doubt = torch.maximum(distance(ends[0], value), distance(ends[1], value))
        unclear = _reduced("sum", x.doubt.isinf().double(), dims, torch.float64) > 0
        doubt = torch.where(unclear, torch.inf, doubt)
    doubt = torch.where(doubt.isnan(), torch.inf, doubt)
    if name == "prod":
        # Whether a part of a product overflows depends on the order.
        doubt = torch.where(value.isfinite(), doubt, torch.inf)
        most = _reduced("prod", (x.value.abs() + x.doubt).clamp_min(1), dims, torch.float64)
        limit = torch.finfo(torch.float64 if eager.dtype is torch.float64 else torch.float32).max
        doubt = torch.where(most < limit, doubt, torch.inf)
    elif name == "sum":
        unclear = _reduced("sum", x.doubt.isinf().double(), dims, torch.float64) > 0
        doubt = torch.where(value.isfinite() | unclear, doubt, 0.0)
    return settled(value, doubt, eager)


def _reduced(name: str, x: torch.Tensor, dims: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The reduction over ``dims``, none of which is no reduction."""
    if not dims:
        return x.to(dtype)
    if name == "sum":
        return x.sum(dims, dtype=dtype)
    if name == "prod":
        for d in sorted(dims, reverse=True):
            x = x.prod(d, dtype=dtype)
        return x
    return torch.amax(x, dims) if name == "amax" else torch.amin(x, dims)


def faults(found: torch.Tensor, known: Known) -> str | None:
    """What is wrong with ``found``, or None."""
    eager = known.eager
    if found.dtype is not eager.dtype or found.shape != eager.shape:
        return f"{found.dtype}{list(found.shape)} instead of {eager.dtype}{list(eager.shape)}"
    if found.stride() != eager.stride():
        return f"strides {found.stride()} instead of {eager.stride()}"
    off = distance(found.double(), known.value.double())
    # With an infinite doubt anything is right; a doubt about a NaN or an infinity allows none.
    wrong = (off > known.doubt) & ~known.doubt.isinf()
    if not bool(wrong.any()):
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {found.numel()} elements, first at {at}: {found[at].item()} "
        f"instead of {known.value[at].item()}, {known.doubt[at].item()} either way"
    )
