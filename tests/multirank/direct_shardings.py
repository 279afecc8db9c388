"""Fusions on DTensors: meshes, placements, memory and cost; cases of the multi-rank suite."""

import gc
import weakref
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from multirank.ranks import DEVICE, TOLERANCE, Case, close, mesh_of, place, raises
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from thunder_mdfuse import DataType, FusionDefinition, FusionDefinitionWrapper, ParallelType
from thunder_mdfuse.bench import dtensor_host
from thunder_mdfuse.comm.agreed import agreed_by
from thunder_mdfuse.errors import CommError, DefinitionError, ProgramError
from thunder_mdfuse.executable import programs
from thunder_mdfuse.lru import CacheStats
from thunder_mdfuse.multidevice import DeviceMesh, DistributedTensor, get_output_shardings

X, Y = ParallelType.mesh_x, ParallelType.mesh_y


def chain(fd: FusionDefinition) -> None:
    x, y = (fd.define_tensor([-1, -1]) for _ in range(2))
    fd.add_output(fd.ops.relu(fd.ops.add(fd.ops.mul(x, y), 1.0)))


def eager_chain(x: Any, y: Any) -> Any:
    return torch.relu(x * y + 1.0)


def used(fused: FusionDefinitionWrapper) -> Any:
    distributed = fused.fd._distributed
    assert distributed is not None
    return [p.executable for p in distributed._programs._kept.values()]


def programs_never_collide(ranks: int) -> None:
    """Equal math on other meshes or with other placements is another program; equal meshes share
    one, and each output is on the mesh object of its inputs.
    """
    line = list(range(ranks))
    meshes = [mesh_of(line), mesh_of(line[::-1]), mesh_of(line, ("dp",)), mesh_of(line, None)]
    meshes += [mesh_of([line], ("dp", "tp")), mesh_of([[r] for r in line], ("dp", "tp"))]
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    found = []
    for mesh, first in product(meshes, (Shard(0), Shard(1), Replicate())):
        fused = FusionDefinitionWrapper(chain)
        places = [first] * mesh.ndim if mesh.ndim == 1 else [Replicate(), first]
        twin = mesh_of(mesh.mesh.tolist(), mesh.mesh_dim_names)
        for on in (mesh, twin):
            (z,) = fused([place(x, on, *places), place(y, on, *places)])
            close(z, eager_chain(x, y))
            assert z.device_mesh is on
        assert len(used(fused)) == 1, "an equal mesh is the same program"
        found += used(fused)
    assert len({id(e) for e in found}) == len(found) == 3 * len(meshes)
    fused, again = FusionDefinitionWrapper(chain), FusionDefinitionWrapper(chain)
    for one in (fused, again):
        one([place(x, meshes[0], Shard(0)), place(y, meshes[0], Shard(0))])
    assert used(fused) == used(again) == found[:1], "equal fusions share"
    other = place(y, meshes[1], Shard(0))
    raises(
        ProgramError,
        "all must be on one mesh",
        lambda: fused([place(x, meshes[0], Shard(0)), other]),
    )


def forgotten_programs(ranks: int) -> None:
    """A rank that forgets a program makes it again, and asks nobody about it."""
    mesh, before = mesh_of(range(ranks)), programs.stats()
    x = torch.randn(4, 6)

    def summed(fd: FusionDefinition) -> Any:
        return fd.ops.sum(fd.define_tensor([-1, -1]), 0)

    def total(fd: FusionDefinition) -> None:
        fd.add_output(fd.ops.mul(summed(fd), 3.0))

    def call() -> None:
        with FusionDefinition() as fd:
            total(fd)
            t = fd.fusion.outputs()[0]
            t.set_device_mesh(DeviceMesh(mesh))  # replicated, so that there is an all_reduce
        (found,) = fd.execute_with_dtensors([place(x, mesh, Shard(0))])
        assert found.placements == (Replicate(),)
        close(found, x.sum(0) * 3.0)

    call()
    if dist.get_rank() == 0:
        programs.resize(1)
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.neg(fd.define_tensor([-1])))
        assert torch.equal(fd.execute([torch.ones(2)])[0], -torch.ones(2))
        assert programs.stats().evictions > before.evictions
    call()
    # What was agreed on is forgotten by all at one call; the program is kept by some and made by
    # others, and all of them ask again.
    team = agreed_by(tuple(range(ranks)))
    with patch("thunder_mdfuse.comm.agreed.MOST_AGREED", len(team.keys)):
        fused = FusionDefinitionWrapper(lambda fd: fd.add_output(fd.ops.exp(summed(fd))))
        (found,) = fused([place(x, mesh, Shard(0))])
        close(found, x.sum(0).exp())
        assert len(team.keys) == 1
    call()
    assert len(team.keys) == 2
    setting = "1" if dist.get_rank() == 0 else "0"
    with patch.dict("os.environ", MDFUSE_EAGER_ROUNDING=setting):
        fused = FusionDefinitionWrapper(lambda fd: fd.add_output(fd.ops.sin(summed(fd))))
        inputs = [place(x, mesh, Shard(0))]
        raises(CommError, "MDFUSE_EAGER_ROUNDING: rank", lambda: fused(inputs))
    programs.resize(before.capacity)


