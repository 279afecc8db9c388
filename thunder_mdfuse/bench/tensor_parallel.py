"""An MLP block cut over the ranks: ``h = x + down(silu(gate(x)) * up(x))`` and ``rms_norm(h)``.

Every rank is started by a launcher (torchrun, mpirun); one GPU each, or CPUs over gloo. Providers:

- ``mdfuse``: ``thunder.jit`` of the module that ``parallelize_module`` made, with our executor;
- ``mdfuse+graph``: the same with ``CUDAGraphTransform`` (GPUs only);
- ``compile``, ``eager``: the same module under ``torch.compile``, and as it is;
- ``by hand``: what a programmer writes on local tensors, with one all-reduce.

All take turns in one run. A call's time is the wall time of many calls in a row over their number,
the slowest rank's; the host's, that of the calling thread until the calls are queued. The block has
no gradients: it is the serving case.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from thunder_mdfuse.bench.environment import environment
from thunder_mdfuse.bench.functions import relative
from thunder_mdfuse.bench.measure import ranks_mesh, slowest, waited
from thunder_mdfuse.thunder.executor import mdfuse_executor
from thunder_mdfuse.thunder.frontend import jit
from thunder_mdfuse.thunder.graphs import CUDAGraphTransform

Call = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
OURS = mdfuse_executor.name
EPS = 1e-5
ROUNDS = 9
SECONDS = 0.05  # of one round
# Against f32 on one rank, relative to the largest: what a bf16 matmul and its sum over ranks leave.
TOLERANCE = 2e-2


class Block(nn.Module):
    """``x`` [tokens, hidden] -> the residual stream after the MLP, and it normalized."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)
        self.norm = nn.RMSNorm(hidden, eps=EPS)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + self.down(F.silu(self.gate(x)) * self.up(x))
        return h, self.norm(h)


def parallel(block: Block, mesh: DeviceMesh) -> Block:
    """A copy of ``block`` with its hidden units cut over the one axis of ``mesh``."""
    plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    copy = deepcopy(block)
    parallelize_module(copy, mesh, plan)
    return copy


def by_hand(block: Block, rank: int, ranks: int) -> Call:
    """The block on this rank's part of its weights."""
    gate, up = (w.weight.detach().chunk(ranks)[rank].contiguous() for w in (block.gate, block.up))
    down = block.down.weight.detach().chunk(ranks, 1)[rank].contiguous()
    weight = block.norm.weight.detach()

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
        dist.all_reduce(part)
        h = x + part
        return h, F.rms_norm(h, weight.shape, weight, EPS)

    return call


def providers(block: Block, mesh: DeviceMesh) -> dict[str, Call]:
    """What is measured, by name."""
    found: dict[str, Call] = {"mdfuse": jit(parallel(block, mesh), [OURS])}
    if mesh.device_type == "cuda":
        found["mdfuse+graph"] = jit(
            parallel(block, mesh), [OURS], transforms=[CUDAGraphTransform()]
        )
    found["compile"] = torch.compile(parallel(block, mesh), dynamic=False)
    found["eager"] = parallel(block, mesh)
    found["by hand"] = by_hand(block, mesh.get_local_rank(), mesh.size())
    return found


def measure(calls: dict[str, Call], x: torch.Tensor) -> dict[str, dict[str, float]]:
    """Microseconds of a call by provider: ``wall`` of the slowest rank, and ``host``."""
    repeats = {name: _repeats(partial(call, x), x.device) for name, call in calls.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(ROUNDS):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(_round(calls[name], x, repeats[name]))
    return {
        name: {
            "wall": slowest(statistics.median(wall for wall, _ in found), x.device),
            "host": slowest(statistics.median(host for _, host in found), x.device),
        }
        for name, found in times.items()
    }


def _repeats(call: Callable[[], object], device: torch.device) -> int:
    """How many calls fill a round; the same on all ranks."""
    for _ in range(5):
        call()
    waited(device)
    begin = time.perf_counter()
    for _ in range(5):
        call()
    waited(device)
    one = slowest((time.perf_counter() - begin) / 5, device)
    return max(5, min(200, int(SECONDS / one)))


def _round(call: Call, x: torch.Tensor, repeats: int) -> tuple[float, float]:
    dist.barrier()
    waited(x.device)
    begin, mine = time.perf_counter(), time.thread_time()
    for _ in range(repeats):
        call(x)
    host = time.thread_time() - mine
    waited(x.device)
    return (time.perf_counter() - begin) / repeats * 1e6, host / repeats * 1e6


def run(
    mesh: DeviceMesh, device: torch.device, hidden: int, inner: int, tokens: int
) -> dict[str, Any]:
    """One record: the shapes, each provider's times, and its error against f32 on one rank."""
    torch.manual_seed(0)
    with torch.device(device):
        block = Block(hidden, inner).requires_grad_(False)
        x = torch.randn(tokens, hidden)
    wanted = [t.float() for t in block(x)]
    block, x = block.bfloat16(), x.bfloat16()
    calls = providers(block, mesh)
    with torch.no_grad():
        errors = {
            name: max(relative(o, w) for o, w in zip(call(x), wanted, strict=True))
            for name, call in calls.items()
        }
        times = measure(calls, x)
    return {
        "hidden": hidden,
        "inner": inner,
        "tokens": tokens,
        "providers": {n: {**times[n], "error": errors[n]} for n in calls},
    }


def main(argv: list[str] | None = None) -> int:
    """Measure, print on rank 0, and write JSON there; 1 if a result of ours is wrong."""
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node 2 -m thunder_mdfuse.bench.tensor_parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--inner", type=int, default=28672)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 4096])
    parser.add_argument("--json", type=Path, help="file to write the results into")
    options = parser.parse_args(argv)
    mesh, device = ranks_mesh()
    results = [run(mesh, device, options.hidden, options.inner, n) for n in options.tokens]
    if mesh.get_rank() == 0:
        for result in results:
            print(f"{result['tokens']} tokens, {mesh.size()} ranks on {device.type}")
            for name, found in result["providers"].items():
                print(
                    f"  {name:<14} {found['wall']:9.1f} us, host {found['host']:9.1f} us, "
                    f"error {found['error']:.1e}",
                    flush=True,
                )
        if options.json:
            command = f"torchrun --nproc-per-node {mesh.size()} -m {__spec__.name}"
            record = {"environment": environment(), "command": command, "results": results}
            options.json.write_text(json.dumps(record, indent=1) + "\n")
    ours = [r["providers"][n] for r in results for n in r["providers"] if n.startswith("mdfuse")]
    return int(any(found["error"] > TOLERANCE for found in ours))


if __name__ == "__main__":
    raise SystemExit(main())
