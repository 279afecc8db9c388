"""``import thunder_mdfuse`` costs next to nothing and needs no GPU, compiler or Thunder."""

import json
import subprocess
import sys

import pytest

from thunder_mdfuse import knobs

# What must not be loaded by the import alone: each takes from 0.1 to some seconds.
HEAVY = ("torch", "thunder", "cuda", "numpy", "triton", "rich", "mpi4py", "subprocess", "ctypes")


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``statement``, without site's own."""
    script = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=knobs.child_environment(PYTHONPATH=":".join(filter(None, sys.path))),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import thunder_mdfuse",
        "import thunder_mdfuse; dir(thunder_mdfuse); thunder_mdfuse.__version__",
        "import thunder_mdfuse.errors",
    ],
)
def test_the_import_is_light(statement: str) -> None:
    loaded = {name.split(".")[0] for name in modules_after(statement)}
    assert "thunder_mdfuse" in loaded
    assert not loaded & set(HEAVY)


def test_knobs_load_the_standard_library_only() -> None:
    loaded = {name.split(".")[0] for name in modules_after("import thunder_mdfuse.knobs")}
    assert not loaded - sys.stdlib_module_names - {"thunder_mdfuse"}


@pytest.mark.parametrize("name", ["ir", "sharding", "schedule", "codegen"])
def test_planning_and_text_need_no_torch(name: str) -> None:
    statement = (
        "import importlib, pkgutil\n"
        f"import thunder_mdfuse.{name} as p\n"
        "for m in pkgutil.iter_modules(p.__path__, p.__name__ + '.'):\n"
        "    importlib.import_module(m.name)"
    )
    loaded = {name.split(".")[0] for name in modules_after(statement)}
    assert not loaded & {"torch", "thunder", "cuda", "triton"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    modules_after(
        "import thunder_mdfuse\n"
        "try: thunder_mdfuse.no_such_name\n"
        "except AttributeError as e: assert 'no_such_name' in str(e)\n"
        "else: raise SystemExit('no error')"
    )


def test_public_names_are_listed() -> None:
    modules_after(
        "import thunder_mdfuse\n"
        "names = {'mdfuse_executor', 'explain', '__version__', 'FusionDefinition', 'DataType'}\n"
        "names |= {'ParallelType', 'FusionDefinitionWrapper', 'execute_with_dtensors'}\n"
        "names |= {'CUDAGraphTransform'}\n"
        "assert names == set(thunder_mdfuse.__all__) <= set(dir(thunder_mdfuse))"
    )


def test_help_shows_the_public_names() -> None:
    script = (
        "import pydoc, warnings; warnings.simplefilter('ignore'); import thunder_mdfuse as m\n"
        "print(pydoc.plain(pydoc.render_doc(m)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=knobs.child_environment(PYTHONPATH=":".join(filter(None, sys.path))),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for part in (
        "explain(jitted: Any)",
        "Raises ``ExecutorError``",
        "mdfuse_executor = thunder_mdfuse.thunder.executor.MdfuseExecutor",
    ):
        assert part in done.stdout, part
