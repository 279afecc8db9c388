"""A training step of a Llama-style decoder cut over the ranks: time, peak memory, first call.

Every rank is started by a launcher (torchrun, mpirun); one GPU each, or CPUs over gloo. Providers
are ``mdfuse`` (``thunder.jit`` with our executor), ``torch.compile`` and eager, of equal models
that ``parallelize_module`` cut. A step is forward, backward and AdamW. Providers take turns in one
run; a time is the median of the slowest rank's. Memory is what a step needs beyond what is there
before it: activations, gradients, temporaries. The first call is one forward and backward, with
whatever is compiled for it.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from thunder_mdfuse.bench.environment import environment
from thunder_mdfuse.bench.llama import Config, Llama, tensor_parallel
from thunder_mdfuse.bench.measure import ranks_mesh, slowest, waited
from thunder_mdfuse.thunder.executor import mdfuse_executor
from thunder_mdfuse.thunder.frontend import jit

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PROVIDERS: dict[str, Callable[[nn.Module], Call]] = {
    "mdfuse": lambda model: jit(model, [mdfuse_executor.name]),
    "compile": lambda model: torch.compile(model, dynamic=False),
    "eager": lambda model: model,
}
ROUNDS = 5


class Provider:
    """One provider's model, optimizer and figures."""

    def __init__(self, name: str, config: Config, mesh: DeviceMesh, device: torch.device) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            whole = Llama(config).bfloat16()
        self.model = tensor_parallel(whole, mesh)
        self.call = PROVIDERS[name](self.model)
        # A fused step takes DTensors or plain tensors (the norms' weights), not both at once.
        cut = [p for p in self.model.parameters() if isinstance(p, DTensor)]
        plain = [p for p in self.model.parameters() if not isinstance(p, DTensor)]
        groups: list[dict[str, Any]] = [{"params": cut}, {"params": plain}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=device.type == "cuda")
        self.device = device
        self.times: list[float] = []
        self.losses: list[float] = []
        self.memory = self.first = 0.0

    def forward_backward(self, *given: torch.Tensor) -> None:
        """One pass each way, for gradients of fresh tensors."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.call(*given)
        loss.backward()  # type: ignore[no-untyped-call]
        found = loss.detach()
        self.losses.append(float(found.full_tensor() if isinstance(found, DTensor) else found))

    def start(self, *given: torch.Tensor) -> None:
        """The first call, timed; then two steps, so that the optimizer has its state."""
        waited(self.device)
        begin = time.perf_counter()
        self.forward_backward(*given)
        waited(self.device)
        self.first = slowest(time.perf_counter() - begin, self.device)
        self.optimizer.step()
        self.step(*given)

    def step(self, *given: torch.Tensor) -> None:
        """A step, and the memory that it needs."""
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        dist.barrier()  # or the first rank to be ready would count its waiting for the others
        waited(self.device)
        before = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        begin = time.perf_counter()
        self.forward_backward(*given)
        self.optimizer.step()
        waited(self.device)
        self.times.append(slowest(time.perf_counter() - begin, self.device))
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device) - before
            self.memory = slowest(peak, self.device)
        self.optimizer.zero_grad(set_to_none=True)

    def figures(self) -> dict[str, Any]:
        return {
            "step_ms": statistics.median(self.times[1:]) * 1e3,
            "memory_mib": self.memory / 2**20,
            "first_call_s": self.first,
            "losses": self.losses,
        }


def run(
    mesh: DeviceMesh, device: torch.device, config: Config, batch: int, names: list[str]
) -> dict[str, Any]:
    """One record for all providers."""
    made = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.vocabulary, (batch, config.length + 1), generator=made).to(device)
    given = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    providers = {}
    for name in names:
        providers[name] = Provider(name, config, mesh, device)
        providers[name].start(*given)
    for number in range(ROUNDS):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            providers[name].step(*given)
    figures = {name: provider.figures() for name, provider in providers.items()}
    return {"config": asdict(config), "batch": batch, "ranks": mesh.size(), "providers": figures}


def main(argv: list[str] | None = None) -> int:
    """Measure, print on rank 0, and write JSON there; 1 if our losses are not eager's."""
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node 2 -m thunder_mdfuse.bench.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=14336)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--providers", nargs="+", default=list(PROVIDERS), choices=PROVIDERS)
    parser.add_argument("--json", type=Path, help="file to write the results into")
    o = parser.parse_args(argv)
    heads = max(o.width // 128, 4)
    config = Config(o.vocabulary, o.width, o.layers, heads, max(heads // 4, 2), o.hidden, o.length)
    mesh, device = ranks_mesh()
    result = run(mesh, device, config, o.batch, o.providers)
    providers = result["providers"]
    if mesh.get_rank() == 0:
        print(f"{result['config']}, batch {o.batch}, {mesh.size()} ranks on {device.type}")
        for name, found in providers.items():
            print(
                f"  {name:<8} step {found['step_ms']:9.2f} ms, memory {found['memory_mib']:9.1f} "
                f"MiB, first call {found['first_call_s']:6.1f} s, loss {found['losses'][0]:.4f} to "
                f"{found['losses'][-1]:.4f}",
                flush=True,
            )
        if o.json:
            command = f"torchrun --nproc-per-node {mesh.size()} -m {__spec__.name}"
            record = {"environment": environment(), "command": command, **result}
            o.json.write_text(json.dumps(record, indent=1) + "\n")
    if not {"mdfuse", "eager"} <= set(providers):
        return 0
    pairs = zip(providers["mdfuse"]["losses"], providers["eager"]["losses"], strict=True)
    return int(any(abs(a - b) > 2e-2 * abs(b) for a, b in pairs))


if __name__ == "__main__":
    raise SystemExit(main())
