"""Sharded programs over real gloo ranks; the checks are in sharding_ranks.py."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("sharding_ranks.py")
RUNS = [
    ("spawn", 2, "emulate", ["1", "15"]),
    ("mpirun", 4, "reference", ["2", "30"]),
    ("spawn", 4, "reference", ["eager"]),
]


@pytest.mark.parametrize(("launcher", "ranks", "backend", "args"), RUNS)
def test_programs(launcher: str, ranks: int, backend: str, args: list[str]) -> None:
    env = {
        "MDFUSE_BACKEND": backend,
        "MDFUSE_EMULATOR_ORDERS": "1",
        "MDFUSE_COMM_TIMEOUT": "60",
        "MDFUSE_VERIFY": "1",
    }
    output = run_ranks(SCRIPT, ranks, launcher, args=args, env=env)
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output
