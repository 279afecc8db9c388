"""The runner fails a test when a rank fails or hangs, and leaves no process behind."""

import os
import time
from pathlib import Path

import pytest
from multirank.runner import run_ranks


def script(folder: Path, text: str) -> Path:
    path = folder / "ranks.py"
    path.write_text(text)
    return path


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed process whose parent has not asked for it yet is no process any more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_job_that_hangs_is_killed_with_its_ranks(tmp_path: Path) -> None:
    hanging = script(
        tmp_path,
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(os.path.join(sys.argv[1], str(os.getpid())), 'w').close()\n"
        "print('started')\ntime.sleep(600)\n",
    )
    pids = tmp_path / "pids"
    pids.mkdir()
    with pytest.raises(
        pytest.fail.Exception, match="still ran after 12 s and was killed:\nstarted"
    ):
        run_ranks(hanging, 2, timeout=12, args=[str(pids)])
    found = [int(path.name) for path in pids.iterdir()]
    assert len(found) == 2
    end = time.monotonic() + 10
    while any(alive(pid) for pid in found) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in found)


def test_a_rank_that_fails_fails_the_test_with_all_output(tmp_path: Path) -> None:
    failing = script(
        tmp_path,
        "import gc, os, time\nrank = int(os.environ['OMPI_COMM_WORLD_RANK'])\n"
        "assert os.environ['OMP_NUM_THREADS'] == '1' and gc.get_threshold()[0] == 100_000\n"
        "print('here is', rank)\ntime.sleep(1.0)\nraise SystemExit(rank * 3)\n",
    )
    with pytest.raises(AssertionError, match="exit 3 from") as failure:
        run_ranks(failing, 2)
    assert "here is 0" in str(failure.value) and "here is 1" in str(failure.value)
    assert "here is 1" in run_ranks(failing, 2, fails=True)
    with pytest.raises(AssertionError, match="was to fail but succeeded"):
        run_ranks(failing, 1, fails=True)
