"""Rows reduced each, and over all rows: norms' gradients are one kernel, right on every shape.

The oracle is the same function in f64 torch. Programs are planned for devices with few SMs and
little memory, so that every rung and both levels of the tree run in the emulator quickly.
"""

from dataclasses import replace

import pytest
import torch
from codegen.goldens import plan, run
from schedule.programs import LAYER_NORM_GRADIENT, RMS_NORM_GRADIENT, Case, back, column_sum, tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.sizes import symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import A100, B200, H200, Target

F32, BF16, F64 = DType.F32, DType.BF16, DType.F64
# Two SMs: a few rows make several walks of each block, and more groups of blocks than one.
SMALL = replace(H200, name="small", sm_count=2)
CASES = pytest.mark.parametrize(
    "case", [RMS_NORM_GRADIENT, LAYER_NORM_GRADIENT], ids=lambda c: c.name
)


def local(case: Case, *sizes: int, dtype: DType = F32) -> Fusion:
    return decompose(case.fusion(*sizes, dtype=dtype, level="local"))


def drawn(fusion: Fusion, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    types = [fusion.tensor(Use(n)) for n in fusion.inputs]
    return [
        torch.randn(tuple(t.shape), generator=generator).to(TORCH_DTYPES[t.dtype])  # type: ignore[arg-type]
        for t in types
    ]


def check(
    case: Case, fusion: Fusion, inputs: list[torch.Tensor], target: Target = SMALL
) -> list[torch.Tensor]:
    """Runs ``fusion`` and compares with the case's eager function in f64."""
    found = run(fusion, inputs, target=target)
    expected = case.eager(*(t.double() for t in inputs))
    assert isinstance(expected, tuple)
    for value, right, t in zip(found, expected, fusion.outputs, strict=True):
        assert value.dtype is TORCH_DTYPES[fusion.tensor(t.value).dtype]
        assert (value.shape, value.stride()) == (right.shape, right.contiguous().stride())
        tolerance = {torch.bfloat16: 2.0**-7, torch.float32: 2e-5, torch.float64: 1e-13}
        finite, infinite = right.isfinite(), right.isinf()
        assert torch.equal(value.isnan(), right.isnan())
        assert torch.equal(value[infinite].double(), right[infinite])
        scale = right[finite].abs() + (right[finite].abs().mean() if finite.any() else 0)
        off = (value[finite].double() - right[finite]).abs()
        assert bool((off <= tolerance[value.dtype] * scale).all()), off.max()
    return found


def only(fusion: Fusion, target: Target = SMALL) -> KernelPlan:
    (kernel,) = plan(fusion, target).kernels
    assert kernel.family == "inner_outer"
    return kernel


@CASES
@pytest.mark.parametrize("dtype", [BF16, F32, F64], ids=str)
@pytest.mark.parametrize("columns", [2, 3, 8, 31, 32, 33, 100, 257, 1000, 2048, 3001, 4104])
def test_columns_of_all_lengths(case: Case, columns: int, dtype: DType) -> None:
    fusion = local(case, 7, columns, dtype=dtype)
    kernel = only(fusion)
    assert [b.written for b in kernel.buffers if b.space == "global"].count(False) == len(
        fusion.inputs
    )
    check(case, fusion, drawn(fusion))


@CASES
@pytest.mark.parametrize("rows", [0, 2, 3, 5, 64, 65, 257, 1000])
def test_rows_of_all_counts(case: Case, rows: int) -> None:
    """None, fewer than a block takes at once, and many walks of all blocks."""
    for columns in (24, 300):
        fusion = local(case, rows, columns)
        check(case, fusion, drawn(fusion))


@CASES
def test_no_columns(case: Case) -> None:
    fusion = local(case, 5, 0)
    found = run(fusion, drawn(fusion), target=SMALL)
    assert [x.shape[-1] for x in found] == [0] * len(found)


def test_every_rung_is_climbed_and_right() -> None:
    """Results in registers and shared memory; rows ahead in either, held, read in each phase."""
    rungs = {}
    for columns, dtype in ((64, BF16), (10248, BF16), (12000, F32), (24004, F32), (5000, F64)):
        fusion = local(RMS_NORM_GRADIENT, 5, columns, dtype=dtype)
        launch = only(fusion).launch
        assert launch.outer is not None
        rungs[launch.outer.sums, launch.outer.ahead, launch.hold] = columns
        check(RMS_NORM_GRADIENT, fusion, drawn(fusion))
    assert rungs.keys() == {
        ("registers", True, "registers"),
        ("registers", True, "staged"),
        ("registers", False, "registers"),
        ("shared", True, "registers"),
        ("shared", False, "none"),
    }, rungs


def test_results_of_short_rows_in_shared_memory() -> None:
    """Where one thread would need too many registers for what it has of five sums."""
    b = Builder(None, "local")
    x = b.input(tensor(F64, 90, 24))
    (most,) = b.op("amax", (x,), at.DimsAttrs((1,)))
    sums, power = [], x
    for _ in range(5):
        sums.append(column_sum(b, power))
        (power,) = b.op("mul", (power, x))
    (left,) = b.op("sub", (x, back(b, most, x)))
    fusion = b.finish((left, *sums))
    tight = replace(SMALL, registers_per_sm=256 * 48)
    launch = only(fusion, tight).launch
    assert launch.outer is not None
    assert (launch.outer.sums, launch.group < launch.threads) == ("shared", True)
    (given,) = drawn(fusion)
    found = run(fusion, [given], target=tight)
    torch.testing.assert_close(found[0], given - given.amax(1, keepdim=True))
    for k, value in enumerate(found[1:]):
        torch.testing.assert_close(value, (given ** (k + 1)).sum(0))


def test_what_is_not_a_number_stays_in_its_row_and_columns() -> None:
    fusion = local(LAYER_NORM_GRADIENT, 9, 40)
    x, w, center, scale, dy = drawn(fusion)
    x[2, 3], dy[4, 5], dy[6, :] = float("nan"), float("inf"), -0.0
    check(LAYER_NORM_GRADIENT, fusion, [x, w, center, scale, dy])


@CASES
def test_results_repeat_bit_for_bit(case: Case) -> None:
    """Also in other orders of threads and blocks, which every launch here runs in."""
    fusion = local(case, 200, 96, dtype=BF16)
    inputs = drawn(fusion)
    first, second = (run(fusion, inputs, target=SMALL) for _ in "ab")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("outer_first", [True, False])
@pytest.mark.parametrize("shape", [(16, 16), (4, 3, 10), (1, 6, 10), (6, 1, 10), (5, 1, 1, 7)])
def test_either_reduction_may_come_first(shape: tuple[int, ...], outer_first: bool) -> None:
    """Also where a row is as long as there are rows, and beside dims of size 1."""
    b = Builder(None, "local")
    x = b.input(tensor(F32, *shape))
    rows = tuple(range(len(shape) - 1))

    def inner() -> Use:
        (total,) = b.op("sum", (x,), at.DimsAttrs((len(shape) - 1,)))
        return b.op("div", (x, back(b, total, x)))[0]

    def outer() -> Use:
        (total,) = b.op("sum", (b.op("mul", (x, x))[0],), at.DimsAttrs(rows))
        return b.op("sqrt", (total,))[0]

    values = [outer(), inner()] if outer_first else [inner(), outer()]
    fusion = b.finish(tuple(values))
    only(fusion)
    (given,) = drawn(fusion)
    right = [given.square().sum(rows).sqrt(), given / given.sum(-1, keepdim=True)]
    found = run(fusion, [given], target=SMALL)
    for value, expected in zip(found, right if outer_first else right[::-1], strict=True):
        torch.testing.assert_close(value, expected)


def families(fusion: Fusion, target: Target = SMALL) -> list[str]:
    return [k.family for k in plan(fusion, target).kernels]


def test_a_column_result_that_rows_need_is_another_kernel() -> None:
    """Everything of a column has to be known before its rows can use it."""
    b = Builder(None, "local")
    x = b.input(tensor(F32, 12, 10))
    (total,) = b.op("sum", (x,), at.DimsAttrs((0,)))
    (spread,) = b.op("broadcast_in_dim", (total,), at.BroadcastAttrs((12, 10), (1,)))
    (scaled,) = b.op("mul", (x, spread))
    (rows,) = b.op("sum", (scaled,), at.DimsAttrs((1,)))
    fusion = b.finish((scaled, rows, total))
    assert len(families(fusion)) == 2
    (given,) = drawn(fusion)
    found = run(fusion, [given], target=SMALL)
    right = given * given.sum(0)
    for value, expected in zip(found, (right, right.sum(1), given.sum(0)), strict=True):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_sums_of_rows_columns_and_everything(order: tuple[int, ...]) -> None:
    b = Builder(None, "local")
    x = b.input(tensor(F32, 12, 10))
    dims = [((0,), (1,), (0, 1))[k] for k in order]
    fusion = b.finish(tuple(b.op("sum", (x,), at.DimsAttrs(d))[0] for d in dims))
    (given,) = drawn(fusion)
    found = run(fusion, [given], target=SMALL)
    for value, d in zip(found, dims, strict=True):
        torch.testing.assert_close(value, given.sum(d))


def test_columns_that_no_block_can_keep_are_another_kernel() -> None:
    little = replace(SMALL, shared_per_block=48 * 1024)
    wide = local(RMS_NORM_GRADIENT, 3, 16000)
    assert "inner_outer" not in families(wide, little)
    assert families(wide) == ["inner_outer"]
    check(RMS_NORM_GRADIENT, wide, drawn(wide), little)


def test_memory_that_runs_along_the_rows_is_no_case_for_one_kernel() -> None:
    """The gradient of a norm of a transposed matrix: its rows are columns of memory."""
    fusion = local(RMS_NORM_GRADIENT, 8, 16)
    classes = [InputClass((1, 8)) if n in (0, 3) else InputClass(None) for n in range(4)]
    program = plan_program(fusion, classes, SMALL, {}, "cpu")
    assert all(k.family != "inner_outer" for k in program.kernels)


def test_the_place_of_the_largest_of_a_column_is_another_kernel() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(F32, 12, 10))
    (most,) = b.op("amax", (x,), at.DimsAttrs((1,)))
    (place,) = b.op("argmax", (x,), at.DimAttrs(0))
    fusion = b.finish((b.op("sub", (x, back(b, most, x)))[0], place))
    (given,) = drawn(fusion)
    found = run(fusion, [given], target=SMALL)
    assert torch.equal(found[1], given.argmax(0))
    assert torch.equal(found[0], given - given.amax(1, keepdim=True))


