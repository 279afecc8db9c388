"""Scripts for fusions on DTensors, as they are, under each launcher and under python alone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
import torch.distributed as dist
from multirank.runner import run_ranks
from thunder.examine import get_fusions
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from thunder_mdfuse import DataType, FusionDefinition, ParallelType, knobs, mdfuse_executor
from thunder_mdfuse.multidevice import DeviceMesh


@pytest.fixture
def mesh() -> Iterator[TorchMesh]:
    """Of two ranks of which this process is the first, and the other one is not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield TorchMesh("cpu", [[1, 0]], mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def dtensor(local: torch.Tensor, mesh: TorchMesh, placement: Any, *shape: int) -> DTensor:
    stride = torch.empty(shape).stride()
    places = [Replicate(), placement]
    return DTensor.from_local(
        local, mesh, places, run_check=False, shape=torch.Size(shape), stride=stride
    )


def definition(mesh: TorchMesh) -> str:
    with FusionDefinition() as fd:
        x, y, z, w = (fd.define_tensor([-1, -1]) for _ in range(4))
        a = fd.define_scalar(DataType.Double)
        out = fd.ops.add(fd.ops.mul(x, y), z)
        out.set_device_mesh(DeviceMesh(mesh))
        out.outer_split(1, 2)
        out.axis(1).parallelize(ParallelType.mesh_x)
        fd.add_output(out)
        fd.add_output(fd.ops.mul(w, a))
        fd.add_output(fd.ops.sum(x, 0))
        fd.add_output(fd.ops.add(w, 1.0), w)
    # Rank 0 is at coordinate 1: the shorter part of 5 rows.
    inputs = [
        dtensor(torch.randn(6, 2).t(), mesh, Shard(0), 5, 6),
        dtensor(torch.randn(5, 9)[:, ::3], mesh, Shard(1), 5, 6),
        dtensor(torch.randn(5, 6), mesh, Partial(), 5, 6),
        torch.randn(5, 12)[:, ::2],
        2.5,
    ]
    return fd.repro_script_for(inputs)


WANTED_OF_DEFINITION = (
    "rank {r}: torch.float32 (5, 6) (6, 1) cpu (Replicate(), Shard(dim=1)) local (5, 3) (3, 1)",
    "rank {r}: torch.float32 (5, 6) (6, 1) cpu (Replicate(), Replicate()) local (5, 6) (6, 1)",
    "rank {r}: torch.float32 (6,) (1,) cpu (Replicate(), Partial(sum)) local (6,) (1,)",
)


def region(mesh: TorchMesh) -> str:
    jitted = thunder.jit(
        lambda x: x * 2.0 + 1.0, executors=[mdfuse_executor], mdfuse_keep_inputs=True
    )
    jitted(dtensor(torch.randn(2, 6), mesh, Shard(0), 5, 6))
    ((_, found),) = get_fusions(thunder.last_traces(jitted)[-1], warn_if_fusions_unavailable=False)
    script = found.repro_script_for()
    assert isinstance(script, str)
    return script


AGAIN = pytest.param("torchrun", marks=pytest.mark.launch_again)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("launcher", ["python", AGAIN, "mpirun"])
def test_a_script_runs_as_it_is(launcher: str, mesh: TorchMesh, tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    wanted = WANTED_OF_DEFINITION
    if launcher == "mpirun":
        path.write_text(region(mesh))
        wanted = ("rank 0: torch.float32 (2, 6) (6, 1)", "rank 1: torch.float32 (3, 6) (6, 1)")
    else:
        path.write_text(definition(mesh))
    assert "torch.manual_seed(0)" in path.read_text() and "as_ranks(2)" in path.read_text()
    env = {"MDFUSE_BACKEND": "reference"}
    if launcher == "python":
        paths = ":".join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, str(path)],
            env=knobs.child_environment(PYTHONPATH=paths, **env),
            capture_output=True,
            text=True,
            timeout=300,
        )
        output = done.stdout
        assert done.returncode == 0, done.stderr
    else:
        output = run_ranks(path, 2, launcher, env=env)
    for rank in range(2):
        for line in wanted:
            assert line.format(r=rank) in output, output
