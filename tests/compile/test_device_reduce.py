"""Reductions of csrc/device/reduce.cuh against numpy, for every operation, type and group size."""

import numpy as np
import pytest
import torch
from kernels.emulated import C_TYPES, INCLUDE, launch

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
OPS = ("Sum", "Prod", "Max", "Min", "Any", "All")
# (group, threads): within a warp, two warps, an odd number of warps, a whole block of each.
GROUPS = ((4, 64), (32, 64), (64, 128), (96, 192), (160, 160))


def _groups(kind: str) -> tuple[tuple[int, int], ...]:
    """Every shape for one type, an uneven number of warps for the others."""
    return GROUPS if kind == "f32" else GROUPS[3:4]


def _group_kernel(kind: str, op: str, group: int, threads: int) -> str:
    c = C_TYPES[kind]
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) {op}_{kind}_{group}(\n'
        f"    MDF_IN({c}) x, MDF_OUT({c}) y) {{\n  MDF_SHARED({c}, scratch, {threads // 32});\n"
        f"  {c} v = mdf::load1(x, threadIdx.x);\n"
        # Twice, so that a second use of the scratch is part of the test.
        f"  const {c} first = mdf::group_reduce<mdf::{op}, {group}, {threads}>(v, scratch);\n"
        f"  v = mdf::group_reduce<mdf::{op}, {group}, {threads}>(v, scratch);\n"
        f"  mdf::store1(y, threadIdx.x, first == v || v != v ? v : {c}(77));\n}}\n"
    )


SOURCE = INCLUDE + "".join(
    _group_kernel(kind, op, *shape) for kind in DTYPES for op in OPS for shape in _groups(kind)
)
PAIRS = (
    INCLUDE
    + """
extern "C" __global__ void __launch_bounds__(128)
arg(MDF_IN(float) x, MDF_OUT(mdf::i64) largest, MDF_OUT(mdf::i64) smallest) {
  MDF_SHARED(mdf::Indexed<float>, scratch, 4);
  const mdf::i64 i = threadIdx.x;
  const mdf::Indexed<float> mine{mdf::load1(x, i), i};
  const mdf::Indexed<float> top = mdf::block_reduce<mdf::ArgMax, 128>(mine, scratch);
  MDF_SHARED(mdf::Indexed32<float>, other, 4);
  const mdf::Indexed32<float> same{mdf::load1(x, i), mdf::i32(i)};
  const mdf::Indexed32<float> low = mdf::block_reduce<mdf::ArgMin, 128>(same, other);
  mdf::store1(largest, i, top.index);
  mdf::store1(smallest, i, low.index);
}
extern "C" __global__ void __launch_bounds__(64)
welford(MDF_IN(double) x, MDF_OUT(double) mean, MDF_OUT(double) variance, mdf::i32 n) {
  MDF_SHARED(mdf::Welford<double>, scratch, 2);
  auto w = mdf::WelfordMerge::identity<mdf::Welford<double>>();
  for (int i = threadIdx.x; i < n; i += 64) w = mdf::welford_push(w, mdf::load1(x, i));
  w = mdf::block_reduce<mdf::WelfordMerge, 64>(w, scratch);
  mdf::store1(mean, threadIdx.x, w.mean);
  mdf::store1(variance, threadIdx.x, w.m2 / w.count);
}
"""
)


def _data(kind: str, threads: int, op: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(threads)
    if kind == "bool":
        # Mostly one value, so that groups differ.
        return torch.rand(threads, generator=generator) < (0.97 if op == "All" else 0.02)
    if kind.startswith("i"):
        low, high = (-(2**31), 2**31 - 1) if op != "Any" else (0, 2)
        return torch.randint(low, high, (threads,), generator=generator).to(DTYPES[kind])
    return torch.randn(threads, generator=generator, dtype=torch.float64).to(DTYPES[kind])


def _expected(x: torch.Tensor, op: str) -> torch.Tensor:
    exact = x.double() if x.is_floating_point() else x
    match op:
        case "Sum":
            total = exact.any(1) if x.dtype == torch.bool else exact.sum(1, dtype=exact.dtype)
        case "Prod":
            total = exact.all(1) if x.dtype == torch.bool else exact.prod(1, dtype=exact.dtype)
        case "Max":
            total = exact.amax(1)
        case "Min":
            total = exact.amin(1)
        case "Any":
            total = (x != 0).any(1)
        case _:
            total = (x != 0).all(1)
    return total.to(x.dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", DTYPES)
def test_groups(kind: str, op: str) -> None:
    for group, threads in _groups(kind):
        x = _data(kind, threads, op)
        y = torch.empty_like(x)
        launch(SOURCE, f"{op}_{kind}_{group}", inputs=[x], outputs=[y], block=threads)
        expected = _expected(x.reshape(-1, group), op).repeat_interleave(group)
        torch.testing.assert_close(y, expected)
        rows = y.reshape(-1, group)
        assert (rows == rows[:, :1]).all(), "threads of a group disagree"


@pytest.mark.parametrize("op", ["Max", "Min", "Sum"])
def test_nan_and_infinity(op: str) -> None:
    for special in (float("nan"), float("inf"), float("-inf")):
        x = torch.linspace(-1, 1, 192)
        x[150] = special
        y = torch.empty_like(x)
        launch(SOURCE, f"{op}_f32_96", inputs=[x], outputs=[y], block=192)
        expected = _expected(x.reshape(-1, 96), op).repeat_interleave(96)
        torch.testing.assert_close(y, expected, equal_nan=True)


def test_all_threads_get_the_same_zero() -> None:
    x = torch.where(torch.arange(64) % 3 == 0, -0.0, 0.0)
    for op in ("Max", "Min"):
        y = torch.empty_like(x)
        launch(SOURCE, f"{op}_f32_32", inputs=[x], outputs=[y], block=64)
        assert y.signbit().unique().numel() == 1


@pytest.mark.parametrize(
    "edit", [{}, {5: 9.0, 70: 9.0}, {100: float("nan"), 90: float("nan")}, {3: float("-inf")}]
)
def test_arg_reductions_follow_torch(edit: dict[int, float]) -> None:
    x = torch.randn(128, generator=torch.Generator().manual_seed(0))
    for index, value in edit.items():
        x[index] = value
    largest, smallest = (torch.empty(128, dtype=torch.int64) for _ in range(2))
    launch(PAIRS, "arg", inputs=[x], outputs=[largest, smallest], block=128)
    assert (largest == x.argmax()).all()
    assert (smallest == x.argmin()).all()


def test_welford_keeps_its_digits_far_from_zero() -> None:
    x = np.random.default_rng(0).standard_normal(1000) + 1e6
    mean, variance = np.empty(64), np.empty(64)
    launch(PAIRS, "welford", inputs=[x], outputs=[mean, variance], scalars=[1000], block=64)
    np.testing.assert_allclose(mean, x.mean(), rtol=1e-14)
    np.testing.assert_allclose(variance, x.var(), rtol=1e-9)
    assert np.unique(mean).size == np.unique(variance).size == 1
