"""A collective that was started and not yet waited for.

``Pending.wait`` returns its result. The buffers of the collective live until then. On NCCL waiting
makes the current stream wait and never the host, so that it may be captured in a CUDA graph (what
bounds it there is NCCL's watchdog, and ``watch.py`` says before that for whom it waits); on other
backends it blocks the host, for ``MDFUSE_COMM_TIMEOUT`` at most.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.rollcall import roll_call
from thunder_mdfuse.comm.team import Team, lose
from thunder_mdfuse.comm.watch import watch
from thunder_mdfuse.errors import CommError


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    """The backend (``gloo``, ``nccl``, ...) that ``group`` uses for tensors on ``device``."""
    try:
        return group._get_backend(device).name()
    except RuntimeError as e:
        raise CommError(
            f"the process group has no backend for {device.type} tensors ({_first_line(e)}); "
            "initialise it with backend 'cpu:gloo,cuda:nccl', or move the tensor"
        ) from None


class Pending:
    """The result of a ``start_*`` function. ``wait`` may be called more than once."""

    __slots__ = ("_finish", "_kept", "_result", "_team", "_what", "_work")

    def __init__(
        self,
        what: str,
        team: Team,
        work: dist.Work | None,
        finish: Callable[[], torch.Tensor],
        kept: tuple[torch.Tensor, ...] = (),
    ) -> None:
        self._what = what
        self._team = team
        self._work = work
        self._finish: Callable[[], torch.Tensor] | None = finish
        self._kept = kept  # the backend may read these until the work is done
        self._result: torch.Tensor | None = None

    @classmethod
    def done(cls, what: str, team: Team, result: torch.Tensor) -> Self:
        """A collective that had nothing to do."""
        return cls(what, team, None, lambda: result)

    def wait(self) -> torch.Tensor:
        """The collective's result. ``CommError`` when it does not finish in time."""
        if self._result is None:
            if self._finish is None:
                raise CommError(f"{self._what} over {self._team} has failed before")
            finish, self._finish = self._finish, None
            if self._work is not None:
                with named_failure(self._what, self._team):
                    _wait(self._work, self._team, self._kept)
            self._result = finish()
            self._work, self._kept = None, ()
        return self._result


def _wait(work: dist.Work, team: Team, kept: tuple[torch.Tensor, ...]) -> None:
    _, group = team.member()
    if backend_name(group, kept[0].device) == "nccl":
        watch(team, kept[0].device)
        work.wait()  # with a timeout this would block the host
    else:
        work.wait(timedelta(seconds=knobs.seconds("MDFUSE_COMM_TIMEOUT")))


@contextmanager
def named_failure(what: str, team: Team) -> Iterator[None]:
    """Turns a backend's error into a ``CommError`` that names the collective and the team."""
    try:
        yield
    except RuntimeError as e:
        found = _first_line(e)
        timeout = knobs.seconds("MDFUSE_COMM_TIMEOUT")
        why = (
            f"did not finish within {timeout:g} s (MDFUSE_COMM_TIMEOUT)"
            if "timed out" in found.lower() or "timeout" in found.lower()
            else f"failed: {found}"
        )
        roll = roll_call(team)
        assert team.group is not None
        lose(team.group, f"{what} over {team} {why}: {roll}")
        raise CommError(
            f"{what} over {team} {why}, at rank {team.ranks[team.position or 0]}: {roll}. The "
            "process group cannot be used any more; look at the other ranks' first error and "
            "start again"
        ) from e


def _first_line(e: BaseException) -> str:
    return (str(e).strip() or type(e).__name__).splitlines()[0]
