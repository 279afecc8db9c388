"""Norms, softmax and activations are one kernel each, read what they are given once, and are right.

Rows are of all the lengths at which the launch rules change, and are held in registers, in shared
memory, or nowhere; every kernel runs in the emulator.
"""

import pytest
import torch
from schedule.programs import (
    ADD_RMS_NORM,
    BIAS_GELU,
    LAYER_NORM,
    RMS_NORM,
    SOFTMAX,
    SWIGLU,
    WEIGHTED,
    Case,
)

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import KernelPlan

TORCH = {DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.F16: torch.float16}
# Relative to 1 + |result|: one rounding to the dtype, and sums of up to 65536 numbers in f32.
TOLERANCE = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2e-5}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")


def run_case(case: Case, rows: int, n: int, dtype: DType) -> Executable:
    """Runs ``case`` and compares with eager torch in f64."""
    executable = Executable(case.fusion(rows, n, dtype=dtype), case.name)
    generator = torch.Generator().manual_seed(rows * n)
    inputs = [
        torch.randn(tuple(t.shape), generator=generator).to(TORCH[dtype])  # type: ignore[arg-type]
        for t in case.inputs(rows, n, dtype=dtype)
    ]
    found = executable.run(inputs)
    expected = case.eager(*(t.double() for t in inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for value, right in zip(found, expected, strict=True):
        assert isinstance(value, torch.Tensor)
        assert value.dtype == TORCH[dtype]
        assert value.is_contiguous()
        error = ((value.double() - right).abs() / (1 + right.abs())).max().item()
        assert error <= TOLERANCE[value.dtype], error
    return executable


def only_kernel(executable: Executable) -> KernelPlan:
    """The plan of the last call's program, which has to be one kernel and nothing else."""
    assert executable.last is not None
    (step,) = executable.last.plan.steps
    assert step.kernel is not None, executable.last.plan
    return step.kernel


def check_bytes(executable: Executable, expected: int) -> None:
    """Each input is read once and each output written once; nothing is an ATen step."""
    (report,) = executable.report()
    assert (report.kind, report.bytes_read + report.bytes_written) == ("kernel", expected)


LENGTHS = (7, 64, 1000, 4096, 8192, 16384, 65536)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("case", [RMS_NORM, LAYER_NORM], ids=lambda c: c.name)
def test_norms_of_bf16(case: Case, n: int) -> None:
    executable = run_case(case, 3, n, DType.BF16)
    kernel = only_kernel(executable)
    assert kernel.launch.hold == "registers"
    vectors = len(case.inputs(3, n, dtype=DType.BF16)) - 1
    check_bytes(executable, 2 * (2 * 3 * n + vectors * n))


@pytest.mark.parametrize("n", LENGTHS)
def test_softmax_of_f32(n: int) -> None:
    executable = run_case(SOFTMAX, 3, n, DType.F32)
    kernel = only_kernel(executable)
    assert kernel.launch.hold == "registers"
    assert (kernel.launch.cluster > 1) == (n == 65536)
    check_bytes(executable, 4 * 2 * 3 * n)


@pytest.mark.parametrize(
    ("n", "hold", "cluster"),
    [
        (4096, "registers", 1),
        (57344, "shared", 1),  # 1024 threads x 7 vectors of two tensors: 224 KB a block
        (65536, "registers", 4),  # with an eighth vector they fit no block alone
    ],
)
def test_where_a_row_of_two_tensors_is_held(n: int, hold: str, cluster: int) -> None:
    executable = run_case(ADD_RMS_NORM, 2, n, DType.BF16)
    launch = only_kernel(executable).launch
    assert (launch.hold, launch.cluster) == (hold, cluster)
    check_bytes(executable, 2 * (4 * 2 * n + n))


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
def test_short_rows_share_a_block(rows: int) -> None:
    """Also when the last block has groups without a row."""
    kernel = only_kernel(run_case(LAYER_NORM, rows, 24, DType.F32))
    assert (kernel.launch.group, kernel.launch.threads) == (8, 128)


@pytest.mark.parametrize("shape", [(3, 5), (16, 128), (7, 1001)])
@pytest.mark.parametrize("case", [SWIGLU, BIAS_GELU], ids=lambda c: c.name)
def test_activations(case: Case, shape: tuple[int, int]) -> None:
    executable = run_case(case, *shape, DType.BF16)
    assert only_kernel(executable).family == "pointwise"
    second = 1 if case is BIAS_GELU else shape[0]
    check_bytes(executable, 2 * shape[1] * (2 * shape[0] + second))


def test_a_contiguous_activation_has_one_axis() -> None:
    kernel = only_kernel(run_case(SWIGLU, 16, 128, DType.BF16))
    assert len(kernel.columns) == 1
    assert kernel.launch.vector == 8
    assert all(s.access == "vector" for s in kernel.stores)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("n", [7, 1000])
def test_rows_with_special_numbers(value: float, n: int) -> None:
    """As eager softmax: NaN spreads over its own row only, -inf has weight 0."""
    x = torch.randn(5, n)
    x[1, 3] = value
    x[3] = value
    (found,) = Executable(SOFTMAX.fusion(5, n, dtype=DType.F32), "special").run([x])
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, torch.softmax(x, -1), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_what_is_first_needed_in_a_later_phase_is_held_from_there() -> None:
    """The weights of a weighted softmax are read once, in the second of three phases."""
    executable = run_case(WEIGHTED, 4, 256, DType.F32)
    kernel = only_kernel(executable)
    assert kernel.phases == 3
    check_bytes(executable, 4 * 3 * 4 * 256)
    (source,) = executable.kernel_sources().values()
    weights = next(i for i, b in enumerate(kernel.buffers) if b.value.node == 1)
    assert source.count(f"(b{weights},") == 1
