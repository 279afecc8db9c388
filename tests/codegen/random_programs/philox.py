"""Philox4x32-10 in numpy, from the paper (Salmon et al., SC 2011), apart from the package's own."""

import math

import numpy as np
import torch

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def words(seed: int, subsequence: int, offsets: np.ndarray) -> np.ndarray:
    """The four 32-bit words of each counter (``offsets`` below, ``subsequence`` above)."""
    counter = [
        offsets & _LOW,
        offsets >> _HALF,
        np.full_like(offsets, subsequence & 0xFFFFFFFF),
        np.full_like(offsets, (subsequence >> 32) & 0xFFFFFFFF),
    ]
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        first = counter[0] * np.uint64(0xD2511F53)
        second = counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (second >> _HALF) ^ counter[1] ^ np.uint64(key[0]),
            second & _LOW,
            (first >> _HALF) ^ counter[3] ^ np.uint64(key[1]),
            first & _LOW,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(counter)


def uniform_numbers(
    shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float, seed: int, offset: int
) -> torch.Tensor:
    """A tensor of uniform numbers: 4 elements a block, or 2 of f64."""
    count = math.prod(shape)
    index = np.arange(count, dtype=np.uint64)
    each = 2 if dtype is torch.float64 else 4
    drawn = words(seed, offset, index // np.uint64(each))
    place, every = (index % np.uint64(each)).astype(np.int64), np.arange(count)
    if dtype is torch.float64:
        high_word, low_word = drawn[2 * place, every], drawn[2 * place + 1, every]
        unit = ((high_word << _HALF | low_word) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return torch.empty(shape, dtype=dtype).copy_(_tensor(low + unit * (high - low), shape))
    unit = (drawn[place, every] >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    numbers = np.float32(low) + unit * np.float32(high - low)
    return torch.empty(shape, dtype=dtype).copy_(_tensor(numbers, shape))


def _tensor(numbers: np.ndarray, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(numbers).reshape(shape)
