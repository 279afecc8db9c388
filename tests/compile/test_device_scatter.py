"""Scattered stores and sums of csrc/device/scatter.cuh, and the check of positions."""

import pytest
import torch
from kernels.emulated import C_TYPES, INCLUDE, launch

from thunder_mdfuse.errors import EmulatorError

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


def _kernels(kind: str) -> str:
    c = C_TYPES[kind]
    head = 'extern "C" __global__ void __launch_bounds__(64)'
    arguments = f"(MDF_IN({c}) x, MDF_IN(mdf::i64) index, MDF_INOUT({c}) y, mdf::i32 n)"
    body = "const mdf::i32 i = blockIdx.x * 64 + threadIdx.x;"
    at = "mdf::position<mdf::i32>(mdf::load1(index, i), n)"
    return "".join(
        f"{head}\n{name}_{kind}{arguments} {{\n  {body}\n"
        f"  mdf::scatter_{name}(y, {at}, mdf::load1(x, i));\n}}\n"
        for name in ("add", "store")
    )


SOURCE = INCLUDE + "".join(map(_kernels, DTYPES))


def _values(dtype: torch.dtype, n: int) -> torch.Tensor:
    """Numbers whose sums every dtype holds exactly, so that no order of adding matters."""
    generator = torch.Generator().manual_seed(n)
    whole = torch.randint(0, 3, (n,), generator=generator)
    if dtype is torch.bool:
        return whole == 0
    if dtype.is_complex:
        return torch.complex(whole.double(), whole.flip(0).double()).to(dtype)
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return (torch.arange(n) % 32 == 0).to(dtype)  # two bits of mantissa: sums up to 4
    return whole.to(dtype)


@pytest.mark.parametrize("kind", DTYPES)
def test_sums(kind: str) -> None:
    dtype = DTYPES[kind]
    x, index = _values(dtype, 128), torch.arange(128) * 7 % 5
    start = _values(dtype, 5)
    found = start.clone()
    launch(SOURCE, f"add_{kind}", inputs=[x, index], updated=[found], scalars=[5], grid=2, block=64)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = start.to(wide).index_add(0, index, x.to(wide))
    expected = expected != 0 if dtype is torch.bool else expected.to(dtype)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("kind", ["i8", "u8", "i16"])
def test_sums_of_integers_wrap(kind: str) -> None:
    x = torch.full((64,), 100, dtype=DTYPES[kind])
    found = torch.zeros(3, dtype=DTYPES[kind])
    launch(
        SOURCE,
        f"add_{kind}",
        inputs=[x, torch.zeros(64).long()],
        updated=[found],
        scalars=[1],
        block=64,
    )
    expected = torch.zeros(3, dtype=torch.int64)
    expected[0] = 6400
    assert torch.equal(found, expected.to(DTYPES[kind]))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_sums_of_halves_are_rounded_one_by_one(kind: str) -> None:
    """As an atomic of torch leaves them: a large sum swallows small terms."""
    dtype = DTYPES[kind]
    found = torch.tensor([4096.0], dtype=dtype)
    x = torch.ones(64, dtype=dtype)
    launch(
        SOURCE,
        f"add_{kind}",
        inputs=[x, torch.zeros(64).long()],
        updated=[found],
        scalars=[1],
        block=64,
    )
    assert found.item() == 4096.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_special_numbers(value: float) -> None:
    for kind in ("f32", "f64", "f16", "bf16", "f8e5m2"):
        found = torch.tensor([-0.0, 1.0]).to(DTYPES[kind])
        x = torch.full((64,), value).to(DTYPES[kind])
        index = torch.arange(64) % 2
        launch(SOURCE, f"add_{kind}", inputs=[x, index], updated=[found], scalars=[2], block=64)
        expected = torch.tensor([-0.0, 1.0], dtype=torch.float64) + value
        torch.testing.assert_close(found.double(), expected, equal_nan=True)
        assert found.double().signbit()[0] == expected.signbit()[0] or value != value


@pytest.mark.parametrize("kind", DTYPES)
def test_stores(kind: str) -> None:
    """Of values for different places each arrives; of those for one place any may stay."""
    x, index = _values(DTYPES[kind], 64), torch.randperm(64)
    found = torch.empty_like(x)
    launch(SOURCE, f"store_{kind}", inputs=[x, index], outputs=[found], scalars=[64], block=64)
    expected = torch.empty_like(x)
    expected[index] = x
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_stores_to_one_place_are_no_race() -> None:
    x = torch.arange(64.0)
    found = torch.full((1,), -1.0)
    launch(
        SOURCE,
        "store_f32",
        inputs=[x, torch.zeros(64).long()],
        updated=[found],
        scalars=[1],
        block=64,
        exact=False,
    )
    assert found.item() in x.tolist()


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40])
def test_an_index_out_of_range_ends_the_launch(wrong: int) -> None:
    index = torch.zeros(64, dtype=torch.int64)
    index[17] = wrong
    found = torch.zeros(5)
    with pytest.raises(EmulatorError, match=f"index {wrong} is out of range for a dim of 5"):
        launch(
            SOURCE,
            "add_f32",
            inputs=[torch.ones(64), index],
            updated=[found],
            scalars=[5],
            block=64,
        )
    assert not found.any(), "after a fault the memory is as it was"
