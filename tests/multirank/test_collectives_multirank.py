"""Collectives over real gloo ranks; the checks are in collectives_ranks.py."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("collectives_ranks.py")


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective_equals_plain_torch(ranks: int) -> None:
    output = run_ranks(SCRIPT, ranks, timeout=120)
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output
    assert "Warning" not in output, output
