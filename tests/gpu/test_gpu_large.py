"""Tensors of more than 2**31 elements: every family's offsets in 64 bits."""

from collections.abc import Callable

import pytest
import torch
from thunder import jit

from thunder_mdfuse import mdfuse_executor

pytestmark = pytest.mark.gpu
ROWS, COLUMNS = (1 << 16) + 3, 1 << 15  # 2**31 + 98304 elements


@pytest.fixture
def x() -> torch.Tensor:
    needed = 6 * ROWS * COLUMNS
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free GPU memory")
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.empty(ROWS, COLUMNS, device="cuda", dtype=torch.uint8)
    return x.random_(0, 100, generator=generator)


def _equal(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    found = jit(function, executors=[mdfuse_executor])(*inputs)
    expected = function(*inputs)
    assert found.dtype is expected.dtype and found.stride() == expected.stride()
    # In pieces: a mask of all elements would be as large as the tensors again.
    if found.ndim < 2:
        torch.testing.assert_close(found, expected)
        return
    for a, b in zip(found.split(4096), expected.split(4096), strict=True):
        assert torch.equal(a, b)


def test_pointwise(x: torch.Tensor) -> None:
    _equal(lambda a: a * 2 + 1, x)


def test_rows(x: torch.Tensor) -> None:
    _equal(lambda a: a.sum(1), x)


def test_columns(x: torch.Tensor) -> None:
    _equal(lambda a: a.sum(0), x)


def test_all(x: torch.Tensor) -> None:
    _equal(lambda a: a.sum(), x)


def test_transposed(x: torch.Tensor) -> None:
    _equal(lambda a: (a + 1).t().contiguous(), x)


def test_gathered(x: torch.Tensor) -> None:
    index = torch.tensor([ROWS - 1, 0, ROWS - 2], device="cuda")
    _equal(lambda a, i: torch.index_select(a, 0, i) + 1, x, index)


def test_scanned(x: torch.Tensor) -> None:
    _equal(lambda a: torch.cumsum(a[-8:], 1), x)
