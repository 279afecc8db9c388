"""Functions of DTensors, and models, over real ranks: values, gradients, traffic."""

from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("dtensor_ranks.py")


# Of what is for four ranks the suite has the greater part.
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.launch_again)])
def test_functions_and_models(ranks: int) -> None:
    output = run_ranks(SCRIPT, ranks, timeout=400, env={"MDFUSE_BACKEND": "reference"})
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output
