"""Programs whose tensors do not all run fastest along the same axis, against eager torch.

What only moves has to be right to the bit; every kernel runs in the emulator in several orders of
its threads, and every output has eager torch's dtype and strides.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from schedule.programs import cast, tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.emulate import Allocation, build
from thunder_mdfuse.compile.emulate_banks import Access, conflicts, shared_accesses
from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion, Output, Use
from thunder_mdfuse.ir.sizes import evaluate
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.runtime.launch import size_arguments
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.schedule.plan import KernelPlan, Load
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan, plan_program
from thunder_mdfuse.schedule.target import A100, B200, H200, Target

Dims = tuple[int, ...]
IR_DTYPES = {t: d for d, t in TORCH_DTYPES.items()}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")


def contiguous(b: Builder, x: Use) -> Use:
    """``x`` copied so that its last dim is the fastest."""
    order = tuple(range(b.tensor(x).ndim))
    return b.op("copy", (x,), at.CopyAttrs(order, True))[0]


def permuted(b: Builder, x: Use, dims: Dims) -> Use:
    return b.op("permute", (x,), at.DimsAttrs(dims))[0]


def draw(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-100 if dtype.is_signed else 0, 100, shape, generator=generator).to(
            dtype
        )
    return torch.randn(shape, generator=generator).to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(integers[x.element_size()])


def run(b: Builder, outputs: tuple[Use, ...], *inputs: torch.Tensor) -> tuple[Executable, list]:  # type: ignore[type-arg]
    executable = Executable(b.finish(tuple(Output(u) for u in outputs)), "turned")
    return executable, executable.run(inputs)


def only_kernel(executable: Executable) -> KernelPlan:
    assert executable.last is not None
    (step,) = executable.last.plan.steps
    assert step.kernel is not None, executable.last.plan
    return step.kernel


def accesses(kernel: KernelPlan) -> list[str]:
    loads = [i.detail.access for i in kernel.body if isinstance(i.detail, Load)]
    return [*loads, *(s.access for s in kernel.stores)]


def check_permute(x: torch.Tensor, dims: Dims, family: str = "transpose") -> KernelPlan:
    """Runs ``x.permute(dims).contiguous()``; the plan of its kernel."""
    b = Builder(None, "global")
    output = contiguous(b, permuted(b, b.input(tensor(IR_DTYPES[x.dtype], *x.shape)), dims))
    executable, (found,) = run(b, (output,), x)
    right = x.permute(dims).contiguous()
    assert (found.dtype, found.stride()) == (right.dtype, right.stride())
    assert torch.equal(bits(found), bits(right))
    kernel = only_kernel(executable)
    assert kernel.family == family
    return kernel


SHAPES = ((16, 16), (64, 64), (128, 64), (127, 129), (65, 200), (263, 31), (136, 24), (97, 72))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrices_are_turned(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_permute(draw(dtype, *shape), (1, 0))


OTHERS = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
)


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    check_permute(draw(dtype, 136, 72), (1, 0))
    check_permute(draw(dtype, 67, 51), (1, 0))


@pytest.mark.parametrize(
    ("shape", "dims", "family"),
    [
        ((3, 40, 56), (0, 2, 1), "transpose"),
        ((40, 3, 56), (2, 1, 0), "transpose"),
        ((40, 3, 56), (2, 0, 1), "transpose"),
        ((3, 40, 56), (1, 2, 0), "pointwise"),  # rows of 3 elements
        ((2, 24, 3, 32), (0, 2, 3, 1), "transpose"),
        ((2, 3, 20, 28), (1, 0, 3, 2), "transpose"),
        ((5, 1, 40), (2, 1, 0), "pointwise"),
        ((40, 1, 40), (2, 1, 0), "transpose"),
    ],
)
def test_permutes_of_several_dims(shape: Dims, dims: Dims, family: str) -> None:
    check_permute(draw(torch.bfloat16, *shape), dims, family)


def test_heads_are_moved_in_whole_vectors() -> None:
    """BSHD to BHSD: the fast axis stays, so nothing is staged and every access has 16 bytes."""
    kernel = check_permute(draw(torch.bfloat16, 2, 12, 3, 64), (0, 2, 1, 3), "pointwise")
    assert kernel.launch.vector == 8
    assert accesses(kernel) == ["vector", "vector"]


@pytest.mark.parametrize(
    ("name", "cut", "width", "vector"),
    [
        ("dense", lambda x: x, 8, 8),
        ("odd rows", lambda x: x[:, :87], 8, 1),
        ("odd columns", lambda x: x[:127], 1, 8),
        ("misaligned", lambda x: x[:, 1:81], 8, 1),
        ("half aligned", lambda x: x[:, 4:84], 8, 4),
        ("every second row", lambda x: x[::2], 8, 8),
    ],
)
def test_strides_and_alignments(
    name: str, cut: Callable[[torch.Tensor], torch.Tensor], width: int, vector: int
) -> None:
    kernel = check_permute(cut(draw(torch.bfloat16, 128, 88)), (1, 0))
    assert kernel.launch.tile is not None
    assert (kernel.launch.vector, kernel.launch.tile.vector) == (width, vector)


@pytest.mark.parametrize("shape", [(0, 40), (40, 0)])
def test_empty_matrices(shape: tuple[int, int]) -> None:
    b = Builder(None, "global")
    output = contiguous(b, permuted(b, b.input(tensor(DType.F32, *shape)), (1, 0)))
    _, (found,) = run(b, (output,), torch.zeros(shape))
    assert found.shape == shape[::-1]


@pytest.mark.parametrize("shape", [(72, 136), (61, 83), (64, 83)])
def test_inputs_and_outputs_of_both_orientations(shape: tuple[int, int]) -> None:
    """A sum of what lies across leaves both ways: a load and a store go through tiles."""
    b = Builder(None, "global")
    rows, n = shape
    x, y = b.input(tensor(DType.BF16, rows, n)), b.input(tensor(DType.F32, n, rows))
    bias = b.input(tensor(DType.F32, rows))
    wide = cast(b, x, DType.F32)
    (total,) = b.op("add", (wide, permuted(b, y, (1, 0))))
    (spread,) = b.op("broadcast_in_dim", (bias,), at.BroadcastAttrs((rows, n), (0,)))
    (shifted,) = b.op("add", (total, spread))
    (turned,) = b.op("copy", (shifted,), at.CopyAttrs((1, 0)))
    inputs = draw(torch.bfloat16, rows, n), draw(torch.float32, n, rows), draw(torch.float32, rows)
    narrow = cast(b, shifted, DType.BF16)
    executable, found = run(b, (contiguous(b, narrow), turned), *inputs)
    right = inputs[0].float() + inputs[1].t() + inputs[2][:, None]
    assert torch.equal(found[0], right.bfloat16())
    assert torch.equal(found[1], right)
    assert (found[0].stride(), found[1].stride()) == ((n, 1), (1, rows))
    kernel = only_kernel(executable)
    assert kernel.family == "transpose"
    assert sorted(accesses(kernel)).count("staged") == 2


@pytest.mark.parametrize("shape", [(72, 136), (61, 83), (64, 64)])
def test_a_value_and_its_transpose_are_one_kernel(shape: tuple[int, int]) -> None:
    """As a quantised matrix leaves for two matmuls: the operand is read once."""
    b = Builder(None, "global")
    rows, n = shape
    (twice,) = b.op("mul", (b.input(tensor(DType.BF16, rows, n)), b.const(2.0)))
    narrow = cast(b, twice, DType.F8E4M3)
    turned = contiguous(b, permuted(b, narrow, (1, 0)))
    x = draw(torch.bfloat16, rows, n)
    executable, found = run(b, (narrow, turned), x)
    right = (x * 2).to(torch.float8_e4m3fn)
    assert torch.equal(bits(found[0]), bits(right))
    assert torch.equal(bits(found[1]), bits(right.t()))
    kernel = only_kernel(executable)
    assert kernel.family == "transpose"
    assert accesses(kernel).count("staged") == 1
    (report,) = executable.report()
    assert report.bytes_read + report.bytes_written == rows * n * (2 + 1 + 1)


def test_a_value_and_its_permuted_copy_are_one_kernel() -> None:
    """A permutation that is not its own inverse."""
    b = Builder(None, "global")
    (twice,) = b.op("mul", (b.input(tensor(DType.F32, 3, 24, 40)), b.const(2.0)))
    turned = contiguous(b, permuted(b, twice, (2, 0, 1)))
    x = draw(torch.float32, 3, 24, 40)
    executable, found = run(b, (twice, turned), x)
    assert torch.equal(found[1], (x * 2).permute(2, 0, 1))
    assert only_kernel(executable).family == "transpose"


def test_a_reduction_does_not_go_with_a_transpose() -> None:
    b = Builder(None, "global")
    (twice,) = b.op("mul", (b.input(tensor(DType.F32, 40, 72)), b.const(2.0)))
    turned = contiguous(b, permuted(b, twice, (1, 0)))
    (total,) = b.op("sum", (twice,), at.DimsAttrs((1,)))
    x = draw(torch.float32, 40, 72)
    executable, found = run(b, (twice, turned, total), x)
    assert torch.equal(found[1], (x * 2).t())
    torch.testing.assert_close(found[2], (x * 2).sum(1))
    assert executable.last is not None
    assert [k.family for k in executable.last.plan.kernels] == ["transpose", "row"]


def test_a_third_orientation_goes_lane_by_lane() -> None:
    b = Builder(None, "global")
    x, y = b.input(tensor(DType.F32, 20, 24, 28)), b.input(tensor(DType.F32, 28, 20, 24))
    z = b.input(tensor(DType.F32, 24, 28, 20))
    (first,) = b.op("add", (x, permuted(b, y, (1, 2, 0))))
    (total,) = b.op("add", (first, permuted(b, z, (2, 0, 1))))
    inputs = draw(torch.float32, 20, 24, 28), draw(torch.float32, 28, 20, 24)
    other = draw(torch.float32, 24, 28, 20)
    executable, (found,) = run(b, (total,), *inputs, other)
    assert torch.equal(found, inputs[0] + inputs[1].permute(1, 2, 0) + other.permute(2, 0, 1))
    assert sorted(accesses(only_kernel(executable))) == ["lane", "staged", "vector", "vector"]


def test_what_is_padded_and_turned() -> None:
    """A mask along the fast or the other axis keeps a load out of the tiles."""
    for low in ((0, 1), (2, 0)):
        b = Builder(None, "global")
        x, y = b.input(tensor(DType.F32, 32, 31)), b.input(tensor(DType.F32, 40, 36))
        high = (40 - 32 - low[0], 36 - 31 - low[1])
        (padded,) = b.op("pad", (x, b.const(1.5)), at.PadAttrs(low, high))
        (total,) = b.op("add", (padded, y))
        values = draw(torch.float32, 32, 31), draw(torch.float32, 40, 36)
        _, (found,) = run(b, (contiguous(b, permuted(b, total, (1, 0))),), *values)
        right = torch.nn.functional.pad(values[0], (low[1], high[1], low[0], high[0]), value=1.5)
        assert torch.equal(found, (right + values[1]).t())


def test_many_tensors_are_staged_as_far_as_tiles_go() -> None:
    b = Builder(None, "global")
    uses = [b.input(tensor(DType.F32, 40, 48)) for _ in range(9)]
    total = permuted(b, uses[0], (1, 0))
    for use in uses[1:]:
        (total,) = b.op("maximum", (total, permuted(b, use, (1, 0))))
    x = [draw(torch.float32, 40, 48) * (k + 1) for k in range(9)]
    executable, (found,) = run(b, (contiguous(b, total),), *x)
    assert torch.equal(found, torch.stack(x).amax(0).t())
    assert only_kernel(executable).launch.vector == 4


@pytest.mark.parametrize("n", [40, 37])
def test_what_is_looked_up_beside_what_is_turned(n: int) -> None:
    b = Builder(None, "global")
    x, table = b.input(tensor(DType.F32, 48, n)), b.input(tensor(DType.F32, 9, n))
    index = b.input(tensor(DType.I64, 48))
    (chosen,) = b.op("take", (table, index), at.DimAttrs(0))
    (total,) = b.op("add", (x, chosen))
    inputs = draw(torch.float32, 48, n), draw(torch.float32, 9, n)
    places = torch.arange(48) * 7 % 9
    executable, (found,) = run(b, (contiguous(b, permuted(b, total, (1, 0))),), *inputs, places)
    assert torch.equal(found, (inputs[0] + inputs[1][places]).t())
    assert only_kernel(executable).family == "transpose"


def test_special_values() -> None:
    x = draw(torch.float32, 40, 48)
    x[3, :5] = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0, 0.0])
    check_permute(x, (1, 0))


# --- How it is laid out --------------------------------------------------------------------------


def scaled(dtype: DType, *shape: int) -> Fusion:
    """A matrix times two, turned."""
    b = Builder(None, "local")
    (twice,) = b.op("mul", (b.input(tensor(dtype, *shape)), b.const(2.0)))
    return b.finish((contiguous(b, permuted(b, twice, (1, 0))),))


def planned(fusion: Fusion, target: Target = H200) -> ProgramPlan:
    return plan_program(fusion, [InputClass(None) for _ in fusion.inputs], target, {}, "cpu")


def text_of(fusion: Fusion, target: Target = H200) -> KernelText:
    (kernel,) = planned(fusion, target).kernels
    return write_kernel(kernel)


def test_a_large_transpose_has_16_byte_accesses_on_both_sides() -> None:
    launch = text_of(scaled(DType.BF16, 16384, 8192)).plan.launch
    assert launch.tile is not None
    assert (launch.vector, launch.tile.vector) == (8, 8)
    loaded = launch.tile.across * launch.tile.down * 2 // launch.threads
    assert loaded == 64  # bytes in flight for each thread


@pytest.mark.parametrize("target", [A100, H200, B200], ids=lambda t: t.arch)
@pytest.mark.parametrize("shape", [(16384, 8192), (8191, 6007)], ids=str)
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32, DType.F64], ids=str)
def test_it_compiles_without_spills(dtype: DType, shape: tuple[int, int], target: Target) -> None:
    text = text_of(scaled(dtype, *shape), target)
    usage = resource_usage(compile_cubin(text.source, text.entry, target.arch, device_headers()))
    assert (usage.spill_store_bytes, usage.spill_load_bytes, usage.local_bytes) == (0, 0, 0)
    shared = usage.static_shared + text.shared
    assert target.blocks_per_sm(text.plan.launch.threads, usage.registers, shared) >= 4


def test_64_bit_offsets_compute_the_same() -> None:
    made = planned(scaled(DType.F32, 67, 72))
    x = draw(torch.float32, 67, 72)
    for wide in (False, True):
        kernels = [replace(k, launch=replace(k.launch, wide_index=wide)) for k in made.kernels]
        texts = [write_kernel(k) for k in kernels]
        assert ("mdf::i64 from_a" in texts[0].source) == wide
        bound = BoundProgram(made, texts, {}, "emulate", torch.device("cpu"), "")
        assert torch.equal(bound.run([x], None)[0], x.t() * 2)  # type: ignore[arg-type]


# --- Banks ---------------------------------------------------------------------------------------


def traced(text: KernelText, x: torch.Tensor, y: torch.Tensor) -> list[Access]:
    """The shared accesses of a kernel with one input and one output."""
    arguments = [*(t.data_ptr() for t in (x, y)), *size_arguments(text, {})]
    memory = [
        Allocation(t.data_ptr(), t.nbytes, writable, name)
        for t, writable, name in ((x, False, "x"), (y, True, "y"))
    ]
    return shared_accesses(
        build(text.source, text.entry),
        grid=(int(evaluate(text.blocks, {})), 1, 1),
        block=(text.plan.launch.threads, 1, 1),
        args=arguments,
        allocations=memory,
        shared_bytes=text.shared,
    )


BANK_DTYPES = (DType.I8, DType.BF16, DType.F32, DType.F64)


@pytest.mark.parametrize("shape", [(136, 136), (135, 136)], ids=str)
@pytest.mark.parametrize("dtype", BANK_DTYPES, ids=str)
@pytest.mark.parametrize("result", BANK_DTYPES, ids=str)
def test_no_two_lanes_meet_in_a_bank(dtype: DType, result: DType, shape: tuple[int, int]) -> None:
    """Vectors or single elements on either side, and results of another size than the operand."""
    b = Builder(None, "local")
    x = permuted(b, b.input(tensor(dtype, *shape)), (1, 0))
    text = text_of(b.finish((contiguous(b, cast(b, x, result)),)))
    values = draw(TORCH_DTYPES[dtype], *shape)
    found = traced(text, values, torch.empty(shape[::-1], dtype=TORCH_DTYPES[result]))
    # Of the first block, whose tile is whole: no thread leaves out an access there.
    found = [a for a in found if a.thread < text.plan.launch.threads]
    assert found
    assert sum(conflicts(found).values()) == 0, conflicts(found)


def test_conflicts_are_counted() -> None:
    lanes = range(32)
    assert conflicts(Access(n, 1, 4 * n, 4) for n in lanes) == {1: 0}
    assert conflicts(Access(n, 1, 128 * n, 4) for n in lanes) == {1: 31}
    assert conflicts(Access(n, 1, 4 * (n // 2), 4) for n in lanes) == {1: 0}
    assert conflicts(Access(n, 1, 2 * n, 2) for n in lanes) == {1: 0}
    assert conflicts(Access(n, 1, 16 * n, 16) for n in lanes) == {1: 0}
    assert conflicts(Access(n, 1, 32 * n, 16) for n in lanes) == {1: 4}
    assert conflicts(Access(n, 1, 256 * n, 8) for n in lanes) == {1: 30}
