"""Notebooks as they are committed: with what they print, from top to bottom, for any Python 3.

They are executed for the checks that they make, with the extra ``notebooks``; ``--update-golden``
keeps what they print then, which is not compared otherwise.
"""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, pytestconfig: pytest.Config) -> None:
    text = executed(path)
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text, encoding="ascii")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_clean(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="ascii"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    assert cells[0]["cell_type"] == "markdown"
    lines = [line for cell in cells for line in cell["source"]]
    assert any(line.startswith("assert ") for line in lines), "an execution has to check something"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "execute it from top to bottom"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs and all(o["output_type"] != "error" for o in outputs)
    assert not any(o.get("name") == "stderr" for o in outputs), "a reader need not see warnings"
    text = json.dumps([o for o in outputs if "image/png" not in o.get("data", {})])
    for folder in (str(Path.home()), str(path.parent.parent)):
        assert folder not in text, "a path of the machine that it ran on"


def executed(path: Path) -> str:
    """A notebook with what its cells print. Raises what a cell raises."""
    nbclient, nbformat = map(pytest.importorskip, ("nbclient", "nbformat"))
    notebook: Any = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, record_timing=False, resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    # What the kernel says of itself differs by Python's version.
    notebook["metadata"]["language_info"] = {"name": "python"}
    lines = json.loads(nbformat.writes(notebook))  # as files have it: texts as lists of lines
    return json.dumps(lines, indent=1) + "\n"
