"""One rank of the demo. Rank 0 shows every stage, from the traced program to CUDA and collectives,
then the comparison and the times. The others run the same and speak only of what went wrong.
"""

import argparse
import faulthandler
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.launch import started_here
from thunder_mdfuse.demo.complaints import complain
from thunder_mdfuse.demo.layer import DTYPE, faults, make_inputs, make_mlp
from thunder_mdfuse.demo.options import Sizes, device_for, parse, sizes_for
from thunder_mdfuse.errors import MdfuseError
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.runtime.report import StepReport

with warnings.catch_warnings():
    # Thunder says at its import that an optional package is missing; the demo does not use that.
    warnings.filterwarnings("ignore", message="transformer_engine module not found")
    from thunder_mdfuse.thunder.executor import mdfuse_executor
    from thunder_mdfuse.thunder.frontend import jit, last_trace, regions
    from thunder_mdfuse.thunder.fusion_call import FusionCall
    from thunder_mdfuse.thunder.inspect import explain

try:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError as e:
    raise MdfuseError("the demo prints with rich: pip install 'thunder_mdfuse[demo]'") from e

Call = Callable[[], DTensor]

WIDTH = 120  # where there is no terminal
ROUNDS = {"cuda": 50, "reference": 5, "emulate": 1}
BACKENDS = {
    "cuda": "the generated CUDA text, compiled by NVRTC, on the GPU",
    "emulate": "the generated CUDA text, compiled by the C++ compiler of this host, on the CPU",
    "reference": "the same program with torch's operators, step by step; its CUDA text was "
    "generated but not run (with MDFUSE_BACKEND=emulate that text runs on the CPU)",
}


def main(arguments: Sequence[str]) -> int:
    """0 when the results of all ranks are right."""
    options = parse(arguments)
    # Whatever waits for a rank that never comes ends, with the stack of where it waited.
    faulthandler.dump_traceback_later(options.timeout, exit=True)
    try:
        mesh = _make_mesh(options)
        wrong = _show(_console(), mesh, sizes_for(options, mesh.device_type))
    except MdfuseError as e:
        complain(f"{type(e).__name__}: {e}")
        return 1
    for line in wrong:
        complain(f"wrong: {line}")
    code = _worst(int(bool(wrong)), dist.ReduceOp.MAX)
    faulthandler.cancel_dump_traceback_later()
    return code


def _console() -> Console:
    """Rank 0's; colours and a spinner only on a terminal that is not a launcher's."""
    terminal = started_here() and sys.stdout.isatty()
    return Console(
        width=None if terminal else WIDTH,
        force_terminal=None if terminal else False,
        quiet=dist.get_rank() != 0,
        highlight=False,
        soft_wrap=True,
    )


def _make_mesh(options: argparse.Namespace) -> DeviceMesh:
    """The mesh of all ranks, with the one axis tp."""
    communicator = Communicator.instance()
    assert communicator.group is not None  # made here
    local = communicator.local_size()
    # Hosts may differ; the work goes to the GPUs when all ranks have one.
    has_gpu = device_for(options.device, local) == "cuda"
    device = "cuda" if _worst(int(has_gpu), dist.ReduceOp.MIN) else "cpu"
    if device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))
    return init_device_mesh(device, (communicator.size(),), mesh_dim_names=("tp",))


def _worst(number: int, worst: dist.ReduceOp.RedOpType) -> int:
    """The least or the largest number of all ranks."""
    found = torch.tensor(number)
    dist.all_reduce(found, worst)
    return int(found.item())


def _show(console: Console, mesh: DeviceMesh, sizes: Sizes) -> list[str]:
    """Run everything; what was found wrong on this rank."""
    console.print(
        f"SwiGLU MLP with residual: {sizes.tokens} tokens, hidden {sizes.hidden}, FFN {sizes.ffn}, "
        f"{DTYPE}, {mesh.size()} ranks on {mesh.device_type}"
    )
    mlp = make_mlp(mesh)
    jitted = jit(mlp, [mdfuse_executor.name])
    with _progress(console, "making inputs and an f64 reference"):
        inputs, reference = make_inputs(mesh, sizes)
    with _progress(console, "tracing, planning, generating and compiling; the first call"):
        ours = jitted(*inputs)
        _synchronize(mesh)
    with _progress(console, "eager DTensor's first call"):
        eager = mlp(*inputs)
        _synchronize(mesh)
    _show_trace(console, jitted)
    backend = _show_regions(console, jitted)
    _show_kernel(console, jitted)
    _show_collectives(console, jitted)
    _section(console, "5. The comparison with eager DTensor")
    wrong, compared = faults(ours, eager, reference)
    for line in compared:
        _plain(console, line)
    _plain(console, "wrong" if wrong else "right")
    _show_times(console, mesh, backend, lambda: jitted(*inputs), lambda: mlp(*inputs))
    return wrong


