"""The folder in which ranks of one host meet: private, one for each job, gone after use."""

import os
from pathlib import Path

import pytest

from thunder_mdfuse.comm.launchers import Launch
from thunder_mdfuse.comm.meeting import join
from thunder_mdfuse.errors import CommError


def launch(rank: int, job: str = "a") -> Launch:
    return Launch("Open MPI", rank, 2, rank, 2, job, "OMPI_COMM_WORLD_RANK")


def root(base: Path) -> Path:
    return base / f"thunder_mdfuse-{os.getuid()}"


def test_ranks_of_a_job_meet_in_one_private_file(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    first, second = join(launch(0), env), join(launch(1), env)
    assert first.path == second.path
    assert first.path.is_relative_to(root(tmp_path))
    assert root(tmp_path).stat().st_mode & 0o777 == 0o700
    assert first.path.stat().st_mode & 0o777 == 0o600


def test_jobs_do_not_meet(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert join(launch(0, "a"), env).path != join(launch(0, "b"), env).path


def test_programs_after_each_other_meet_anew(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    first = join(launch(0), env)
    # Rank 0 is in its next program before rank 1 has begun with the first.
    again = join(launch(0), env)
    late = join(launch(1), env)
    assert first.path == late.path != again.path
    first.leave(last=False)
    late.leave(last=True)
    assert not first.path.exists()
    assert again.path.exists(), "a meeting that is on keeps the counts"
    assert join(launch(1), env).path == again.path
    again.leave(last=True)
    assert [path.name for path in root(tmp_path).iterdir()] == ["lock"]


def test_what_a_dead_job_left_is_removed(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    join(launch(0), env)
    gone = root(tmp_path) / "1-1-deadbeef.store-0"  # no process 1 has that start time
    unknown = root(tmp_path) / "1-0-deadbeef.rank-1"  # a host that hides start times
    for file in (gone, unknown):
        file.touch()
    join(launch(0, "b"), env)
    assert not gone.exists()
    assert unknown.exists()


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    root(tmp_path).mkdir(mode=0o755)
    root(tmp_path).chmod(0o755)
    with pytest.raises(CommError, match="mode 0700"):
        join(launch(0), {"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    root(tmp_path).symlink_to(elsewhere)
    with pytest.raises(CommError, match="mode 0700"):
        join(launch(0), {"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_runtime_folder_that_is_not_there_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = join(launch(0), {"XDG_RUNTIME_DIR": str(tmp_path / "not there")})
    assert found.path.is_relative_to(root(tmp_path))
