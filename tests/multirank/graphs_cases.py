"""CUDA graphs of DTensors: captured once and replayed on new inputs, in both directions.

Without GPUs ``StandIn`` takes a graph's place, which calls what was captured again.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import thunder
import torch
import torch.nn.functional as F
from multirank.ranks import DEVICE, TOLERANCE, Case, mesh_of, place
from torch.distributed.tensor import Replicate, Shard
from torch.utils._pytree import tree_leaves

from thunder_mdfuse import CUDAGraphTransform, mdfuse_executor


class StandIn:
    """Calls ``function`` on the graph's own inputs, into its own outputs; ``replays`` counts."""

    def __init__(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> None:
        self.function, self.inputs, self.outputs, self.replays = function, inputs, outputs, 0

    def replay(self) -> None:
        self.replays += 1
        found = tree_leaves(self.function(*self.inputs))
        for target, result in zip(tree_leaves(self.outputs), found, strict=True):
            if target is not result:
                target.copy_(result)


def static_inputs(runner: Any, args: Any, static: Any) -> tuple[Any, ...]:
    pairs = zip(args, static, strict=True)
    return tuple(x if kept else runner.get_static_buffer(x) for x, kept in pairs)


def _build(runner: Any, function: Any, args: Any, static: Any) -> Any:
    inputs = static_inputs(runner, args, static)
    outputs = function(*inputs)
    return StandIn(function, inputs, outputs), inputs, outputs


def graphs(ranks: int) -> None:
    """A tensor-parallel MLP."""
    mesh = mesh_of(range(ranks))
    transform = CUDAGraphTransform()
    runner = transform.cuda_graph_runner
    if DEVICE == "cpu":
        runner.build_cuda_graph = MethodType(_build, runner)

    def mlp(x: Any, up: Any, down: Any) -> Any:
        hidden = F.gelu(F.linear(x, up))
        return x + F.linear(hidden, down).redistribute(placements=[Replicate()])

    jitted = thunder.jit(mlp, executors=[mdfuse_executor], transforms=[transform])
    shapes = (((4, 8), Replicate()), ((12, 8), Shard(0)), ((8, 12), Shard(1)))
    for seed in range(3):
        numbers = torch.Generator().manual_seed(seed)
        inputs = [
            place(torch.randn(s, generator=numbers), mesh, p).requires_grad_() for s, p in shapes
        ]
        given = place(torch.randn(4, 8, generator=numbers), mesh, Replicate())
        found, wanted = jitted(*inputs), mlp(*inputs)
        pairs = [(found, wanted)]
        mine = torch.autograd.grad(found, inputs, given)
        pairs += zip(mine, torch.autograd.grad(wanted, inputs, given), strict=True)
        for a, b in pairs:
            assert a.placements == b.placements and a.device_mesh is mesh
            torch.testing.assert_close(a.to_local(), b.to_local(), rtol=TOLERANCE, atol=TOLERANCE)
    assert len(runner.cuda_graph_cache) == 2, "one for each direction"


CASES = [Case("thunder", "graphs", graphs, 2)]
