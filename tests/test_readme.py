"""The README is true: its tables and listings come from the code, its commands are the CI's.

``--update-golden`` rewrites what stands between ``<!-- table: name -->`` and ``<!-- end -->``.
"""

import contextlib
import functools
import io
import json
import re
import statistics
import subprocess
import textwrap
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from multirank.runner import run_ranks

from thunder_mdfuse import knobs
from thunder_mdfuse.bench.workloads import WORKLOADS
from thunder_mdfuse.codegen.cuda import WRITERS
from thunder_mdfuse.codegen.exprs import EXPRS, NotGenerated, Reduction
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.schedule.plan import FAMILIES
from thunder_mdfuse.thunder.claims import CLAIMS, UNCLAIMED

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
NOTEBOOK = ROOT / "notebooks" / "01_one_region_end_to_end.ipynb"


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
        [f"`{k.name}`", k.takes, f"`{k.default}`" if k.default else "", k.help]
        for k in knobs.KNOBS.values()
    ]
    return table(["variable", "takes", "default", "meaning"], rows)


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


@functools.cache
def notebook() -> dict[str, Any]:
    """The variables of the notebook when it has planned its program: the README shows the same."""
    found: dict[str, Any] = {"__name__": "notebook"}
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        for cell in json.loads(NOTEBOOK.read_text())["cells"]:
            if cell["cell_type"] != "code":
                continue
            text = "".join(line for line in cell["source"] if not line.startswith("%"))
            # Names of files, because Thunder reads the source of what it traces.
            exec(compile(text, f"{cell['id']}.py", "exec"), found)
            if "steps" in found:
                break
    return found


def example() -> dict[str, str]:
    """The listings of the worked example."""
    found = notebook()
    rows = [
        [f"{s.kind} `{s.name}`", " ".join(s.ops)]
        + [f"{n:,}" if n else "" for n in (s.bytes_read, s.bytes_written, s.wire_bytes)]
        for s in found["steps"]
    ]
    heads = ["step", "operations", "bytes read", "bytes written", "bytes on the wire"]
    return {
        "propagate": code(render(found["stages"]["propagate"])),
        "localize": code(render(found["stages"]["localize"])),
        "steps": table(heads, rows),
        "kernel": code(found["texts"][0].source, "cpp"),
    }


def suite_table(folder: Path) -> str:
    """The newest committed run of ``python -m thunder_mdfuse.bench --json``, all workloads."""
    files = sorted(folder.glob("*-suite.json"))
    if not files:
        return "No run of the suite has been committed."
    record = json.loads(files[-1].read_text())
    where, results = record["environment"], record["results"]
    peers = list(dict.fromkeys(p for r in results for p in r["providers"]))
    rows = []
    for result in results:
        rate = result["bytes"] / result["copy_us"] / 1e6
        cells = [f"{result['workload']} {result['title']}", f"{result['bytes'] / 1e6:,.0f}"]
        cells.append(f"{result['copy_us']:.0f} ({rate:.2f})")
        for peer in peers:
            p = result["providers"].get(peer)
            wrong = "" if p is None or p["right"] else ", wrong result"
            cells.append("" if p is None else f"{p['us']:.0f} ({p['tb_per_s']:.2f}){wrong}")
        rows.append(cells)
    packages = [f"{p} {where[p]}" for p in PACKAGES if where.get(p, ABSENT) != ABSENT]
    return (
        "Microseconds of one call, the median over rounds in which all take turns, replayed from "
        "CUDA graphs; in brackets the terabytes a second of what has to be moved, `MB`. `copy`: "
        "torch's copy that moves as many bytes, in the same run; at most large sizes it reaches "
        "about 4.2. "
        f"{where['gpu']}, torch {where['torch']}, {', '.join(packages)}, {where['date']}; "
        f"`{record['command']}`, recorded in `benchmarks/{files[-1].name}`. {first_calls(results)}"
        "\n\n" + table(["workload", "MB", "copy", *peers], rows)
    )


ABSENT = "not installed"
PACKAGES = ("lightning-thunder", "nvfuser", "liger-kernel", "quack-kernels")


