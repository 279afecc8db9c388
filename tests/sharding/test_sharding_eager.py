"""Unpinned placements against eager DTensor's, for ops where torch's rule is clear.

One process acts as rank 0 of a fake process group, so no communication happens. ``OURS`` are the
rows in which this package deliberately differs, with both placements and the reason.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from thunder_mdfuse.ir.sizes import Size, evaluate
from thunder_mdfuse.ir.text import parse, parse_type
from thunder_mdfuse.ir.types import Mesh, MeshAxis, Partial, Shard, TensorType
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.spec import local_shape

F = torch.nn.functional
AXES = {"tp": (4,), "dp, tp": (2, 2)}


@pytest.fixture(scope="module")
def meshes() -> Iterator[dict[str, DeviceMesh]]:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield {
        names: init_device_mesh("cpu", sizes, mesh_dim_names=tuple(names.split(", ")))
        for names, sizes in AXES.items()
    }
    dist.destroy_process_group()


# (operand types, our op with its result type, torch's function). A row with one placement an
# operand is on the mesh [tp=4], one with two on [dp=2, tp=2].
CASES = {
    "neg of a shard": (["f32[8, 4] @ [Shard(0)]"], "neg(%0) : f32[8, 4]", torch.neg),
    "neg of a sum": (["f32[8] @ [Partial(sum)]"], "neg(%0) : f32[8]", torch.neg),
    "exp of a sum": (["f32[8] @ [Partial(sum)]"], "exp(%0) : f32[8]", torch.exp),
    "uneven": (["f32[5, 4] @ [Shard(0)]"], "exp(%0) : f32[5, 4]", torch.exp),
    "add S R": (
        ["f32[8, 4] @ [Shard(1)]", "f32[8, 4] @ [Replicate]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add R S": (
        ["f32[8, 4] @ [Replicate]", "f32[8, 4] @ [Shard(1)]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add S0 S1": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 4] @ [Shard(1)]"],
        "add(%0, %1) : f32[8, 4]",
        torch.add,
    ),
    "add P P": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Partial(sum)]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    "add R P": (
        ["f32[8] @ [Replicate]", "f32[8] @ [Partial(sum)]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    "add S P": (
        ["f32[8] @ [Shard(0)]", "f32[8] @ [Partial(sum)]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
    "mul P R": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Replicate]"],
        "mul(%0, %1) : f32[8]",
        torch.mul,
    ),
    "mul P P": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Partial(sum)]"],
        "mul(%0, %1) : f32[8]",
        torch.mul,
    ),
    "div P R": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Replicate]"],
        "div(%0, %1) : f32[8]",
        torch.div,
    ),
    "maximum of maxima": (
        ["f32[8] @ [Partial(max)]", "f32[8] @ [Partial(max)]"],
        "maximum(%0, %1) : f32[8]",
        torch.maximum,
    ),
    "compare": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 4] @ [Shard(0)]"],
        "lt(%0, %1) : bool[8, 4]",
        torch.lt,
    ),
    "sum over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "sum beside a shard": (
        ["f32[8, 4] @ [Shard(1)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "sum of a sum": (
        ["f32[8, 4] @ [Partial(sum)]"],
        "sum(%0; dims=[0]) : f32[4]",
        lambda x: x.sum(0),
    ),
    "amax over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "amax(%0; dims=[0]) : f32[4]",
        lambda x: x.amax(0),
    ),
    "amin of a sum": (
        ["f32[8, 4] @ [Partial(sum)]"],
        "amin(%0; dims=[0]) : f32[4]",
        lambda x: x.amin(0),
    ),
    "prod over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "prod(%0; dims=[0]) : f32[4]",
        lambda x: x.prod(0),
    ),
    "var over a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "var(%0; dims=[0], correction=1.0) : f32[4]",
        lambda x: x.var(0),
    ),
    "cumsum along a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "cumsum(%0; dim=0) : f32[8, 4]",
        lambda x: x.cumsum(0),
    ),
    "permute": (
        ["f32[8, 4] @ [Shard(1)]"],
        "permute(%0; dims=[1, 0]) : f32[4, 8]",
        lambda x: x.t(),
    ),
    "unsqueeze": (
        ["f32[8] @ [Shard(0)]"],
        "broadcast_in_dim(%0; shape=[1, 8], dims=[1]) : f32[1, 8]",
        lambda x: x.unsqueeze(0),
    ),
    "expand": (
        ["f32[8, 1] @ [Shard(0)]"],
        "broadcast_in_dim(%0; shape=[8, 4], dims=[0, 1]) : f32[8, 4]",
        lambda x: x.expand(8, 4),
    ),
    "squeeze": (
        ["f32[8, 1] @ [Shard(0)]"],
        "squeeze(%0; dims=[1]) : f32[8]",
        lambda x: x.squeeze(1),
    ),
    "split the sharded dim": (
        ["f32[8, 4] @ [Shard(0)]"],
        "reshape(%0; shape=[4, 2, 4]) : f32[4, 2, 4]",
        lambda x: x.reshape(4, 2, 4),
    ),
    "merge behind the sharded dim": (
        ["f32[8, 4] @ [Shard(0)]"],
        "reshape(%0; shape=[32]) : f32[32]",
        lambda x: x.reshape(32),
    ),
    "keep an uneven dim": (
        ["f32[5, 6] @ [Shard(0)]"],
        "reshape(%0; shape=[5, 2, 3]) : f32[5, 2, 3]",
        lambda x: x.reshape(5, 2, 3),
    ),
    "slice beside a shard": (
        ["f32[8, 4] @ [Shard(0)]"],
        "slice(%0; starts=[0, 1], ends=[8, 3], steps=[1, 1]) : f32[8, 2]",
        lambda x: x[:, 1:3],
    ),
    "cat beside a shard": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 2] @ [Shard(0)]"],
        "cat(%0, %1; dim=1) : f32[8, 6]",
        lambda *xs: torch.cat(xs, 1),
    ),
    "cat along a shard": (
        ["f32[8, 4] @ [Shard(0)]", "f32[8, 4] @ [Shard(0)]"],
        "cat(%0, %1; dim=0) : f32[16, 4]",
        lambda *xs: torch.cat(xs, 0),
    ),
    "column-parallel linear": (
        ["f32[8, 4] @ [Replicate]", "f32[12, 4] @ [Shard(0)]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "row-parallel linear": (
        ["f32[8, 4] @ [Shard(1)]", "f32[12, 4] @ [Shard(1)]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "row-parallel linear with bias": (
        ["f32[8, 4] @ [Shard(1)]", "f32[12, 4] @ [Shard(1)]", "f32[12] @ [Replicate]"],
        "linear(%0, %1, %2) : f32[8, 12]",
        F.linear,
    ),
    "data-parallel linear": (
        ["f32[8, 4] @ [Shard(0)]", "f32[12, 4] @ [Replicate]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "matmul with a sharded contraction": (
        ["f32[8, 4] @ [Shard(1)]", "f32[4, 8] @ [Shard(0)]"],
        "matmul(%0, %1) : f32[8, 8]",
        torch.matmul,
    ),
    "batched matmul": (
        ["f32[8, 2, 4] @ [Shard(0)]", "f32[8, 4, 2] @ [Shard(0)]"],
        "matmul(%0, %1) : f32[8, 2, 2]",
        torch.bmm,
    ),
    "embedding, replicated weight": (
        ["i64[8, 3] @ [Shard(0)]", "f32[16, 4] @ [Replicate]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "embedding, column-parallel": (
        ["i64[8, 3] @ [Replicate]", "f32[16, 4] @ [Shard(1)]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "embedding, row-parallel": (
        ["i64[8, 3] @ [Replicate]", "f32[16, 4] @ [Shard(0)]"],
        "embedding(%0, %1) : f32[8, 3, 4]",
        F.embedding,
    ),
    "two axes": (
        ["f32[8, 4] @ [Shard(0), Shard(1)]"],
        "sum(%0; dims=[1]) : f32[8]",
        lambda x: x.sum(1),
    ),
    "one dim on two axes": (
        ["f32[8, 4] @ [Shard(0), Shard(0)]"],
        "exp(%0) : f32[8, 4]",
        torch.exp,
    ),
    "two axes, linear": (
        ["f32[8, 4] @ [Shard(0), Replicate]", "f32[12, 4] @ [Replicate, Shard(0)]"],
        "linear(%0, %1) : f32[8, 12]",
        F.linear,
    ),
    "cast of a shard": (
        ["f32[8] @ [Shard(0)]"],
        "cast(%0; dtype=f64) : f64[8]",
        lambda x: x.to(torch.float64),
    ),
    "cast of a sum": (
        ["f32[8] @ [Partial(sum)]"],
        "cast(%0; dtype=f64) : f64[8]",
        lambda x: x.to(torch.float64),
    ),
    "add P R": (
        ["f32[8] @ [Partial(sum)]", "f32[8] @ [Replicate]"],
        "add(%0, %1) : f32[8]",
        torch.add,
    ),
}
OURS = {
    # Eager follows the first operand, so what it does depends on their order. Both reduce in the
    # end; reducing first means that several readers of the result share one all_reduce.
    "add P R": ("Replicate", "Partial(sum)"),
}


def eager(meshes: dict[str, DeviceMesh], types: list[TensorType], function) -> list[str]:
    """The placements that eager DTensor gives the result."""
    assert types[0].placements is not None
    mesh = meshes["tp" if len(types[0].placements) == 1 else "dp, tp"]
    dtypes = {"f32": torch.float32, "i64": torch.int64}
    operands = []
    for t in types:
        local = torch.zeros([_at_rank_0(n, mesh) for n in local_shape(t, _logical(mesh))])
        operands.append(
            DTensor.from_local(
                local.to(dtypes[str(t.dtype)]),
                mesh,
                [_torch(p) for p in t.placements],
                shape=torch.Size(t.shape),
                stride=torch.empty(t.shape, device="meta").stride(),
            )
        )
    return [_name(p) for p in function(*operands).placements]


def _logical(mesh: DeviceMesh) -> Mesh:
    return Mesh(tuple(MeshAxis(n, mesh.size(i)) for i, n in enumerate(mesh.mesh_dim_names)))


def _at_rank_0(size: Size, mesh: DeviceMesh) -> int:
    return evaluate(size, {f"@{name}": 0 for name in mesh.mesh_dim_names})


def _torch(p):
    if isinstance(p, Shard):
        return TorchShard(p.dim)
    return TorchPartial(p.op) if isinstance(p, Partial) else TorchReplicate()


def _name(p) -> str:
    if isinstance(p, TorchShard):
        return f"Shard({p.dim})"
    return f"Partial({p.reduce_op})" if p.is_partial() else "Replicate"


@pytest.mark.parametrize("name", CASES)
def test_placements_are_those_of_eager_dtensor(name, meshes):
    operands, op, function = CASES[name]
    types = [parse_type(t) for t in operands]
    axes = "tp=4" if len(types[0].placements) == 1 else "dp=2, tp=2"
    lines = [f"%{i} = input(position={i}) : {t}" for i, t in enumerate(operands)]
    n = len(operands)
    text = "\n".join([f"global mesh[{axes}]", *lines, f"%{n} = {op}", f"return %{n}"])
    fusion = propagate(parse(text))
    placements = fusion.tensor(fusion.outputs[0].value).placements
    ours = ", ".join(map(str, placements))
    theirs = ", ".join(eager(meshes, types, function))
    assert (ours, theirs) == OURS.get(name, (theirs, theirs))
