"""The README is true: its tables and listings come from the code, its commands are the CI's.

``--update-golden`` rewrites what stands between ``<!-- table: name -->`` and ``<!-- end -->``.
"""

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thunder_mdfuse import knobs, pipeline
from thunder_mdfuse.codegen.exprs import EXPRS, NotGenerated, Reduction
from thunder_mdfuse.dump import Dump
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.runtime.report import report
from thunder_mdfuse.schedule.program import InputClass
from thunder_mdfuse.schedule.target import H200
from thunder_mdfuse.thunder.claims import CLAIMS, UNCLAIMED

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
EXAMPLE = """
global mesh[tp=4]
%0 = input(position=0) : bf16[4, 2048, 8192] @ [Shard(2)]
%1 = input(position=1) : bf16[8192] @ [Shard(0)]
%2 = cast(%0; dtype=f32) : f32[4, 2048, 8192]
%3 = mul(%2, %2) : f32[4, 2048, 8192]
%4 = sum(%3; dims=[2]) : f32[4, 2048]
%5 = broadcast_in_dim(%4; shape=[4, 2048, 1], dims=[0, 1]) : f32[4, 2048, 1]
%6 = const(value='8192.0', dtype=f64) : f64
%7 = div(%5, %6) : f32[4, 2048, 1]
%8 = const(value='1e-05', dtype=f64) : f64
%9 = add(%7, %8) : f32[4, 2048, 1]
%10 = rsqrt(%9) : f32[4, 2048, 1]
%11 = broadcast_in_dim(%10; shape=[4, 2048, 8192], dims=[0, 1, 2]) : f32[4, 2048, 8192]
%12 = mul(%2, %11) : f32[4, 2048, 8192]
%13 = broadcast_in_dim(%1; shape=[4, 2048, 8192], dims=[2]) : bf16[4, 2048, 8192]
%14 = cast(%13; dtype=f32) : f32[4, 2048, 8192]
%15 = mul(%12, %14) : f32[4, 2048, 8192]
%16 = cast(%15; dtype=bf16) : bf16[4, 2048, 8192]
return %16
"""


# What the tables are made of.


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: str, language: str = "") -> str:
    return f"```{language}\n{text.strip()}\n```"


def names(found: list[str]) -> str:
    return " ".join(f"`{name}`" for name in found)


def knobs_table() -> str:
    rows = [
        [f"`{k.name}`", f"`{k.default}`" if k.default else "", k.help] for k in knobs.KNOBS.values()
    ]
    return table(["variable", "default", "meaning"], rows)


def operations_table() -> str:
    """The operations of the IR by what executes them, in the order of the op table."""
    groups: dict[str, list[str]] = {}
    for op in OPS:
        if op == "input":
            continue
        row = EXPRS[op]
        if isinstance(row, NotGenerated):
            how = row.reason
        else:
            what = "a reduction in" if isinstance(row, Reduction) else "part of"
            how = f"{what} a generated kernel"
        groups.setdefault(how, []).append(op)
    return table(["executed as", "operations"], [[how, names(ops)] for how, ops in groups.items()])


def claims_table() -> str:
    """Thunder's symbols: how many are claimed, and why the others that compute are not."""

    def name(id: Any) -> str:
        return getattr(id, "name", str(id)).lower()

    kinds: dict[str, list[str]] = {}
    for id in CLAIMS:
        kind = {"PrimIDs": "prims", "DTensorPrimIDs": "DTensor prims"}.get(type(id).__name__)
        kinds.setdefault(kind or "other symbols", []).append(name(id))
    rows = [[f"claimed: {len(ids)} {kind}", names(sorted(ids))] for kind, ids in kinds.items()]
    reasons: dict[str, list[str]] = {}
    for id, reason in UNCLAIMED.items():
        why = str(reason).partition(": ")[2]
        if "prologue" not in why and "host program" not in why:
            reasons.setdefault(why, []).append(name(id))
    rows += [[f"not claimed: {why}", names(sorted({*ids}))] for why, ids in reasons.items()]
    return table(["", "Thunder's symbols"], rows)


def example() -> dict[str, str]:
    """The listings of the worked example."""
    dump = Dump("example")
    local = pipeline.lower(parse(EXAMPLE), dump)
    classes = [InputClass((2048 * 2048, 2048, 1)), InputClass((1,))]
    plan, texts = pipeline.plan(local, classes, H200, {"@tp": 0}, "cuda", dump)
    steps = report(plan, {"@tp": 0})
    rows = [
        [f"{s.kind} `{s.name}`", " ".join(s.ops)]
        + [f"{n:,}" if n else "" for n in (s.bytes_read, s.bytes_written, s.wire_bytes)]
        for s in steps
    ]
    heads = ["step", "operations", "bytes read", "bytes written", "bytes on the wire"]
    return {
        "propagate": code(dump.texts["propagate"]),
        "localize": code(render(local)),
        "steps": table(heads, rows),
        "kernel": code(texts[0].source, "cpp"),
    }


