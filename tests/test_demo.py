"""The demo: right under every launcher, quiet but for rank 0, and an error when a rank is wrong."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from multirank.runner import run_ranks
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from thunder_mdfuse.demo import __main__ as demo
from thunder_mdfuse.demo.layer import differences, faults, make_inputs, make_mlp
from thunder_mdfuse.demo.options import REAL, SMALL, TOKENS, Sizes, device_for, parse, sizes_for
from thunder_mdfuse.errors import MdfuseError

SECTIONS = (
    "1. The program as Thunder traced it",
    "2. The regions",
    "3. The generated CUDA",
    "4. The collectives",
    "5. The comparison with eager DTensor",
    "6. The times",
)
WRONG_ON_RANK_1 = """
import sys
import torch.distributed as dist
from thunder_mdfuse.demo import rank

right = rank.jit

def jit(function, executors):
    jitted = right(function, executors)
    if dist.is_initialized() and dist.get_rank() == 1:
        shown = lambda *inputs: jitted(*inputs) * 1.05
        shown._lc_cs, shown._lc_cd = jitted._lc_cs, jitted._lc_cd
        return shown
    return jitted

rank.jit = jit
sys.exit(rank.main(sys.argv[1:]))
"""


def check_shown(output: str, backend: str, ranks: int = 2) -> None:
    """All that a reader is promised is there, once, and nothing but rank 0 speaks."""
    for section in SECTIONS:
        assert output.count(section) == 1, f"{section!r} is there {output.count(section)} times"
    assert "mdFusion0(x, gate, up, down)" in output
    assert "@ [Partial(sum)]" in output
    assert 'extern "C" __global__' in output
    assert f"all_reduce, mesh axis tp, {ranks} ranks" in output
    assert f"executed by the backend '{backend}'" in output
    assert re.search(r"^right$", output, re.MULTILINE)
    assert not re.search(r"warn|wrong|Traceback|\[rank 1\]", output, re.IGNORECASE), output
    # mpirun gives each rank a terminal of its own, also when its output goes to a file.
    assert "\x1b" not in output, "control codes of a terminal where there is none"


def test_it_is_a_rank_of_a_launcher() -> None:
    options = ["--device", "cpu", "--tokens", "8"]
    output = run_ranks("thunder_mdfuse.demo", 2, "mpirun", 240, options)
    check_shown(output, "reference")


# That it starts its own ranks is shown by tests/test_package.py, from an installed wheel.


@pytest.mark.multigpu(2)
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun", "spawn"])
def test_it_runs_on_two_gpus(launcher: str) -> None:
    output = run_ranks("thunder_mdfuse.demo", 2, launcher, 300, ["--device", "cuda"])
    check_shown(output, "cuda")


def test_one_wrong_rank_fails_all(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(WRONG_ON_RANK_1)
    options = ["--device", "cpu", "--tokens", "8"]
    output = run_ranks(str(script), 2, "torchrun", 240, options, fails=True)
    assert re.search(r"rank 1: wrong: relative error", output), output
    assert "rank 0: wrong" not in output


def test_a_missing_gpu_is_said_once_and_before_ranks_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(demo, "run_as_ranks", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(MdfuseError, match="finds no CUDA GPU here; leave --device out"):
        demo.main(["--device", "cuda"])
    assert device_for("cpu", 2) == device_for("auto", 2) == "cpu"


def test_a_launchers_ranks_are_not_contradicted() -> None:
    """Nor is a rank's number written twice: by the starter's prefix or by the rank itself."""
    options = ["--device", "cpu", "--ranks", "3"]
    told = "MdfuseError: --ranks 3 was asked for, but the launcher started 2"
    started = run_ranks("thunder_mdfuse.demo", 2, "spawn", 120, options, fails=True)
    assert "rank 1: " not in started and re.search(rf"rank (0:|1\]) {told}", started), started
    launched = run_ranks("thunder_mdfuse.demo", 2, "torchrun", 120, options, fails=True)
    assert "rank 1] " not in launched and "thunder_mdfuse/demo/" not in launched, launched
    assert re.search(rf"^rank [01]: {told}", launched, re.MULTILINE), launched


# What makes a result right.


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def eager(mesh: DeviceMesh) -> tuple[DTensor, torch.Tensor]:
    inputs, reference = make_inputs(mesh, Sizes(8, 64, 224))
    return make_mlp(mesh)(*inputs), reference


def changed(result: DTensor, change: torch.Tensor) -> DTensor:
    return DTensor.from_local(result.to_local() + change, result.device_mesh, [Replicate()])


def test_eager_is_near_the_reference(eager: tuple[DTensor, torch.Tensor]) -> None:
    result, reference = eager
    wrong, compared = faults(result, result, reference)
    assert not wrong
    assert any("relative error" in line for line in compared)
    error = (result.full_tensor().double() - reference).norm() / reference.norm()
    assert error < 0.01


@pytest.mark.parametrize("case", ["scaled", "one element", "a row", "nan"])
def test_wrong_numbers_are_found(case: str, eager: tuple[DTensor, torch.Tensor]) -> None:
    result, reference = eager
    change = torch.zeros_like(result.to_local())
    if case == "scaled":
        change = result.to_local() * 0.02
    elif case == "one element":
        change[3, 5] = 0.1
    elif case == "a row":
        change[7] = -result.to_local()[7]
    else:
        change[0, 0] = float("nan")
    wrong, _ = faults(changed(result, change), result, reference)
    assert wrong


def test_what_is_no_number_is_compared_too(eager: tuple[DTensor, torch.Tensor]) -> None:
    result, reference = eager
    mesh, local = result.device_mesh, result.to_local()
    assert differences(result, result) == []
    sharded = DTensor.from_local(local, mesh, [Shard(0)])
    assert [d.split(":")[0] for d in differences(sharded, result)] == ["placements"]
    other = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    other_mesh = DTensor.from_local(local, other, [Replicate()])
    assert [d.split(":")[0] for d in differences(other_mesh, result)] == ["mesh object"]
    transposed = DTensor.from_local(local.T.contiguous().T, mesh, [Replicate()])
    assert {d.split(":")[0] for d in differences(transposed, result)} == {"stride", "local stride"}
    wrong, compared = faults(sharded, result, reference)
    assert wrong and not compared


def test_sizes_follow_the_device_and_the_options() -> None:
    assert sizes_for(parse([]), "cuda") == Sizes(TOKENS["cuda"], *REAL)
    assert sizes_for(parse([]), "cpu") == Sizes(TOKENS["cpu"], *SMALL)
    assert sizes_for(parse(["--full", "--tokens", "3"]), "cpu") == Sizes(3, *REAL)


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--ranks", "-1"], ["--device", "tpu"]])
def test_a_wrong_option_is_a_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert arguments[0] in capsys.readouterr().err
