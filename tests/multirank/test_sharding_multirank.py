"""Random sharded programs over real gloo ranks; the checks are in sharding_ranks.py."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("sharding_ranks.py")


@pytest.mark.parametrize(("launcher", "ranks", "count"), [("spawn", 2, 60), ("mpirun", 4, 60)])
def test_random_programs(launcher: str, ranks: int, count: int) -> None:
    env = {"MDFUSE_BACKEND": "reference", "MDFUSE_COMM_TIMEOUT": "20"}
    output = run_ranks(SCRIPT, ranks, launcher, args=["1", str(count)], env=env)
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output
