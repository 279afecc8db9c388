"""Fusions on DTensors against plain torch: cases of the multi-rank suite."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from multirank.ranks import DEVICE, Case, close, mesh_of, place, raises
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from thunder_mdfuse import (
    DataType,
    FusionDefinition,
    FusionDefinitionWrapper,
    ParallelType,
    execute_with_dtensors,
    pipeline,
)
from thunder_mdfuse.errors import DefinitionError, ProgramError
from thunder_mdfuse.multidevice import DeviceMesh, get_output_shardings


def norm(fd: FusionDefinition) -> None:
    x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1])
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(x, x), -1, keepdim=True), x.size(-1))
    y = fd.ops.mul(fd.ops.mul(x, fd.ops.rsqrt(fd.ops.add(mean, 1e-5))), w)
    fd.add_output(y)
    fd.add_output(fd.ops.sum(y, 0))
    fd.add_output(x.size(1))


def eager_norm(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w
    return y, y.sum(0)


def every_placement(ranks: int) -> None:
    """Even, uneven and empty shards; a plain tensor beside DTensors; the mesh object is kept."""
    mesh = mesh_of(range(ranks))
    fused = FusionDefinitionWrapper(norm)
    for shape in ((4, 6), (5, 7), (1, 3)):
        x, w = torch.randn(shape), torch.randn(shape[1])
        for placement in (Shard(0), Shard(1), Replicate()):
            dx = place(x, mesh, placement)
            dw = place(w, mesh, Shard(0))
            for weight in (w.to(DEVICE), dw):
                y, total, number = fused([dx, weight])
                close(y, eager_norm(x, w)[0])
                close(total, eager_norm(x, w)[1])
                assert number == shape[1]
                assert y.device_mesh is mesh
                first, _, none = fused.fd.get_output_shardings()
                assert first is not None and first.placements == y.placements and none is None
                dim = getattr(y.placements[0], "dim", -1)
                assert first.axis_sharded_on(ParallelType.mesh_x) == dim


def programs_are_found_again(ranks: int) -> None:
    mesh = mesh_of(range(ranks))
    counts: Counter[str] = Counter()
    lower = pipeline.lower

    def counting(*args: Any) -> Any:
        counts["lower"] += 1
        return lower(*args)

    pipeline.lower = counting
    try:
        fused = FusionDefinitionWrapper(norm)
        for n in (1, 2, 3):
            for placement in (Shard(0), Replicate()):
                x, w = torch.randn(4 * n, 8), torch.randn(8)
                for _ in range(2):
                    y, *_ = fused([place(x, mesh, placement), w.to(DEVICE)])
                close(y, eager_norm(x, w)[0])
        assert counts["lower"] <= 2, counts
    finally:
        pipeline.lower = lower


def tensor_parallel(ranks: int) -> None:
    """A column- and a row-parallel linear: what the author shards stays so."""
    mesh = mesh_of(range(ranks))
    x, w1, w2 = torch.randn(3, 8), torch.randn(4 * ranks, 8), torch.randn(8, 4 * ranks)

    def define(fd: FusionDefinition, pinned: bool) -> None:
        a, b, c = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(3))
        hidden = fd.ops.relu(fd.ops.linear(a, b))
        out = fd.ops.linear(hidden, c)
        if pinned:
            for t, dim in ((b, 0), (hidden, 1), (c, 1), (out, 0)):
                t.set_device_mesh(DeviceMesh(mesh))
                t.outer_split(dim, ranks)
                t.axis(dim).parallelize(ParallelType.mesh_x)
        fd.add_output(out)
        fd.add_output(hidden)

    inputs = [
        place(x, mesh, Replicate()),
        place(w1, mesh, Shard(0)),
        place(w2, mesh, Shard(1)),
    ]
    hidden = (x @ w1.t()).relu()
    for pinned in (False, True):
        with FusionDefinition() as fd:
            define(fd, pinned)
        out, inner = execute_with_dtensors(fd, inputs)
        close(out, hidden @ w2.t())
        close(inner, hidden)
        assert inner.placements == (Shard(1),)
        assert out.placements == ((Shard(0),) if pinned else (Partial(),)), out.placements
        assert get_output_shardings(fd)[0].axis_sharded_on(ParallelType.mesh_x) == (
            0 if pinned else -1
        )
    scope: dict[str, Any] = {
        "DataType": DataType,
        "ParallelType": ParallelType,
        "DeviceMesh": DeviceMesh,
        "FusionDefinition": FusionDefinition,
    }
    exec(repr(fd), scope)
    with FusionDefinition() as again:
        scope["mdfuse_fusion"](again)
    out, _ = again.execute_with_dtensors(inputs)
    assert out.placements == (Shard(0),)
    wrong = [inputs[0], place(w1, mesh, Replicate()), inputs[2]]
    raises(DefinitionError, "was defined with Shard(0)", lambda: fd.execute_with_dtensors(wrong))


def partial_and_written(ranks: int) -> None:
    mesh = mesh_of(range(ranks))
    rank = dist.get_rank()
    part = torch.full((3, 4), float(rank + 1), device=DEVICE)
    total = torch.full((3, 4), ranks * (ranks + 1) / 2)
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        a = fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.relu(fd.ops.add(x, a)))
        fd.add_output(fd.ops.add(y, 1.0), y)
        fd.add_output(fd.ops.mul(y, 2.0))
    z = torch.randn(5, 4)
    dy = place(z, mesh, Shard(0))
    first, doubled = fd.execute_with_dtensors(
        [DTensor.from_local(part, mesh, [Partial()]), dy, 0.5]
    )
    close(first, total + 0.5)
    close(doubled, z * 2)
    close(dy, z + 1)
    raises(
        ProgramError, "no DTensor among the inputs", lambda: fd.execute_with_dtensors([z, z, 1.0])
    )
    raises(DefinitionError, "no shardings before", FusionDefinition().get_output_shardings)


def two_axes(ranks: int) -> None:
    """A mesh of two axes, one dim over both of them, and permuted device ids."""
    for ids in ([[0, 1], [2, 3]], [[3, 1], [0, 2]]):
        mesh = mesh_of(ids, ("dp", "tp"))
        x, w = torch.randn(9, 6), torch.randn(6)
        fused = FusionDefinitionWrapper(norm)
        for placements in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]):
            y, total, _ = fused([place(x, mesh, *placements), w.to(DEVICE)])
            close(y, eager_norm(x, w)[0])
            if ids[0][0] == 0:
                close(total, eager_norm(x, w)[1])
            assert y.device_mesh is mesh


CASES = [
    Case("direct", case.__name__, case, ranks)
    for case, ranks in (
        (every_placement, 2),
        (programs_are_found_again, 2),
        (tensor_parallel, 2),
        (partial_and_written, 2),
        (two_axes, 4),
    )
]
