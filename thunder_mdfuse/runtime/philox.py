"""Random numbers of the IR's ``uniform`` and ``normal``, in torch ops: for uniform ones the same
bits on every backend.

This is the one definition of which element gets which bits; ``csrc/device/philox.cuh`` and the
generated kernels follow it. Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011) is a function of a
64-bit key and a 128-bit counter, and gives four 32-bit words. The key is the seed; the high half of
the counter is the offset. The element with linear index ``i`` in the whole tensor has

* f16, bf16, f32: ``i // 4`` for the counter's low half, of the words ``w`` number ``i % 4``, and
  ``u = (w >> 8) * 2**-24``;
* f64: ``i // 2`` for the low half, the words ``a, b`` number ``2*(i % 2)`` and the next, and
  ``u = ((a << 32 | b) >> 11) * 2**-53``.

In CUDA that is ``mdf::philox(seed, /*subsequence*/ offset, /*offset*/ i / 4)``. The number is
``low + u * (high - low)`` in f32 (f64 for f64), each of the three operations rounded, no fused
multiply-add; then rounded to the dtype.
"""

import math
from collections.abc import Sequence

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def words(
    seed: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four 32-bit words, as i64, for key ``seed`` and the counter with these 64-bit halves."""
    c0, c1 = low & _MASK, (low >> 32) & _MASK
    c2, c3 = high & _MASK, (high >> 32) & _MASK
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _product(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of ``a * b``, by halves of ``b``: an i64 product would overflow."""
    below, above = a * (b & 0xFFFF), a * (b >> 16)
    middle = above + (below >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (below & 0xFFFF)


def uniform(
    seed: torch.Tensor,
    offset: torch.Tensor,
    index: torch.Tensor,
    dtype: torch.dtype,
    low: float,
    high: float,
) -> torch.Tensor:
    """The numbers in [low, high) of the elements whose linear indices are ``index`` (i64)."""
    if dtype == torch.float64:
        four = torch.stack(words(seed, index // 2, offset.expand_as(index)))
        first = 2 * (index % 2)
        a = four.gather(0, first.unsqueeze(0)).squeeze(0)
        b = four.gather(0, (first + 1).unsqueeze(0)).squeeze(0)
        # (a << 32 | b) >> 11 without the sign bit of an i64.
        unit = ((a << 21) | (b >> 11)).to(torch.float64) * 2.0**-53
        return unit * (high - low) + low
    four = torch.stack(words(seed, index // 4, offset.expand_as(index)))
    word = four.gather(0, (index % 4).unsqueeze(0)).squeeze(0)
    unit = (word >> 8).to(torch.float32) * 2.0**-24
    first, last = (torch.tensor(x, dtype=torch.float32) for x in (low, high))
    return (unit * (last - first).item() + first.item()).to(dtype)


def normal(
    seed: torch.Tensor, offset: torch.Tensor, index: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Standard normal numbers (Box and Muller 1958) of the elements with linear indices ``index``.

    Pairs of elements share the words of two uniform numbers: the even one is ``r * cos(a)``, the
    odd one ``r * sin(a)`` with ``r = sqrt(-2 log(1 - u))`` and ``a = 2 pi v``.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    first = index - index % 2
    u, v = (uniform(seed, offset, first + k, wide, 0.0, 1.0) for k in (0, 1))
    radius, angle = torch.sqrt(-2 * torch.log(1 - u)), 2 * math.pi * v
    odd = index % 2 == 1
    return torch.where(odd, radius * torch.sin(angle), radius * torch.cos(angle)).to(dtype)


def linear_index(
    shape: Sequence[int], whole: Sequence[int], starts: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Linear indices in a tensor of shape ``whole`` of its block of ``shape`` at ``starts``."""
    if not whole:
        count = 1
        for size in shape:
            count *= size
        return torch.arange(count, device=device).view(tuple(shape))
    index = torch.zeros((), dtype=torch.int64, device=device)
    for size, extent, start in zip(shape, whole, starts, strict=True):
        index = (index * extent).unsqueeze(-1) + torch.arange(start, start + size, device=device)
    return index
