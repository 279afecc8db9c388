"""Scans in kernels: against eager torch, in all the ways that a row is shared among threads."""

from collections.abc import Callable

import pytest
import torch
from codegen.goldens import plan, run
from schedule.programs import tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES

EAGER: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "cumsum": lambda x, d: torch.cumsum(x, d, dtype=x.dtype),
    "cumprod": lambda x, d: torch.cumprod(x, d, dtype=x.dtype),
    "cummax": lambda x, d: torch.cummax(x, d).values,
    "cummin": lambda x, d: torch.cummin(x, d).values,
}
# Rows within a quarter warp, a warp, a block, several chunks; scanned across memory; odd and empty.
SHAPES = [
    ((3, 8), 1),
    ((5, 33), 1),
    ((1, 1), 1),
    ((2, 1000), 1),
    ((2, 8192), 1),
    ((1, 16385), 1),
    ((37, 5), 0),
    ((4, 9, 7), 1),
    ((40000, 3), 1),
    ((3, 40000), 0),
    ((0, 4), 1),
    ((4, 0), 1),
    ((7,), 0),
]


def scan(op: str, dtype: DType, shape: tuple[int, ...], dim: int) -> Fusion:
    b = Builder(None, "local")
    x = b.input(tensor(dtype, *shape))
    (y,) = b.op(op, (x,), at.DimAttrs(dim))
    return b.finish((y,))


def draw(shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype.is_float:
        return torch.randn(shape, generator=generator).to(TORCH_DTYPES[dtype])
    return torch.randint(-100, 100, shape, generator=generator).to(TORCH_DTYPES[dtype])


@pytest.mark.parametrize("op", EAGER)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_every_shape(op: str, shape: tuple[int, ...], dim: int) -> None:
    x = draw(shape, DType.F32)
    if op == "cumprod":
        x = 1 + x / 100
    (found,) = run(scan(op, DType.F32, shape, dim), [x])
    expected = EAGER[op](x.double(), dim)
    # A sum of n numbers of size s is off by about s * sqrt(n) roundings.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-3)
    assert found.stride() == EAGER[op](x, dim).stride()


@pytest.mark.parametrize("op", EAGER)
@pytest.mark.parametrize(
    "dtype", [DType.I8, DType.U8, DType.I32, DType.I64, DType.F64], ids=lambda d: d.text
)
def test_exact_dtypes(op: str, dtype: DType) -> None:
    shape = (3, 300)
    x = draw(shape, dtype)
    (found,) = run(scan(op, dtype, shape, 1), [x])
    expected = EAGER[op](x, 1)
    if dtype is DType.F64:
        torch.testing.assert_close(found, expected)
    else:
        assert torch.equal(found, expected) and found.dtype is expected.dtype


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=lambda d: d.text)
def test_low_precision_accumulates_in_f32(dtype: DType) -> None:
    x = draw((4, 2048), dtype)
    (found,) = run(scan("cumsum", dtype, (4, 2048), 1), [x])
    exact = x.double().cumsum(1)
    step = torch.finfo(TORCH_DTYPES[dtype]).eps
    assert ((found.double() - exact).abs() <= step * (exact.abs() + 1)).all()


@pytest.mark.parametrize("op", EAGER)
def test_special_values(op: str) -> None:
    inf, nan = float("inf"), float("nan")
    rows = [
        [1.0, nan, 2.0, -inf, 3.0],
        [inf, 1.0, -inf, 0.0, 1.0],
        [-0.0, 0.0, -0.0, -1.0, 5.0],
        [-inf, -inf, 0.0, inf, nan],
    ]
    x = torch.tensor(rows)
    (found,) = run(scan(op, DType.F32, (4, 5), 1), [x])
    torch.testing.assert_close(found, EAGER[op](x, 1), rtol=0, atol=0, equal_nan=True)


def test_what_surrounds_a_scan_is_in_its_kernel() -> None:
    """Top-p's mask: softmax, running sum, comparison; the second kernel has all but the norm."""
    b = Builder(None, "local")
    x = b.input(tensor(DType.F32, 6, 1000))
    (doubled,) = b.op("mul", (x, b.const(2.0)))
    (sums,) = b.op("cumsum", (doubled,), at.DimAttrs(1))
    (products,) = b.op("cumprod", (b.op("sin", (x,))[0],), at.DimAttrs(1))
    (again,) = b.op("cummax", (sums,), at.DimAttrs(1))
    (mixed,) = b.op("add", (again, products))
    (result,) = b.op("add", (mixed, doubled))
    fusion = b.finish((result, sums))
    assert len(plan(fusion).kernels) == len(plan(fusion).steps) == 1
    given = draw((6, 1000), DType.F32)
    found, found_sums = run(fusion, [given])
    s = (given * 2).cumsum(1)
    torch.testing.assert_close(found_sums, s, rtol=1e-4, atol=1e-3)
    expected = s.cummax(1).values + given.sin().cumprod(1) + given * 2
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_a_reduction_of_a_scan_reads_it_back() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(DType.F64, 4, 70))
    (sums,) = b.op("cumsum", (x,), at.DimAttrs(1))
    (top,) = b.op("amax", (sums,), at.DimsAttrs((1,)))
    fusion = b.finish((top,))
    assert len(plan(fusion).kernels) == 2
    given = draw((4, 70), DType.F64)
    torch.testing.assert_close(run(fusion, [given])[0], given.cumsum(1).amax(1))


def test_a_transposed_operand_is_scanned_along_memory() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(DType.F32, 64, 5))
    (turned,) = b.op("permute", (x,), at.DimsAttrs((1, 0)))
    (sums,) = b.op("cumsum", (turned,), at.DimAttrs(1))
    fusion = b.finish((sums,))
    given = draw((64, 5), DType.F32)
    torch.testing.assert_close(run(fusion, [given])[0], given.t().cumsum(1), rtol=1e-5, atol=1e-4)


def test_one_text_serves_all_lengths_of_a_class() -> None:
    (long,), (longer,) = (plan(scan("cumsum", DType.F32, (3, n), 1)).kernels for n in (5000, 7000))
    assert write_kernel(long).source == write_kernel(longer).source
