"""What a user may ask of a DTensor that a fusion returned: its sharding, mesh axis by mesh axis."""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement as TorchPlacement

from thunder_mdfuse.direct.dtypes import ParallelType
from thunder_mdfuse.direct.mesh import MESH_TYPES
from thunder_mdfuse.errors import DefinitionError


@dataclass(frozen=True)
class Sharding:
    """Where a tensor lies: its mesh, and one placement for each axis of it."""

    mesh: TorchMesh
    placements: tuple[TorchPlacement, ...]

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """The tensor dim that is spread over the mesh axis ``parallel_type``; -1 for none.

        ``mesh_x`` is the last axis of the mesh. A mesh axis that holds parts of a sum has no dim.
        Raises ``DefinitionError`` for a type that is none of a mesh.
        """
        if parallel_type not in MESH_TYPES:
            raise DefinitionError(f"mesh_x, mesh_y or mesh_z is needed, found {parallel_type}")
        number = self.mesh.ndim - 1 - MESH_TYPES.index(parallel_type)
        placement = self.placements[number] if number >= 0 else None
        dim: int = getattr(placement, "dim", -1)
        return dim


class DistributedTensor:
    """A view of a DTensor: its part on this rank, and how the whole is spread.

    Raises ``DefinitionError`` for what is no DTensor.
    """

    def __init__(self, dtensor: DTensor) -> None:
        if not isinstance(dtensor, DTensor):
            raise DefinitionError(
                f"a DTensor is needed, found {type(dtensor).__name__}; wrap a local tensor with "
                "DTensor.from_local, or cut a whole one with distribute_tensor"
            )
        self.dtensor = dtensor
        self.sharding = Sharding(dtensor.device_mesh, tuple(dtensor.placements))

    @property
    def local(self) -> torch.Tensor:
        """This rank's part, as it lies in memory; an unfinished collective is waited for."""
        return self.dtensor.to_local()

    @property
    def mesh(self) -> TorchMesh:
        """The mesh object of the DTensor."""
        return self.sharding.mesh

    @property
    def placements(self) -> tuple[TorchPlacement, ...]:
        """One placement for each axis of the mesh."""
        return self.sharding.placements

    @property
    def shape(self) -> torch.Size:
        """The global shape."""
        return self.dtensor.shape

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """As ``Sharding.axis_sharded_on``."""
        return self.sharding.axis_sharded_on(parallel_type)

    def __repr__(self) -> str:
        places = ", ".join(map(repr, self.placements))
        return (
            f"DistributedTensor({tuple(self.shape)} as [{places}] on {self.mesh}, local "
            f"{tuple(self.dtensor._local_tensor.shape)})"
        )
