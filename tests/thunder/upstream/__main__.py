"""Thunder's own tests with our executor, beside the same tests with Thunder's torch executor.

``python tests/thunder/upstream [--every N] [--samples N] [--device cpu|cuda] [FILE ...]``

Each file of ``FILES`` (or each named, without ``test_``) runs with our executor; what does not
pass, and what is not there, runs with Thunder's torch executor. What passes with torch and not with
ours is printed, except for what ``accepted.txt`` lists with its reason. The exit code is 1 if
anything is left. The tests come with the wheel of lightning-thunder and need the extra
``upstream``.
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


def run(
    executor: str, name: str, more: list[str], keep: Path | None, named: list[str] | None = None
) -> Outcomes:
    """The outcomes of the file ``name`` (without ``test_``) with one executor, by test.

    They are written to ``keep`` while the tests run. With ``named`` only these tests run; of the
    others it says that they are there.
    """
    folder = upstream_tests()
    with tempfile.TemporaryDirectory() as scratch:
        found = (keep or Path(scratch)) / f"{name}.{executor}.json"
        found.unlink(missing_ok=True)
        chosen = Path(scratch) / "named.json"
        # Neither our pytest settings nor our conftest hold for Thunder's tests.
        command = [sys.executable, "-m", "pytest", "-p", "inject", "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", str(folder), "-q", "--tb=short", "-Wignore"]
        command += ["--executor", executor, "--outcomes", str(found), *more]
        if named is not None:
            chosen.write_text(json.dumps(named))
            command += ["--named", str(chosen)]
        command += [str(folder / f"test_{name}.py")]
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        # 0: all passed; 1: some failed; 5: a choice may leave none. Anything else ran not all of
        # the tests.
        if done.returncode not in (0, 1, 5) or not found.exists():
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
    """Tests that pass with torch's executor and not with ours, or that ours has not."""
    return sorted(
        name
        for name, entry in torchs.items()
        if entry["outcome"] == "passed" or (entry["outcome"] == "there" and name not in ours)
    )


def counts(outcomes: Outcomes) -> str:
    found = Counter(entry["outcome"] for entry in outcomes.values())
    return " ".join(f"{n} {what}" for what, n in sorted(found.items()) if what != "there") or "0"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=FILES, help="names without test_")
    parser.add_argument("--every", type=int, default=1, help="run one test of so many")
    parser.add_argument("--samples", type=int, help="at most so many samples of each operator")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="leave out the other's tests")
    parser.add_argument("--processes", type=int, default=0, help="processes for our executor")
    parser.add_argument("--keep", type=Path, help="a folder for the outcomes, as JSON")
    parser.add_argument("-k", dest="expression", help="as pytest's")
    options = parser.parse_args()
    more = ["--every", str(options.every)]
    more += [] if options.samples is None else ["--samples", str(options.samples)]
    more += [] if options.device is None else ["--device", options.device]
    more += [] if options.expression is None else ["-k", options.expression]
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    processes = ["-n", str(options.processes)] if options.processes else []
    known, left = accepted(), 0
    for name in options.files:
        ours = run("mdfuse", name, [*more, *processes], options.keep)
        again = [test for test, entry in ours.items() if entry["outcome"] != "passed"]
        torchs = run("torch", name, more, options.keep, again)
        print(
            f"test_{name}: mdfuse {counts(ours)}; the rest with torch: {counts(torchs)}", flush=True
        )
        for test in worse(ours, torchs):
            if test in known:
                print(f"  accepted {test}: {known[test]}")
            else:
                left += 1
                why = ours.get(test, {}).get("why") or "is not there"
                print(f"  FAILED {test}\n    {why.strip().splitlines()[-1]}", flush=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
