"""The job's ranks: who this process is, and the default process group of all of them.

``Communicator.instance()`` reads what the launcher says and does nothing else, so that a program
may still call ``torch.distributed.init_process_group`` itself. ``group`` adopts such a group,
or makes one, the first time it is asked for; that is collective. What was made here ends at exit.
"""

import atexit
import gc
import os
import sys
import threading
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.collectives import start_all_reduce
from thunder_mdfuse.comm.launchers import Launch, read_launch
from thunder_mdfuse.comm.rendezvous import Rendezvous, rendezvous, roster
from thunder_mdfuse.comm.team import group_team
from thunder_mdfuse.errors import CommError

LEAVE_SECONDS = 10.0


class Communicator:
    """All ranks of the job. Use ``Communicator.instance()``; there is one for each process."""

    _instance: ClassVar["Communicator | None"] = None

    def __init__(self) -> None:
        self._launch: Launch = read_launch(knobs.launcher_environment())
        self._made: Rendezvous | None = None
        self._meetings = 0
        self._local: tuple[int, int, int, int] | None = None  # (rank, size, local rank, local size)

    @classmethod
    def instance(cls) -> "Communicator":
        """The process's communicator. Reads the launcher's variables; communicates nothing."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def rank(self) -> int:
        """This process's rank in the default group, or, before there is one, in the launch."""
        return dist.get_rank() if dist.is_initialized() else self._launch.rank

    def size(self) -> int:
        """The number of ranks."""
        return dist.get_world_size() if dist.is_initialized() else self._launch.size

    def local_rank(self) -> int:
        """The rank among those on this host. Collective where the launcher does not say it."""
        return self._local_place()[0]

    def local_size(self) -> int:
        """The number of ranks on this host. Collective where the launcher does not say it."""
        return self._local_place()[1]

    @property
    def group(self) -> dist.ProcessGroup:
        """The default process group: the existing one, else one made here. Collective then."""
        if not dist.is_initialized():
            self._make_group()
        group = dist.group.WORLD
        assert group is not None, "there is a default group once torch.distributed is initialised"
        return group

    def barrier(self) -> None:
        """Returns when all ranks have come here. ``CommError`` after ``MDFUSE_COMM_TIMEOUT``."""
        group = self.group
        device = _meeting_device(group)
        start_all_reduce(torch.zeros(1, device=device), group_team(group, "barrier")).wait()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    def backends_available(self) -> tuple[str, ...]:
        """The c10d backends that can be used here: gloo, and NCCL where there is a GPU."""
        found = ["gloo"] if dist.is_gloo_available() else []
        if torch.cuda.is_available() and dist.is_nccl_available():
            found.append("nccl")
        return tuple(found)

    def _local_place(self) -> tuple[int, int]:
        rank, size = self.rank(), self.size()
        if self._local is not None and self._local[:2] == (rank, size):
            return self._local[2:]
        said = self._launch
        same_job = (said.rank, said.size) == (rank, size)
        if same_job and said.local_rank is not None and said.local_size is not None:
            local = (said.local_rank, said.local_size)
        else:
            # Spawned processes, or RANK and WORLD_SIZE set by hand: count the ranks of each host.
            assert self.group is not None
            store = dist.distributed_c10d._get_default_store()
            hosts = roster(store, rank, size, knobs.seconds("MDFUSE_COMM_TIMEOUT"))
            local = _count_host(hosts, rank)
        self._local = (rank, size, *local)
        return local

    def _make_group(self) -> None:
        self._launch = read_launch(knobs.launcher_environment())
        timeout = knobs.seconds("MDFUSE_COMM_TIMEOUT")
        rank, size = self._launch.rank, self._launch.size
        if self._made is not None:
            self._made.leave()  # of a group that was made here and destroyed by the user
            self._made = None
        made = rendezvous(self._launch, knobs.launcher_environment(), timeout, self._meetings)
        self._meetings += 1
        try:
            hosts = roster(made.store, rank, size, timeout)
        except CommError:
            made.leave()
            raise
        local = _count_host(hosts, rank)
        if self._launch.local_rank is not None:
            local = (self._launch.local_rank, self._launch.local_size or local[1])
        self._local = (rank, size, *local)
        _choose_device(*local)
        backend = "cpu:gloo,cuda:nccl" if "nccl" in self.backends_available() else "gloo"
        # torch waits here for all ranks once more; they have all been seen a moment ago.
        dist.init_process_group(backend, store=made.store, rank=rank, world_size=size)
        made.store.set_timeout(timedelta(seconds=timeout))
        self._made = made
        atexit.register(_leave, self, os.getpid())


def _leave(communicator: Communicator, pid: int) -> None:
    """At exit: ends the group that was made here. Does not wait for ranks that may be dead.

    NCCL ends no group that a CUDA graph was captured with before the graph is gone, and a user's
    graph may live as long as the process: so nobody waits longer than ``LEAVE_SECONDS`` for that.
    """
    made = communicator._made
    if made is None or pid != os.getpid():
        return  # a forked child inherits the registration but has no part in the group
    communicator._made = None
    if dist.is_initialized():
        gc.collect()  # of graphs that nobody has any more
        rank = dist.get_rank()
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        ending = threading.Thread(target=_end, args=(device,), daemon=True)
        ending.start()
        ending.join(LEAVE_SECONDS)
        if ending.is_alive():
            print(
                f"thunder_mdfuse: rank {rank} leaves before its process group has ended, for which "
                f"it has waited {LEAVE_SECONDS:g} s: drop CUDA graphs with collectives in them "
                "before the process ends",
                file=sys.stderr,
                flush=True,
            )
    made.leave()


def _end(device: int | None) -> None:
    if device is not None:
        torch.cuda.set_device(device)
    dist.destroy_process_group()


def _count_host(hosts: list[str], rank: int) -> tuple[int, int]:
    here = hosts[rank]
    return hosts[:rank].count(here), hosts.count(here)


def _choose_device(local_rank: int, local_size: int) -> None:
    if not torch.cuda.is_available():
        return
    count = torch.cuda.device_count()
    if local_rank < count:
        torch.cuda.set_device(local_rank)
    elif count == 1:
        torch.cuda.set_device(0)  # the launcher shows each rank one GPU of its own
    else:
        raise CommError(
            f"local rank {local_rank} of {local_size} has no GPU of its own: {count} are visible; "
            f"start {count} ranks on this host at most, or show each rank one with "
            "CUDA_VISIBLE_DEVICES"
        )


def _meeting_device(group: dist.ProcessGroup) -> torch.device:
    types = {device.type for device in group._device_types}
    if "cpu" in types or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
