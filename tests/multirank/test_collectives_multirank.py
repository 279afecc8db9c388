"""Collectives over real gloo ranks; the checks are in collectives_ranks.py."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

AGAIN = pytest.param("spawn", 2, marks=pytest.mark.launch_again)
SCRIPT = Path(__file__).with_name("collectives_ranks.py")


@pytest.mark.parametrize(("launcher", "ranks"), [AGAIN, ("mpirun", 4)])
def test_every_collective_equals_plain_torch(launcher: str, ranks: int, tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    output = run_ranks(SCRIPT, ranks, launcher, args=[str(ranks)], env=env)
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output
    # "[W" begins a warning of torch's C++ side.
    assert "Warning" not in output and "[W" not in output, output
    left = [path.name for path in tmp_path.glob("*/*")]
    assert left in ([], ["lock"]), "the last rank removes the meeting's files"
