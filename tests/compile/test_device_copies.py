"""Copies to shared memory that go on meanwhile: right after the wait for them, and not before."""

import pytest
import torch
from kernels.emulated import INCLUDE, launch

from thunder_mdfuse.errors import EmulatorError

KERNEL = (
    INCLUDE
    + """
extern "C" __global__ void __launch_bounds__(64) pipeline(
    MDF_IN(float) x, MDF_OUT(float) y, const mdf::i32 rows) {
  MDF_SHARED(float, held, 768);
  for (mdf::i32 stage = 0; stage < 3; ++stage) {
    if (stage < rows) {
      mdf::copy_async<4>(held, (stage * 64 + threadIdx.x) * 4, x, (stage * 64 + threadIdx.x) * 4);
    }
    mdf::commit_copies();
  }
  for (mdf::i32 row = 0; row < rows; ++row) {
    mdf::wait_copies<2>();
    const mdf::i32 place = (row % 3 * 64 + threadIdx.x) * 4;
    mdf::store<4>(y, (row * 64 + threadIdx.x) * 4, mdf::load<4>(held, place));
    if (row + 3 < rows) {
      mdf::copy_async<4>(held, place, x, ((row + 3) * 64 + threadIdx.x) * 4);
    }
    mdf::commit_copies();
  }
}
"""
)


def run(source: str, rows: int) -> None:
    x = torch.arange(rows * 256.0)
    y = torch.empty_like(x)
    launch(source, "pipeline", inputs=[x], outputs=[y], scalars=[rows], block=64)
    assert torch.equal(x, y)


@pytest.mark.parametrize("rows", [0, 1, 3, 10])
def test_a_pipeline_of_rows(rows: int) -> None:
    run(KERNEL, rows)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("    mdf::wait_copies<2>();\n", "", "which nothing has written"),
        ("wait_copies<2>", "wait_copies<3>", "which nothing has written"),
        ("  }\n    mdf::commit_copies();\n  }\n}", "  }\n  }\n}", "which nothing has written"),
        ("row % 3 * 64 + threadIdx.x", "row % 3 * 64 + 63 - threadIdx.x", "which nothing"),
        ("copy_async<4>(held, place, x, ((row", "copy_async<4>(held, place, x, 1 + ((row", "misal"),
    ],
)
def test_faults_are_found(right: str, wrong: str, message: str) -> None:
    assert right in KERNEL
    with pytest.raises(EmulatorError, match=message):
        run(KERNEL.replace(right, wrong), 10)
