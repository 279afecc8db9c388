"""Random programs: planned, written as CUDA, run in the emulator, compared with eager torch in f64.

A failure prints the program and its seed; ``check(draw_program(seed))`` runs it again.
"""

import pytest
from codegen.random_programs.check import check
from codegen.random_programs.draw import draw_program

# Each batch is one test, so that batches may run side by side. Seeds are fixed: CI is to fail for
# what a change did, and a longer hunt is one line of Python.
BATCH = 10


def _run(first: int, exact: bool = False) -> int:
    """Runs a batch; the number of generated kernels."""
    kernels = 0
    for seed in range(first, first + BATCH):
        executable = check(draw_program(seed, exact))
        assert executable.last is not None
        assert all(s.kind == "kernel" for s in executable.last.plan.steps), executable.last.plan
        kernels += len(executable.last.plan.steps)
    return kernels


@pytest.mark.parametrize("first", range(0, 60, BATCH))
def test_random_programs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, dtypes, strides and aliases of all outputs; every op is in a generated kernel."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    assert _run(first) >= BATCH // 2


@pytest.mark.parametrize("first", range(10_000, 10_040, BATCH))
def test_eager_rounding_is_eager_to_the_bit(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of + - * / comparisons, casts and moves under MDFUSE_EAGER_ROUNDING=1."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EAGER_ROUNDING", "1")
    assert _run(first, exact=True) >= BATCH // 2
