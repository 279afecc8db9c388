"""How the ranks of a job find each other, and who did not come.

In: a ``Launch``. Out: a c10d store that all ranks share. MASTER_ADDR and MASTER_PORT win; without
them ranks of one host meet in a file store, and a lone process needs neither file nor port. Each
rank posts its host name: ranks that do not come are named, and local ranks can be counted.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from thunder_mdfuse.comm.launchers import Launch
from thunder_mdfuse.comm.meeting import Meeting, join
from thunder_mdfuse.errors import CommError

# How long the rank that serves the store stays for others that are still on their way out.
_GOODBYE_SECONDS = 3.0


@dataclass(frozen=True)
class Rendezvous:
    """The store of the job, and what is to be done with it when this process ends."""

    store: Store
    leave: Callable[[], None]


def rendezvous(launch: Launch, env: Mapping[str, str], timeout: float, number: int) -> Rendezvous:
    """The store shared by the ranks of ``launch``; returns before the other ranks have come.

    ``number`` counts the meetings of this process, as every rank counts them.
    """
    if launch.size == 1:
        return Rendezvous(HashStore(), lambda: None)
    if "MASTER_ADDR" in env or "MASTER_PORT" in env:
        return _by_address(launch, env, timeout, number)
    if not launch.on_one_host:
        raise CommError(
            f"{launch.launcher} started {launch.size} ranks, of which {launch.local_size} are "
            "known to be on this host, and MASTER_ADDR is not set; set MASTER_ADDR to the host "
            "name of rank 0 and MASTER_PORT to a free port of it, the same for all ranks"
        )
    return _by_file(launch, join(launch, env), timeout)


def roster(store: Store, rank: int, size: int, timeout: float) -> list[str]:
    """Every rank's host, by rank. ``CommError`` naming the ranks that do not come in time."""
    keys = [f"mdfuse/roster/{r}" for r in range(size)]
    try:
        store.set(keys[rank], socket.gethostname())
        store.wait(keys, timedelta(seconds=timeout))
        return [store.get(key).decode() for key in keys]
    except RuntimeError as e:
        missing = _missing(store, keys)
        who = f"rank(s) {', '.join(map(str, missing))}" if missing else "at least one rank"
        raise CommError(
            f"{who} of {size} did not come within {timeout:g} s (MDFUSE_COMM_TIMEOUT), says rank "
            f"{rank}: all ranks must start, reach Communicator.instance().group, and see the same "
            f"MASTER_ADDR and MASTER_PORT if any ({str(e).splitlines()[0]})"
        ) from e


def _missing(store: Store, keys: list[str]) -> list[int]:
    try:
        return [r for r, key in enumerate(keys) if not store.check([key])]
    except RuntimeError:
        return []  # the store went away with the rank that served it


def _by_file(launch: Launch, meeting: Meeting, timeout: float) -> Rendezvous:
    # Without a number of workers the store never removes its file by itself: a rank that leaves
    # early must not take it away from the others.
    store = FileStore(str(meeting.path), -1)
    store.set_timeout(timedelta(seconds=timeout))

    def leave() -> None:
        with contextlib.suppress(RuntimeError):
            meeting.leave(last=store.add("mdfuse/left", 1) == launch.size)

    return Rendezvous(store, leave)


# A store that is served here is served as long as the process lives: at the next meeting at the
# same address, other ranks may be there before this one, and must not find a server about to go.
_served: dict[tuple[str, int], TCPStore] = {}


def _by_address(launch: Launch, env: Mapping[str, str], timeout: float, number: int) -> Rendezvous:
    host, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        raise CommError(
            f"MASTER_ADDR is {host!r} and MASTER_PORT is {port!r}; needed both, a host and a port "
            "number, the same for all ranks (or neither, when all ranks are on one host)"
        )
    # torchrun's agent serves the store itself; a restarted job must not see its last run's keys.
    by_agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = launch.rank == 0 and not by_agent
    limit = timedelta(seconds=timeout)
    try:
        base = _served.get((host, int(port))) or TCPStore(
            host, int(port), None, serves, limit, wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as e:
        role = "serve" if serves else "reach"
        raise CommError(
            f"rank {launch.rank} cannot {role} the store at MASTER_ADDR:MASTER_PORT {host}:{port} "
            f"({str(e).splitlines()[0]}); rank 0 must run on that host with that port free, and "
            f"come within {timeout:g} s (MDFUSE_COMM_TIMEOUT)"
        ) from e
    if serves:
        _served[(host, int(port))] = base
    base.set_timeout(limit)
    attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"mdfuse/attempt_{attempt}/meeting_{number}", base)
    return Rendezvous(store, lambda: _say_goodbye(store, launch, serves))


def _say_goodbye(store: Store, launch: Launch, serves: bool) -> None:
    """The store's server leaves last, if all is well: others would log that it went away."""
    with contextlib.suppress(RuntimeError):
        left = store.add("mdfuse/left", 1)
        end = time.monotonic() + _GOODBYE_SECONDS
        failed = getattr(sys, "last_value", None) is not None
        while serves and not failed and left < launch.size and time.monotonic() < end:
            time.sleep(0.01)
            left = store.add("mdfuse/left", 0)
