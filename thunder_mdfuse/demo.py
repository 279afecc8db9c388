"""``python -m thunder_mdfuse.demo``: a tensor-parallel SwiGLU MLP through ``thunder.jit``.

Started alone it starts its own ranks; under torchrun, mpirun or srun it is one of theirs. Rank 0
shows every stage, from the traced program to CUDA and collectives, then the comparison with eager
DTensor and the times of both. The exit code is 1 when a result is wrong on any rank.
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
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.launch import run_as_ranks, under_launcher
from thunder_mdfuse.errors import MdfuseError
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.runtime.report import StepReport

with warnings.catch_warnings():
    # Thunder says at its import that an optional package is missing; the demo does not use that.
    warnings.filterwarnings("ignore", message="transformer_engine module not found")
    from thunder_mdfuse.thunder.executor import mdfuse_executor
    from thunder_mdfuse.thunder.frontend import jit, last_trace
    from thunder_mdfuse.thunder.fusion_call import FusionCall
    from thunder_mdfuse.thunder.inspect import explain

try:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError as e:
    raise SystemExit("the demo prints with rich: pip install 'thunder_mdfuse[demo]'") from e

Call = Callable[[], DTensor]


@dataclass(frozen=True)
class Sizes:
    """``x`` is [tokens, hidden]; the weights are [ffn, hidden] twice and [hidden, ffn]."""

    tokens: int
    hidden: int
    ffn: int


# The layer of an 8B-parameter Llama, and one of the same shape that two CPU cores run in moments.
REAL = (4096, 14336)
SMALL = (1024, 3584)
DTYPE = torch.bfloat16
ROUNDS = {"cuda": 50, "reference": 7, "emulate": 1}

# Ours may be this much worse than eager DTensor, as a factor and in units of the dtype's epsilon:
# the order of a sum differs, and two roundings of one value may fall on different sides.
SLACK_FACTOR = 1.1
SLACK_NORM_EPS = 0.01
SLACK_MAX_EPS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo as all ranks or as one; 0 when every rank's result is right."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    try:
        if under_launcher():
            return _run_rank(options)
        ranks = options.ranks or 2
        device = _device_for(options.device, ranks)
        command = [*arguments, "--device", device]  # the last one counts
        return run_as_ranks("thunder_mdfuse.demo", command, ranks, options.timeout + 10.0)
    except MdfuseError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
        return 1


def _parser() -> argparse.ArgumentParser:
    def count(text: str) -> int:
        number = int(text)
        if number < 1:
            raise argparse.ArgumentTypeError("needs a positive number")
        return number

    parser = argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.demo",
        description="A tensor-parallel SwiGLU MLP through thunder.jit, shown stage by stage, "
        "checked against eager DTensor, and timed.",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="auto: cuda where each rank of this host has a GPU, else cpu",
    )
    parser.add_argument("--ranks", type=count, help="ranks to start (2) when no launcher did")
    parser.add_argument("--tokens", type=count, help="rows of the input (GPU 4096, CPU 128)")
    parser.add_argument("--full", action="store_true", help="the real layer on a CPU too")
    parser.add_argument(
        "--timeout", type=count, default=900, help="seconds after which every rank gives up (900)"
    )
    return parser


def _device_for(asked: str, local_ranks: int) -> str:
    if asked != "auto":
        return asked
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks
    return "cuda" if enough else "cpu"


def _run_rank(options: argparse.Namespace) -> int:
    # Whatever waits for a rank that never comes ends with the stack of where it waited.
    faulthandler.dump_traceback_later(options.timeout, exit=True)
    mesh = _make_mesh(options)
    sizes = _sizes(options, mesh.device_type)
    console = Console(quiet=dist.get_rank() != 0, highlight=False, soft_wrap=True)
    faults = _show(console, mesh, sizes)
    faulthandler.cancel_dump_traceback_later()
    return int(_any_faults(faults))


def _make_mesh(options: argparse.Namespace) -> DeviceMesh:
    communicator = Communicator.instance()
    assert communicator.group is not None
    ranks, local = communicator.size(), communicator.local_size()
    if options.ranks not in (None, ranks):
        raise MdfuseError(
            f"--ranks {options.ranks} was asked for, but the launcher started {ranks}; "
            "leave --ranks out under a launcher"
        )
    # Ranks may see different machines; the work runs where all of them can.
    gpu = torch.tensor(int(_device_for(options.device, local) == "cuda"))
    dist.all_reduce(gpu, dist.ReduceOp.MIN)
    device = "cuda" if gpu.item() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise MdfuseError("--device cuda was asked for, but torch finds no CUDA GPU here")
    if device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local))
    return init_device_mesh(device, (ranks,), mesh_dim_names=("tp",))


def _sizes(options: argparse.Namespace, device: str) -> Sizes:
    hidden, ffn = REAL if options.full or device == "cuda" else SMALL
    return Sizes(options.tokens or (4096 if device == "cuda" else 128), hidden, ffn)


# The program.


def make_mlp(mesh: DeviceMesh) -> Callable[..., DTensor]:
    """SwiGLU MLP with residual: gate and up cut by columns, down by rows, one all-reduce."""

    def mlp(x: DTensor, gate: DTensor, up: DTensor, down: DTensor) -> DTensor:
        hidden = F.silu(F.linear(x, gate)) * F.linear(x, up)
        return x + F.linear(hidden, down).redistribute(mesh, [Replicate()])

    return mlp


def make_inputs(mesh: DeviceMesh, sizes: Sizes) -> tuple[list[DTensor], torch.Tensor]:
    """The arguments of ``mlp``, and its result in f64 without any sharding.

    Every rank draws the same numbers and keeps its part: nothing is sent. No more than one whole
    weight exists at a time.
    """
    device = (
        torch.device(mesh.device_type, torch.cuda.current_device())
        if (mesh.device_type == "cuda")
        else torch.device("cpu")
    )
    generator = torch.Generator(device).manual_seed(0)

    def draw(rows: int, columns: int, scale: float) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator, device=device, dtype=DTYPE)
        return drawn.mul_(scale)

    def place(tensor: torch.Tensor, placement: Placement) -> DTensor:
        return distribute_tensor(tensor, mesh, [placement], src_data_rank=None)

    whole = draw(sizes.tokens, sizes.hidden, 1.0)
    inputs, x = [place(whole, Replicate())], whole.double()
    halves = []
    for _ in ("gate", "up"):
        whole = draw(sizes.ffn, sizes.hidden, sizes.hidden**-0.5)
        inputs.append(place(whole, Shard(0)))
        halves.append(x @ whole.double().T)
    whole = draw(sizes.hidden, sizes.ffn, sizes.ffn**-0.5)
    inputs.append(place(whole, Shard(1)))
    return inputs, x + (F.silu(halves[0]) * halves[1]) @ whole.double().T


# What rank 0 shows. Every rank runs all of it, since it communicates.


def _show(console: Console, mesh: DeviceMesh, sizes: Sizes) -> list[str]:
    """Run everything; what was found wrong on this rank."""
    console.print(
        f"SwiGLU MLP with residual: {sizes.tokens} tokens, hidden {sizes.hidden}, "
        f"FFN {sizes.ffn}, {DTYPE}, {mesh.size()} ranks on {mesh.device_type}"
    )
    mlp = make_mlp(mesh)
    with _progress(console, "Making inputs and an f64 reference"):
        inputs, reference = make_inputs(mesh, sizes)
    jitted = jit(mlp, [mdfuse_executor.name])
    with _progress(console, "Tracing, planning, generating, compiling, running"):
        ours = jitted(*inputs)
        _synchronize(mesh)
    with _progress(console, "Running eager DTensor"):
        eager = mlp(*inputs)
        _synchronize(mesh)
    _show_trace(console, jitted)
    backend = _show_regions(console, jitted)
    _show_kernel(console, jitted)
    _show_collectives(console, jitted)
    faults = _compare(console, ours, eager, reference)
    _show_times(console, mesh, backend, lambda: jitted(*inputs), lambda: mlp(*inputs))
    return faults


@contextmanager
def _progress(console: Console, what: str) -> Iterator[None]:
    """A spinner with the time on a terminal; elsewhere a line before and a line after."""
    start = time.perf_counter()
    if not console.is_terminal:
        console.print(f"{what} ...")
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        progress.add_task(what, total=None)
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
    context = jitted._lc_cs.last_traces[-1].python_ctx()
    calls = [call for call in context.values() if isinstance(call, FusionCall)]
    return [(call, call.last_used) for call in calls if call.last_used is not None]


def _show_trace(console: Console, jitted: Any) -> None:
    _section(console, "1. The program as Thunder traced and fused it")
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
        console.print(_step_table(f"{region.name}: the steps of the local program", region.steps))
    backend = explanation.regions[0].backend if explanation.regions else "reference"
    console.print(f"executed by the backend {backend!r}: {_BACKENDS[backend]}")
    return backend


_BACKENDS = {
    "cuda": "the generated CUDA text, compiled by NVRTC, on the GPU",
    "emulate": "the generated CUDA text, compiled by the host's C++ compiler, on the CPU",
    "reference": "the same program with torch operators, step by step; its CUDA text was "
    "generated but not run (MDFUSE_BACKEND=emulate runs that text on the CPU)",
}


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
    sources = [
        s for _, executable in _regions(jitted) for s in executable.kernel_sources().values()
    ]
    _plain(console, max(sources, key=len) if sources else "no kernel was generated")


def _show_collectives(console: Console, jitted: Any) -> None:
    _section(console, "4. The collectives")
    for region in explain(jitted).regions:
        for step in region.collectives:
            _plain(
                console,
                f"{region.name}: {step.name} over {step.detail}: {step.bytes_read:,} bytes a "
                f"rank, {step.wire_bytes:,} sent by each",
            )


# Right or wrong, and how fast.


def _compare(console: Console, ours: DTensor, eager: DTensor, reference: torch.Tensor) -> list[str]:
    """Faults of this rank's result, printed by rank 0 and, where there are any, by their rank."""
    _section(console, "5. The comparison with eager DTensor")
    faults = metadata_faults(ours, eager)
    if not faults:
        mine, theirs = errors(ours, reference), errors(eager, reference)
        for kind, slack, scale in (
            ("relative error (2-norm)", SLACK_NORM_EPS, 1.0),
            ("largest absolute error", SLACK_MAX_EPS, reference.abs().max().item()),
        ):
            bound = SLACK_FACTOR * theirs[kind] + slack * torch.finfo(DTYPE).eps * scale
            line = f"{kind} against f64: ours {mine[kind]:.3e}, eager {theirs[kind]:.3e}, "
            line += f"allowed {bound:.3e}"
            _plain(console, line)
            if not mine[kind] <= bound:  # NaN is a fault too
                faults.append(line)
        _plain(console, f"placements {ours.placements}, shape {tuple(ours.shape)}, as eager's")
    for fault in faults:
        print(f"rank {dist.get_rank()}: WRONG: {fault}", file=sys.stderr, flush=True)
    _plain(console, "WRONG" if faults else "right")
    return faults


