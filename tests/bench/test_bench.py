"""The benchmark measures what it says: right providers pass its checks, wrong ones do not."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_gpu import bound_there, recorded_gpu

from thunder_mdfuse.bench import (
    compiling,
    dtensor_host,
    environment,
    first_call,
    host,
    tensor_parallel,
    training,
)
from thunder_mdfuse.bench import functions as fn
from thunder_mdfuse.bench.__main__ import main
from thunder_mdfuse.bench.cases import as_tuple, error, prepared
from thunder_mdfuse.bench.peers import INSTALL, LIGER, PEERS, QUACK, Unavailable
from thunder_mdfuse.bench.plot import plot
from thunder_mdfuse.bench.workloads import WORKLOADS, Workload

CPU = torch.device("cpu")
SUITE = {f"B{n:02}" for n in range(1, 15)}


def _inputs(work: Workload) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    return work.make(CPU, *work.small)


def test_the_whole_suite_is_there() -> None:
    assert {name[:3] for name in WORKLOADS if name.startswith("B")} == SUITE


@pytest.mark.parametrize("work", WORKLOADS.values(), ids=lambda w: w.name)
def test_eager_passes_the_check(work: Workload) -> None:
    assert error(work, work.function, _inputs(work)) <= work.tolerance
    assert prepared(work, work.function, _inputs(work))() is not None


@pytest.mark.parametrize("work", WORKLOADS.values(), ids=lambda w: w.name)
def test_a_result_that_is_off_by_a_tenth_does_not(work: Workload) -> None:
    def wrong(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = as_tuple(work.function(*inputs))
        return tuple(o if o.dtype.itemsize == 1 else (o.float() * 1.1).to(o.dtype) for o in found)

    assert error(work, wrong, _inputs(work)) > work.tolerance


@pytest.mark.parametrize("work", WORKLOADS.values(), ids=lambda w: w.name)
def test_bytes_are_those_of_inputs_and_outputs(work: Workload) -> None:
    """To within the vectors and statistics that the model leaves out."""
    inputs = tuple(torch.empty_like(t, device="meta") for t in work.make(CPU, *work.small))
    big = max(t.numel() for t in inputs)
    outputs = as_tuple(work.function(*inputs))
    moved = sum(t.nbytes for t in (*inputs, *outputs) if 4 * t.numel() >= big)
    if work.timed == "forward" and work.name != "B03":
        assert work.nbytes(*work.small) == pytest.approx(moved, rel=0.13)


def test_a_wrong_share_of_dropped_elements_is_seen() -> None:
    work = WORKLOADS["B07f"]

    def half(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> object:
        h = torch.nn.functional.dropout(x, 0.5) * 0.5 / (1 - fn.DROPPED) + r
        return h, fn.layer_norm(h, w, b)

    assert error(work, half, _inputs(work)) == float("inf")


def test_libraries_are_asked_only_for_what_they_have() -> None:
    known = {w.function.__name__ for w in WORKLOADS.values()}
    assert set(LIGER) <= known and set(QUACK) <= known
    for peer in ("liger", "quack"):
        with pytest.raises(Unavailable, match="has no transpose"):
            PEERS[peer](WORKLOADS["B10a"])


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workloads", "B99"])
    assert "'B99' is none of B01" in capsys.readouterr().err


def test_help_lists_workloads_defaults_and_peers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for work in WORKLOADS.values():
        assert f"  {work.name} " in shown and work.title in shown
    assert "Needs a CUDA GPU" in shown and "``copy`` is torch's copy" in shown
    assert "(default: all)" in shown and "(default: eager,compile,nvfuser,liger)" in shown
    assert INSTALL.keys() <= PEERS.keys() and all(p in shown for p in INSTALL.values())


def test_the_host_cost_has_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in (["--help"], 0), (["--nothing"], 2):
        with pytest.raises(SystemExit) as ended:
            dtensor_host.main(arguments)
        assert ended.value.code == code
    assert "beside the same fusion on plain tensors" in capsys.readouterr().out


@pytest.mark.parametrize("module", [tensor_parallel, training])
def test_what_needs_ranks_says_so(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in (["--help"], 0), (["--nothing"], 2):
        with pytest.raises(SystemExit) as ended:
            module.main(arguments)
        assert ended.value.code == code
    assert "torchrun --nproc-per-node 2" in capsys.readouterr().out


@pytest.mark.parametrize("together", [False, True])
def test_a_warm_first_call_comes_after_the_cold_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, together: bool
) -> None:
    """Its disk cache is the one that the cold one filled; stock Thunder and DTensors have no part
    in that.
    """
    said = "import os, sys; p = os.environ['XDG_CACHE_HOME'] + '/seen'; print(os.path.exists(p)); "
    said += "open(p, 'a').close(); print(len(sys.argv[1]))"
    started: list[str] = []

    def start(kind: str, layers: int, cache: Path) -> first_call.Process:
        assert layers == 3
        (cache / "dtensor").mkdir(exist_ok=True)
        folder = cache / "dtensor" if kind in ("dtensor", "stock") else cache
        started.append(f"{kind} {(folder / 'seen').exists()}")
        env = {"XDG_CACHE_HOME": str(folder)}
        return subprocess.Popen(
            [sys.executable, "-c", said, kind], stdout=subprocess.PIPE, text=True, env=env
        )

    monkeypatch.setattr(first_call, "_start", start)
    found = first_call.run(3, together)
    assert found == {"stock": 5, "cold": 4, "warm": 4, "dtensor": 7}
    assert "warm True" in started and "cold False" in started
    monkeypatch.setattr(first_call, "run", lambda layers, together: found)
    assert first_call.main(["--layers", "3", "--json", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["seconds"] == found


def test_a_first_call_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "raise SystemExit(3)"]
    start = lambda *_: subprocess.Popen(failing, stdout=subprocess.PIPE, text=True)
    monkeypatch.setattr(first_call, "_start", start)
    with pytest.raises(SystemExit, match="ended with exit code 3"):
        first_call.run(1, False)


def test_nvfusers_version_is_that_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "packages_distributions", dict)
    assert environment._nvfuser() == "not installed"
    monkeypatch.setattr(
        environment, "packages_distributions", lambda: {"nvfuser_direct": ["numpy"] * 2}
    )
    assert environment._nvfuser() == f"numpy {version('numpy')}"


def test_the_plot_shows_a_recorded_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot is drawn with matplotlib")
    provider = {"us": 10.0, "tb_per_s": 4.0, "right": True}
    result = {"workload": "B01", "title": "x", "bytes": 40_000_000, "copy_us": 9.5,
              "providers": {"mdfuse": provider}}  # fmt: skip
    record = {"environment": {"gpu": "g", "torch": "t", "date": "d"}, "results": [result]}
    plot(json.loads(json.dumps(record)), tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_the_least_that_a_call_costs_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed are the outputs' allocations and the program's own first launch."""
    gpu = recorded_gpu(monkeypatch)
    text = """
    local
    %0 = input(position=0) : f32[64, 16]
    %1 = mul(%0, %0) : f32[64, 16]
    %2 = exp(%1) : f32[64, 16]
    return %1, %2
    """
    x = torch.randn(64, 16)
    bound = bound_there(text)
    found = bound.run([x], None)
    allocate, start = host.least(bound, [x])
    allocate()
    assert len(gpu.launches) == 1
    start()
    whole, alone = gpu.launches
    assert whole[:4] == alone[:4] and whole[4][0] == alone[4][0] == x.data_ptr()
    assert len(whole[4]) == len(alone[4]) and whole[4][3:] == alone[4][3:]
    del found


@pytest.mark.parametrize("name", ["B02f", "B02b", "B06d"])
def test_kernels_are_compiled_and_then_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    work, used = WORKLOADS[name], []
    found = compiling.kernels(work, CPU, work.small)
    assert found and all(text.source for text in found.values())
    (entry, text), *_ = found.items()
    times = compiling.kernel_time(name, text, "sm_90", used.append)
    assert [cubin.entry for cubin in used] == [entry]
    assert times.cold > 3 * times.warm > 0 and times.kernel == entry


@pytest.mark.parametrize("module", [host, compiling])
def test_what_needs_a_gpu_says_so(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if not torch.cuda.is_available():
        assert module.main([]) == 2
        assert "needs a CUDA GPU" in capsys.readouterr().err


def test_what_a_call_may_cost_the_host() -> None:
    times = host.HostTimes(2, 2, 4.0, 6.0, 16.0, 17.5)
    assert times.limit == pytest.approx(16.6) and times.holds
    assert not host.HostTimes(2, 1, 4.0, 6.0, 14.0, 14.0).holds
    assert not host.HostTimes(1, 1, 4.0, 6.0, 12.0, 14.6).holds
