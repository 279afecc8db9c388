"""Functions of DTensors, and decoders, over real ranks: values, gradients, traffic."""

from pathlib import Path

from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("dtensor_ranks.py")


def test_functions() -> None:
    output = run_ranks(SCRIPT, 2, timeout=300, env={"MDFUSE_BACKEND": "reference"})
    for rank in range(2):
        assert f"rank {rank} ok" in output, output
