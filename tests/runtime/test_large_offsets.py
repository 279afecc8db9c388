"""Offsets past 2**31 in little memory: rows far apart in a mapping that is mostly unused."""

import pytest
import torch

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder
from thunder_mdfuse.ir.types import DType, TensorType

FAR = (1 << 31) + 64
DTYPES = {DType.U8: torch.uint8, DType.BF16: torch.bfloat16}


def _far_rows(dtype: torch.dtype, columns: int) -> torch.Tensor:
    """Two rows, the second beyond what 32 bits reach; only the pages that they touch exist."""
    whole = torch.empty(FAR + columns, dtype=dtype)
    x = whole.as_strided((2, columns), (FAR, 1))
    x.copy_(torch.arange(2 * columns).view(2, columns) % 100)
    return x


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "1")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.text)
def test_elements_are_read_where_they_are(dtype: DType) -> None:
    b = Builder(None, "local")
    x = b.input(TensorType(dtype, (2, 48)))
    (y,) = b.op("add", (x, x))
    (turned,) = b.op("permute", (x,), at.DimsAttrs((1, 0)))
    (z,) = b.op("mul", (turned, b.const(3)))
    given = _far_rows(DTYPES[dtype], 48)
    found = Executable(b.finish((y, z)), "far").run([given])
    assert torch.equal(found[0], given + given) and torch.equal(found[1], given.t() * 3)


@pytest.mark.parametrize("dim", [0, 1])
def test_rows_and_columns_are_summed(dim: int) -> None:
    b = Builder(None, "local")
    x = b.input(TensorType(DType.U8, (2, 96)))
    (wide,) = b.op("cast", (x,), at.CastAttrs(DType.I64))
    (total,) = b.op("sum", (wide,), at.DimsAttrs((dim,)))
    given = _far_rows(torch.uint8, 96)
    (found,) = Executable(b.finish((total,)), "far_sums").run([given])
    assert torch.equal(found, given.sum(dim))


def test_an_index_reaches_beyond() -> None:
    b = Builder(None, "local")
    x = b.input(TensorType(DType.U8, (2, 32)))
    index = b.input(TensorType(DType.I64, (3,)))
    (rows,) = b.op("take", (x, index), at.DimAttrs(0))
    given, which = _far_rows(torch.uint8, 32), torch.tensor([1, 0, 1])
    (found,) = Executable(b.finish((rows,)), "far_take").run([given, which])
    assert torch.equal(found, given[which])
