"""How domains are laid over a GPU: rows by length, parts of rows, items, 64-bit offsets."""

from dataclasses import replace

import pytest
import torch
from schedule.programs import RMS_NORM, tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.sizes import Size, ceildiv, symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.schedule.launch import FEW_ROWS, PART_ITEMS, PART_THREADS, ROW_RULES
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan, plan_program
from thunder_mdfuse.schedule.target import H200, Target

# A device so small that a test's tensor fills it.
TINY = replace(H200, name="tiny", sm_count=1, max_threads_per_sm=256, max_threads_per_block=256)


def program(fusion: Fusion, target: Target = H200, **hints: int) -> ProgramPlan:
    return plan_program(fusion, [InputClass(None) for _ in fusion.inputs], target, hints, "cpu")


def kernel(fusion: Fusion, target: Target = H200, **hints: int) -> KernelPlan:
    (found,) = program(fusion, target, **hints).kernels
    return found


def run(
    fusion: Fusion, *inputs: torch.Tensor, target: Target = H200, wide: bool = False
) -> list[torch.Tensor]:
    made = program(fusion, target)
    kernels = [replace(k, launch=replace(k.launch, wide_index=wide)) for k in made.kernels]
    texts = [write_kernel(k) for k in kernels]
    bound = BoundProgram(made, texts, {}, "emulate", torch.device("cpu"), "")
    found = bound.run(list(inputs), None)
    assert all(isinstance(x, torch.Tensor) for x in found)
    return found  # type: ignore[return-value]


def negated(*shape: Size, dtype: DType = DType.F32) -> Fusion:
    b = Builder(None, "local")
    return b.finish(b.op("neg", (b.input(tensor(dtype, *shape)),)))


def reduced(
    op: str, *shape: Size, dims: tuple[int, ...] = (1,), dtype: DType = DType.F32
) -> Fusion:
    b = Builder(None, "local")
    return b.finish(b.op(op, (b.input(tensor(dtype, *shape)),), at.DimsAttrs(dims)))


# --- Rows ----------------------------------------------------------------------------------------


def test_the_rules_are_for_every_length_in_order() -> None:
    lengths = [rule.vectors for rule in ROW_RULES]
    assert lengths == sorted(set(lengths))
    for rule in ROW_RULES:
        assert rule.threads % 32 == 0
        assert rule.threads % rule.group == 0
        assert rule.group & (rule.group - 1) == 0 or rule.group == rule.threads


@pytest.mark.parametrize("rule", ROW_RULES[:-1], ids=lambda r: str(r.vectors))
def test_the_longest_row_of_each_rule(rule: object) -> None:
    """All of its vectors have a thread, and one vector more takes the next rule."""
    vectors = rule.vectors  # type: ignore[attr-defined]
    found = kernel(RMS_NORM.fusion(1000, 8 * vectors, level="local")).launch
    assert (found.group, found.threads) == (rule.group, rule.threads)  # type: ignore[attr-defined]
    assert found.group * found.items >= vectors > found.group * (found.items - 1)
    longer = kernel(RMS_NORM.fusion(1000, 8 * (vectors + 1), level="local")).launch
    assert (longer.group, longer.items) != (found.group, found.items)


@pytest.mark.parametrize("n", [8, 4096, 4104, 8192, 65536])
def test_a_row_is_exact_when_threads_and_vectors_fill_it(n: int) -> None:
    found = kernel(RMS_NORM.fusion(1000, n, level="local")).launch
    filled = found.group * found.items * found.vector == n
    assert found.exact == (filled and found.group == found.threads)


def test_a_plan_for_short_rows_is_good_for_other_short_rows() -> None:
    made = program(RMS_NORM.fusion(symbol("r"), symbol("n"), level="local"), r=7, n=64)
    assert not any(g.relation == "==" for g in made.guards), made.guards


# --- Rows shared by blocks -----------------------------------------------------------------------


LONG = 4 * PART_THREADS * PART_ITEMS * 4  # elements of f32, four to a vector


