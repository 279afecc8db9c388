"""Placements and meshes between torch and the IR; what needs ranks is in tests/e2e."""

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from thunder_mdfuse.comm.placements import logical_mesh, to_placement
from thunder_mdfuse.errors import ExecutorError, ShardingError
from thunder_mdfuse.ir.types import (
    REPLICATE,
    Mesh,
    MeshAxis,
    Partial,
    StridedShard,
)
from thunder_mdfuse.ir.types import Placement as OurPlacement
from thunder_mdfuse.ir.types import Shard as OurShard
from thunder_mdfuse.thunder import dtensor as dt
from thunder_mdfuse.thunder.guards import SpecText, _texts, check_spec


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    store: Path = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 1), rank=0, world_size=1)
    yield DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (Replicate(), REPLICATE),
        (Shard(1), OurShard(1)),
        (Shard(-1), OurShard(2)),
        (_StridedShard(0, split_factor=2), StridedShard(0, 2)),
        (TorchPartial("sum"), Partial("sum")),
        (TorchPartial("avg"), Partial("avg")),
        (TorchPartial("max"), Partial("max")),
        (TorchPartial("min"), Partial("min")),
        (TorchPartial("product"), Partial("product")),
    ],
)
def test_every_kind_of_placement(theirs: Placement, ours: OurPlacement) -> None:
    assert to_placement(theirs, 3) == ours


def test_other_placements_are_refused() -> None:
    with pytest.raises(ShardingError, match="redistribute to Replicate, Shard or a Partial"):
        to_placement(TorchPartial("band"), 3)


def test_a_logical_mesh_has_names_sizes_and_a_digest(mesh: DeviceMesh) -> None:
    found = logical_mesh(mesh)
    assert found.axes == (MeshAxis("dp", 1), MeshAxis("tp", 1))
    assert found.digest and found == logical_mesh(mesh)
    unnamed = logical_mesh(DeviceMesh("cpu", [[0]]))
    assert [a.name for a in unnamed.axes] == ["axis0", "axis1"]
    assert unnamed.digest != found.digest


def test_local_shapes_are_expressions_of_the_coordinate() -> None:
    grid = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2)))
    even = dt.local_shape((8, 6), (OurShard(0), OurShard(1)), grid)
    assert even == (4, 3)
    uneven = dt.local_shape((5, 6), (OurShard(0), REPLICATE), grid)
    assert str(uneven[0]) == "min(max(-3*@dp + 5, 0), 3)" and uneven[1] == 6
    assert dt.local_shape((8, 6), (OurShard(0), OurShard(0)), grid) == (2, 6)


def test_a_spec_moves_to_an_equal_mesh(mesh: DeviceMesh) -> None:
    twin = DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"))
    local = torch.randn(4, 3).t()
    whole = DTensor.from_local(local, mesh, [Shard(0), Replicate()], run_check=False)
    moved = dt.spec_on(twin, whole._spec)
    assert moved.mesh is twin and moved == whole._spec
    closed = dt.close(local, moved)
    assert closed.device_mesh is twin and closed.stride() == whole.stride()
    assert dt.spec_on(mesh, whole._spec) is whole._spec


def test_a_guard_sees_a_spec_as_it_is_now(mesh: DeviceMesh) -> None:
    meta = TensorMeta(torch.Size((4, 4)), (4, 1), torch.float32)
    spec = DTensorSpec(mesh, (Replicate(), Shard(0)), meta)
    before = repr(SpecText(spec))
    for _ in range(2):
        check_spec(spec, before)
    spec.placements = (Replicate(), Shard(1))
    with pytest.raises(ExecutorError, match=re.escape(repr(spec))):
        check_spec(spec, before)
    check_spec(spec, repr(SpecText(spec)))
    assert id(spec) in _texts
    number = id(spec)
    del spec
    gc.collect()
    assert number not in _texts
