"""The multi-rank suite: every case of both doors, as the ranks of a launcher.

Under a launcher this file has the cases, and each rank runs all of them. Without one it has a test
for each way to start the suite, with the very command that the README gives.
"""

import os
from datetime import timedelta

import pytest
import torch
from multirank import (
    decoders,
    direct_cases,
    direct_shardings,
    dtensor_functions,
    dtensor_functions_nd,
    graphs_cases,
    thunder_cases,
)
from multirank.ranks import DEVICE, Case
from multirank.runner import run_ranks
from torch.distributed.distributed_c10d import _set_pg_timeout

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.launchers import read_launch

CASES = [
    *direct_cases.CASES,
    *direct_shardings.CASES,
    *thunder_cases.CASES,
    *dtensor_functions.CASES,
    *dtensor_functions_nd.CASES,
    *decoders.CASES,
    *graphs_cases.CASES,
]
RANKS = read_launch(knobs.launcher_environment()).size
COUNTS = {n: len([case for case in CASES if case.ranks <= n]) for n in (2, 4)}

if RANKS > 1:

    @pytest.mark.multigpu
    # torch's own, where gloo has no all_to_all.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_case(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        if case.ranks > RANKS:
            pytest.skip(f"needs {case.ranks} ranks, found {RANKS}")
        monkeypatch.setenv("MDFUSE_VERIFY", "1")
        communicator = Communicator.instance()
        # Eager collectives of a case that failed on another rank end, too.
        _set_pg_timeout(timedelta(seconds=20), communicator.group)
        torch.manual_seed(0)  # all ranks make the same global tensors
        case.run(RANKS)
        communicator.barrier()

else:

    @pytest.mark.parametrize(
        ("launcher", "ranks", "group", "backend"),
        [
            ("mpirun", 2, "gloo", "emulate"),
            ("torchrun", 4, "gloo", "reference"),
            pytest.param("mpirun", 2, "nccl", "auto", marks=pytest.mark.multigpu(2)),
            pytest.param("torchrun", 2, "nccl", "auto", marks=pytest.mark.multigpu(2)),
        ],
    )
    def test_suite(launcher: str, ranks: int, group: str, backend: str) -> None:
        env = {"MDFUSE_BACKEND": backend, "MDFUSE_EMULATOR_ORDERS": "1"}
        if group == "gloo":
            env["CUDA_VISIBLE_DEVICES"] = ""
        output = run_ranks("pytest", ranks, launcher, 400, ["-m", "multigpu"], env)
        device = "cpu" if group == "gloo" else "cuda"
        assert output.count(f"{ranks} ranks of") == ranks, output
        assert output.count(f"on {device} over {group}") == ranks, output
        assert output.count(f"{COUNTS[ranks]} passed") == ranks, output


def test_every_door_is_in_the_suite() -> None:
    assert {case.door for case in CASES} == {"direct", "thunder"}
    assert len({str(case) for case in CASES}) == len(CASES)
    assert DEVICE == "cpu" or os.environ.get("CUDA_VISIBLE_DEVICES") != ""