def first_calls(results: list[dict[str, Any]]) -> str:
    """How long first calls took."""
    told = []
    for peer in ("mdfuse", "compile", "nvfuser"):
        found = [r["providers"][peer]["first_s"] for r in results if peer in r["providers"]]
        if found:
            told.append(f"{statistics.median(found):.2f} s with {peer} (at most {max(found):.2f})")
    what = "The first call, which traces and compiles what no disk cache has, took a median of"
    return f"{what} {', '.join(told)}."


def families_table() -> str:
    return table(
        ["family", "what a kernel of it does"], [[f"`{f}`", d] for f, d in FAMILIES.items()]
    )


def ranks_table(folder: Path) -> str:
    """The newest committed runs of the benchmarks that need ranks."""
    mlp = json.loads(sorted(folder.glob("*-mlp.json"))[-1].read_text())
    training = json.loads(sorted(folder.glob("*-training.json"))[-1].read_text())
    assert mlp["environment"] == training["environment"]
    where = mlp["environment"]
    blocks = [
        [
            f"MLP block, {result['tokens']:,} tokens",
            name,
            f"{found['wall'] / 1e3:,.3f} ms",
            f"{found['host'] / 1e3:,.3f} ms",
            "",
        ]
        for result in mlp["results"]
        for name, found in result["providers"].items()
    ]
    steps = [
        [
            f"training step, {training['config']['layers']} layers",
            name,
            f"{found['step_ms']:,.1f} ms",
            "",
            f"{found['memory_mib']:,.0f} MiB",
        ]
        for name, found in training["providers"].items()
    ]
    heads = ["two GPUs, bf16", "provider", "a call", "host", "memory"]
    return (
        f"{where['gpu']} x {training['ranks']}, torch {where['torch']}, {where['date']}; "
        f"`{mlp['command']}` and `{training['command']}`, which say with `--help` what is measured."
        "\n\n" + table(heads, [*blocks, *steps])
    )


TABLES: dict[str, Callable[[], str]] = {
    "ranks": lambda: ranks_table(ROOT / "benchmarks"),
    "families": families_table,
    "knobs": knobs_table,
    "operations": operations_table,
    "claims": claims_table,
    "suite": lambda: suite_table(ROOT / "benchmarks"),
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
    lines = [line for line in written("ten lines").splitlines() if line.strip()]
    assert len(lines) <= 10
    shown = io.StringIO()
    # As a file, because Thunder reads the source of what it traces.
    with contextlib.redirect_stdout(shown):
        exec(compile(written("ten lines"), "ten_lines.py", "exec"), {"__name__": "ten_lines"})
    assert shown.getvalue().startswith("torch.Size([64, 1024])")
    assert "mdFusion0" in shown.getvalue()


def written(name: str) -> str:
    """A program of the README, without the indentation of the list that it may stand in."""
    found = re.search(
        rf"<!-- example: {name} -->\n *```python\n(.*?)\n *```", README.read_text(), re.DOTALL
    )
    assert found, f"README.md has no example {name!r}"
    return textwrap.dedent(found[1])


@pytest.mark.parametrize(
    "launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.launch_again)]
)
def test_the_program_over_dtensors_runs(launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "tp_mlp.py"
    script.write_text(written("dtensors"))
    shown = run_ranks(script, 2, launcher, 240, env={"CUDA_VISIBLE_DEVICES": ""})
    assert shown.count("(Replicate(),)") == 1
    kinds = re.findall(r"^  (kernel|aten|collective) ", shown, re.MULTILINE)
    assert sorted(kinds) == ["aten"] * 3 + ["collective"] + ["kernel"] * 2
    assert "on mesh[tp=2]" in shown


def test_the_definition_over_dtensors_runs(tmp_path: Path) -> None:
    script = tmp_path / "direct_tp.py"
    script.write_text(written("multidevice"))
    shown = run_ranks(script, 2, "mpirun", 240, env={"CUDA_VISIBLE_DEVICES": ""})
    assert shown == "(Shard(dim=0),) 0\n"


def test_the_suite_of_several_ranks_is_started_as_it_says() -> None:
    """tests/multirank/test_suite.py runs these commands."""
    suite = (ROOT / "tests" / "multirank" / "test_suite.py").read_text()
    assert 'run_ranks("pytest", ranks, launcher, 400, ["-m", "multigpu"], env)' in suite
    assert ".venv/bin/mpirun -np 2 .venv/bin/python -m pytest -m multigpu\n" in README.read_text()
    assert "torchrun --standalone --nproc-per-node 2 -m pytest -m multigpu\n" in README.read_text()


def test_the_definition_runs() -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(written("definition"), "definition.py", "exec"), {"__name__": "definition"})
    assert shown.getvalue() == "torch.Size([8])\n"


def test_the_drawing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {"__name__": "ten_lines"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(written("ten lines"), "ten_lines.py", "exec"), found)
    monkeypatch.chdir(tmp_path)
    exec(compile(written("drawing"), "drawing.py", "exec"), found)
    assert (tmp_path / "region.png").read_bytes().startswith(b"\x89PNG")


def test_a_region_is_looked_into() -> None:
    found: dict[str, Any] = {"__name__": "ten_lines"}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(written("ten lines"), "ten_lines.py", "exec"), found)
        exec(compile(written("inside"), "inside.py", "exec"), found)
    for part in (
        "__global__",
        "'reshard'",
        "CacheInfo(calls=1, specialisations=1)",
        "('mdFusion0', ",
    ):
        assert part in shown.getvalue(), part


