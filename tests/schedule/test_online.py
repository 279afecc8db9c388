"""Reductions that need an earlier one of their row, in one pass with it. The oracle is torch."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from codegen.goldens import kernel, plan, run
from schedule.programs import SOFTMAX, back, cast, mean, reduced, tensor

from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Builder, Fusion, Output, Use
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.target import A100, B200, H200, Target

# Three rows are few on it, and none of LONG elements fits anywhere.
LITTLE = replace(A100, name="little", shared_per_block=8 * 1024, sm_count=2)
LONG = {DType.F32: 40_000, DType.F64: 20_000, DType.BF16: 80_000}
Build = Callable[[Builder, Use], Use]
INF, NAN = float("inf"), float("nan")


def variance(b: Builder, x: Use) -> Use:
    return b.op("var", (x,), at.VarAttrs((b.tensor(x).ndim - 1,), 1))[0]


def deviations(b: Builder, x: Use) -> Use:
    """The mean square of what is left of the mean, as a user writes it."""
    y = cast(b, x, b.tensor(x).dtype.compute)
    (d,) = b.op("sub", (y, back(b, mean(b, y), y)))
    return mean(b, b.op("mul", (d, d))[0])


def exponentials(b: Builder, x: Use) -> Use:
    """sum(exp(x - amax(x)))"""
    y = cast(b, x, b.tensor(x).dtype.compute)
    (d,) = b.op("sub", (y, back(b, reduced(b, "amax", y), y)))
    return reduced(b, "sum", b.op("exp", (d,))[0])


def logsumexp(b: Builder, x: Use, size: str = "abs") -> Use:
    """As torch has it: infinite maxima are not subtracted."""
    y = cast(b, x, b.tensor(x).dtype.compute)
    most = reduced(b, "amax", y)
    (infinite,) = b.op("eq", (b.op(size, (most,))[0], b.const(INF)))
    (finite,) = b.op("where", (infinite, b.const(0.0), most))
    (d,) = b.op("sub", (y, back(b, finite, y)))
    total = reduced(b, "sum", b.op("exp", (d,))[0])
    return b.op("add", (b.op("log", (total,))[0], finite))[0]


def log_softmax_sum(b: Builder, x: Use) -> Use:
    """As a log_softmax has it: a maximum of -inf is not subtracted, and inf makes NaN."""
    return logsumexp(b, x, "neg")


def fusion(build: Build, rows: int, columns: int, dtype: DType) -> Fusion:
    b = Builder(None, "local")
    x = b.input(tensor(dtype, rows, columns))
    return decompose(b.finish((Output(build(b, x)),)))


def only(program: Fusion) -> KernelPlan:
    (found,) = plan(program, LITTLE).kernels
    return found


def _subtracted(x: torch.Tensor) -> torch.Tensor:
    """What ``log_softmax`` subtracts from each row; -inf for a row of -inf, which makes NaN."""
    first = (x - torch.log_softmax(x, -1)).nan_to_num(nan=-INF).amax(-1)
    return first.where(x.amax(-1) != INF, NAN).where(~x.isnan().any(-1), NAN)


EAGER: dict[Build, Callable[[torch.Tensor], torch.Tensor]] = {
    variance: lambda x: x.var(-1),
    deviations: lambda x: x.var(-1, correction=0),
    exponentials: lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1),
    logsumexp: lambda x: torch.logsumexp(x, -1),
    log_softmax_sum: lambda x: _subtracted(x),
}
CASES = pytest.mark.parametrize("build", list(EAGER), ids=lambda f: f.__name__)


F32, OTHERS = DType.F32, (DType.F64, DType.BF16)


@pytest.mark.parametrize(
    ("build", "dtype", "rows"),
    [
        *((build, F32, rows) for build in EAGER for rows in (3, 4)),
        *((build, dtype, 3) for build in (variance, logsumexp) for dtype in OTHERS),
    ],
)
def test_one_pass(build: Build, dtype: DType, rows: int) -> None:
    """One block a row, and few long rows in parts; either reads each row once."""
    columns = LONG[dtype]
    program = fusion(build, rows, columns, dtype)
    found = only(program)
    assert found.phases == 2
    assert (found.launch.parts != 1) == (rows == 3)
    wide = torch.float64 if dtype is DType.F64 else torch.float32
    x = (torch.randn(rows, columns, dtype=wide) * 3 + 40).to(
        torch.bfloat16 if dtype is DType.BF16 else wide
    )
    (value,) = run(program, [x], target=LITTLE)
    expected = EAGER[build](x.double())
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2.0**-7}[value.dtype]
    torch.testing.assert_close(value.double(), expected, rtol=tolerance, atol=0)


@CASES
def test_rows_of_infinities(build: Build) -> None:
    rows = [[-INF, 1.0, 2.0], [-INF, -INF, -INF], [1.0, INF, 2.0], [INF, INF, 1.0]]
    rows += [[-INF, INF, 0.0], [NAN, 1.0, INF], [-INF, NAN, -INF], [3.0, -INF, 5.0]]
    x = torch.full((len(rows), 40_000), 1.0 if build in (variance, deviations) else -INF)
    x[:, [0, 30_000, 39_999]] = torch.tensor(rows)
    program = fusion(build, *x.shape, DType.F32)
    assert only(program).phases == 2
    (value,) = run(program, [x], target=LITTLE)
    torch.testing.assert_close(value, EAGER[build](x), equal_nan=True)


@CASES
@pytest.mark.parametrize("target", [A100, H200, B200], ids=lambda t: t.name)
def test_nothing_spills(build: Build, target: Target) -> None:
    text = kernel(fusion(build, 8192, 1 << 20, DType.BF16), target)
    assert text.plan.phases == 2
    usage = resource_usage(compile_cubin(text.source, text.entry, target.arch, device_headers()))
    assert (usage.spill_store_bytes, usage.local_bytes) == (0, 0)


def test_what_is_read_again_anyway_is_read_once_less() -> None:
    """Softmax of a row that fits nowhere: the largest and the sum in one pass, then the result."""
    program = decompose(SOFTMAX.fusion(5, 40_000, dtype=DType.F32, level="local"))
    assert only(program).phases == 2
    assert only(program).launch.hold == "none"
    x = torch.randn(5, 40_000)
    (value,) = run(program, [x], target=LITTLE)
    torch.testing.assert_close(value, x.softmax(-1))


def test_a_row_that_one_block_holds_is_held() -> None:
    (held,) = plan(fusion(variance, 4096, 4096, DType.BF16), H200).kernels
    assert held.phases == 3
    long = kernel(fusion(logsumexp, 4096, 128_256, DType.BF16), H200)
    assert long.plan.launch.cluster == 1
    # Read in one place for chunks within the row and in one for its last chunk.
    assert long.source.count("mdf::load<8>(b0") == 2 and long.plan.phases == 2


@pytest.mark.parametrize("divisor", [39_999.0, 1.0])
def test_another_number_than_the_mean_is_none(divisor: float) -> None:
    def build(b: Builder, x: Use) -> Use:
        (m,) = b.op("div", (reduced(b, "sum", x), b.const(divisor)))
        (d,) = b.op("sub", (x, back(b, m, x)))
        return reduced(b, "sum", b.op("mul", (d, d))[0])

    program = fusion(build, 5, 40_000, DType.F32)
    assert only(program).phases == 3
    x = torch.rand(5, 40_000)
    y = x.double()
    right = (y - y.sum(-1, keepdim=True) / divisor).square().sum(-1)
    torch.testing.assert_close(
        run(program, [x], target=LITTLE)[0].double(), right, rtol=1e-5, atol=0
    )
