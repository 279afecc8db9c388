"""Reductions over other axes than the one along which memory runs, against eager torch.

Every kernel runs in the emulator in several orders of its threads. Values are compared with torch
in f64, integers and booleans exactly, and every output's dtype and strides with eager torch's.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from schedule.programs import spread, tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Output, Use
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200

Dims = tuple[int, ...]
# Relative to the mean of what is summed: f32 sums of up to some thousand numbers, one rounding.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


def reduction(op: str, x: torch.Tensor, dims: Dims) -> Executable:
    """``op`` of a tensor like ``x`` over ``dims``."""
    dtype = next(d for d, t in TORCH_DTYPES.items() if t is x.dtype)
    b = Builder(None, "global")
    return Executable(
        b.finish(b.op(op, (b.input(tensor(dtype, *x.shape)),), at.DimsAttrs(dims))), op
    )


def eager(op: str, x: torch.Tensor, dims: Dims) -> torch.Tensor:
    """Torch's result; a sum of integers stays in their dtype, one of booleans asks for any."""
    if op == "prod":
        kept = [d for d in range(x.ndim) if d not in dims]
        return x.permute(*kept, *dims).flatten(len(kept)).prod(-1, dtype=x.dtype)
    if op == "sum":
        return x.any(dims) if x.dtype is torch.bool else x.sum(dims, dtype=x.dtype)
    found = getattr(torch, op)(x, dims)
    assert isinstance(found, torch.Tensor)
    return found


def check(op: str, x: torch.Tensor, dims: Dims, family: str = "outer") -> KernelPlan:
    """Runs one reduction and compares it; the plan of its only kernel."""
    executable = reduction(op, x, dims)
    (found,) = executable.run([x])
    assert isinstance(found, torch.Tensor)
    assert executable.last is not None
    (step,) = executable.last.plan.steps
    assert step.kernel is not None
    assert step.kernel.family == family
    same = eager(op, x, dims)
    assert (found.dtype, found.shape, found.stride()) == (same.dtype, same.shape, same.stride())
    if not x.is_floating_point():
        assert torch.equal(found, same)
        return step.kernel
    right = eager(op, x.double(), dims)
    scale = eager("sum", x.double().abs(), dims) if op == "sum" else right.abs()
    close = (found.double() - right).abs() <= TOLERANCE[x.dtype] * scale.clamp(min=1e-30)
    agrees = torch.where(right.isfinite(), close, found.double() == right)
    assert bool((agrees | (right.isnan() & found.isnan())).all())
    return step.kernel


