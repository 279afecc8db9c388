"""Regions by name in profiles, and nothing of it while nobody profiles."""

from typing import Any

import pytest
import torch
from against_eager import jit
from torch.profiler import ProfilerActivity, profile

from thunder_mdfuse import FusionDefinition
from thunder_mdfuse.runtime import ranges


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp()


def definition() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.exp(x))
    return fd


def counts(work: Any) -> dict[str, int]:
    """How often each range of ours is in a profile of ``work``."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiled:
        work()
    rows = profiled.key_averages()
    return {row.key: row.count for row in rows if row.key.startswith("mdfuse::")}


def test_regions_are_named_in_profiles() -> None:
    jitted, x = jit(scaled), torch.ones(4, requires_grad=True)
    jitted(x)

    def work() -> None:
        jitted(x).sum().backward()
        jitted(x)

    assert counts(work) == {"mdfuse::mdFusion0": 2, "mdfuse::mdFusion1": 1}


def test_a_fusion_definition_has_its_class_s_name() -> None:
    fd, x = definition(), torch.ones(4)
    assert counts(lambda: fd.execute([x])) == {"mdfuse::FusionDefinition": 1}


def test_nothing_is_named_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted, fd, x = jit(scaled), definition(), torch.ones(4)

    def around(*args: Any) -> None:
        raise AssertionError("a range was opened")

    monkeypatch.setattr(ranges.Ranges, "around", around)
    jitted(x), fd.execute([x])
    with (
        profile(activities=[ProfilerActivity.CPU], acc_events=True),
        pytest.raises(AssertionError, match="opened"),
    ):
        jitted(x)


def test_nvtx_ranges_for_other_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", seen.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: seen.append("end"))
    jit(scaled)(torch.ones(4))
    assert not seen
    monkeypatch.setenv("MDFUSE_NVTX", "1")
    jit(scaled)(torch.ones(4))
    assert seen == ["mdfuse::mdFusion0", "end"]

    def fails(*args: Any) -> None:
        raise RuntimeError("as it runs")

    with pytest.raises(RuntimeError, match="as it runs"):
        ranges.Ranges("r").around(fails)
    assert seen[2:] == ["mdfuse::r", "end"]  # what was opened is closed
