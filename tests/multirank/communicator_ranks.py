"""What test_communicator_multirank.py starts as ranks: one scenario, by name."""

import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from thunder_mdfuse.comm.collectives import start_all_gather, start_all_reduce
from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.launch import under_launcher
from thunder_mdfuse.comm.team import group_team, mesh_team
from thunder_mdfuse.errors import CommError


def make(ranks: str) -> None:
    """The group is made when it is first asked for, and meshes can be built on it."""
    communicator = Communicator.instance()
    assert communicator is Communicator.instance()
    assert under_launcher()
    size, rank = communicator.size(), communicator.rank()
    assert size == int(ranks)
    assert (communicator.local_rank(), communicator.local_size()) == (rank, size)
    assert not dist.is_initialized(), "asking for ranks makes no group"
    assert communicator.group is dist.group.WORLD
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    assert "gloo" in communicator.backends_available()
    team = mesh_team(init_device_mesh("cpu", (size,), mesh_dim_names=("tp",)), "tp")
    assert start_all_reduce(torch.ones(2), team).wait().tolist() == [size, size]
    communicator.barrier()
    if rank == size - 1:
        time.sleep(0.5)  # others leave first, and take nothing away
        dist.new_group([rank], use_local_synchronization=True)


def apart(number: str) -> None:
    """The ranks of a job see each other's number, and no other job's."""
    communicator = Communicator.instance()
    mine = torch.tensor([int(number) + communicator.rank()])
    team = group_team(communicator.group)
    for _ in range(20):
        found = start_all_gather(mine, team, 0, communicator.size()).wait()
        assert found.tolist() == [int(number) + r for r in range(communicator.size())], found
        time.sleep(0.02)


def again(path: str) -> None:
    """A group that the user made is adopted; one that the user destroyed is made anew."""
    communicator = Communicator.instance()
    launched = communicator.size()
    adopt(path)
    for _ in range(3):
        communicator.barrier()
        dist.destroy_process_group()
    assert communicator.size() == launched
    communicator.barrier()


def adopt(path: str) -> None:
    # The group has not even the launcher's order of ranks.
    said = Communicator.instance()
    rank, size = said.size() - 1 - said.rank(), said.size()
    dist.init_process_group("gloo", store=dist.FileStore(path, size), rank=rank, world_size=size)
    groups = len(dist.distributed_c10d._world.pg_map)
    store = dist.distributed_c10d._get_default_store()
    communicator = Communicator.instance()
    assert communicator.group is dist.group.WORLD
    assert (communicator.rank(), communicator.size()) == (rank, size)
    # The launcher's local ranks are of other ranks, so hosts are counted.
    assert (communicator.local_rank(), communicator.local_size()) == (rank, size)
    communicator.barrier()
    assert len(dist.distributed_c10d._world.pg_map) == groups
    assert communicator._made is None, "no second store"
    assert dist.distributed_c10d._get_default_store() is store
    dist.destroy_process_group()


def absent(ranks: str) -> None:
    """All ranks but the first never come."""
    os.environ["MDFUSE_COMM_TIMEOUT"] = "1"
    communicator = Communicator.instance()
    if communicator.rank() > 0:
        time.sleep(3)
        return
    missing = ", ".join(map(str, range(1, int(ranks))))
    expect(lambda: communicator.group, f"rank(s) {missing} of {ranks} did not come within 1 s")


def faults(ranks: str) -> None:
    """A rank that is late, then one that dies, each in a group of its own; three ranks."""
    communicator = Communicator.instance()
    rank = communicator.rank()
    assert communicator.group is not None
    assert communicator.size() == int(ranks) == 3
    groups = [dist.new_group(timeout=timedelta(seconds=20)) for _ in range(3)]
    late, dying, gathering = (group_team(g, "tp") for g in groups)
    for team in (late, dying, gathering):
        start_all_reduce(torch.ones(1), team).wait()
    os.environ["MDFUSE_COMM_TIMEOUT"] = "1"
    if rank == 2:
        time.sleep(3)
    else:
        pending = start_all_reduce(torch.ones(1 << 10), late)
        start = time.monotonic()
        expect(pending.wait, "all_reduce(sum) of float32[1024] over tp (ranks 0, 1, 2) did not")
        assert time.monotonic() - start < 10
        expect(pending.wait, "failed before")
    time.sleep(0.5 if rank == 2 else 2.5)
    if rank == 1:
        os._exit(0)
    start = time.monotonic()
    expect(start_all_reduce(torch.ones(1 << 10), dying).wait, "over tp (ranks 0, 1, 2)")
    expect(lambda: start_all_gather(torch.ones(2), gathering, 0, 6).wait(), "all_gather of")
    expect(communicator.barrier, "barrier (ranks 0, 1, 2)")
    assert time.monotonic() - start < 15


def alone(_: str) -> None:
    """Without a launcher there is one rank, no file and no port."""
    communicator = Communicator.instance()
    assert not under_launcher()
    assert (communicator.rank(), communicator.size()) == (0, 1)
    assert (communicator.local_rank(), communicator.local_size()) == (0, 1)
    communicator.barrier()
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    assert start_all_reduce(torch.ones(2), mesh_team(mesh, "tp")).wait().tolist() == [1, 1]


def expect(call: Callable[[], object], text: str) -> None:
    try:
        call()
    except CommError as e:
        assert text in str(e), str(e)
    else:
        raise AssertionError(f"no error that says {text!r}")


SCENARIOS: dict[str, Callable[[str], None]] = {
    scenario.__name__: scenario for scenario in (make, again, apart, absent, faults, alone)
}

if __name__ == "__main__":
    warnings.simplefilter("error")
    SCENARIOS[sys.argv[1]](sys.argv[2])
    print(f"{sys.argv[1]} ok")
