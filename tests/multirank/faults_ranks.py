"""A rank that never comes and one that is killed, through both doors; three ranks.

With the argument ``nccl``: one that is killed while another waits over NCCL; two ranks.
"""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import thunder
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from thunder_mdfuse import FusionDefinitionWrapper, mdfuse_executor
from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.team import mesh_team
from thunder_mdfuse.comm.watch import Progress, Watch
from thunder_mdfuse.errors import CommError

TIMEOUT = 1.5
LOST = 2  # the rank that never comes, or is killed


def by_definition() -> Callable[[Any], Any]:
    def define(fd: Any) -> None:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.exp(fd.ops.sum(x, 0)))  # exp is of the whole sum: an all_reduce

    fused = FusionDefinitionWrapper(define)
    return lambda x: fused([x])


def by_thunder() -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return (x * 2.0).redistribute(placements=[Replicate()]) + 1.0

    return thunder.jit(function, executors=[mdfuse_executor])  # type: ignore[no-any-return]


def mesh() -> DeviceMesh:
    """On a group of its own: the failure of one scenario must not be seen in the next."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("tp",))


def fails(what: str, call: Callable[[], Any], *texts: str) -> None:
    start = time.monotonic()
    try:
        call()
    except CommError as e:
        for text in texts:
            assert text in str(e), f"{what}: {e}"
    else:
        raise AssertionError(f"{what}: no error")
    # The wait, then the roll call, and the time that three ranks on two cores take for all else.
    assert time.monotonic() - start < 2 * TIMEOUT + 6, f"{what} took too long"


def never_comes(door: str, function: Callable[[Any], Any], on: DeviceMesh, rank: int) -> None:
    """At the first call the ranks would agree; at the second, of a known program, reduce."""
    x = distribute_tensor(torch.ones(6, 4), on, [Shard(0)], src_data_rank=None)
    os.environ["MDFUSE_COMM_TIMEOUT"] = str(TIMEOUT)
    if rank != LOST:
        fails(f"{door}, first", lambda: function(x), f"rank(s) {LOST} of [0, 1, 2] did not come")
        fails(f"{door}, again", lambda: function(x), "cannot be used any more", f"rank(s) {LOST}")


def comes_once(door: str, function: Callable[[Any], Any], on: DeviceMesh, rank: int) -> None:
    x = distribute_tensor(torch.ones(6, 4), on, [Shard(0)], src_data_rank=None)
    function(x)
    os.environ["MDFUSE_COMM_TIMEOUT"] = str(TIMEOUT)
    if rank != LOST:
        named = f"rank(s) {LOST} died or did not come"
        fails(f"{door}, once", lambda: function(x), "over tp (ranks 0, 1, 2)", named)
        fails(f"{door}, again", lambda: function(x), "cannot be used any more", named)


def watched(on: DeviceMesh, rank: int) -> None:
    """NCCL's watch, with counts as NCCL would have them: the lost rank once began as much as is
    done everywhere, another comes to the collective late.
    """
    team, said = mesh_team(on, "tp"), list[str]()
    assert team.group is not None
    name, start = team.group.group_name, time.monotonic()

    def counts() -> dict[str, Progress]:
        late = rank == 1 and time.monotonic() < start + TIMEOUT / 2
        return {name: Progress(2 if rank == LOST or late else 3, 1 if rank == LOST else 2)}

    watch = Watch(counts, said.append)
    watch.add(team, torch.device("cpu"))
    while not said and time.monotonic() < start + (TIMEOUT / 3 if rank == LOST else 3 * TIMEOUT):
        watch.look()
        time.sleep(0.05)
    if rank != LOST:
        (text,) = said
        assert f"rank {rank} has waited" in text and "over tp (ranks 0, 1, 2)" in text, text
        assert f": rank(s) {LOST} died or did not come" in text, text


def over_nccl() -> None:
    """A rank is killed, and the other's stream waits for it; two ranks with a GPU each."""
    communicator = Communicator.instance()
    assert communicator.group is not None
    on = DeviceMesh("cuda", [0, 1], mesh_dim_names=("tp",))
    function = by_definition()
    x = distribute_tensor(torch.ones(6, 4), on, [Shard(0)], src_data_rank=None)
    function(x)
    communicator.barrier()
    os.environ["MDFUSE_COMM_TIMEOUT"] = str(TIMEOUT)
    if communicator.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    function(x)
    time.sleep(TIMEOUT + 4)
    print("rank 0 ok", flush=True)
    os._exit(0)  # no clean end is left: the stream waits


def main() -> None:
    communicator = Communicator.instance()
    assert communicator.group is not None
    rank = communicator.rank()
    doors = {"direct": by_definition, "thunder": by_thunder}
    meshes = {(door, part): mesh() for door in doors for part in ("absent", "late", "killed")}
    functions = {key: doors[key[0]]() for key in meshes}
    before = os.environ.get("MDFUSE_COMM_TIMEOUT", "30")
    on = mesh()
    communicator.barrier()
    os.environ["MDFUSE_COMM_TIMEOUT"] = str(TIMEOUT)
    watched(on, rank)
    os.environ["MDFUSE_COMM_TIMEOUT"] = before
    for part in ("absent", "late"):
        for door in doors:
            function, on = functions[door, part], meshes[door, part]
            communicator.barrier()
            {"absent": never_comes, "late": comes_once}[part](door, function, on, rank)
            os.environ["MDFUSE_COMM_TIMEOUT"] = before
    # One rank can be killed once, so both doors are warm before.
    inputs = {}
    for door in doors:
        x = torch.ones(6, 4)
        inputs[door] = distribute_tensor(x, meshes[door, "killed"], [Shard(0)], src_data_rank=None)
        functions[door, "killed"](inputs[door])
    communicator.barrier()
    os.environ["MDFUSE_COMM_TIMEOUT"] = str(TIMEOUT)
    if rank == LOST:
        os.kill(os.getpid(), signal.SIGKILL)
    for door in doors:
        call = lambda door=door: functions[door, "killed"](inputs[door])
        named = f"rank(s) {LOST} died or did not come"
        fails(f"{door}, killed", call, "over tp (ranks 0, 1, 2)", named)
    print(f"rank {rank} ok", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="transformer_engine module not found")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    over_nccl() if sys.argv[1:] == ["nccl"] else main()
