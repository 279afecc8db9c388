"""``python -m thunder_mdfuse.bench``: workloads against their peers in one run, checked, as a table
and JSON.

Needs a CUDA GPU. Peers that are not installed are named and left out. ``copy`` is torch's copy that
moves as many bytes as a workload has to, timed in the same run.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from thunder_mdfuse.bench.cases import Call, error, prepared
from thunder_mdfuse.bench.environment import environment
from thunder_mdfuse.bench.measure import (
    Timing,
    captured,
    copy_reference,
    host_time,
    input_sets,
    interleaved,
)
from thunder_mdfuse.bench.peers import INSTALL, PEERS, Unavailable
from thunder_mdfuse.bench.plot import plot
from thunder_mdfuse.bench.workloads import WORKLOADS, Workload

Record = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    """Run the chosen workloads; 1 when our result is wrong or missing, 2 without a GPU."""
    options = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print("the benchmark measures a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    console = Console(width=140)
    device = torch.device("cuda", 0)
    record: Record = {"environment": environment(), "command": _command(options), "results": []}
    for name in track(options.workloads, "workloads", console=console):
        record["results"].append(_run(WORKLOADS[name], options.peers, device, console))
        torch.cuda.empty_cache()
        if options.json:  # after each, so that a run that is cut short leaves what it has
            Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    console.print(_table(record["results"], options.peers))
    if options.plot:
        plot(record, Path(options.plot))
    ours = [r["providers"].get("mdfuse") for r in record["results"]]
    return int(any(p is None or not p["right"] for p in ours))


def _command(options: argparse.Namespace) -> str:
    """The command to run for these results again."""
    chosen = f"--peers {','.join(options.peers)}"
    if options.workloads != list(WORKLOADS):
        chosen = f"--workloads {','.join(options.workloads)} {chosen}"
    return f"python -m thunder_mdfuse.bench {chosen}"


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {w.name:<5} {_title(w)}" for w in WORKLOADS.values())
    parser = argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.bench",
        description=__doc__,
        epilog=f"workloads:\n{listed}\n\npeers that need a package: {_installs()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workloads",
        type=_listed(WORKLOADS),
        default=list(WORKLOADS),
        help="names by commas; B04 stands for B04a and B04b (default: all)",
    )
    peers = ["eager", "compile", "nvfuser", "liger"]
    parser.add_argument(
        "--peers",
        type=_listed(PEERS),
        default=peers,
        help=f"of {', '.join(p for p in PEERS if p != 'mdfuse')}, by commas "
        f"(default: {','.join(peers)})",
    )
    parser.add_argument("--json", help="file to write the results into (default: none)")
    parser.add_argument("--plot", help="PNG file for the plot of bandwidths (needs matplotlib)")
    return parser


def _installs() -> str:
    return ", ".join(f"{peer} ({packages})" for peer, packages in INSTALL.items())


def _title(work: Workload) -> str:
    return f"{work.title} {'x'.join(map(str, work.sizes))}"


def _listed(known: dict[str, Any]) -> Any:
    """Parses names separated by commas; a prefix stands for all that begin with it."""

    def parse(text: str) -> list[str]:
        found: list[str] = []
        for item in filter(None, text.split(",")):
            matching = [item] if item in known else [k for k in known if k.startswith(item)]
            if not matching:
                raise argparse.ArgumentTypeError(f"{item!r} is none of {', '.join(known)}")
            found += matching
        return found

    return parse


def _run(work: Workload, peers: list[str], device: torch.device, console: Console) -> Record:
    torch.manual_seed(0)
    sets = input_sets(lambda: work.make(device, *work.sizes))
    copy = copy_reference(work.moved, device)
    graphs = {"copy": captured(lambda: [copy])}
    kept: list[object] = []
    found: dict[str, Record] = {}
    for peer in ["mdfuse", *peers]:
        try:
            call = PEERS[peer](work)
            found[peer] = _checked(work, call, sets[0])
            graphs[peer] = captured(lambda call=call: _thunks(work, call, sets, kept))  # type: ignore[misc]
            if work.host:
                found[peer]["host_us"] = host_time(prepared(work, call, sets[0]))
        except Unavailable as e:
            console.print(f"{work.name}: {peer} is left out: {e}")
        except Exception as e:  # a peer's failure is a result, not the end of the run
            console.print(f"{work.name}: {peer} failed: {type(e).__name__}: {e}")
            found.pop(peer, None)
            graphs.pop(peer, None)
    times = interleaved(graphs)
    base = times.pop("copy")
    providers = {p: {**_record(t, base, work), **found[p]} for p, t in times.items()}
    return {"workload": work.name, "title": _title(work), "bytes": work.moved,
            "copy_us": base.median, "providers": providers}  # fmt: skip


def _checked(work: Workload, call: Call, inputs: tuple[torch.Tensor, ...]) -> Record:
    begin = time.perf_counter()
    off = error(work, call, inputs)
    torch.cuda.synchronize()
    return {
        "error": off,
        "right": off <= work.tolerance,
        "first_s": time.perf_counter() - begin,
    }


def _thunks(work: Workload, call: Call, sets: list[Any], kept: list[object]) -> list[Any]:
    """The prepared calls. A graph holds no tensors, so they stay alive until it was replayed."""
    calls = [prepared(work, call, inputs) for inputs in sets]
    kept.append(calls)
    return calls


def _record(t: Timing, copy: Timing, work: Workload) -> Record:
    return {
        "us": t.median,
        "spread_us": t.spread,
        "ratio_to_copy": copy.median / t.median,
        "tb_per_s": work.moved / t.median / 1e6,
    }


def _table(results: list[Record], peers: list[str]) -> Table:
    table = Table(title="microseconds (ratio to a copy of the same bytes; host: host time)")
    names = ["mdfuse", *peers]
    for column in ("", "workload", "copy", *names):
        table.add_column(column)
    for r in results:
        cells = [r["workload"], r["title"], f"{r['copy_us']:.1f}"]
        for name in names:
            p = r["providers"].get(name)
            if p is None:
                cells.append("-")
                continue
            mark = "" if p["right"] else " WRONG"
            host = f" host {p['host_us']:.0f}" if "host_us" in p else ""
            cells.append(f"{p['us']:.1f} ({p['ratio_to_copy']:.3f}){host}{mark}")
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
