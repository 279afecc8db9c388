"""Thunder's own tests with our executor, beside the same tests with Thunder's torch executor.

``python tests/thunder/upstream [--every N] [--samples N] [FILE ...]``

Each file of ``FILES`` (or each named, without ``test_``) runs once with each executor; what passes
with torch and not with ours is printed, except for what ``accepted.txt`` lists with its reason. The
exit code is 1 if anything is left. The tests come with the wheel of lightning-thunder and need the
extra ``upstream``.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

FILES = [
    *("core", "grad", "networks", "reductions", "shape_ops", "elementwise", "inplace_copy"),
    *("update_aliases", "autocast", "jit_general", "transforms", "ops"),
]
HERE = Path(__file__).parent
Outcomes = dict[str, dict[str, str]]


def upstream_tests() -> Path:
    """The folder of Thunder's installed tests."""
    spec = importlib.util.find_spec("thunder")
    folder = Path(spec.origin).parent / "tests" if spec and spec.origin else None
    if folder is None or not (folder / "framework.py").exists():
        raise SystemExit(
            f"found no thunder/tests at {folder}; the wheel of lightning-thunder 0.2.6 has them: "
            "pip install --force-reinstall --no-deps lightning-thunder==0.2.6"
        )
    missing = [
        m
        for m in ("pytest_benchmark", "fdm", "multipledispatch", "expecttest", "einops")
        if importlib.util.find_spec(m) is None
    ]
    if missing:
        raise SystemExit(f"Thunder's tests need {', '.join(missing)}: pip install '.[upstream]'")
    return folder


def run(executor: str, names: list[str], more: list[str]) -> Outcomes:
    """The outcomes of the files ``names`` (without ``test_``) with one executor, by test."""
    folder = upstream_tests()
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "outcomes.json"
        # Neither our pytest settings nor our conftest hold for Thunder's tests.
        command = [sys.executable, "-m", "pytest", "-p", "inject", "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", str(folder), "-q", "--tb=short", "-Wignore"]
        command += ["--executor", executor, "--outcomes", str(found), *more]
        command += [str(folder / f"test_{name}.py") for name in names]
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # 0: all passed; 1: some failed; 5: a share of few tests may be none. Anything else ran not
        # all of the tests.
        ended = (0, 1) if more[:2] == ["--every", "1"] else (0, 1, 5)
        if done.returncode not in ended or not found.exists():
            raise SystemExit(f"{' '.join(command)} gave {done.returncode}:\n{done.stdout[-4000:]}")
        outcomes: Outcomes = json.loads(found.read_text())
        return outcomes


def accepted() -> dict[str, str]:
    """Tests that need not pass, by name, each with its reason."""
    found = {}
    for line in (HERE / "accepted.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(": ")
            found[name] = reason
    return found


def worse(ours: Outcomes, torchs: Outcomes) -> list[str]:
    """Tests that pass with torch's executor and with ours neither pass nor are skipped."""
    missing = {"outcome": "failed", "why": "not among the tests that ran"}
    return sorted(
        name
        for name, entry in torchs.items()
        if entry["outcome"] == "passed" and ours.get(name, missing)["outcome"] == "failed"
    )


def counts(outcomes: Outcomes) -> str:
    found = Counter(entry["outcome"] for entry in outcomes.values())
    return " ".join(f"{n} {what}" for what, n in sorted(found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=FILES, help="names without test_")
    parser.add_argument("--every", type=int, default=1, help="run one test of so many")
    parser.add_argument("--samples", type=int, help="at most so many samples of each operator")
    options = parser.parse_args()
    more = ["--every", str(options.every)]
    more += [] if options.samples is None else ["--samples", str(options.samples)]
    known, left = accepted(), 0
    for name in options.files:
        ours = run("mdfuse", [name], more)
        torchs = run("torch", [name], more)
        print(f"test_{name}: mdfuse {counts(ours)}; torch {counts(torchs)}", flush=True)
        for test in worse(ours, torchs):
            if test in known:
                print(f"  accepted {test}: {known[test]}")
            else:
                left += 1
                why = ours.get(test, {}).get("why") or "not among the tests that ran"
                print(f"  FAILED {test}\n    {why.strip().splitlines()[-1]}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
