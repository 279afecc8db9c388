"""A folder in which the ranks of one job on one host find each other's file store.

The files of ``<runtime dir>/thunder_mdfuse-<uid>/`` (0700) are named by the launcher's process
id, its start time and the job, so that neither a later job nor another user can meet in them. Each
rank counts in one how often it has met: a launcher may run several programs after each other, and
the n-th meeting of all ranks is in the n-th store. The last rank to leave removes the files; what a
killed job left is removed by the next one on the host. There is no folder for each job, because a
rank's store, when Python drops it at last, throws where its folder has gone meanwhile.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from thunder_mdfuse.comm.launchers import Launch
from thunder_mdfuse.errors import CommError

# Some hosts hide start times from us; files without one are never taken for a dead job's.
_NO_START = "0"


@dataclass(frozen=True)
class Meeting:
    """One file store's path. ``leave`` when this rank needs it no more."""

    path: Path
    job: str

    def leave(self, last: bool) -> None:
        """``last``: all ranks have left; the store goes, and the counts with the job's last one."""
        if not last:
            return
        root = self.path.parent
        with contextlib.suppress(OSError), _locked(root):
            self.path.unlink(missing_ok=True)
            if not any(root.glob(f"{self.job}.store-*")):
                for count in root.glob(f"{self.job}.rank-*"):
                    count.unlink(missing_ok=True)


def join(launch: Launch, env: Mapping[str, str]) -> Meeting:
    """The next meeting of this job's ranks."""
    root = _private_folder(env)
    pid, start = _launcher_process(launch.rank_variable)
    text = f"{launch.launcher} {launch.job} {launch.size}"
    job = f"{pid}-{start}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    with _locked(root):
        _remove_dead(root)
        counter = root / f"{job}.rank-{launch.rank}"
        count = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(count + 1))
        path = root / f"{job}.store-{count}"
        path.touch(mode=0o600)
    return Meeting(path, job)


def _private_folder(env: Mapping[str, str]) -> Path:
    runtime = env.get("XDG_RUNTIME_DIR", "")
    # Slurm hands on the login host's value, which need not exist here.
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    root = base / f"thunder_mdfuse-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CommError(
            f"{root} must be a folder of this user's with mode 0700 for ranks to meet in; found "
            f"uid {found.st_uid}, mode {stat.filemode(found.st_mode)}: remove it, or set "
            "MASTER_ADDR and MASTER_PORT"
        )
    return root


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    with open(root / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _launcher_process(rank_variable: str) -> tuple[int, str]:
    """The process that started all ranks of this host: the nearest ancestor without a rank.

    That is the parent, unless a shell script stands between, which has its rank's variables; the
    environment of another user's ancestor (Slurm's daemon) is closed to us and has no rank.
    """
    pid = os.getppid()
    needle = f"{rank_variable}=".encode()
    while True:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            above = _stat_fields(pid)[1]
        except (OSError, IndexError):
            break
        if int(above) <= 1 or not any(v.startswith(needle) for v in variables):
            break
        pid = int(above)
    return pid, _start_time(pid)


def _stat_fields(pid: int) -> list[str]:
    # The command name, in brackets, may hold spaces and brackets.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _start_time(pid: int) -> str:
    try:
        return _stat_fields(pid)[19]
    except (OSError, IndexError):
        return _NO_START


def _remove_dead(root: Path) -> None:
    for file in root.iterdir():
        pid, _, rest = file.name.partition("-")
        start = rest.partition("-")[0]
        if pid.isdecimal() and start not in ("", _NO_START) and _start_time(int(pid)) != start:
            with contextlib.suppress(OSError):
                file.unlink()