def bench_table(folder: Path) -> str:
    """The newest committed run of ``python -m thunder_mdfuse.bench --json``."""
    runs = [(json.loads(p.read_text()), p.name) for p in sorted(folder.glob("*.json"))]
    runs = [run for run in runs if "results" in run[0] and "environment" in run[0]]
    if not runs:
        return "No run of the benchmark has been committed."
    record, file = max(runs, key=lambda run: (run[0]["environment"]["date"], run[1]))
    where = record["environment"]
    peers = list(dict.fromkeys(p for r in record["results"] for p in r["providers"]))
    rows = []
    for result in record["results"]:
        cells = [result["title"], f"{result['copy_us']:.1f}"]
        for peer in peers:
            found = result["providers"].get(peer)
            wrong = "" if found is None or found["right"] else ", wrong result"
            cells.append(
                "" if found is None else f"{found['us']:.1f} ({found['ratio_to_copy']:.2f}){wrong}"
            )
        rows.append(cells)
    return (
        f"Microseconds of one call, the median over rounds in which all take turns, replayed from "
        f"CUDA graphs. In brackets: the time of a copy of the same bytes over this time. "
        f"{where['gpu']}, torch {where['torch']}, Thunder {where['lightning-thunder']}, "
        f"{where['date']}; `{record['command']}`, recorded in `benchmarks/{file}`.\n\n"
        + table(["bf16", "copy", *peers], rows)
    )


TABLES: dict[str, Callable[[], str]] = {
    "knobs": knobs_table,
    "operations": operations_table,
    "claims": claims_table,
    "bench": lambda: bench_table(ROOT / "benchmarks"),
    **{
        name: lambda name=name: example()[name]  # type: ignore[misc]
        for name in ("propagate", "localize", "steps", "kernel")
    },
}


# The README against them.


def between(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found, f"README.md has no table {name!r}"
    return found


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_the_code_says(name: str, update_golden: bool) -> None:
    text = README.read_text(encoding="ascii")
    found, expected = between(text, name), TABLES[name]() + "\n"
    if update_golden:
        README.write_text(text[: found.start(1)] + expected + text[found.end(1) :])
        return
    assert found[1] == expected, "README.md is old: run pytest tests/test_readme.py --update-golden"


def test_every_table_has_a_generator() -> None:
    found = re.findall(r"<!-- table: (\w+) -->", README.read_text())
    assert sorted(found) == sorted(TABLES)


def command(name: str) -> str:
    found = re.search(rf"<!-- command: {name} -->\n```sh\n(.*?)\n```", README.read_text())
    assert found, f"README.md has no command {name!r}"
    return found[1]


def test_the_ci_runs_the_readmes_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="ascii").splitlines()
    assert lines.count(command("test")) == 1


def test_the_ci_is_a_script_that_stops_at_the_first_failure() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text(encoding="ascii").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_commands_install_from_the_clone() -> None:
    for name in ("demo", "test"):
        assert "\n" not in command(name)
        assert command(name).startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_the_ten_lines_run() -> None:
    found = re.search(r"<!-- example: ten lines -->\n```python\n(.*?)```", README.read_text(), re.S)
    assert found
    lines = [line for line in found[1].splitlines() if line.strip()]
    assert len(lines) <= 10
    shown = io.StringIO()
    # As a file, because Thunder reads the source of what it traces.
    with contextlib.redirect_stdout(shown):
        exec(compile(found[1], "ten_lines.py", "exec"), {"__name__": "ten_lines"})
    assert shown.getvalue().startswith("torch.Size([64, 1024])")
    assert "mdFusion0" in shown.getvalue()


def test_the_variables_that_it_names_exist() -> None:
    named = set(re.findall(r"MDFUSE_[A-Z_]+", README.read_text()))
    assert named <= set(knobs.KNOBS), named - set(knobs.KNOBS)


def test_the_files_that_it_names_exist() -> None:
    text = README.read_text()
    for path in re.findall(r"`((?:thunder_mdfuse|tests|notebooks|csrc|\.ci)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


def test_a_run_of_the_benchmark_is_shown(tmp_path: Path) -> None:
    assert bench_table(tmp_path) == "No run of the benchmark has been committed."
    provider = {"us": 12.34, "ratio_to_copy": 0.951, "right": True}
    for date in ("2026-01-02", "2026-01-10"):
        record = {
            "environment": {"date": date, "gpu": "G", "torch": "T", "lightning-thunder": "L"},
            "command": "python -m thunder_mdfuse.bench --json x",
            "results": [
                {
                    "title": "RMSNorm 1x2",
                    "copy_us": 11.0,
                    "providers": {"mdfuse": provider, "eager": {**provider, "right": False}},
                },
                {"title": "softmax", "copy_us": 9.0, "providers": {"mdfuse": provider}},
            ],
        }
        (tmp_path / f"h200_{date}.json").write_text(json.dumps(record))
    (tmp_path / "other.json").write_text("{}")
    shown = bench_table(tmp_path)
    assert "2026-01-10" in shown and "2026-01-02" not in shown
    assert "`python -m thunder_mdfuse.bench --json x`" in shown
    assert "| RMSNorm 1x2 | 11.0 | 12.3 (0.95) | 12.3 (0.95), wrong result |" in shown
    assert "| softmax | 9.0 | 12.3 (0.95) |  |" in shown
