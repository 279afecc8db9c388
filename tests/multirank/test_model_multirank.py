"""Whole decoders over real ranks; the checks are in model_ranks.py."""

from pathlib import Path

from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("model_ranks.py")


def test_models() -> None:
    output = run_ranks(SCRIPT, 2, env={"MDFUSE_BACKEND": "reference", "MDFUSE_COMM_TIMEOUT": "60"})
    for rank in range(2):
        assert f"rank {rank} ok" in output, output
