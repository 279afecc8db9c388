"""The benchmark's workloads through thunder.jit: right, and in as few kernels as there can be."""

import pytest
import torch

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.bench.cases import error
from thunder_mdfuse.bench.workloads import WORKLOADS, Workload
from thunder_mdfuse.thunder.frontend import jit

# Kernels of the forward and of the backward. Two where there are two domains: q and k; the rows of
# a cross-entropy and the mean over them.
KERNELS = {
    "B01": (1, 0),
    "B02f": (1, 0),
    "B02b": (1, 1),
    "B03": (2, 0),
    "B04a": (1, 0),
    "B05a": (1, 0),
    "B06a": (1, 1),
    "B06c": (1, 1),
    "B07f": (1, 0),
    "B07b": (1, 1),
    "B08a": (1, 0),
    "B08b": (1, 0),
    "B09a": (2, 0),
    "B09c": (2, 1),
    "B10a": (1, 0),
    "B10b": (1, 0),
    "B11": (1, 0),
    "B12": (1, 0),
    "B13a": (1, 0),
    "B13b": (1, 0),
    "B13c": (1, 0),
    "B13d": (2, 0),
    "B13e": (1, 0),
    "B13f": (1, 0),
    "A2": (1, 0),
    "A4": (1, 0),
}


@pytest.mark.parametrize("work", [WORKLOADS[name] for name in KERNELS], ids=lambda w: w.name)
def test_few_kernels_and_no_other_step(work: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    torch.manual_seed(0)
    jitted = jit(work.function, [mdfuse_executor.name])
    assert error(work, jitted, work.make(torch.device("cpu"), *work.small)) <= work.tolerance
    found = explain(jitted)
    counts = {"forward": 0, "backward": 0}
    for region in found.regions:
        assert region.backend == "emulate"
        counts[region.part] += len(region.kernels)
        assert {s.name for s in region.aten_steps} <= {"rng_state"}
    assert tuple(counts.values()) == KERNELS[work.name], str(found)
