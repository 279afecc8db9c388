"""Agreement over a file store (mpirun) and over torchrun's TCP store."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

AGAIN = pytest.param("torchrun", marks=pytest.mark.launch_again)
SCRIPT = Path(__file__).with_name("agreement_ranks.py")


@pytest.mark.parametrize("launcher", ["mpirun", AGAIN])
def test_agreement(launcher: str) -> None:
    output = run_ranks(SCRIPT, 3, launcher, args=["3"])
    assert output.count(" ok") == 3, output