def draw(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype is torch.bool:
        return x > 1.5
    return (x * 3).to(dtype) if dtype.is_floating_point else (x * 40).to(torch.int64).to(dtype)


ROWS = (1, 2, 7, 33, 128, 257)
COLUMNS = (2, 3, 8, 31, 100, 129, 256, 264)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("n", COLUMNS)
def test_sums_of_columns(n: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    for rows in ROWS:
        check("sum", draw(dtype, rows, n), (0,), "outer" if rows > 1 else "pointwise")


DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod", "amax", "amin"])
def test_every_operation_and_dtype(op: str, dtype: str) -> None:
    x = draw(getattr(torch, dtype), 300, 72)
    if op == "prod":  # of numbers about 1, or 1 and -1, whose product is a number too
        x = (1 + x / 100).to(x.dtype) if x.is_floating_point() else (x % 2 * 2 - 1).to(x.dtype)
        tolerance = pytest.MonkeyPatch()
        tolerance.setitem(TOLERANCE, torch.float32, 1e-4)
        check(op, x, (0,))
        tolerance.undo()
        return
    check(op, x, (0,))


@pytest.mark.parametrize("op", ["amax", "amin", "sum", "prod"])
def test_booleans(op: str) -> None:
    """Sum and maximum are any, product and minimum are all."""
    check(op, draw(torch.bool, 70, 40), (0,))


@pytest.mark.parametrize(
    ("shape", "dims", "family"),
    [
        ((6, 50, 24), (1,), "outer"),
        ((6, 50, 24), (0,), "outer"),
        ((6, 50, 24), (0, 1), "outer"),
        ((6, 50, 24), (0, 2), "row"),
        ((4, 6, 5, 8), (0, 2), "outer"),
        ((4, 16, 6, 5), (0, 2, 3), "row"),  # a batch norm of NCHW: rows of H x W elements
        ((4, 6, 5, 16), (0, 1, 2), "outer"),  # and of NHWC
        ((3, 1, 40, 1, 9), (2,), "outer"),
        ((40, 3, 7), (0,), "outer"),
    ],
)
def test_dims_of_all_kinds(shape: tuple[int, ...], dims: Dims, family: str) -> None:
    check("sum", draw(torch.float32, *shape), dims, family)
    check("amax", draw(torch.bfloat16, *shape), dims, family)


def test_memory_decides_and_not_the_order_of_dims() -> None:
    x = draw(torch.float32, 40, 300).t()
    check("sum", x, (0,), "row")
    check("sum", x, (1,), "outer")


@pytest.mark.parametrize(
    ("name", "cut", "vector"),
    [
        ("dense", lambda x: x, 8),
        ("odd rows", lambda x: x[:, :63], 1),
        ("narrower rows", lambda x: x[:, :64], 8),
        ("misaligned start", lambda x: x[:, 1:65], 1),
        ("half aligned start", lambda x: x[:, 4:68], 4),
        ("every second row", lambda x: x[::2], 8),
        ("every second column", lambda x: x[:, ::2], 1),
        ("equal rows", lambda x: x[:1].expand(90, 72), 8),
        ("equal columns", lambda x: x[:, :1].expand(90, 72), 0),
    ],
)
def test_strides_and_alignments(
    name: str, cut: Callable[[torch.Tensor], torch.Tensor], vector: int
) -> None:
    x = cut(draw(torch.bfloat16, 90, 72))
    kernel = check("sum", x, (0,), "outer" if vector else "row")
    assert not vector or kernel.launch.vector == vector


@pytest.mark.parametrize("op", ["sum", "amax", "amin", "prod"])
def test_special_values(op: str) -> None:
    x = draw(torch.float32, 33, 40).abs() + 0.5
    for column, value in enumerate((float("nan"), float("inf"), float("-inf"), -0.0, 0.0)):
        x[7, column] = value
    x[9, 5], x[20, 5] = float("inf"), float("-inf")
    x[:, 6] = -0.0
    (found,) = reduction(op, x, (0,)).run([x])
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, eager(op, x, (0,)), rtol=1e-5, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 16), (8, 0), (0, 0), (3, 0, 8)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    (found,) = reduction("sum", x, (0,)).run([x])
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, x.sum(0))


# --- Kernels of several values -------------------------------------------------------------------


def _columns(b: Builder, name: str, x: Use) -> Use:
    return b.op(name, (x,), at.DimsAttrs((0,)))[0]


def _down(b: Builder, x: Use, like: Use) -> Use:
    """A value for each column, given to each row."""
    return spread(b, x, like, (1,))


def run(b: Builder, outputs: tuple[Use, ...], *inputs: torch.Tensor) -> Executable:
    executable = Executable(b.finish(tuple(Output(u) for u in outputs)), "several")
    executable.found = executable.run(inputs)  # type: ignore[attr-defined]
    return executable


def only_kernel(executable: Executable) -> KernelPlan:
    assert executable.last is not None
    (step,) = executable.last.plan.steps
    assert step.kernel is not None, executable.last.plan
    assert step.kernel.family == "outer"
    return step.kernel