def metadata_faults(ours: DTensor, eager: DTensor) -> list[str]:
    """What a user could tell the two results apart by, other than their numbers."""
    views: dict[str, Callable[[DTensor], object]] = {
        "type": type,
        "dtype": lambda t: t.dtype,
        "shape": lambda t: tuple(t.shape),
        "stride": lambda t: t.stride(),
        "placements": lambda t: t.placements,
        "mesh object": lambda t: id(t.device_mesh),
        "local shape": lambda t: tuple(t.to_local().shape),
        "local stride": lambda t: t.to_local().stride(),
    }
    pairs = {name: (view(ours), view(eager)) for name, view in views.items()}
    return [f"{name}: {a}, eager {b}" for name, (a, b) in pairs.items() if a != b]


def errors(result: DTensor, reference: torch.Tensor) -> dict[str, float]:
    """How far the result is from ``reference``."""
    difference = result.full_tensor().double() - reference
    return {
        "relative error (2-norm)": (difference.norm() / reference.norm()).item(),
        "largest absolute error": difference.abs().max().item(),
    }


def _any_faults(faults: list[str]) -> bool:
    """Whether any rank found any."""
    found = torch.tensor(int(bool(faults)))
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found.item())


def _show_times(console: Console, mesh: DeviceMesh, backend: str, ours: Call, eager: Call) -> None:
    _section(console, "6. The times")
    rounds = ROUNDS[backend]
    samples: dict[str, list[float]] = {"ours": [], "eager DTensor": []}
    with _progress(console, f"Timing {rounds} calls of each, in turn"):
        for _ in range(rounds):
            for name, call in (("ours", ours), ("eager DTensor", eager)):
                _synchronize(mesh)
                start = time.perf_counter()
                call()
                _synchronize(mesh)
                samples[name].append((time.perf_counter() - start) * 1e3)
    for name, taken in samples.items():
        _plain(
            console,
            f"{name}: {statistics.median(taken):.3f} ms a call (median of {rounds}, "
            f"fastest {min(taken):.3f}, slowest {max(taken):.3f}; host time included)",
        )
    if backend != "cuda":
        _plain(console, "The kernels did not run on a GPU: these times say nothing about one.")


def _synchronize(mesh: DeviceMesh) -> None:
    if mesh.device_type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
