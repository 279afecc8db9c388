"""Which ranks are missing, once a collective has failed: those that do not answer a roll call.

A backend says that a connection broke or that time is up, and not whose fault it was. Every rank on
which a collective of a group fails posts in the group's store, once for the group, which is lost
then; who has not posted a moment later has died or never came. Nothing is posted while all is well.
"""

import time
from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.team import Team, group_store
from thunder_mdfuse.errors import CommError

# When one rank gives up, gloo breaks its connections, and so the others notice at once.
_LONGEST_SECONDS = 2.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Roll:
    """What a roll call found: the global ranks without an answer, and whether it could be held."""

    missing: tuple[int, ...]
    held: bool
    seconds: float

    def __str__(self) -> str:
        if not self.held:
            return (
                "another rank of the team died, and with it the store in which ranks find each "
                "other"
            )
        if self.missing:
            names = ", ".join(map(str, self.missing))
            return f"rank(s) {names} died or did not come (no answer within {self.seconds:g} s)"
        return "all ranks of the team answered: one was late, or runs another program"


def roll_call(team: Team) -> Roll:
    """Answer for this rank, and look who else answers; 2 s at most. Never raises."""
    seconds = min(_LONGEST_SECONDS, knobs.seconds("MDFUSE_COMM_TIMEOUT"))
    group = team.group
    assert group is not None, "only a member of a team has a collective that can fail"
    ranks = dist.get_process_group_ranks(group)
    try:
        store = PrefixStore("mdfuse/roll", group_store(group))
        store.set(str(ranks[group.rank()]), "here")
        end = time.monotonic() + seconds
        missing = ranks
        while True:
            missing = [r for r in missing if not store.check([str(r)])]
            if not missing or time.monotonic() > end:
                return Roll(tuple(missing), True, seconds)
            time.sleep(_POLL_SECONDS)
    except (RuntimeError, CommError):  # the store is gone, or the group was destroyed
        return Roll((), False, seconds)
