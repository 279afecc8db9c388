"""From a ``DeviceMesh`` and one of its axes to the process group that collectives run on.

In: the mesh object that a call brought. Out: a ``Team``: its size, this process's position on the
axis, the group. No group is ever created here, and no mesh or group is kept alive: what is cached
is plain integers and text, dropped with the mesh.

A position is the mesh *coordinate*, which is not always the rank inside the group: torch sorts the
ranks of a new group, so on a mesh with ids ``[1, 0]`` the process at coordinate 0 is group rank 1.
``Team.order`` is that permutation, and collectives put chunks where the coordinates say. (Eager
DTensor mixes both: it slices by coordinate and gathers by group rank.)
"""

import hashlib
import weakref
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse.errors import CommError

# Groups on which ranks have lost each other, and how: what one rank has started there another may
# still take for something else.
_lost: "weakref.WeakKeyDictionary[ProcessGroup, str]" = weakref.WeakKeyDictionary()


def lose(group: ProcessGroup, why: str) -> None:
    """Note that ``group`` cannot be used any more."""
    _lost.setdefault(group, why)


def check_not_lost(group: ProcessGroup) -> None:
    """``CommError`` when something went wrong on ``group`` before that its ranks may not share."""
    why = _lost.get(group) if len(_lost) else None
    if why is not None:
        raise CommError(
            "this process group cannot be used any more, because its ranks may be at different "
            f"collectives since an earlier failure: {why}; start the ranks again"
        )


def group_store(group: ProcessGroup) -> Store:
    """The store in which the ranks of ``group`` met. ``CommError`` for a destroyed group."""
    try:
        return dist.distributed_c10d._get_process_group_store(group)
    except KeyError:
        raise CommError(
            "ranks cannot meet over a process group that was destroyed, or that "
            "torch.distributed does not know; make the mesh again after init_process_group"
        ) from None


@dataclass(frozen=True, slots=True)
class Team:
    """The processes along one mesh axis: what a collective runs on.

    ``position`` is None, and so is ``group``, in a process that is not in the mesh.
    ``order[p]`` is the group rank of position ``p``, ``ranks[p]`` its global rank.
    """

    size: int
    position: int | None
    group: ProcessGroup | None
    name: str
    ranks: tuple[int, ...]
    order: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (ranks {', '.join(map(str, self.ranks))})"

    @property
    def in_group_order(self) -> bool:
        """Whether positions are group ranks, so that no chunk has to be moved after a gather."""
        return self.order == tuple(range(self.size))

    def member(self) -> tuple[int, ProcessGroup]:
        """This process's position and group; ``CommError`` in a process that is not in the team."""
        if self.position is None or self.group is None:
            raise CommError(
                f"this process is not in the team of mesh axis {self}: a collective was started "
                "here that only its members may start; check the mesh's device ids"
            )
        check_not_lost(self.group)
        return self.position, self.group


def group_team(group: ProcessGroup, name: str = "group") -> Team:
    """The team of all processes of ``group``, positions being group ranks."""
    ranks = tuple(dist.get_process_group_ranks(group))
    size = len(ranks)
    return Team(size, group.rank(), group, name, ranks, tuple(range(size)))


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """The names of the mesh's axes; ``axis0``, ``axis1``, ... where the user gave none."""
    return mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(mesh.ndim))


def mesh_team(mesh: DeviceMesh, axis: int | str) -> Team:
    """The team along ``axis`` of ``mesh`` in which this process is."""
    facts = _facts(mesh)
    index = _axis_index(facts.names, axis)
    size, name = facts.sizes[index], facts.names[index]
    if facts.coordinate is None:
        return Team(size, None, None, name, (), ())
    ranks = facts.axis_ranks[index]
    known = facts.groups.get(index)
    group = None if known is None else _alive(known[0])
    if known is None or group is None:
        group, members = _axis_group(mesh, index, name)
        known = facts.groups[index] = weakref.ref(group), _order(ranks, members, name)
    return Team(size, facts.coordinate[index], group, name, ranks, known[1])