@contextmanager
def _progress(console: Console, what: str) -> Iterator[None]:
    """A spinner with the time on a terminal, a line before elsewhere; a line after on both."""
    start = time.perf_counter()
    if console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(what, total=None)
            yield
    else:
        console.print(f"{what} ...")
        yield
    console.print(f"{what}: {time.perf_counter() - start:.1f} s")


def _section(console: Console, title: str) -> None:
    console.print()
    console.rule(title, align="left")


def _plain(console: Console, text: str) -> None:
    """Program text as it is: square brackets are shapes here, not colours."""
    console.print(text.rstrip(), markup=False)


def _regions(jitted: Any) -> list[tuple[FusionCall, Executable]]:
    """The regions that ran, in order, each with the program that it became."""
    return [(call, call.last_used) for call in regions(jitted) if call.last_used is not None]


def _show_trace(console: Console, jitted: Any) -> None:
    _section(console, "1. The program as Thunder traced it and the executor fused it")
    _plain(console, last_trace(jitted))


def _show_regions(console: Console, jitted: Any) -> str:
    """The regions; the name of the backend that executed them."""
    _section(console, "2. The regions, with the placement of every value on the mesh")
    explanation = explain(jitted)
    for call, executable in _regions(jitted):
        _plain(console, f"{call.name}\n{executable.stages()['propagate']}")
    for unfused in explanation.unfused:
        _plain(console, f"outside of regions: {unfused.symbol}: {unfused.reason}")
    for region in explanation.regions:
        console.print(_step_table(f"{region.name}: what a rank does", region.steps))
    backend = explanation.regions[0].backend
    _plain(console, f"executed by the backend {backend!r}: {BACKENDS[backend]}")
    return backend


def _step_table(title: str, steps: Sequence[StepReport]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("step", "operations", "bytes read", "bytes written", "bytes on the wire"):
        table.add_column(column, justify="right" if column.startswith("bytes") else "left")
    for step in steps:
        moved = (step.bytes_read, step.bytes_written, step.wire_bytes)
        name = step.name if step.kind == "kernel" else f"{step.kind} {step.name}"
        table.add_row(name, " ".join(step.ops), *(f"{n:,}" if n else "-" for n in moved))
    return table


def _show_kernel(console: Console, jitted: Any) -> None:
    _section(console, "3. The generated CUDA of the longest kernel")
    texts = [text for _, made in _regions(jitted) for text in made.kernel_sources().values()]
    _plain(console, max(texts, key=len) if texts else "no kernel was generated")


def _show_collectives(console: Console, jitted: Any) -> None:
    _section(console, "4. The collectives")
    for region in explain(jitted).regions:
        for step in region.collectives:
            _plain(
                console,
                f"{region.name}: {step.name}, {step.detail}: of {step.bytes_read:,} bytes, "
                f"{step.wire_bytes:,} sent by each rank",
            )


def _show_times(console: Console, mesh: DeviceMesh, backend: str, ours: Call, eager: Call) -> None:
    _section(console, "6. The times")
    rounds = ROUNDS[backend]
    calls = {"ours": ours, "eager DTensor": eager}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with _progress(console, f"timing {rounds} calls of each, in turn"):
        for _ in range(rounds):
            for name, call in calls.items():
                _synchronize(mesh)
                start = time.perf_counter()
                call()
                _synchronize(mesh)
                samples[name].append((time.perf_counter() - start) * 1e3)
    for name, taken in samples.items():
        _plain(
            console,
            f"{name}: {statistics.median(taken):.3f} ms a call (median of {rounds}, "
            f"{min(taken):.3f} to {max(taken):.3f}; host time included)",
        )
    if backend != "cuda":
        _plain(console, "No kernel ran on a GPU: these times say nothing about one.")


def _synchronize(mesh: DeviceMesh) -> None:
    if mesh.device_type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