@pytest.mark.parametrize("rows", [40, 1500])
def test_a_dropout_gradient_and_a_bias_gradient_are_one_kernel(rows: int) -> None:
    """What is stored for each element goes with the sum of it, also where blocks share columns."""
    b = Builder(None, "global")
    g, mask = b.input(tensor(DType.BF16, rows, 72)), b.input(tensor(DType.BOOL, rows, 72))
    (kept,) = b.op("mul", (g, b.op("cast", (mask,), at.CastAttrs(DType.BF16))[0]))
    (scaled,) = b.op("mul", (kept, b.const(2.0)))
    gradient, drop = draw(torch.bfloat16, rows, 72), draw(torch.float32, rows, 72) > 0
    executable = run(b, (scaled, _columns(b, "sum", scaled)), gradient, drop)
    kernel = only_kernel(executable)
    assert (kernel.launch.parts != 1) == (rows == 1500)
    (report,) = executable.report()
    assert report.bytes_read + report.bytes_written == rows * 72 * 5 + 72 * 2
    whole, bias = executable.found  # type: ignore[attr-defined]
    right = gradient * drop * 2.0
    assert torch.equal(whole, right)
    torch.testing.assert_close(bias.double(), right.double().sum(0), rtol=2**-7, atol=0.05)


@pytest.mark.parametrize("rows", [40, 3000])
def test_several_reductions_of_one_kernel(rows: int) -> None:
    b = Builder(None, "global")
    x, w = b.input(tensor(DType.F32, rows, 36)), b.input(tensor(DType.F32, rows, 36))
    (product,) = b.op("mul", (x, w))
    (negative,) = b.op("lt", (x, b.const(0.0)))
    outputs = [_columns(b, name, x) for name in ("sum", "amax", "amin")]
    outputs += [_columns(b, "sum", product), _columns(b, "amin", negative)]
    outputs += [_columns(b, "sum", b.op("cast", (x,), at.CastAttrs(DType.F64))[0])]
    values = draw(torch.float32, rows, 36), draw(torch.float32, rows + 1, 36)[1:]
    values[0][:, 3] = -values[0][:, 3].abs() - 1
    executable = run(b, tuple(outputs), *values)
    kernel = only_kernel(executable)
    assert (kernel.launch.parts != 1) == (rows == 3000)
    wide = [v.double() for v in values]
    right = [wide[0].sum(0), wide[0].amax(0), wide[0].amin(0), (wide[0] * wide[1]).sum(0)]
    found = executable.found  # type: ignore[attr-defined]
    for value, expected in zip(found[:4], right, strict=True):
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=2e-3)
    assert torch.equal(found[4], (values[0] < 0).all(0))
    torch.testing.assert_close(found[5], right[0], rtol=1e-12, atol=1e-9)


def softmax(b: Builder, x: Use) -> Use:
    (shifted,) = b.op("sub", (x, _down(b, _columns(b, "amax", x), x)))
    (grown,) = b.op("exp", (shifted,))
    return b.op("div", (grown, _down(b, _columns(b, "sum", grown), x)))[0]


def norm(b: Builder, x: Use, weight: Use) -> Use:
    """A norm of each column, with a weight for each column."""
    variance, center = b.op("var_mean", (x,), at.VarAttrs((0,), 0.0))
    (scale,) = b.op("rsqrt", (b.op("add", (variance, b.const(1e-5)))[0],))
    (distance,) = b.op("sub", (x, _down(b, center, x)))
    (normed,) = b.op("mul", (distance, _down(b, scale, x)))
    return b.op("mul", (normed, _down(b, weight, x)))[0]


# Lengths that one, two and eight vectors of a thread hold, and that registers do not.
LENGTHS = (1, 5, 128, 129, 1000, 1100)


