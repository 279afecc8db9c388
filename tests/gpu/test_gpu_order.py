"""Programs that run again and again, in turn, and after a failure: nothing is left behind."""

import pytest
import thunder
import torch

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder
from thunder_mdfuse.ir.types import DType, TensorType
from thunder_mdfuse.runtime.aten import ATEN

pytestmark = pytest.mark.gpu


def _captured(jitted: object, x: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, object]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        jitted(x)  # type: ignore[operator]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = jitted(x)  # type: ignore[operator]
    return graph, found


def test_two_graphs_replay_in_turn() -> None:
    """Both have reductions whose blocks meet at counters."""
    jitted = thunder.jit(lambda a: (a.sum(), a.sum(0), a.amax()), executors=[mdfuse_executor])
    inputs = [torch.randn(3000, 1000, device="cuda") for _ in range(2)]
    graphs = [_captured(jitted, x) for x in inputs]
    for turn in range(6):
        x, (graph, found) = inputs[turn % 2], graphs[turn % 2]
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, jitted(x)))  # type: ignore[call-overload]
        torch.testing.assert_close(found[1], x.sum(0), rtol=1e-4, atol=1e-3)  # type: ignore[index]


def test_graphs_of_dropout_draw_anew_and_share_the_mask() -> None:
    jitted = thunder.jit(lambda a: torch.nn.functional.dropout(a, 0.5), executors=[mdfuse_executor])
    x = torch.ones(1000, 1000, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.autograd.grad(jitted(x).sum(), x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        y = jitted(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    seen = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(gradient, y.detach())
        seen.append(y.detach().clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def test_after_a_failure_between_steps_all_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder(None, "local")
    x, w = b.input(TensorType(DType.F32, (4, 300_000))), b.input(TensorType(DType.F32, (5, 4)))
    (total,) = b.op("sum", (x,), at.DimsAttrs((1,)))
    (spread,) = b.op("broadcast_in_dim", (total,), at.BroadcastAttrs((5, 4), (1,)))
    (product,) = b.op("linear", (spread, w))
    (last,) = b.op("sum", (product,), at.DimsAttrs((0, 1)))
    original, failing = ATEN["linear"], [False]

    def linear(*args: object, **kwargs: object) -> object:
        if failing[0]:
            raise RuntimeError("on purpose")
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setitem(ATEN, "linear", linear)
    executable = Executable(b.finish((last,)), "fails_once")
    inputs = [torch.randn(4, 300_000, device="cuda"), torch.randn(5, 4, device="cuda")]
    (right,) = executable.run(inputs)
    failing[0] = True
    with pytest.raises(RuntimeError, match="on purpose"):
        executable.run(inputs)
    failing[0] = False
    for _ in range(3):
        assert torch.equal(executable.run(inputs)[0], right)
