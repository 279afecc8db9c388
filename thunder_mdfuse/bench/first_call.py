"""How long the first forward and backward of a Llama-style decoder take, with all that is traced
and compiled for it: of stock Thunder, and of this executor with an empty disk cache, with a full
one, and on DTensors.

Stock Thunder has this package's shorter ways through its interpreter here as well, so it is sooner
done than without the package. Each of the four is a process of its own, timed from the model on:
imports are not in it. With ``--together`` they run at the same time, on a machine with cores to
spare.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from thunder_mdfuse import knobs
from thunder_mdfuse.bench.environment import environment
from thunder_mdfuse.bench.llama import Config, Llama, tensor_parallel
from thunder_mdfuse.bench.measure import ranks_mesh, waited
from thunder_mdfuse.thunder.executor import mdfuse_executor
from thunder_mdfuse.thunder.frontend import jit, stock

SECONDS = 1200.0  # that one process is waited for
# The kind of run, and the others that must have ended before it.
KINDS: dict[str, tuple[str, ...]] = {"stock": (), "cold": (), "warm": ("cold",), "dtensor": ()}
Process = subprocess.Popen[str]


def first_call(kind: str, config: Config) -> float:
    """Seconds of one forward and backward, ``kind`` being one of ``KINDS``."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device(device):
        model: nn.Module = Llama(config)
        tokens = torch.randint(config.vocabulary, (2, config.length + 1))
    if kind == "dtensor":
        mesh, device = ranks_mesh()
        assert isinstance(model, Llama)
        model = tensor_parallel(model, mesh)
    given = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    torch.nn.functional.linear(torch.ones(1, 1, device=device), torch.ones(1, 1, device=device))
    waited(device)
    begin = time.perf_counter()
    jitted = stock(model) if kind == "stock" else jit(model, [mdfuse_executor.name])
    jitted(*given).backward()
    waited(device)
    return time.perf_counter() - begin


def _start(kind: str, layers: int, cache: Path) -> Process:
    command = [sys.executable, "-m", __spec__.name, "--layers", str(layers), "--only", kind]
    folder = cache / ("dtensor" if kind == "dtensor" else "")
    env = knobs.child_environment(XDG_CACHE_HOME=str(folder))
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def _seconds(process: Process) -> float:
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise SystemExit(f"{process.args!r} did not end within {SECONDS:g} s") from None
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with exit code {process.returncode}")
    return float(output.split()[-1])


def run(layers: int, together: bool) -> dict[str, float]:
    """Seconds by kind."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        started: dict[str, Process] = {}
        for kind, after in KINDS.items():
            for other in after:
                if other not in found:
                    found[other] = _seconds(started.pop(other))
            started[kind] = _start(kind, layers, cache)
            if not together:
                found[kind] = _seconds(started.pop(kind))
        found |= {kind: _seconds(process) for kind, process in started.items()}
    return {kind: found[kind] for kind in KINDS}


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.bench.first_call",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--together", action="store_true", help="all kinds at the same time")
    parser.add_argument("--only", choices=KINDS, help="one kind, in this process")
    parser.add_argument("--json", type=Path, help="file to write the results into")
    o = parser.parse_args(argv)
    config = Config(layers=o.layers)
    if o.only:
        print(first_call(o.only, config))
        return 0
    seconds = run(o.layers, o.together)
    for kind, found in seconds.items():
        ratio = f"{found / seconds['stock']:5.2f} of stock Thunder"
        print(f"  {kind:<8} {found:7.2f} s, {ratio}", flush=True)
    if o.json:
        flags = " --together" if o.together else ""
        record = {
            "environment": environment(),
            "command": f"python -m {__spec__.name} --layers {o.layers}{flags}",
            "config": asdict(config),
            "seconds": seconds,
        }
        o.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
