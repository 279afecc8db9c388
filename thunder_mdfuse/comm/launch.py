"""Starts a module as several ranks on this host, where no launcher did.

In: a module (or a command), how many ranks, how long they may take. Out: the exit code of the first
rank that failed, else 0. Ranks get the variables that torchrun sets and a store served here, on the
loopback interface, on a port the system chose: there is no port to be free or to be guessed. Rank
0's output comes through as it is, others' with ``[rank n]`` before each line. No rank survives.
"""

import codecs
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import IO, TextIO

from torch._C._distributed_c10d import TCPStore

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.launchers import ALONE, read_launch
from thunder_mdfuse.errors import CommError

# What ``timeout`` and shells return for a command that ran too long.
TIMED_OUT = 124

_GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.02


def under_launcher() -> bool:
    """Whether a launcher (torchrun, mpirun, srun, ``run_as_ranks``) started this process."""
    return read_launch(knobs.launcher_environment()) is not ALONE


def started_here() -> bool:
    """Whether ``run_as_ranks`` started this process: it sets torchrun's variables, but no run id.

    Such a rank 0 has its starter's terminal, while a launcher may make one for a rank whose output
    goes to a file. The lines of other ranks get their number from the starter.
    """
    launch = read_launch(knobs.launcher_environment())
    return launch.launcher == "torchrun" and not launch.job


def run_as_ranks(module: str, argv: Sequence[str], ranks: int, timeout: float) -> int:
    """``python -m module argv`` in each of ``ranks`` processes.

    Returns 0, or the exit code of the first rank that failed, or ``TIMED_OUT``.
    """
    return run_command_as_ranks([sys.executable, "-m", module, *argv], ranks, timeout)


def run_command_as_ranks(command: Sequence[str], ranks: int, timeout: float) -> int:
    """As ``run_as_ranks``, for any command."""
    if ranks < 1:
        raise CommError(f"needed at least one rank to start, found {ranks}")
    store, port = _serve()
    started: list[subprocess.Popen[bytes]] = []
    copiers: list[threading.Thread] = []
    try:
        for rank in range(ranks):
            process = _start(command, rank, ranks, port)
            started.append(process)
            copiers += _copy_output(process, rank)
        return _watch(started, timeout)
    finally:
        _end(started)
        for copier in copiers:
            copier.join(_GRACE_SECONDS)
        del store  # served until here


def _serve() -> tuple[TCPStore, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1",
        port,
        None,
        True,
        timedelta(seconds=knobs.seconds("MDFUSE_COMM_TIMEOUT")),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, port


def _start(command: Sequence[str], rank: int, ranks: int, port: int) -> subprocess.Popen[bytes]:
    env = knobs.child_environment(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        PYTHONUNBUFFERED="1",
    )
    # Rank 0 draws on a terminal itself, as if it were alone. A session of its own for each rank:
    # its children end with it.
    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=None if rank == 0 and sys.stdout.isatty() else subprocess.PIPE,
        stderr=None if rank == 0 and sys.stderr.isatty() else subprocess.PIPE,
        start_new_session=True,
    )


def _copy_output(process: subprocess.Popen[bytes], rank: int) -> list[threading.Thread]:
    prefix = f"[rank {rank}] " if rank else ""
    copiers = [
        threading.Thread(target=_copy, args=(source, target, prefix), daemon=True)
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        if source is not None
    ]
    for copier in copiers:
        copier.start()
    return copiers


def _copy(source: IO[bytes], target: TextIO, prefix: str) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with source:
        while chunk := _read(source, whole_lines=bool(prefix)):
            target.write(prefix + decoder.decode(chunk))
            target.flush()


def _read(source: IO[bytes], whole_lines: bool) -> bytes:
    # Rank 0 may draw progress bars, which end in no newline: pass on what there is.
    return source.readline() if whole_lines else os.read(source.fileno(), 1 << 16)


def _watch(started: list[subprocess.Popen[bytes]], timeout: float) -> int:
    end = time.monotonic() + timeout
    running = list(started)
    while running:
        for process in list(running):
            code = process.poll()
            if code is None:
                continue
            running.remove(process)
            if code != 0:
                rank = started.index(process)
                reason = f"signal {-code}" if code < 0 else f"exit code {code}"
                print(f"rank {rank} failed with {reason}; ending the others", file=sys.stderr)
                return 128 - code if code < 0 else code
        if time.monotonic() > end:
            ranks = ", ".join(str(started.index(process)) for process in running)
            print(f"rank(s) {ranks} still ran after {timeout:g} s; ended", file=sys.stderr)
            return TIMED_OUT
        time.sleep(_POLL_SECONDS)
    return 0


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
    end = time.monotonic() + _GRACE_SECONDS
    for process in started:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        process.send_signal(number)