def nothing_is_made_again(ranks: int) -> None:
    """A second call makes no mesh, spec or program; nothing remembered keeps a mesh alive."""
    mesh, x = mesh_of(range(ranks)), torch.randn(4, 6)
    fused = FusionDefinitionWrapper(chain)
    inputs = [place(x, mesh, Shard(0)), place(x, mesh, Shard(0))]
    fused(inputs)
    with (
        patch.object(TorchMesh, "__init__", side_effect=AssertionError("a mesh was made")),
        patch.object(DTensorSpec, "__init__", side_effect=AssertionError("a spec was made")),
    ):
        (z,) = fused(inputs)
    close(z, eager_chain(x, x))
    stats = fused.fd.program_stats()
    assert stats == CacheStats(hits=0, misses=1, evictions=0, size=1, capacity=stats.capacity)
    gone = weakref.ref(mesh)
    del mesh, inputs, z
    gc.collect()
    assert gone() is None, gc.get_referrers(gone())
    raises(DefinitionError, "nor after its mesh was dropped", fused.fd.get_output_shardings)


def axes_and_uneven_shards(ranks: int) -> None:
    """Three mesh axes, one of size 1, every dim over every axis, uneven and empty parts; plain
    tensors and numbers beside.
    """
    grids = [[[list(range(ranks))]], [[[r] for r in range(ranks)]]]
    if ranks >= 4:
        grids += [[[[0, 1], [2, 3]]], [[[3, 1], [0, 2]]]]

    def define(fd: FusionDefinition) -> None:
        x, y = fd.define_tensor([-1, -1, -1]), fd.define_tensor([-1])
        a = fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.add(x, y), a))
        fd.add_output(fd.ops.sum(x, [0, 2]))

    fused = FusionDefinitionWrapper(define)
    for grid in grids:
        mesh = mesh_of(grid, ("pp", "dp", "tp"))
        for shape, orders in (
            ((3, 5, 7), ((0, 1, 2), (2, 0, 1), (1, 1, 1))),
            ((1, 4, 2), ((0, 2, 2),)),
        ):
            x, y = torch.randn(shape), torch.randn(shape[-1])
            for dims in orders:
                places = [Shard(d) for d in dims]
                z, total = fused([place(x, mesh, *places), y.to(DEVICE), 0.5])
                assert z.device_mesh is mesh and z.placements == tuple(places)
                close(z, (x + y) * 0.5, f"{grid} {shape} {dims}")
                if grid[0][0][0] in (0, [0]) or not any(p.is_partial() for p in total.placements):
                    close(total, x.sum((0, 2)))


def partial_outputs(ranks: int) -> None:
    """A sum over a sharded dim leaves as parts, as eager DTensor's does; maxima too, also of the
    empty shard that the last of four ranks has.
    """
    mesh, x = mesh_of(range(ranks)), torch.randn(5, 3)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1])
        for op in (fd.ops.sum, fd.ops.max, fd.ops.min):
            fd.add_output(op(t, 0))
        fd.add_output(fd.ops.add(t, 1.0), t)
        fd.add_output(fd.ops.mul(fd.define_tensor([-1]), 2.0))
    dx, r = place(x, mesh, Shard(0)), place(x[0], mesh, Replicate())
    found = fd.execute_with_dtensors([dx, r])
    wanted = [x.sum(0), x.amax(0), x.amin(0), x[0] * 2.0]
    kinds = (Partial(), Partial("max"), Partial("min"), Replicate())
    for y, w, kind in zip(found, wanted, kinds, strict=True):
        close(y, w)
        assert y.placements == (kind,)
    close(dx, x + 1.0)
    # One sharding for each add_output, that which is written into an input included.
    shardings = get_output_shardings(fd)
    kept = [s.placements for s in shardings if s is not None]
    assert kept == [(k,) for k in (*kinds[:3], Shard(0), kinds[3])]
    assert [s.axis_sharded_on(X) for s in shardings if s] == [-1, -1, -1, 0, -1]
    assert all(s is not None and s.mesh is mesh for s in shardings)


