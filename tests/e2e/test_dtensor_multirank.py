"""DTensor programs on real gloo ranks against eager DTensor; the checks are in dtensor_ranks.py."""

import shutil
from pathlib import Path

import pytest
from multirank.runner import run_ranks

SCRIPT = Path(__file__).with_name("dtensor_ranks.py")


@pytest.mark.parametrize(
    ("launcher", "ranks", "kind"), [("spawn", 2, "all"), ("mpirun", 4, "programs")]
)
def test_programs_equal_eager_dtensor(launcher: str, ranks: int, kind: str, tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "MDFUSE_BACKEND": "reference"}
    output = run_ranks(SCRIPT, ranks, launcher, timeout=240, args=[kind], env=env)
    for rank in range(ranks):
        assert f"rank {rank} ok" in output, output


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs a C++ compiler")
def test_programs_equal_eager_dtensor_in_the_emulator(tmp_path: Path) -> None:
    env = {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "MDFUSE_BACKEND": "emulate",
        "MDFUSE_EMULATOR_ORDERS": "1",
    }
    output = run_ranks(SCRIPT, 2, "spawn", timeout=240, args=["programs"], env=env)
    for rank in range(2):
        assert f"rank {rank} ok" in output, output


@pytest.mark.multigpu(2)
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_programs_equal_eager_dtensor_on_gpus(launcher: str, tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "MDFUSE_BACKEND": "auto"}
    output = run_ranks(SCRIPT, 2, launcher, timeout=140, args=["all", "cuda"], env=env)
    for rank in range(2):
        assert f"rank {rank} ok" in output, output
