"""A GPU that records what is launched on it, with the CPU's memory: for what a call does there."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.compile import module
from thunder_mdfuse.compile.nvrtc import Cubin
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime import launch as launching
from thunder_mdfuse.runtime import program as programs
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200


def recorded_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Device 1: its ``launches``, the ``current`` device, the devices ``entered``, and the
    ``error`` that a launch raises.
    """
    record = SimpleNamespace(launches=[], current=1, entered=[], error=None, calls=0)

    class Using:
        def __init__(self, device: torch.device) -> None:
            record.entered.append(device.index)

        def __enter__(self) -> None:
            record.current = 1

        def __exit__(self, *raised: object) -> None:
            record.current = 0

    def launch(stream: Any, config: Any, kernel: Any, *args: Any) -> None:
        if record.error is not None:
            raise record.error
        record.launches.append((record.current, stream, config, kernel, args))

    class Loaded:
        def prepare(self, grid: Any, *block_shared_and_cluster: Any) -> module.Prepared:
            config = None if 0 in grid else grid
            return module.Prepared(launch, "kernel", config, f"grid {grid}")

    monkeypatch.setattr(programs, "cubins", lambda texts, arch: None)
    monkeypatch.setattr(programs, "stream_of", lambda device: f"stream of {device}")
    monkeypatch.setattr(launching, "cached_cubin", lambda job: Cubin(b"", job.entry, "", "", 0.0))
    monkeypatch.setattr(launching, "check_parameters", lambda cubin, kinds: None)
    monkeypatch.setattr(launching, "load", lambda cubin, device: Loaded())
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: record.current, raising=False)
    monkeypatch.setattr(torch.cuda, "device", Using)
    monkeypatch.setitem(programs.EMPTY_STRIDED, "cuda", torch._C._dynamo.guards._empty_strided_cpu)
    return record


def bound_there(text: str, symbols: dict[str, int] | None = None) -> BoundProgram:
    """The program of ``text`` on that device, for contiguous and aligned inputs."""
    fusion = parse(text)
    plan = plan_program(fusion, [InputClass(None) for _ in fusion.inputs], H200, symbols or {})
    kernels = [write_kernel(k) for k in plan.kernels]
    return BoundProgram(plan, kernels, symbols or {}, "cuda", torch.device("cuda", 1), "sm_90")
