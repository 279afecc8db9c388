"""A sample of Thunder's own tests in the emulator: what passes with Thunder's torch executor passes
with this one. All of them are for ``python tests/thunder/upstream``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "every", "least"),
    [("ops", ["--every", "60", "--samples", "2"], 30), ("core", ["--every", "12"], 8)],
)
def test_a_sample_of_thunders_tests(name: str, every: list[str], least: int) -> None:
    for module in ("pytest_benchmark", "fdm", "multipledispatch", "expecttest", "einops"):
        pytest.importorskip(module, reason="needs the extra 'upstream'")
    command = [sys.executable, str(ROOT / "tests/thunder/upstream"), "--device", "cpu"]
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    found = subprocess.run(
        [*command, *every, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MDFUSE_BACKEND": "emulate"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
    )
    assert found.returncode == 0, found.stdout[-4000:]
    (counted,) = [line for line in found.stdout.splitlines() if line.startswith(f"test_{name}:")]
    words = counted.split()
    assert int(words[words.index("passed") - 1]) >= least, counted
