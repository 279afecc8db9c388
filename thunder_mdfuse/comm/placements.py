"""torch's meshes and placements to the IR's and back: here and nowhere else."""

import math

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.placement_types import Placement as TorchPlacement
from torch.distributed.tensor.placement_types import _StridedShard as TorchStridedShard

from thunder_mdfuse.comm.team import axis_names, mesh_digest
from thunder_mdfuse.errors import ShardingError
from thunder_mdfuse.ir.types import (
    REDUCTIONS,
    REPLICATE,
    Mesh,
    MeshAxis,
    Partial,
    Placement,
    Placements,
    Shard,
    StridedShard,
)


def logical_mesh(mesh: DeviceMesh) -> Mesh:
    """The IR's mesh for torch's: names, sizes and digest, and no reference to the object."""
    axes = (MeshAxis(name, mesh.size(i)) for i, name in enumerate(axis_names(mesh)))
    return Mesh(tuple(axes), mesh_digest(mesh))


def to_placement(p: TorchPlacement, ndim: int) -> Placement:
    """The IR's placement for torch's. Raises ``ShardingError`` for kinds that the IR lacks."""
    if type(p) is TorchReplicate:
        return REPLICATE
    if type(p) is TorchShard:
        return Shard(p.dim % ndim)
    if type(p) is TorchStridedShard:
        return StridedShard(p.dim % ndim, p.split_factor)
    if type(p) is TorchPartial and p.reduce_op in REDUCTIONS:
        return Partial(p.reduce_op)
    raise ShardingError(
        f"the placement {p!r} is not supported; redistribute to Replicate, Shard or a Partial of "
        f"{', '.join(REDUCTIONS)} first"
    )


def spec_placements(spec: DTensorSpec) -> Placements:
    """The IR's placements of a DTensor with ``spec``, the order of its shards included.

    torch may cut a dim along a later mesh axis first, and keeps that beside the placements; here an
    axis that cuts inside of a later one is a ``StridedShard``. Raises as ``to_placement``.
    """
    found = [to_placement(p, spec.ndim) for p in spec.placements]
    if spec.mesh.ndim > 1 and not spec.use_strided_shard_as_shard_order:
        for dim, axes in spec.shard_order or ():
            for place, axis in enumerate(axes):
                pieces = math.prod(spec.mesh.size(a) for a in axes[:place] if a > axis)
                if pieces > 1:
                    found[axis] = StridedShard(dim, pieces)
    return tuple(found)


def from_placement(p: Placement) -> TorchPlacement:
    """torch's placement for the IR's."""
    if isinstance(p, Shard):
        return TorchShard(p.dim)
    if isinstance(p, StridedShard):
        return TorchStridedShard(p.dim, split_factor=p.split)
    return TorchPartial(p.op) if isinstance(p, Partial) else TorchReplicate()
