"""A collective that was started and not yet waited for.

``Pending.wait`` returns its result. The buffers of the collective live until then. On NCCL waiting
makes the current stream wait and never the host, so that it may be captured in a CUDA graph (what
bounds it there is NCCL's watchdog, and ``watch.py`` says before that for whom it waits); on other
backends it blocks the host, for ``MDFUSE_COMM_TIMEOUT`` at most.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Self
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.rollcall import roll_call
from thunder_mdfuse.comm.team import Team, lose
from thunder_mdfuse.comm.watch import watch
from thunder_mdfuse.errors import CommError

_backends: WeakKeyDictionary[dist.ProcessGroup, dict[str, str]] = WeakKeyDictionary()


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    """The backend (``gloo``, ``nccl``, ...) that ``group`` uses for tensors on ``device``."""
    known = _backends.get(group)
    found = None if known is None else known.get(device.type)
    if found is None:
        try:
            found = group._get_backend(device).name()
        except RuntimeError as e:
            raise CommError(
                f"the process group has no backend for {device.type} tensors ({_first_line(e)}); "
                "initialise it with backend 'cpu:gloo,cuda:nccl', or move the tensor"
            ) from None
        _backends.setdefault(group, {})[device.type] = found
    return found


class What:
    """The name of a collective, written when somebody reads it: ``kind of f32[2, 3] tail``."""

    __slots__ = ("dtype", "kind", "shape", "tail")

    def __init__(self, kind: str, x: torch.Tensor, tail: str = "") -> None:
        self.kind, self.dtype, self.shape, self.tail = kind, x.dtype, x.shape, tail

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.kind} of {dtype}{list(self.shape)}{self.tail}"


class Pending:
    """The result of a ``start_*`` function. ``wait`` may be called more than once."""

    __slots__ = ("_finish", "_kept", "_result", "_team", "_what", "_work")

    def __init__(
        self,
        what: object,
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
    def done(cls, what: object, team: Team, result: torch.Tensor) -> Self:
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


class named_failure:
    """Turns a backend's error into a ``CommError`` that names the collective and the team."""

    __slots__ = ("_team", "_what")

    def __init__(self, what: object, team: Team) -> None:
        self._what, self._team = what, team

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: BaseException | None, trace: object) -> None:
        if not isinstance(e, RuntimeError):
            return
        what, team = self._what, self._team
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
