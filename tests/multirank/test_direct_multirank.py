"""The direct API on DTensors over real gloo ranks; the checks are in direct_ranks.py."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("direct_ranks.py")


@pytest.mark.parametrize(
    ("launcher", "ranks", "backend"),
    [("spawn", 2, "reference"), ("spawn", 2, "emulate"), ("mpirun", 4, "reference")],
)
def test_fusions_on_dtensors(launcher: str, ranks: int, backend: str) -> None:
    env = {"MDFUSE_BACKEND": backend, "MDFUSE_EMULATOR_ORDERS": "2", "MDFUSE_VERIFY": "1"}
    output = run_ranks(SCRIPT, ranks, launcher, timeout=300, env=env)
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output
