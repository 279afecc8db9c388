"""The roofline plot of a recorded run.

    python -m thunder_mdfuse.bench.plot results.json out.png

Memory-bound work has one roof, what a copy of as many bytes reaches; each workload's copy was timed
in the same run, so the roof is drawn through those. Needs matplotlib.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

MARKS = {"mdfuse": "o", "eager": "v", "compile": "s", "nvfuser": "^", "liger": "D", "quack": "P"}


def plot(record: dict[str, Any], file: Path) -> None:
    """Write the plot of ``record`` to ``file`` as PNG. Raises ``ImportError`` with what to install
    when matplotlib is missing.
    """
    try:
        matplotlib = import_module("matplotlib.figure")
    except ImportError as e:
        raise ImportError("the plot needs matplotlib: pip install matplotlib") from e
    results = record["results"]
    figure = matplotlib.Figure(figsize=(13, 6), layout="constrained")
    axes = figure.subplots()
    places = range(len(results))
    roof = [r["bytes"] / r["copy_us"] / 1e6 for r in results]
    axes.step(places, roof, where="mid", color="black", label="copy of the same bytes")
    for peer in dict.fromkeys(p for r in results for p in r["providers"]):
        points = [(i, r["providers"].get(peer)) for i, r in enumerate(results)]
        at = [i for i, p in points if p is not None]
        height = [p["tb_per_s"] for _, p in points if p is not None]
        large = peer == "mdfuse"
        axes.plot(at, height, MARKS.get(peer, "x"), label=peer, markersize=9 if large else 5,
                  markerfacecolor=None if large else "none")  # fmt: skip
    axes.set_xticks(places, [f"{r['workload']} {r['title']}" for r in results], rotation=90)
    axes.set_ylabel("TB/s (bytes that have to be moved, over the time)")
    where = record["environment"]
    axes.set_title(f"{where['gpu']}, torch {where['torch']}, {where['date']}")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def main(arguments: list[str]) -> int:
    """``results.json out.png``; 2 for anything else."""
    if len(arguments) != 2:
        print("usage: python -m thunder_mdfuse.bench.plot results.json out.png", file=sys.stderr)
        return 2
    plot(json.loads(Path(arguments[0]).read_text()), Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
