"""Ranks find each other under every launcher, and say who is missing when they do not."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("communicator_ranks.py")


def run(
    scenario: str,
    ranks: int,
    launcher: str = "mpirun",
    argument: str = "",
    env: dict[str, str] | None = None,
) -> None:
    args = (scenario, argument or str(ranks))
    output = run_ranks(SCRIPT, ranks, launcher, args=args, env=env)
    assert output.count(f"{scenario} ok") == ranks, output
    # "[W" begins a warning of torch's C++ side, which is right about ranks that do not come.
    assert scenario == "absent" or ("Warning" not in output and "[W" not in output), output


def test_programs_after_each_other_under_one_launcher(tmp_path: Path) -> None:
    # A rank is a script here, which has its rank's variables as a shell between would have.
    script = tmp_path / "script.py"
    command = [sys.executable, "-u", str(SCRIPT), "make", "2"]
    script.write_text(
        f"import subprocess\nfor _ in range(2): subprocess.run({command}, check=True)\n"
    )
    output = run_ranks(script, 2, env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert output.count("make ok") == 4, output


@pytest.mark.parametrize("by_address", [False, True])
def test_existing_group_is_adopted_and_destroyed_one_made_again(
    by_address: bool, tmp_path: Path
) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    if by_address:
        with socket.create_server(("127.0.0.1", 0)) as free:
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    run("again", 2, argument=str(tmp_path / "store"), env=env)
    assert by_address != bool(list(tmp_path.glob("*/lock"))), "no files when there is an address"


AGAIN = pytest.param("torchrun", 2, marks=pytest.mark.launch_again)


@pytest.mark.parametrize(("launcher", "ranks"), [("mpirun", 3), AGAIN])
def test_ranks_that_do_not_come_are_named(launcher: str, ranks: int) -> None:
    run("absent", ranks, launcher)


def test_late_and_dead_ranks_are_named_and_nothing_hangs() -> None:
    output = run_ranks(SCRIPT, 3, args=("faults", "3"))
    assert output.count("faults ok") == 2, output


def lose_a_rank(folder: Path, ranks: int, *args: str, backend: str) -> str:
    # Each rank is under a script that outlives it: a launcher ends all ranks when one is killed.
    script, faults = folder / "script.py", str(SCRIPT.with_name("faults_ranks.py"))
    command = [sys.executable, "-u", faults, *args]
    script.write_text(
        f"import subprocess, sys\ncode = subprocess.run({command}).returncode\n"
        "sys.exit(0 if code == -9 else code)\n"
    )
    return run_ranks(script, ranks, "mpirun", 150, env={"MDFUSE_BACKEND": backend})


def test_a_lost_rank_is_named_through_both_doors(tmp_path: Path) -> None:
    output = lose_a_rank(tmp_path, 3, backend="reference")
    assert "rank 0 ok" in output and "rank 1 ok" in output, output


@pytest.mark.multigpu(2)
def test_a_rank_lost_over_nccl_is_named_on_stderr(tmp_path: Path) -> None:
    output = lose_a_rank(tmp_path, 2, "nccl", backend="auto")
    assert "rank 0 ok" in output, output
    assert "for a collective over tp (ranks 0, 1): rank(s) 1 died or did not come" in output, output


def test_jobs_side_by_side_do_not_meet(tmp_path: Path) -> None:
    """Two jobs of one user share the folder in which they meet, and nothing else."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(run_ranks, SCRIPT, 2, args=("apart", str(n)), env=env) for n in (10, 20)
        ]
    for job in jobs:
        assert job.result().count("apart ok") == 2, job.result()
    assert [path.name for path in tmp_path.glob("*/*")] == ["lock"]


def test_alone() -> None:
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env["PYTHONPATH"] = str(SCRIPT.parents[2])
    found = subprocess.run(
        [sys.executable, SCRIPT, "alone", ""], env=env, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "alone ok\n", "")
