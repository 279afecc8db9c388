"""``explain``: fields for programs, a text for people, errors for what it cannot explain."""

import pytest
import torch
from against_eager import jit
from thunder.dynamo import thunderfx
from torch import nn

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.errors import ExecutorError


def test_regions_steps_and_bytes() -> None:
    jitted = jit(lambda x, w: torch.nn.functional.linear(x * 2, w) + 1)
    jitted(torch.randn(4, 8), torch.randn(5, 8))
    said = explain(jitted)
    (region,) = said.regions
    assert (region.name, region.part, region.calls, region.specialisations) == (
        "mdFusion0",
        "forward",
        1,
        1,
    )
    assert region.backend == "reference"
    assert region.ops == ("mul", "linear", "add")
    assert region.inputs == ("cpu f32[4, 8]", "cpu f32[5, 8]")
    assert region.outputs == ("cpu f32[4, 5]",)
    assert [s.kind for s in region.steps] == ["kernel", "aten", "kernel"]
    (linear,) = region.aten_steps
    assert (linear.bytes_read, linear.bytes_written) == (4 * (32 + 40), 4 * 20)
    assert not region.collectives and len(region.kernels) == said.kernels == 2
    moved = [(4 * 32, 4 * 32), (4 * 72, 4 * 20), (4 * 20, 4 * 20)]
    assert said.bytes_moved == sum(map(sum, moved))
    text = str(said)
    for part in ("mdFusion0 (forward; 1 calls", "aten linear", "288 B", "ops: mul, linear, add"):
        assert part in text, text


def test_what_is_outside_has_its_reason() -> None:
    jitted = jit(nn.Sequential(nn.Conv1d(1, 1, 2), nn.ReLU()))
    jitted(torch.randn(1, 1, 5))
    left = explain(jitted).unfused
    assert any("conv" in u.symbol and "the IR has no such op" in u.reason.text for u in left), left
    assert "outside of regions" in str(explain(jitted))


def test_a_function_without_regions() -> None:
    jitted = jit(lambda x: x.t())
    jitted(torch.randn(2, 3))
    said = explain(jitted)
    assert not said.regions and not said.kernels and not said.bytes_moved
    assert str(said).startswith("no regions")


def test_backward_regions_are_there_before_they_run() -> None:
    jitted = jit(lambda x: (x * x).sum())
    loss = jitted(torch.randn(4, requires_grad=True))
    forward, backward = explain(jitted).regions
    assert (forward.part, backward.part) == ("forward", "backward")
    assert forward.steps and not backward.steps
    assert "not called yet, so not compiled" in str(backward)
    loss.backward()
    assert explain(jitted).regions[1].steps


def test_what_cannot_be_explained() -> None:
    with pytest.raises(ExecutorError, match="call it, then explain it"):
        explain(jit(lambda x: x * 2))
    with pytest.raises(ExecutorError, match=r"not made by thunder\.jit"):
        explain(torch.sin)


def test_subgraphs_of_thunderfx() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    compiled = thunderfx(net, executors=[mdfuse_executor])
    x = torch.randn(3, 8, requires_grad=True)
    torch.testing.assert_close(compiled(x), net(x))
    said = explain(compiled)
    assert {r.part for r in said.regions} == {"forward", "backward"}
    assert said.regions[0].aten_steps and said.regions[0].kernels