def test_symbolic_sizes_are_guarded() -> None:
    fusion = decompose(RMS_NORM_GRADIENT.fusion(symbol("r"), symbol("n"), dtype=F32, level="local"))
    classes = [InputClass(None) for _ in fusion.inputs]
    program = plan_program(fusion, classes, SMALL, {"r": 60, "n": 96}, "cpu")
    (kernel,) = program.kernels
    assert kernel.family == "inner_outer"
    assert any("n" in str(g.left) + str(g.right) for g in program.guards)


@pytest.mark.parametrize("target", [A100, H200, B200], ids=lambda t: t.arch)
@pytest.mark.parametrize(
    ("case", "columns", "dtype"),
    [
        (RMS_NORM_GRADIENT, 128, BF16),
        (RMS_NORM_GRADIENT, 4096, BF16),
        (LAYER_NORM_GRADIENT, 4096, BF16),
        (LAYER_NORM_GRADIENT, 8192, BF16),
        (LAYER_NORM_GRADIENT, 4096, F32),
        (RMS_NORM_GRADIENT, 16384, BF16),
    ],
)
def test_nothing_spills(case: Case, columns: int, dtype: DType, target: Target) -> None:
    kernel = only(local(case, 16384, columns, dtype=dtype), target)
    text = write_kernel(kernel)
    usage = resource_usage(compile_cubin(text.source, text.entry, target.arch, device_headers()))
    assert (usage.spill_store_bytes, usage.local_bytes) == (0, 0)
    fits = target.blocks_per_sm(
        kernel.launch.threads, usage.registers, usage.static_shared + text.shared
    )
    assert fits >= kernel.launch.blocks >= 1
