"""What eager DTensor gets wrong is right here; the list is in sharding/eager_faults.py."""

from pathlib import Path

from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("eager_faults_ranks.py")


def test_the_known_faults_of_eager_dtensor() -> None:
    env = {"MDFUSE_BACKEND": "reference", "MDFUSE_COMM_TIMEOUT": "20"}
    output = run_ranks(SCRIPT, 4, "spawn", env=env)
    for rank in range(4):
        assert f"rank {rank} of 4 ok" in output, output