def strided_shards(ranks: int) -> None:
    """Two halves of a merged projection, and a dim cut along a later axis first."""
    mesh, x = mesh_of(range(ranks)), torch.randn(4 * ranks, 3)
    halves = x.view(2, ranks, 2, 3)[:, dist.get_rank()].reshape(4, 3).to(DEVICE)
    places = [_StridedShard(0, split_factor=2)]
    dx = DTensor.from_local(halves, mesh, places, run_check=False)
    fused = FusionDefinitionWrapper(chain)
    (z,) = fused([dx, place(x, mesh, Replicate())])
    assert z.placements == tuple(places)
    wanted = eager_chain(halves, halves)
    torch.testing.assert_close(z.to_local(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    if ranks < 4:
        return
    mesh = mesh_of([[0, 1], [2, 3]], ("dp", "tp"))
    here = mesh.get_coordinate()
    assert here is not None
    local = x.view(2, 2, -1, 3)[here[1], here[0]].contiguous().to(DEVICE)  # tp first, then dp
    meta = TensorMeta(x.shape, x.stride(), x.dtype)
    order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    dx = DTensor(local, DTensorSpec(mesh, (Shard(0), Shard(0)), meta, order), requires_grad=False)
    (z,) = fused([dx, place(x, mesh, Replicate(), Replicate())])
    wanted = eager_chain(local, local)
    torch.testing.assert_close(z.to_local(), wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert z.placements == (_StridedShard(0, split_factor=2), Shard(0))


def views(ranks: int) -> None:
    """``DistributedTensor`` shows what a DTensor is; ``shard_tensor`` gives this rank's part."""
    ids = list(range(ranks))
    mesh, x = mesh_of([ids], ("dp", "tp")), torch.randn(5, 3)
    view = DistributedTensor(place(x, mesh, Replicate(), Shard(1)))
    assert (view.axis_sharded_on(X), view.axis_sharded_on(Y)) == (1, -1)
    assert view.mesh is mesh and view.shape == (5, 3) and "Shard" in repr(view)
    part = DeviceMesh(ids).shard_tensor(x, 1)
    assert torch.equal(view.local.cpu(), part)
    assert torch.equal(DeviceMesh([ids]).shard_tensor(x, -1), part)
    assert torch.equal(DeviceMesh([ids]).shard_tensor(x, 0, parallel_type=Y), x)
    raises(DefinitionError, "a DTensor is needed, found Tensor", lambda: DistributedTensor(x))
    with FusionDefinition() as fd:
        chain(fd)
    raises(ProgramError, "use execute_with_dtensors", lambda: fd.execute([view.dtensor, x]))


def written_down(ranks: int) -> None:
    """The text of a definition has its meshes and shardings, and defines the same program."""
    mesh, x = mesh_of(range(ranks)), torch.randn(4, 2 * ranks)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1])
        y = fd.ops.exp(t)
        y.set_device_mesh(DeviceMesh(mesh))
        y.outer_split(1, ranks)
        y.axis(1).parallelize(X)
        y.set_allocation_domain(y.get_loop_domain(), True)
        fd.add_output(y)
    scope: dict[str, Any] = {
        thing.__name__: thing for thing in (DataType, DeviceMesh, FusionDefinition, ParallelType)
    }
    exec(repr(fd), scope)
    with FusionDefinition() as again:
        scope["mdfuse_fusion"](again)
    assert repr(again) == repr(fd)
    for one in (fd, again):
        (z,) = one.execute_with_dtensors([place(x, mesh, Replicate())])
        assert z.placements == (Shard(1),)
        close(z, x.exp())
    first, second = (d._distributed._programs._kept.values() for d in (fd, again))
    assert next(iter(first)).executable is next(iter(second)).executable


def called_again(ranks: int) -> None:
    """Calls whose inputs are like those of the last call but for one thing, and then like them."""
    mesh, twin = mesh_of(range(ranks)), mesh_of(range(ranks))
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(fd.ops.mul(x, y), x))
        fd.add_output(fd.ops.sum(x, 1))
    for rows in (4 * ranks, 2 * ranks + 1, 4 * ranks):
        whole, other = torch.randn(rows, 6), torch.randn(rows, 6)
        for placement in (Shard(0), Replicate(), Shard(1), Shard(0)):
            placed = place(whole, mesh, placement)
            besides = (
                other,
                other.clone(),
                other.t().contiguous().t(),
                place(other, mesh, placement),
                place(other, mesh, Replicate()),
                place(other, twin, Replicate()),
                other.requires_grad_(),
            )
            for beside in besides:
                for first in (placed, placed, place(whole, mesh, placement)):
                    found, sums = fd.execute_with_dtensors([first, beside])
                    close(found, whole * other.detach() + whole)
                    close(sums, whole.sum(1))
                    assert found.device_mesh is sums.device_mesh is mesh
            wrong = torch.randn(rows + 1, 6)
            for text, given in (("", [placed, wrong]), ("no DTensor", [whole, other])):
                raises(ProgramError, text, partial(fd.execute_with_dtensors, given))
    raises(ProgramError, "takes 2 inputs", partial(fd.execute_with_dtensors, [placed]))


def host_cost(ranks: int) -> None:
    """A fusion without collectives costs the host at most twice what it costs on plain tensors."""
    found = dtensor_host.host_cost(mesh_of(range(ranks)))
    assert found.ratio <= 2, found


CASES = [
    Case("direct", case.__name__, case)
    for case in (
        programs_never_collide,
        forgotten_programs,
        nothing_is_made_again,
        axes_and_uneven_shards,
        partial_outputs,
        strided_shards,
        views,
        written_down,
        called_again,
        host_cost,
    )
]
