"""Which reductions a backend may do itself, and how the others are folded here.

In: a dtype and a reduction. Out: the backend's own ``ReduceOp``, or the function that folds the
gathered contributions of all ranks. Results equal torch's reduction over the stacked
contributions: sums and products of small integers wrap, a NaN anywhere makes min and max NaN.
Backends do not promise that: gloo's max of (nan, 1) depends on the order of the ranks and NCCL's
drops the NaN, neither adds i16, and complex numbers have no product. Such cases move bytes, like
an all_gather or all_to_all, and fold with torch; they are rare, and exact in every dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist

from thunder_mdfuse.errors import CommError

OPS = ("sum", "avg", "min", "max", "product")

_F8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)
_SMALL_INTS = (torch.bool, torch.int8, torch.uint8, torch.int16)
_INTS = (torch.int32, torch.int64)

# What gloo and NCCL both do as torch would.
_NATIVE: dict[str, tuple[torch.dtype, ...]] = {
    "sum": (*_FLOATS, *_COMPLEX, *_INTS),
    "avg": (*_FLOATS, *_COMPLEX),
    "min": (torch.int8, torch.uint8, *_INTS),
    "max": (torch.int8, torch.uint8, *_INTS),
    "product": (*_FLOATS, *_INTS),
}

_REDUCE_OPS: dict[str, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}

_WITH_AVERAGE = ("gloo", "nccl")


@dataclass(frozen=True)
class Native:
    """The backend reduces with ``op``; the result is divided by ``divisor`` if that is not 1."""

    op: dist.ReduceOp.RedOpType
    divisor: int = 1


@dataclass(frozen=True)
class Folded:
    """Contributions are stacked on dimension 0 and ``fold`` reduces that dimension."""

    fold: Callable[[torch.Tensor], torch.Tensor]


@lru_cache(maxsize=1024)
def reduction(dtype: torch.dtype, op: str, backend: str, size: int) -> Native | Folded:
    """How ``size`` contributions of ``dtype`` are reduced by ``op`` on ``backend``.

    ``CommError`` for what has no meaning: sums in 8-bit floats, averages of integers, an order of
    complex numbers.
    """
    _check(dtype, op)
    if dtype not in _NATIVE[op]:
        return Folded(_FOLDS[op])
    if op == "avg" and backend not in _WITH_AVERAGE:
        return Native(dist.ReduceOp.SUM, divisor=size)
    return Native(_REDUCE_OPS[op])


def _check(dtype: torch.dtype, op: str) -> None:
    if op not in OPS:
        raise CommError(f"unknown reduction {op!r}; needed one of {', '.join(OPS)}")
    if dtype in _F8 and op not in ("min", "max"):
        raise CommError(
            f"{op} over ranks in {dtype} is not done: every partial result would be rounded to "
            "8 bits; cast to bfloat16 or float32 before the reduction"
        )
    if op == "avg" and dtype not in (*_FLOATS, *_COMPLEX):
        raise CommError(f"avg over ranks needs a floating dtype, found {dtype}; use sum, or cast")
    if op in ("min", "max") and dtype in _COMPLEX:
        raise CommError(f"{op} over ranks needs an ordered dtype, found {dtype}")
    if dtype not in (*_F8, *_FLOATS, *_COMPLEX, *_SMALL_INTS, *_INTS):
        raise CommError(f"{op} over ranks is not done in {dtype}; cast to a supported dtype")


def _total(stack: torch.Tensor) -> torch.Tensor:
    # Small integers only: a 64-bit sum truncated to the dtype is the sum that wrapped at each step.
    return stack.any(0) if stack.dtype == torch.bool else stack.sum(0).to(stack.dtype)


def _product(stack: torch.Tensor) -> torch.Tensor:
    if stack.dtype == torch.bool:
        return stack.all(0)
    wide = None if stack.dtype in _COMPLEX else torch.int64
    return stack.prod(0, dtype=wide).to(stack.dtype)


def _extreme(pick: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def fold(stack: torch.Tensor) -> torch.Tensor:
        # torch has no comparisons of 8-bit floats; f32 holds them exactly.
        wide = stack.float() if stack.dtype in _F8 else stack
        return pick(wide, 0).to(stack.dtype)

    return fold


_FOLDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": _total,
    "min": _extreme(torch.amin),
    "max": _extreme(torch.amax),
    "product": _product,
}