def _alive(known: "weakref.ref[ProcessGroup]") -> ProcessGroup | None:
    """The group, unless it was destroyed: then the mesh may have been given another one."""
    group = known()
    if group is None:
        return None
    try:
        dist.get_process_group_ranks(group)
    except KeyError:
        return None
    return group


def mesh_digest(mesh: DeviceMesh) -> str:
    """A text equal for meshes of equal device type, shape, ids and axis names, and no others."""
    return _facts(mesh).digest


def mesh_coordinate(mesh: DeviceMesh) -> tuple[int, ...] | None:
    """This process's position on each axis of the mesh; None in a process that is not in it."""
    return _facts(mesh).coordinate


def _axis_index(names: tuple[str, ...], axis: int | str) -> int:
    if isinstance(axis, str):
        if axis not in names:
            raise CommError(f"the mesh has no axis {axis!r}; its axes are {', '.join(names)}")
        return names.index(axis)
    if not 0 <= axis < len(names):
        raise CommError(
            f"mesh axis {axis} does not exist: the mesh has {len(names)} axes ({', '.join(names)})"
        )
    return axis


def _order(ranks: tuple[int, ...], members: tuple[int, ...], name: str) -> tuple[int, ...]:
    if sorted(members) != sorted(ranks):
        raise CommError(
            f"mesh axis {name} has ranks {list(ranks)} at this process, but its process group has "
            f"{list(members)}: the mesh was built from another group; use init_device_mesh"
        )
    return tuple(members.index(rank) for rank in ranks)


def _axis_group(mesh: DeviceMesh, index: int, name: str) -> tuple[ProcessGroup, tuple[int, ...]]:
    try:
        group = mesh.get_group(index)
        members = tuple(dist.get_process_group_ranks(group))  # fails for a destroyed group
    except (RuntimeError, KeyError, IndexError, AssertionError) as e:
        raise CommError(
            f"mesh axis {name} has no process group any more ({type(e).__name__}: {e}): the group "
            "was destroyed or never made; build the mesh after init_process_group and keep it alive"
        ) from None
    return group, members


@dataclass(frozen=True)
class _MeshFacts:
    digest: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    coordinate: tuple[int, ...] | None
    axis_ranks: tuple[tuple[int, ...], ...]  # by axis; empty when not in the mesh
    # By axis, its group and ``Team.order``.
    groups: dict[int, tuple["weakref.ref[ProcessGroup]", tuple[int, ...]]] = field(
        default_factory=dict
    )


# By identity, not by equality: two equal meshes may be asked in processes where one of them was
# built without a rank. The weak reference's callback drops the entry, so an id is never reused.
_cache: dict[int, tuple["weakref.ref[DeviceMesh]", _MeshFacts]] = {}


def _facts(mesh: DeviceMesh) -> _MeshFacts:
    key = id(mesh)
    found = _cache.get(key)
    if found is not None and found[0]() is mesh:
        return found[1]
    facts = _read(mesh)
    _cache[key] = (weakref.ref(mesh, lambda _: _cache.pop(key, None)), facts)
    return facts


def _read(mesh: DeviceMesh) -> _MeshFacts:
    names, ids, at = axis_names(mesh), mesh.mesh, mesh.get_coordinate()
    sizes = tuple(ids.shape)
    text = f"{mesh.device_type} {mesh.mesh_dim_names} {sizes} {ids.flatten().tolist()}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if at is None:
        return _MeshFacts(digest, names, sizes, None, ())
    coordinate = tuple(at)
    ranks = tuple(_ranks_along(ids, coordinate, index) for index in range(ids.ndim))
    return _MeshFacts(digest, names, sizes, coordinate, ranks)


def _ranks_along(ids: torch.Tensor, coordinate: tuple[int, ...], index: int) -> tuple[int, ...]:
    line = ids[tuple(slice(None) if i == index else c for i, c in enumerate(coordinate))]
    return tuple(line.tolist())