@pytest.mark.parametrize("n", [40, 37])
@pytest.mark.parametrize("rows", LENGTHS[1:])
def test_softmax_over_the_first_dim(rows: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    b = Builder(None, "global")
    output = softmax(b, b.input(tensor(DType.F32, rows, n)))
    x = draw(torch.float32, rows, n)
    executable = run(b, (output,), x)
    only_kernel(executable)
    (found,) = executable.found  # type: ignore[attr-defined]
    torch.testing.assert_close(found.double(), torch.softmax(x.double(), 0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", LENGTHS)
def test_norm_over_the_first_dim(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    b = Builder(None, "global")
    x, weight = b.input(tensor(DType.F32, rows, 24)), b.input(tensor(DType.F32, 24))
    values, weights = draw(torch.float32, rows, 24), draw(torch.float32, 24)
    executable = run(b, (norm(b, x, weight),), values, weights)
    wide = values.double()
    right = (wide - wide.mean(0)) / (wide.var(0, correction=0) + 1e-5).sqrt() * weights.double()
    (found,) = executable.found  # type: ignore[attr-defined]
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


def test_columns_that_registers_hold_are_read_once() -> None:
    b = Builder(None, "global")
    output = softmax(b, b.input(tensor(DType.F32, 500, 64)))
    executable = run(b, (output,), draw(torch.float32, 500, 64))
    assert only_kernel(executable).launch.hold == "registers"
    (source,) = executable.kernel_sources().values()
    assert source.count("mdf::load<4>(b0") == 1


@pytest.mark.parametrize("n", [1024, 4096])
def test_a_softmax_over_the_first_dim_does_not_spill(n: int) -> None:
    """Held in registers, and too long for them."""
    b = Builder(None, "local")
    x = b.op("cast", (b.input(tensor(DType.BF16, n, 65536)),), at.CastAttrs(DType.F32))[0]
    fusion = b.finish(b.op("cast", (softmax(b, x),), at.CastAttrs(DType.BF16)))
    (kernel,) = plan_program(fusion, [InputClass(None)], H200, {}, "cpu").kernels
    assert kernel.launch.hold == ("registers" if n == 1024 else "none")
    text = write_kernel(kernel)
    usage = resource_usage(compile_cubin(text.source, text.entry, "sm_90", device_headers()))
    assert (usage.spill_store_bytes, usage.local_bytes) == (0, 0)


@pytest.mark.parametrize(("rows", "kernels"), [(3000, 1), (5000, 2)])
def test_a_result_given_back_to_each_row(rows: int, kernels: int) -> None:
    """The store moves along columns though its value does not: it waits for the whole column."""
    b = Builder(None, "global")
    x = b.input(tensor(DType.F32, rows, 16))
    values = draw(torch.float32, rows, 16)
    (output,) = b.op("neg", (_down(b, _columns(b, "amax", x), x),))
    executable = run(b, (output,), values)
    (found,) = executable.found  # type: ignore[attr-defined]
    assert torch.equal(found, -values.amax(0).expand(rows, 16))
    assert executable.last is not None
    assert len(executable.last.plan.kernels) == kernels


def test_few_long_columns_are_walked_by_a_kernel_each_time() -> None:
    """One kernel would have two blocks, and the columns are too long to be held."""
    b = Builder(None, "global")
    x, weight = b.input(tensor(DType.F32, 5000, 24)), b.input(tensor(DType.F32, 24))
    values, weights = draw(torch.float32, 5000, 24), draw(torch.float32, 24)
    executable = run(b, (norm(b, x, weight),), values, weights)
    assert executable.last is not None
    families = [k.family for k in executable.last.plan.kernels]
    assert families == ["outer", "outer", "pointwise"]
    assert all(k.launch.parts != 1 for k in executable.last.plan.kernels[:2])
    wide = values.double()
    right = (wide - wide.mean(0)) / (wide.var(0, correction=0) + 1e-5).sqrt() * weights.double()
    (found,) = executable.found  # type: ignore[attr-defined]
    torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)


def test_an_index_of_columns() -> None:
    """Pairs of numbers and places, also where blocks share columns."""
    for rows in (50, 3000):
        b = Builder(None, "global")
        x = b.input(tensor(DType.F32, rows, 20))
        values = draw(torch.float32, rows, 20)
        values[7, 3] = float("nan")
        values[5:9, 4] = 99.0
        executable = run(b, b.op("argmax", (x,), at.DimAttrs(0)), values)
        (found,) = executable.found  # type: ignore[attr-defined]
        assert (only_kernel(executable).launch.parts != 1) == (rows == 3000)
        assert torch.equal(found, values.argmax(0))


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_what_is_looked_up(dim: int) -> None:
    """Whole rows (as of an embedding bag), or an element of each row for each column."""
    for rows in (60, 3000):
        b = Builder(None, "global")
        x = b.input(tensor(DType.F32, rows, 40))
        index = b.input(tensor(DType.I64, (rows, 40)[dim] - 4))
        (chosen,) = b.op("take", (x, index), at.DimAttrs(dim))
        values = draw(torch.float32, rows, 40)
        places = torch.arange((rows, 40)[dim] - 4).flip(0) // 2
        executable = run(b, (_columns(b, "sum", chosen),), values, places)
        (found,) = executable.found  # type: ignore[attr-defined]
        kernel = only_kernel(executable)
        assert (kernel.launch.parts != 1) == (rows == 3000)
        right = values.index_select(dim, places).double().sum(0)
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=2e-3)


# --- How it is laid out --------------------------------------------------------------------------


def plan(dtype: DType, *shape: int, dims: Dims = (0,), alignment: int = 16) -> KernelPlan:
    b = Builder(None, "local")
    fusion = b.finish(b.op("sum", (b.input(tensor(dtype, *shape)),), at.DimsAttrs(dims)))
    (kernel,) = plan_program(fusion, [InputClass(None, alignment)], H200, {}, "cpu").kernels
    return kernel


def test_a_bias_gradient_fills_the_device_with_16_byte_loads() -> None:
    launch = plan(DType.BF16, 16384, 14336).launch
    assert (launch.vector, launch.across) == (8, 16)
    blocks = 14336 // (8 * 16) * launch.parts
    assert isinstance(blocks, int)
    assert blocks >= 2 * 132 * 8


@pytest.mark.parametrize(("rows", "n"), [(1 << 20, 64), (1 << 22, 8), (65536, 1024), (8192, 4096)])
def test_few_columns_are_shared_by_many_blocks(rows: int, n: int) -> None:
    launch = plan(DType.BF16, rows, n).launch
    blocks = -(-n // (launch.across * launch.vector)) * launch.parts
    assert isinstance(blocks, int)
    assert blocks >= 4 * 132
    assert isinstance(launch.parts, int)
    assert launch.parts <= 1024


def test_short_columns_have_threads_of_their_own() -> None:
    launch = plan(DType.F32, 4, 1 << 20).launch
    assert (launch.across, launch.items, launch.parts) == (256, 4, 1)


def test_results_repeat_to_the_bit() -> None:
    x = draw(torch.float32, 5000, 24)
    executable = reduction("sum", x, (0,))
    first, second = executable.run([x])[0], executable.run([x])[0]
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert executable.last is not None
    assert executable.last.plan.kernels[0].launch.parts != 1
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(300, 40), (5000, 24), (33, 7)])
def test_64_bit_offsets_compute_the_same(shape: tuple[int, int]) -> None:
    b = Builder(None, "local")
    fusion = b.finish(b.op("sum", (b.input(tensor(DType.F32, *shape)),), at.DimsAttrs((0,))))
    made = plan_program(fusion, [InputClass(None)], H200, {}, "cpu")
    x = draw(torch.float32, *shape)
    found = []
    for wide in (False, True):
        kernels = [replace(k, launch=replace(k.launch, wide_index=wide)) for k in made.kernels]
        texts = [write_kernel(k) for k in kernels]
        assert ("mdf::i64 r = " in texts[0].source) == wide
        bound = BoundProgram(made, texts, {}, "emulate", torch.device("cpu"), "")
        found += bound.run([x], None)
    assert torch.equal(*found)  # type: ignore[arg-type]


def test_many_reductions_share_the_registers() -> None:
    """Each keeps a result for every element of a thread's vector, so vectors get narrower."""
    b = Builder(None, "global")
    x = b.input(tensor(DType.F32, 64, 48))
    scaled = [b.op("mul", (x, b.const(float(k))))[0] for k in range(40)]
    values = draw(torch.float32, 64, 48)
    executable = run(b, tuple(_columns(b, "sum", s) for s in scaled), values)
    assert only_kernel(executable).launch.vector == 1
    for k, found in enumerate(executable.found):  # type: ignore[attr-defined]
        torch.testing.assert_close(found, (values * k).sum(0), rtol=1e-5, atol=1e-2)
