"""Standard normal numbers in kernels, against Box and Muller in numpy from the paper's words."""

import numpy as np
import pytest
import torch
from codegen.goldens import run
from codegen.random_programs.philox import words

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES

SEED, OFFSET = 1234, 99
TOLERANCES = {DType.F64: 1e-13, DType.F32: 2e-6, DType.BF16: 1e-2, DType.F16: 2e-3}


def _units(count: int, double: bool) -> np.ndarray:
    """The uniform numbers of all elements, in f64."""
    index = np.arange(count, dtype=np.uint64)
    each = np.uint64(2 if double else 4)
    drawn = words(SEED, OFFSET, index // each)
    place, every = (index % each).astype(np.int64), np.arange(count)
    if not double:
        return (drawn[place, every] >> np.uint64(8)).astype(np.float64) * 2.0**-24
    high, low = drawn[2 * place, every], drawn[2 * place + 1, every]
    return ((high << np.uint64(32) | low) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _expected(count: int, double: bool) -> np.ndarray:
    units = _units(count + count % 2, double).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log(1 - units[:, 0])), 2 * np.pi * units[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:count]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda d: d.text)
@pytest.mark.parametrize("shape", [(3, 7), (64,), (1,), (5, 40)], ids=str)
def test_each_element_has_its_own_words(dtype: DType, shape: tuple[int, ...]) -> None:
    b = Builder(None, "local")
    state = (b.const(SEED), b.const(OFFSET))
    (x,) = b.op("normal", state, at.PhiloxAttrs(shape, dtype))
    (found,) = run(b.finish((x,)), [])
    assert found.dtype is TORCH_DTYPES[dtype] and found.shape == shape
    expected = torch.from_numpy(_expected(found.numel(), dtype is DType.F64)).view(shape)
    bound = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
