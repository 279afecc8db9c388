"""Teams and digests of meshes of many ranks, seen from one rank of a fake process group."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from thunder_mdfuse.comm import team as team_module
from thunder_mdfuse.comm.team import axis_names, group_team, mesh_digest, mesh_team
from thunder_mdfuse.errors import CommError

RANK = 5


@pytest.fixture(autouse=True)
def eight_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=8)
    yield
    dist.destroy_process_group()


def grid(ids: object = None, names: tuple[str, ...] | None = ("dp", "tp")) -> DeviceMesh:
    return DeviceMesh("cpu", ids or [[0, 1, 2, 3], [4, 5, 6, 7]], mesh_dim_names=names)


def test_axes_of_a_grid() -> None:
    mesh = grid()
    dp, tp = mesh_team(mesh, "dp"), mesh_team(mesh, 1)
    assert (dp.size, dp.position, dp.ranks, dp.order) == (2, 1, (1, 5), (0, 1))
    assert (tp.size, tp.position, tp.ranks, tp.order) == (4, 1, (4, 5, 6, 7), (0, 1, 2, 3))
    assert tp.group is mesh.get_group("tp")
    assert tp.in_group_order
    assert str(tp) == "tp (ranks 4, 5, 6, 7)"


def test_permuted_ids_have_positions_by_coordinate() -> None:
    tp = mesh_team(grid([[3, 1, 0, 2], [7, 5, 6, 4]]), "tp")
    assert tp.ranks == (7, 5, 6, 4)
    assert tp.position == 1
    # The group is sorted: 4, 5, 6, 7.
    assert tp.order == (3, 1, 2, 0)
    assert not tp.in_group_order


def test_no_group_is_created() -> None:
    mesh = grid()
    before = dist.distributed_c10d._world.pg_map.copy()
    mesh_team(mesh, "dp")
    mesh_team(mesh["tp"], "tp")
    assert dist.distributed_c10d._world.pg_map == before


def test_slices() -> None:
    mesh = grid()
    assert mesh_team(mesh["tp"], 0).ranks == (4, 5, 6, 7)
    assert mesh_team(mesh["dp"], "dp").ranks == (1, 5)
    swapped = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))["a", "c"]
    assert mesh_team(swapped, "a").ranks == (1, 5)
    assert mesh_team(swapped, "c").ranks == (4, 5)


def test_axis_of_one() -> None:
    mesh = DeviceMesh("cpu", [[4, 5, 6, 7]], mesh_dim_names=("one", "all"))
    one = mesh_team(mesh, "one")
    assert (one.size, one.position, one.ranks) == (1, 0, (RANK,))


def test_a_process_outside_has_no_position() -> None:
    mesh = DeviceMesh("cpu", [0, 1, 2], mesh_dim_names=("tp",))
    team = mesh_team(mesh, "tp")
    assert (team.size, team.position, team.group) == (3, None, None)
    assert mesh_digest(mesh)
    with pytest.raises(CommError, match="not in the team"):
        team.member()


def test_names() -> None:
    assert axis_names(grid()) == ("dp", "tp")
    assert axis_names(grid(names=None)) == ("axis0", "axis1")
    assert mesh_team(grid(names=None), "axis1").ranks == (4, 5, 6, 7)


def test_digest_tells_meshes_apart() -> None:
    meshes = [
        grid(),
        grid(names=("tp", "dp")),
        grid(names=None),
        grid([[4, 5, 6, 7], [0, 1, 2, 3]]),
        grid([[0, 1], [2, 3], [4, 5], [6, 7]]),
        DeviceMesh("cpu", list(range(8)), mesh_dim_names=("tp",)),
        grid()["tp"],
        grid()["dp"],
    ]
    digests = [mesh_digest(mesh) for mesh in meshes]
    assert len(set(digests)) == len(meshes)
    assert mesh_digest(grid()) == digests[0]


def test_nothing_keeps_a_mesh_alive() -> None:
    mesh = grid()
    mesh_digest(mesh)
    mesh_team(mesh, "tp")
    cached = len(team_module._cache)
    gone = weakref.ref(mesh)
    del mesh
    gc.collect()
    assert gone() is None
    assert len(team_module._cache) == cached - 1


def test_unknown_axes() -> None:
    with pytest.raises(CommError, match="no axis 'pp'; its axes are dp, tp"):
        mesh_team(grid(), "pp")
    with pytest.raises(CommError, match="mesh axis 2 does not exist"):
        mesh_team(grid(), 2)


def test_a_destroyed_group_is_named() -> None:
    mesh = grid()
    group = mesh.get_group("tp")
    dist.destroy_process_group(group)
    with pytest.raises(CommError, match="mesh axis tp has no process group any more"):
        mesh_team(mesh, "tp")


def test_a_mesh_without_groups() -> None:
    mesh = DeviceMesh(
        "cpu", list(range(8)), mesh_dim_names=("tp",), _init_backend=False, _rank=RANK
    )
    assert mesh_digest(mesh)
    with pytest.raises(CommError, match="no process group"):
        mesh_team(mesh, "tp")


def test_team_of_a_group() -> None:
    team = group_team(dist.group.WORLD, "world")
    assert (team.size, team.position, team.order) == (8, RANK, tuple(range(8)))
