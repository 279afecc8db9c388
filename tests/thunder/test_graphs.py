"""CUDA graphs without a GPU: what is captured, and that a capture does nothing that it may not.

``StandIn`` takes a graph's place, which calls what was captured again.
``tests/gpu/test_gpu_graphs.py`` has real ones.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import thunder
import torch
import torch.distributed as dist
import torch.nn.functional as F
from against_eager import jit
from multirank.graphs_cases import StandIn, static_inputs
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from thunder_mdfuse import CUDAGraphTransform
from thunder_mdfuse.compile import module as compiled
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.thunder import graphs

FORBIDDEN = {  # in a capture: the host waits for the device, for ranks, or compiles
    torch.Tensor: ("tolist", "numpy", "cpu"),
    torch.cuda: ("synchronize",),
    dist: ("barrier", "all_gather_object", "broadcast_object_list"),
    Executable: ("_specialise", "_agree", "_plan"),
    compiled: ("load",),
}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thunder's capture, at its seam: three calls to warm up, one in which nothing is allowed."""

    def build(runner: Any, function: Any, args: Any, static: Any) -> Any:
        inputs = static_inputs(runner, args, static)
        for _ in range(3):
            function(*inputs)
        with monkeypatch.context() as patch:
            for owner, names in FORBIDDEN.items():
                for name in filter(lambda n, o=owner: hasattr(o, n), names):
                    patch.setattr(owner, name, _forbidden(name))
            outputs = function(*inputs)
        return StandIn(function, inputs, outputs), inputs, outputs

    monkeypatch.setattr(graphs.Runner, "build_cuda_graph", build)


def _forbidden(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{name} in a capture")

    return call


def captures(transform: CUDAGraphTransform) -> list[StandIn]:
    return [graph for graph, _, _ in transform.cuda_graph_runner.cuda_graph_cache.values()]


def test_one_region_is_captured_and_replayed() -> None:
    transform = CUDAGraphTransform()
    jitted = jit(lambda x, w: torch.softmax(F.linear(x, w) * 2, -1), transforms=[transform])
    for seed in range(3):
        torch.manual_seed(seed)
        x, w = torch.randn(4, 8), torch.randn(5, 8)
        torch.testing.assert_close(jitted(x, w), torch.softmax(F.linear(x, w) * 2, -1))
    (graph,) = captures(transform)
    assert graph.replays == 3
    jitted(torch.randn(8, 4).t(), w)  # other strides
    assert len(captures(transform)) == 2


def test_what_is_between_regions_is_captured_with_them() -> None:
    transform = CUDAGraphTransform()
    function = lambda x: F.adaptive_avg_pool2d(x * 2, 2).exp() * 3
    jitted, x = jit(function, transforms=[transform]), torch.randn(1, 2, 5, 5)
    torch.testing.assert_close(jitted(x), function(x))
    symbols = [b.sym.name for b in thunder.last_traces(jitted)[-1].bound_symbols]
    assert symbols.count("CUDAGraph1") == 1 and not any("mdFusion" in s for s in symbols)


def test_training_with_parameters_that_stay_where_they_are() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    mine = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    mine.load_state_dict(plain.state_dict())
    transform = CUDAGraphTransform()
    jitted = jit(mine, transforms=[transform])
    for model, parameters in ((plain, plain.parameters()), (jitted, mine.parameters())):
        optimizer = torch.optim.SGD(list(parameters), 0.01)
        for step in range(4):
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    for a, b in zip(plain.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    forward, backward = captures(transform)
    assert forward.replays == backward.replays == 4
    kept = {id(p) for p in mine.parameters()}
    assert kept & {id(x) for x in forward.inputs} == kept


def test_random_numbers_are_drawn_in_a_capture() -> None:
    transform = CUDAGraphTransform()
    jitted = jit(lambda x: F.dropout(x, 0.5) + torch.randint(0, 9, (64,)), transforms=[transform])
    x = torch.ones(64)
    first = jitted(x).clone()
    assert not torch.equal(jitted(x), first) and len(captures(transform)) == 1


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def test_dtensors(mesh: DeviceMesh) -> None:
    transform = CUDAGraphTransform()
    block = lambda x, w: F.dropout(F.silu(F.linear(x, w)), 0.0) * 2
    jitted = jit(block, transforms=[transform])
    for seed in range(3):
        torch.manual_seed(seed)
        x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()]).requires_grad_()
        w = distribute_tensor(torch.randn(6, 8), mesh, [Shard(0)]).requires_grad_()
        given = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)])
        y, expected = jitted(x, w), block(x, w)
        found = torch.autograd.grad(y, (x, w), given)
        wanted = torch.autograd.grad(expected, (x, w), given)
        assert isinstance(y, DTensor) and y.placements == expected.placements
        assert y.device_mesh is mesh
        torch.testing.assert_close(y.to_local(), expected.to_local())
        for a, b in zip(found, wanted, strict=True):
            assert a.placements == b.placements
            torch.testing.assert_close(a.to_local(), b.to_local())
    assert [graph.replays for graph in captures(transform)] == [3, 3]


def test_a_graph_is_for_one_mesh_and_placement(mesh: DeviceMesh) -> None:
    other = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    transform = CUDAGraphTransform()
    jitted = jit(lambda x: x * 2, transforms=[transform])
    for on, place in ((mesh, Shard(0)), (mesh, Shard(1)), (other, Shard(0)), (mesh, Shard(0))):
        x = distribute_tensor(torch.randn(4, 8), on, [place])
        y = jitted(x)
        assert y.device_mesh is on and y.placements == (place,)
    assert len(captures(transform)) == 3


def test_what_is_not_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    jitted = jit(lambda x: x * 2, transforms=[CUDAGraphTransform()])
    with pytest.raises(ExecutorError, match="found tensors on cpu; move the module"):
        jitted(torch.randn(4))
    made = jit(lambda: torch.ones(4) * 2, transforms=[CUDAGraphTransform()])
    if not torch.cuda.is_available():
        with pytest.raises(ExecutorError, match="of what runs on a GPU, found no GPU"):
            made()