def test_every_family_is_described() -> None:
    assert FAMILIES.keys() == WRITERS.keys()


def test_the_pins_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [d for d in project["dependencies"] if "==" in d]
    assert len(pins) == 2 and all(f"`{pin}`" in README.read_text() for pin in pins)


def test_the_function_is_the_notebooks() -> None:
    """The README shows the notebook's program; the function that it names computes the same."""
    found: dict[str, Any] = {"__name__": "ten_lines"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(written("ten lines"), "ten_lines.py", "exec"), found)
    x, w = torch.randn(2, 64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
    assert torch.equal(found["rms_norm"](x, w), notebook()["rms_norm"](x, w))


def test_the_variables_that_it_names_exist() -> None:
    named = set(re.findall(r"MDFUSE_[A-Z_]+", README.read_text()))
    assert named <= set(knobs.KNOBS), named - set(knobs.KNOBS)


def test_the_files_that_it_names_exist() -> None:
    text = README.read_text()
    for path in re.findall(r"`((?:thunder_mdfuse|tests|notebooks|csrc|\.ci)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


def test_a_run_of_the_suite_is_shown(tmp_path: Path) -> None:
    assert suite_table(tmp_path) == "No run of the suite has been committed."
    right = {"us": 12.34, "tb_per_s": 0.951, "right": True, "first_s": 0.5}
    wrong = {**right, "right": False, "first_s": 0.01}
    for date in ("2026-01-02", "2026-01-10"):
        record = {
            "environment": {"date": date, "gpu": "G", "torch": "T", "nvfuser": "N 1"},
            "command": "python -m thunder_mdfuse.bench --json x",
            "results": [
                {"workload": "A", "title": "RMSNorm 1x2", "bytes": 11_000_000, "copy_us": 11.0,
                 "providers": {"mdfuse": right, "eager": wrong}},
                {"workload": "B", "title": "softmax", "bytes": 9_000_000, "copy_us": 4.5,
                 "providers": {"mdfuse": {**right, "first_s": 0.7}}},
            ],
        }  # fmt: skip
        (tmp_path / f"{date}-suite.json").write_text(json.dumps(record))
    shown = suite_table(tmp_path)
    assert "2026-01-10" in shown and "2026-01-02" not in shown
    assert "`python -m thunder_mdfuse.bench --json x`" in shown and ", nvfuser N 1, " in shown
    assert "took a median of 0.60 s with mdfuse (at most 0.70)." in shown
    assert "| A RMSNorm 1x2 | 11 | 11 (1.00) | 12 (0.95) | 12 (0.95), wrong result |" in shown
    assert "| B softmax | 9 | 4 (2.00) | 12 (0.95) |  |" in shown


def test_the_workloads_that_it_shows_are_the_benchmarks() -> None:
    for found in re.findall(r"thunder_mdfuse[.]bench [^`]*--workloads (\S+)", README.read_text()):
        assert set(found.split(",")) <= WORKLOADS.keys()
    recorded = json.loads(sorted((ROOT / "benchmarks").glob("*-suite.json"))[-1].read_text())
    assert {r["workload"] for r in recorded["results"]} <= WORKLOADS.keys()
