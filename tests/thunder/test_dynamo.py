"""Graphs of torch's dynamo: one part for Thunder where this executor has all functions.

Models over several ranks are in tests/multirank/dynamo_cases.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from thunder.dynamo import splitter, thunderfx
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from thunder_mdfuse import explain, mdfuse_executor

pytestmark = pytest.mark.filterwarnings("ignore")  # dynamo's own


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def dynamo() -> None:
    torch.compiler.reset()


def check(function: Callable[..., Any], *inputs: Any) -> Any:
    """``function`` in one part, with eager's results and gradients."""
    ours, theirs = (
        [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs] for _ in range(2)
    )
    fused = thunderfx(function, executors=[mdfuse_executor])
    found, wanted = fused(*ours), function(*theirs)
    for x in (found, wanted):
        (x.to_local() if isinstance(x, DTensor) else x).square().sum().backward()
    pairs = [(found, wanted), *((x.grad, y.grad) for x, y in zip(ours, theirs, strict=True))]
    for x, y in pairs:
        assert type(x) is type(y)
        if isinstance(y, DTensor):
            assert x.placements == y.placements
            x, y = x.to_local(), y.to_local()
        torch.testing.assert_close(x, y)
    (graph,) = fused._backend.subgraph_infos
    assert not graph.split_reasons and len(graph.thunder_compiled_fns) == 1, graph.split_reasons
    assert explain(fused).unfused == ()


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.parametrize("norm", [F.rms_norm, F.layer_norm])
def test_a_norm_stays_in_the_graph(norm: Callable[..., Any]) -> None:
    check(lambda x, w: norm(x, (8,), w) * 2, leaf(4, 8), leaf(8))


def mlp(x: Any, up: Any, down: Any, w: Any) -> Any:
    y = F.rms_norm(x, (8,), w)
    return F.linear(F.gelu(F.linear(y, up)), down).redistribute(placements=[Replicate()]) + x


def operators(x: Any, y: Any) -> Any:
    z = 2 * (x + y) - x / 3 * y
    return (z @ y.T)[1:] ** 2 + -z[1:, :4]


def crossing(x: torch.Tensor, mesh: DeviceMesh) -> Any:
    """DTensor's own functions with arguments by place and by name."""
    y = DTensor.from_local(x, mesh, [Shard(0)], run_check=False, shape=x.shape, stride=x.stride())
    z = (y * 2).redistribute(None, [Replicate()])
    return z.to_local(grad_placements=[Replicate()]) + x


def test_functions_of_dtensors_stay_in_the_graph(mesh: DeviceMesh) -> None:
    def d(*shape: int) -> Any:
        return distribute_tensor(leaf(*shape).detach(), mesh, [Replicate()]).requires_grad_()

    check(mlp, d(4, 8), d(6, 8), d(8, 6), d(8))
    check(operators, d(4, 8), d(4, 8))


def test_tensors_become_dtensors_and_back(mesh: DeviceMesh) -> None:
    check(lambda x: crossing(x, mesh), leaf(4, 8))


def test_what_neither_has_is_left_to_torch() -> None:
    graph = torch.fx.symbolic_trace(lambda x: torch.sinc(x))
    (given,) = graph.graph.find_nodes(op="placeholder")
    (node,) = graph.graph.find_nodes(op="call_function", target=torch.sinc)
    given.meta["example_value"] = leaf(4)
    options = {"executors": [mdfuse_executor]}
    supported, reason = splitter.is_node_supported_by_thunder(node, options)
    assert not supported and "sinc" in str(reason)