def test_long_and_few_rows_are_shared() -> None:
    found = kernel(reduced("sum", 3, LONG + 4)).launch
    assert found.parts == ceildiv(LONG // 4 + 1, PART_THREADS * PART_ITEMS)
    assert kernel(reduced("sum", 3, LONG)).launch.parts == 1
    assert kernel(reduced("sum", FEW_ROWS * H200.sm_count, LONG + 4)).launch.parts == 1


def test_what_stores_each_column_is_not_shared() -> None:
    b = Builder(None, "local")
    (grown,) = b.op("exp", (b.input(tensor(DType.F32, 3, LONG + 4)),))
    (total,) = b.op("sum", (grown,), at.DimsAttrs((1,)))
    assert kernel(b.finish((grown, total))).launch.parts == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_shared_rows_with_several_reductions(rows: int) -> None:
    """Each has a workspace of its own; the counters are where they were afterwards."""
    n = LONG + 1000
    b = Builder(None, "local")
    x = b.input(tensor(DType.F32, rows, n))
    (square,) = b.op("mul", (x, x))
    dims = at.DimsAttrs((1,))
    outputs = [b.op("sum", (square,), dims)[0]]
    outputs += [b.op(name, (x,), dims)[0] for name in ("amax", "amin", "sum")]
    outputs += b.op("amax", b.op("lt", (x, b.const(0.0))), dims)
    fusion = b.finish(tuple(outputs))
    made = kernel(fusion)
    assert [p.space for p in made.buffers].count("workspace") == 5
    values = torch.randn(rows, n)
    values[-1, n - 1] = 77.0
    found = run(fusion, values)
    wide = values.double()
    expected = [(wide * wide).sum(1), wide.amax(1), wide.amin(1), wide.sum(1)]
    for value, right in zip(found, expected, strict=False):
        torch.testing.assert_close(value.double(), right, rtol=1e-5, atol=1e-3)
    assert bool(found[4].all())


def test_a_whole_tensor_is_reduced_by_many_blocks() -> None:
    fusion = reduced("sum", 40, 1000, dims=(0, 1))
    made = kernel(fusion)
    assert made.rows == ()
    assert made.launch.parts == ceildiv(10000, PART_THREADS * PART_ITEMS)
    x = torch.randn(40, 1000)
    torch.testing.assert_close(run(fusion, x)[0], x.sum(), rtol=1e-4, atol=1e-3)


# --- Flat kernels --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "items"), [(1024, 1), (2048, 1), (2052, 2), (8192, 2), (8196, 2)])
def test_a_thread_has_several_vectors_when_the_device_is_full(n: int, items: int) -> None:
    fusion = negated(n)
    assert kernel(fusion, TINY).launch.items == items
    x = torch.randn(n)
    assert torch.equal(run(fusion, x, target=TINY)[0], -x)


# --- Offsets of 64 bits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "wide"),
    [
        ((1 << 31) - 1, True),
        (1 << 31, True),
        ((1 << 31) - 512, True),  # threads past the end have positions above 2**31
        ((1 << 31) - 8192, False),
        (1 << 20, False),
    ],
)
def test_offsets_have_64_bits_when_they_need_them(n: int, wide: bool) -> None:
    assert kernel(negated(n)).launch.wide_index == wide


def test_a_window_of_a_large_tensor_needs_64_bits() -> None:
    made = plan_program(negated(1 << 10, 64), [InputClass((1 << 22, 1))], H200)
    assert made.kernels[0].launch.wide_index


@pytest.mark.parametrize(
    "fusion",
    [
        negated(7, 33),
        reduced("sum", 7, 33),
        reduced("sum", 2, LONG + 4),
        RMS_NORM.fusion(33, 24, dtype=DType.F32, level="local"),
    ],
    ids=["pointwise", "row", "shared row", "short rows"],
)
def test_64_bit_kernels_compute_the_same(fusion: Fusion) -> None:
    inputs = [torch.randn(tuple(fusion.tensor(u).shape)) for u in _inputs(fusion)]  # type: ignore[arg-type]
    for narrow, wide in zip(run(fusion, *inputs), run(fusion, *inputs, wide=True), strict=True):
        assert torch.equal(narrow, wide)


def _inputs(fusion: Fusion) -> list[object]:
    return [type(fusion.outputs[0].value)(n) for n in fusion.inputs]


def test_more_rows_than_32_bits_count() -> None:
    """Several rows a block, so that there can be 2**31 blocks of them."""
    made = kernel(RMS_NORM.fusion(symbol("r"), 24, level="local"), r=1 << 33)
    assert made.launch.threads > made.launch.group
    assert "static_cast<mdf::i64>(blockIdx.x) *" in write_kernel(made).source


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_64_bit_kernels_compile_without_spills(arch: str) -> None:
    made = kernel(RMS_NORM.fusion(symbol("r"), 4096, level="local"), r=1 << 20)
    assert made.launch.wide_index
    text: KernelText = write_kernel(made)
    assert "mdf::i64 row = blockIdx.x" in text.source
    assert "static_cast<mdf::i64>(t)" in text.source
    usage = resource_usage(compile_cubin(text.source, text.entry, arch, device_headers()))
    assert (usage.spill_store_bytes, usage.local_bytes) == (0, 0)
