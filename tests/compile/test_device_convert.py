"""Conversions of csrc/device/convert.cuh against torch: every 8- and 16-bit value and midpoint."""

import numpy as np
import pytest
import torch
from kernels.emulated import C_TYPES, INCLUDE, launch

TORCH = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
SMALL = ("bf16", "f16", "f8e4m3", "f8e5m2")


def _cast_kernel(source: str) -> str:
    """Converts to type number ``to`` of TORCH; one kernel for all targets compiles much faster."""
    c = C_TYPES[source]
    cases = "".join(
        f"    case {k}: mdf::store1(reinterpret_cast<{C_TYPES[target]}*>(y), i, "
        f"mdf::cast<{C_TYPES[target]}>(x)); break;\n"
        for k, target in enumerate(TORCH)
    )
    return (
        f'extern "C" __global__ void cast_{source}(\n'
        f"    MDF_IN({c}) in, MDF_OUT(mdf::u8) y, mdf::i32 n, mdf::i32 to) {{\n"
        "  for (int i = threadIdx.x; i < n; i += 32) {\n"
        f"    const {c} x = mdf::load1(in, i);\n    switch (to) {{\n{cases}    }}\n  }}\n}}\n"
    )


def _vector_kernel(kind: str) -> str:
    c = C_TYPES[kind]
    return (
        f'extern "C" __global__ void vector_{kind}(\n'
        f"    MDF_IN(float) x, MDF_OUT({c}) y, MDF_OUT(float) z) {{\n"
        "  const int i = threadIdx.x * 8;\n"
        f"  const mdf::Vec<{c}, 8> v = mdf::from_compute<{c}>(mdf::load<8>(x, i));\n"
        "  mdf::store<8>(y, i, v);\n  mdf::store<8>(z, i, mdf::to_compute(v));\n}\n"
    )


SOURCE = INCLUDE + "".join(map(_cast_kernel, TORCH)) + "".join(map(_vector_kernel, SMALL))


def _cast(x: torch.Tensor, source: str, target: str) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=TORCH[target])
    scalars = [x.numel(), list(TORCH).index(target)]
    launch(SOURCE, f"cast_{source}", inputs=[x], outputs=[out], scalars=scalars, orders=1)
    return out


def _every_value(kind: str) -> torch.Tensor:
    dtype = TORCH[kind]
    bits, integer = (8, torch.uint8) if dtype.itemsize == 1 else (16, torch.int16)
    return torch.arange(2**bits).to(integer).view(dtype)


def _assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits, but for the payload and sign of NaN."""
    if expected.is_floating_point() or expected.is_complex():
        a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (found, expected))
        nan = torch.isnan(b.double())
        assert torch.equal(torch.isnan(a.double()), nan)
        found, expected = a[~nan], b[~nan]
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("kind", SMALL)
def test_small_floats_to_float_exhaustively(kind: str) -> None:
    x = _every_value(kind)
    _assert_same(_cast(x, kind, "f32"), x.float())


@pytest.mark.parametrize("kind", SMALL)
def test_float_to_small_floats_at_every_value_and_midpoint(kind: str) -> None:
    values = _every_value(kind).float()
    finite = values[values.isfinite()].unique()
    top = finite[-1]
    # What follows the largest number decides between it and infinity or NaN.
    beyond = top * torch.tensor([1.01, 1.03, 1.0625, 1.125, 1.25, 2.0, 1e9])
    grid = torch.cat([finite, beyond, -beyond]).unique()
    middle = (grid[1:].double() + grid[:-1].double()).div(2).float()
    points = torch.cat([grid, middle])
    infinity = torch.full_like(points, float("inf"))
    around = [points, points.nextafter(infinity), points.nextafter(-infinity)]
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -3e38])
    x = torch.cat([*around, special])
    _assert_same(_cast(x, "f32", kind), x.to(TORCH[kind]))


@pytest.mark.parametrize("kind", SMALL)
def test_vectors_convert_as_their_elements(kind: str) -> None:
    x = torch.randn(256, generator=torch.Generator().manual_seed(1)) * 100
    y, z = torch.empty(256, dtype=TORCH[kind]), torch.empty(256)
    launch(SOURCE, f"vector_{kind}", inputs=[x], outputs=[y, z])
    _assert_same(y, x.to(TORCH[kind]))
    _assert_same(z, x.to(TORCH[kind]).float())


def _typical_values(kind: str) -> torch.Tensor:
    """Values that every type can hold after rounding: what torch does is defined by C++ too."""
    if kind == "bool":
        return torch.tensor([True, False, True])
    if kind in ("u8", "i8"):
        return torch.arange(0, 128).to(TORCH[kind])
    numbers = torch.cat([torch.arange(0, 127), torch.linspace(0, 126, 77).double()])
    if kind.startswith("c"):
        return torch.complex(numbers, numbers.flip(0)).to(TORCH[kind])
    return numbers.to(TORCH[kind])


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("source", TORCH)
def test_every_type_to_every_type(source: str) -> None:
    x = _typical_values(source)
    for target, dtype in TORCH.items():
        _assert_same(_cast(x, source, target), x.to(dtype))


def test_integers_wrap() -> None:
    x = torch.tensor([2**63 - 1, -(2**63), 2**31, -(2**31) - 1, 255, 256, -1, 65535, 32768])
    for target in ("i8", "u8", "i16", "i32", "bool", "f32", "f64", "bf16", "f16"):
        _assert_same(_cast(x, "i64", target), x.to(TORCH[target]))


# cvt.rzi of PTX: saturated at 32 and 64 bits, NaN as its table says; narrow types keep low bits.
NAN, INF = float("nan"), float("inf")
OUT_OF_RANGE = {
    ("f32", "i32"): {3e9: 2**31 - 1, -3e9: -(2**31), INF: 2**31 - 1, -INF: -(2**31), NAN: 0},
    ("f32", "i64"): {1e19: 2**63 - 1, -1e19: -(2**63), INF: 2**63 - 1, NAN: -(2**63)},
    ("f64", "i32"): {3e9: 2**31 - 1, -3e9: -(2**31), -(2.0**31) - 0.5: -(2**31), NAN: -(2**31)},
    ("f64", "i64"): {1e19: 2**63 - 1, -1e19: -(2**63), NAN: -(2**63)},
    ("f32", "u8"): {-1.0: 255, 256.0: 0, 300.7: 44, -3e9: int(-3e9) & 255, INF: 255, NAN: 0},
    ("f32", "i8"): {128.0: -128, 300.0: 44, -129.0: 127, 3e9: -1, NAN: 0},
    ("f32", "i16"): {32768.0: -32768, 1e5: 1e5 - 2**17, -3e9: 0, NAN: 0},
    ("f32", "bool"): {NAN: True, 1e-45: True, -0.0: False},
}


@pytest.mark.parametrize("pair", OUT_OF_RANGE, ids="-".join)
def test_floats_outside_the_range_of_an_integer(pair: tuple[str, str]) -> None:
    source, target = pair
    table = OUT_OF_RANGE[pair]
    x = torch.tensor(list(table), dtype=TORCH[source])
    assert _cast(x, source, target).tolist() == [int(v) for v in table.values()]


def test_random_doubles_reach_the_small_floats_through_float() -> None:
    x = torch.from_numpy(np.random.default_rng(2).standard_normal(4096))
    for kind in SMALL:
        _assert_same(_cast(x, "f64", kind), x.float().to(TORCH[kind]))
