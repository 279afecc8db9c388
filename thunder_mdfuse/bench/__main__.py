"""``python -m thunder_mdfuse.bench``: workloads against their peers in one run, checked, as a table
and JSON.

Needs a CUDA GPU. Peers that are not installed are named and left out.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from thunder_mdfuse.bench.measure import Timing, captured, copy_reference, input_sets, interleaved
from thunder_mdfuse.bench.peers import PEERS, Unavailable
from thunder_mdfuse.bench.workloads import WORKLOADS, Workload


def main(argv: list[str] | None = None) -> int:
    """Run the chosen workloads; 1 when a provider's result is wrong, 2 without a GPU."""
    options = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print("the benchmark measures a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    console = Console(width=120)
    device = torch.device("cuda", 0)
    results = []
    for name in track(options.workloads, "workloads", console=console):
        results.append(_run(WORKLOADS[name], options.peers, device, console))
    console.print(_table(results, options.peers))
    record = {"environment": _environment(), "command": _command(options), "results": results}
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    return int(any(not p["right"] for r in results for p in r["providers"].values()))


def _command(options: argparse.Namespace) -> str:
    """The command to run for these results again."""
    chosen = f"--workloads {','.join(options.workloads)} --peers {','.join(options.peers)}"
    return f"python -m thunder_mdfuse.bench {chosen}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m thunder_mdfuse.bench", description=__doc__)
    listed = lambda text: [item for item in text.split(",") if item]
    parser.add_argument("--workloads", type=listed, default=list(WORKLOADS))
    parser.add_argument("--peers", type=listed, default=["eager", "compile", "nvfuser"])
    parser.add_argument("--json", help="file to write the results into")
    return parser


def _run(work: Workload, peers: list[str], device: torch.device, console: Console) -> dict:  # type: ignore[type-arg]
    torch.manual_seed(0)
    sets = input_sets(lambda: work.make(device))
    expected = work.function(*(t.float() for t in sets[0]))
    calls: dict[str, Callable[..., object]] = {"copy": copy_reference(work.nbytes, device)}
    graphs = {"copy": captured(calls["copy"], sets)}
    checks: dict[str, float] = {}
    for peer in ["mdfuse", *peers]:
        try:
            # A graph holds no tensors, so every call stays alive until its graph has been replayed.
            calls[peer] = call = PEERS[peer](work)
            found = call(*sets[0])
            checks[peer] = ((found.float() - expected).norm() / expected.norm()).item()
            graphs[peer] = captured(call, sets)
        except Unavailable as e:
            console.print(f"{work.name}: {peer} is left out: {e}")
    times = interleaved(graphs)
    copy = times.pop("copy")
    providers = {peer: _record(t, copy, work, checks[peer]) for peer, t in times.items()}
    return {
        "workload": work.name,
        "title": work.title,
        "copy_us": copy.median,
        "providers": providers,
    }


def _record(t: Timing, copy: Timing, work: Workload, error: float) -> dict[str, float | bool]:
    return {
        "us": t.median,
        "spread_us": t.spread,
        "ratio_to_copy": copy.median / t.median,
        "tb_per_s": work.nbytes / t.median / 1e6,
        "error": error,
        "right": error <= work.tolerance,
    }


def _table(results: list, peers: list[str]) -> Table:  # type: ignore[type-arg]
    table = Table(title="microseconds (ratio to a copy of the same bytes)")
    names = ["mdfuse", *peers]
    for column in ("workload", "copy", *names):
        table.add_column(column)
    for r in results:
        cells = [r["title"], f"{r['copy_us']:.1f}"]
        for name in names:
            p = r["providers"].get(name)
            mark = "" if p is None or p["right"] else " WRONG"
            cells.append("-" if p is None else f"{p['us']:.1f} ({p['ratio_to_copy']:.3f}){mark}")
        table.add_row(*cells)
    return table


def _environment() -> dict[str, str]:
    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(0),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        **{p: installed(p) for p in ("lightning-thunder", "cuda-core", "liger-kernel")},
    }


if __name__ == "__main__":
    sys.exit(main())
