"""Starts a script or module as several ranks and returns what they wrote.

``run_ranks`` is for any test: ``from multirank.runner import run_ranks``. A rank that fails makes
the test fail with the output of all; a job that outlives its timeout is killed, its children too.
The timeout is for jobs that hang: starting Python and torch takes seconds a rank on a busy machine.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parents[1]

# A job starts clean even when the test session itself was started by a launcher.
_LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "MPI_", "SLURM_", "MASTER_", "TORCHELASTIC_")
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")

_SPAWN = (
    "import sys; from thunder_mdfuse.comm.launch import run_command_as_ranks; "
    "sys.exit(run_command_as_ranks(sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])))"
)


def run_ranks(
    script_or_module: str | Path,
    ranks: int,
    launcher: str = "mpirun",
    timeout: float = 150.0,
    args: Sequence[str] = (),
    env: dict[str, str] | None = None,
    fails: bool = False,
) -> str:
    """Runs the script (a path ending in .py) or module and returns everything the ranks wrote.

    ``launcher``: mpirun, torchrun or spawn (``run_as_ranks``). Asserts that all ranks succeed, or,
    with ``fails``, that the job ends by itself with an error.
    """
    command = _command(str(script_or_module), ranks, launcher, timeout, args)
    with tempfile.TemporaryDirectory() as meeting:
        # What a job that fails leaves behind goes with the folder.
        variables = _environment({"XDG_RUNTIME_DIR": meeting, **(env or {})})
        output, code = _run(command, launcher, timeout, variables)
    if fails:
        assert code != 0, f"the job was to fail but succeeded:\n{output}"
    else:
        assert code == 0, f"exit {code} from {' '.join(command)}:\n{output}"
    return output


def _run(
    command: list[str], launcher: str, timeout: float, variables: dict[str, str]
) -> tuple[str, int]:
    job = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=variables,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_tree(job.pid)
        output, _ = job.communicate()
        pytest.fail(f"{launcher} job still ran after {timeout:g} s and was killed:\n{output}")
    except BaseException:
        _kill_tree(job.pid)
        raise
    return output, job.returncode


def _command(
    target: str, ranks: int, launcher: str, timeout: float, args: Sequence[str]
) -> list[str]:
    what = [target] if target.endswith(".py") else ["-m", target]
    python = [sys.executable, "-u"]
    match launcher:
        case "mpirun":
            flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            return [_mpirun(), "-np", str(ranks), *flags, *python, *what, *args]
        case "torchrun":
            run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
            return [*python, *run, *what, *args]
        case "spawn":
            return [*python, "-c", _SPAWN, str(ranks), str(timeout), *python, *what, *args]
    raise ValueError(f"unknown launcher {launcher}")


def _mpirun() -> str:
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun: pip install 'thunder_mdfuse[test]' brings Open MPI")
    return found


def _environment(changes: dict[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        # OMPI_MCA_ is how a machine configures its own Open MPI, not what a launcher says.
        if name.startswith("OMPI_MCA_")
        or (not name.startswith((*_LAUNCHERS, "PYTEST_XDIST_")) and name not in _TORCHRUN)
    }
    started = str(_TESTS / "multirank" / "started")
    path = [started, str(_TESTS.parent), str(_TESTS), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in path if p),
        **changes,
    }


def _kill_tree(root: int) -> None:
    """Ends the process and its descendants; launchers put ranks in process groups of their own."""
    family = [root, *_descendants(root)]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sign)
        time.sleep(0.3)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The command name, in brackets, may hold spaces.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, open_ = [], [root]
    while open_:
        new = children.get(open_.pop(), [])
        found += new
        open_ += new
    return found
