"""Ranks that agree, and that do not; three ranks, started by test_agreement_multirank.py."""

import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from communicator_ranks import make

from thunder_mdfuse.comm.agreement import agree, agree_on_value
from thunder_mdfuse.comm.collectives import start_all_gather
from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.team import group_team
from thunder_mdfuse.errors import CommError


def error(call: Callable[[], object]) -> str:
    try:
        call()
    except CommError as e:
        return str(e)
    raise AssertionError("no error")


def keys(group: dist.ProcessGroup) -> int:
    return len(dist.distributed_c10d._get_process_group_store(group).list_keys())


def equal(group: dist.ProcessGroup, rank: int) -> None:
    for i in range(20):
        agree(group, f"digest {i}", {"shape": "4 x 8"}, f"program {i}")
        assert agree_on_value(group, bytes([rank, 255, 0, i]), 1) == bytes([1, 255, 0, i])
    seed = agree_on_value(group, os.urandom(8), what="the seed")
    assert len(seed) == 8
    agree(group, seed.hex(), {}, "the seed")


def bounded(group: dist.ProcessGroup, rank: int) -> None:
    """However many rounds there were, the store holds those of the last two at most."""
    if not hasattr(dist.distributed_c10d._get_process_group_store(group), "list_keys"):
        return
    counts = []
    for i in range(12):
        agree(group, str(i), {"a": "b"}, "program")
        agree_on_value(group, b"x" * 100)
        try:
            counts.append(keys(group))
        except RuntimeError:
            return  # file stores cannot list keys
    assert max(counts[6:]) <= counts[2] + 6, counts


def differ(group: dist.ProcessGroup, rank: int) -> None:
    digest, width = ("b", "9") if rank == 1 else ("a", "8")
    said = error(lambda: agree(group, digest, {"rows": "4", "width": width}, "region 3"))
    for text in ("do not agree on region 3", "width: ranks 0, 2 have '8', rank 1 has '9'"):
        assert text in said, said
    assert "rows" not in said, said
    # A field that only one has, and digests that differ where no field does.
    extra = {"axis": "tp"} if rank == 2 else {}
    said = error(lambda: agree(group, str(rank), extra, "region 4"))
    assert "axis: rank 0 has nothing, rank 2 has 'tp'" in said, said
    assert "rank 0 has 0, rank 1 has 1" in said, said
    # The group goes on working, and in step.
    agree(group, "same", {}, "region 5")


def other_programs(group: dist.ProcessGroup, rank: int) -> None:
    call = (
        (lambda: agree_on_value(group, b"", what="the seed"))
        if rank == 0
        else (lambda: agree(group, "d", {}, f"region {rank}"))
    )
    said = error(call)
    for text in ("the seed from rank 0", "rank 1 came for region 1", "rank 2 came for region 2"):
        assert text in said, said
    agree(group, "same", {}, "region 5")


def late(group: dist.ProcessGroup, rank: int) -> None:
    timeout = 1.0
    os.environ["MDFUSE_COMM_TIMEOUT"] = str(timeout)
    if rank == 2:
        time.sleep(timeout + 1.5)
        said = error(lambda: agree(group, "d", {}, "region 0"))
        assert "rank(s) 0, 1 stopped waiting to agree on region 0" in said, said
        refused(group)
        return
    start = time.monotonic()
    said = error(lambda: agree(group, "d", {}, "region 0"))
    assert time.monotonic() - start < timeout + 8
    assert f"rank(s) 2 of [0, 1, 2] did not come within {timeout:g} s" in said, said
    refused(group)


def refused(group: dist.ProcessGroup) -> None:
    """A rank that did not come may have begun something else; its data must not be taken."""
    team, mine = group_team(group), torch.ones(2)
    for call in (
        lambda: agree(group, "d", {}, "region 1"),
        lambda: start_all_gather(mine, team, 0, 2 * team.size),
    ):
        assert "cannot be used any more" in error(call)


def subgroup(_: dist.ProcessGroup, rank: int) -> None:
    outer = dist.new_group([0, 2])
    if rank == 1:
        return
    agree(outer, "x", {}, "a program")
    assert agree_on_value(outer, str(rank).encode(), 1) == b"2"
    said = error(lambda: agree(outer, str(rank), {"n": str(rank)}, "a program"))
    assert "n: rank 0 has '0', rank 2 has '2'" in said, said


def destroyed(group: dist.ProcessGroup, rank: int) -> None:
    dist.destroy_process_group(group)
    assert "destroyed" in error(lambda: agree(group, "d", {}, "region 0"))


def main(ranks: str) -> None:
    make(ranks)
    communicator = Communicator.instance()
    for scenario in (equal, bounded, differ, other_programs, late, subgroup, destroyed):
        group = dist.new_group()
        scenario(group, communicator.rank())
        os.environ.pop("MDFUSE_COMM_TIMEOUT", None)
        communicator.barrier()
    print(f"rank {communicator.rank()} ok")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1])
