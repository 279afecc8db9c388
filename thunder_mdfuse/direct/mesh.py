"""Device meshes and the loops of a tensor over them: what a definition says of shardings.

A loop is one part of a tensor's dim. ``outer_split`` and ``inner_split`` cut a loop in two, and a
loop that is parallelized over a mesh axis says that the ranks along that axis share its parts. Read
as DTensor's placements: the outermost part of a dim over an axis is ``Shard``, a part inside of
others is a strided shard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchMesh

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.direct.dtypes import ParallelType
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import REPLICATE, Placement, Placements, Shard, StridedShard

MESH_TYPES = (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z)


class DeviceMesh:
    """Ranks in a grid of any number of axes: a nested list, a tensor of integers, or torch's mesh.

    ``ParallelType.mesh_x`` is its last axis, ``mesh_y`` the one before, ``mesh_z`` the one before
    that. Raises ``DefinitionError`` for a grid that is empty, uneven or names a rank twice.
    """

    def __init__(self, ranks: "Sequence[Any] | torch.Tensor | TorchMesh") -> None:
        found = ranks.mesh if isinstance(ranks, TorchMesh) else ranks
        try:
            grid = torch.as_tensor(found).cpu()
        except (ValueError, TypeError, RuntimeError) as e:
            raise DefinitionError(f"a mesh is a grid of ranks, found {ranks!r}: {e}") from None
        whole = not (grid.is_floating_point() or grid.is_complex() or grid.dtype is torch.bool)
        if not whole or not grid.ndim or not 0 < grid.numel() == len(set(grid.flatten().tolist())):
            raise DefinitionError(f"a mesh is a grid of different ranks, found {grid.tolist()}")
        self.ranks: list[Any] = grid.tolist()
        self._shape = tuple(grid.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of positions along each axis."""
        return self._shape

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self._shape)

    def shard_tensor(
        self,
        tensor: torch.Tensor,
        axis: int,
        rank: int | None = None,
        parallel_type: ParallelType = ParallelType.mesh_x,
    ) -> torch.Tensor:
        """The part of ``tensor`` that ``rank`` (None: this process) holds when dim ``axis`` is
        spread over the mesh axis ``parallel_type``: a view; trailing parts may be shorter or empty.

        Raises ``DefinitionError`` for a rank that is not in the mesh, or an axis that it lacks.
        """
        if parallel_type not in MESH_TYPES:
            raise DefinitionError(f"mesh_x, mesh_y or mesh_z is needed, found {parallel_type}")
        number = len(self._shape) - 1 - MESH_TYPES.index(parallel_type)
        who = Communicator.instance().rank() if rank is None else rank
        places = (torch.tensor(self.ranks) == who).nonzero().tolist()
        if number < 0 or not places:
            raise DefinitionError(
                f"{self!r} needs rank {who} and an axis {parallel_type.name} to have a part there"
            )
        length = -(-tensor.size(axis) // self._shape[number])
        start = min(places[0][number] * length, tensor.size(axis))
        return tensor.narrow(axis, start, min(length, tensor.size(axis) - start))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(str(self.ranks))

    def __repr__(self) -> str:
        return f"DeviceMesh({self.ranks})"


@dataclass
class Loop:
    """A part of tensor dim ``dim`` of ``extent`` iterations; None: what the others leave."""

    dim: int
    extent: int | None = None
    parallel: ParallelType | None = None


def split(loops: list[Loop], axis: int, factor: int, inner: bool) -> list[Loop]:
    """``loops`` with loop ``axis`` cut in two, the inner or outer one of ``factor`` iterations."""
    old = loops[axis]
    if old.parallel is not None:
        raise DefinitionError(f"axis {axis} is parallelized over {old.parallel.name}; split first")
    if type(factor) is not int or factor < 1:
        raise DefinitionError(f"a factor of at least 1 is needed, found {factor!r}")
    rest = None if old.extent is None else -(-old.extent // factor)
    cut = [Loop(old.dim, rest), Loop(old.dim, factor)]
    return [*loops[:axis], *(cut if inner else reversed(cut)), *loops[axis + 1 :]]


def parallelize(loops: list[Loop], axis: int, parallel: ParallelType) -> None:
    """Share loop ``axis`` among the ranks along a mesh axis."""
    if parallel is ParallelType.serial:
        return
    if parallel not in MESH_TYPES:
        raise DefinitionError(
            f"{parallel.name} schedules a kernel by hand, which the compiler does here; only "
            "mesh_x, mesh_y and mesh_z are for definitions"
        )
    if any(loop.parallel is parallel for loop in loops):
        raise DefinitionError(f"{parallel.name} is taken by another axis of the tensor")
    loops[axis].parallel = parallel


def placements(loops: Sequence[Loop], mesh: tuple[int, ...], shape: tuple[Size, ...]) -> Placements:
    """What ``loops`` say of a tensor of ``shape`` on a mesh of these axis sizes."""
    numbers = {p: len(mesh) - 1 - i for i, p in enumerate(MESH_TYPES)}
    found: list[Placement] = [REPLICATE] * len(mesh)
    for place, loop in enumerate(loops):
        if loop.parallel is None:
            continue
        number = numbers[loop.parallel]
        if number < 0:
            raise DefinitionError(f"{loop.parallel.name} is no axis of a mesh of {len(mesh)} axes")
        if loop.extent not in (None, mesh[number]):
            raise DefinitionError(
                f"an axis of {loop.extent} iterations is parallelized over a mesh axis of "
                f"{mesh[number]} ranks; split by the size of the mesh axis"
            )
        outer = [o for o in loops[:place] if o.dim == loop.dim]
        outer = [o for o in outer if o.parallel is None or numbers[o.parallel] > number]
        pieces = math.prod(_extent(o, loops, shape[loop.dim], mesh[number]) for o in outer)
        found[number] = StridedShard(loop.dim, pieces) if pieces > 1 else Shard(loop.dim)
    return tuple(found)


def _extent(loop: Loop, loops: Sequence[Loop], size: Size, ranks: int) -> int:
    """Iterations of ``loop``, which is outside of a loop over ``ranks``."""
    if loop.extent is not None:
        return loop.extent
    if not isinstance(size, int):
        raise DefinitionError(
            "an axis inside of one whose size is not known cannot be a placement; use outer_split, "
            "or define the tensor with a fixed size"
        )
    others = math.prod(o.extent or 1 for o in loops if o.dim == loop.dim and o is not loop)
    return -(-size // max(others, 1))
