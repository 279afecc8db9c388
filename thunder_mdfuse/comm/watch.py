"""Who is lost while NCCL waits: a named message on stderr before NCCL's watchdog ends the process.

A collective of NCCL waits on the device, where nothing can be raised. So a thread looks, about once
a second, how many collectives of each watched group were begun and are done, as torch's flight
recorder counts them: that costs collectives nothing, and holds nothing of theirs. A rank whose
count stands still says in the group's store how far it has begun; when it has stood still for
``MDFUSE_COMM_TIMEOUT`` (or most of the group's own timeout, if that is shorter), whoever has not
begun that far is named. Nothing is ended here, since a rank that was late may still come.
"""

import atexit
import json
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import ProcessGroup

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.team import Team, group_store
from thunder_mdfuse.errors import CommError

LOOK_SECONDS = 1.0
SHARE = 0.7  # of the group's timeout, after which its watchdog ends the process


@dataclass(frozen=True)
class Progress:
    """How many collectives of a group were begun here, and how many of these are done."""

    begun: int
    done: int


@dataclass
class _Watched:
    """What the last looks at a group found. ``since``: when ``done`` was first what it is."""

    team: str
    limit: float  # of seconds that are waited
    since: float
    done: int = -1  # as the recorder counts before the first is done
    posted: int = 0
    said: bool = False


class Watch:
    """Looks at groups. ``progress`` counts by a group's name, ``say`` takes a message."""

    def __init__(
        self,
        progress: Callable[[], Mapping[str, Progress]],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._say, self._clock = progress, say, clock
        self._groups: weakref.WeakKeyDictionary[ProcessGroup, _Watched] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, team: Team, device: torch.device) -> bool:
        """Look at the group of ``team`` from now on. Whether that is new."""
        group = team.group
        if group is None or group in self._groups:
            return False
        own = group._get_backend(device).options._timeout.total_seconds()
        self._groups[group] = _Watched(str(team), SHARE * own, self._clock())
        return True

    def look(self) -> None:
        """One look at all groups. Those that were destroyed are forgotten."""
        found = self._progress()
        for group, watched in list(self._groups.items()):
            try:
                self._look(group, watched, found.get(group.group_name))
            except CommError:
                self._groups.pop(group, None)
            except RuntimeError:
                self._lost(watched, 0.0, "a rank died, and with it the store in which ranks meet")
                self._groups.pop(group, None)

    def _look(self, group: ProcessGroup, watched: _Watched, found: Progress | None) -> None:
        now = self._clock()
        if found is None or found.done != watched.done or found.begun <= found.done:
            watched.done = -1 if found is None else found.done
            watched.since, watched.said = now, False
            return
        store = c10d.PrefixStore("mdfuse/watch", group_store(group))
        ranks = dist.get_process_group_ranks(group)
        if watched.posted != found.begun:
            store.set(str(ranks[group.rank()]), str(found.begun))
            watched.posted = found.begun
        waited = now - watched.since
        if watched.said or waited < min(knobs.seconds("MDFUSE_COMM_TIMEOUT"), watched.limit):
            return
        begun = {r: int(store.get(str(r))) if store.check([str(r)]) else 0 for r in ranks}
        missing = [r for r, count in begun.items() if count <= found.done]
        if missing:
            who = f"rank(s) {', '.join(map(str, missing))} died or did not come"
        else:
            who = "all ranks have begun it: one is slow, or runs another program"
        self._lost(watched, waited, who)

    def _lost(self, watched: _Watched, waited: float, who: str) -> None:
        watched.said = True
        self._say(
            f"thunder_mdfuse: rank {dist.get_rank()} has waited {waited:.0f} s for a collective "
            f"over {watched.team}: {who}. NCCL goes on waiting until its watchdog ends this "
            "process; look at the other ranks' first error and start again (this is said after "
            "MDFUSE_COMM_TIMEOUT)"
        )


def nccl_progress() -> dict[str, Progress]:
    """By a group's name, of all groups of NCCL; empty where torch's flight recorder is off."""
    return read_progress(c10d._dump_nccl_trace_json(False, False))  # type: ignore[attr-defined]


def read_progress(trace: bytes | str) -> dict[str, Progress]:
    """The counts in the recorder's JSON; a capture's collectives are in neither."""
    found = json.loads(trace).get("pg_status", {})
    return {
        name: Progress(int(s["last_enqueued_collective"]), int(s["last_completed_collective"]))
        for name, s in found.items()
    }


class _Thread:
    """The process's watch and the thread that looks, which starts with the first group."""

    def __init__(self) -> None:
        self.watch = Watch(nccl_progress, _to_stderr)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, team: Team, device: torch.device) -> None:
        if self.watch.add(team, device) and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mdfuse-watch", daemon=True)
            self._thread.start()
            atexit.register(self._end)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self.watch.look()

    def _end(self) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(2 * LOOK_SECONDS)


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


_thread = _Thread()


def watch(team: Team, device: torch.device) -> None:
    """Name ranks that are lost while a collective of NCCL over ``team`` waits."""
    _thread.add(team, device)
