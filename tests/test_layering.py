"""The architecture, checked: who imports whom, who reads the environment, what files are called.

``faults`` takes a package as {path: source} and returns one line for each breach, so that every
rule is applied to the real package and tested on a small one that breaks it.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "thunder_mdfuse"

# DESIGN section 3. A module imports from lower numbers, and from its own number as SIBLINGS says.
LAYERS = {
    "errors": 0,
    "knobs": 0,
    "lru": 0,
    "ir": 1,
    "sharding": 2,
    "schedule": 3,
    "codegen": 4,
    "compile": 5,
    "comm": 5,
    "runtime": 6,
    "dump": 1,
    "pipeline": 7,
    "executable": 8,
    "reference": 7,
    "direct": 8,
    "definition": 8,
    "multidevice": 8,
    "repro": 8,
    "thunder": 9,
    "bench": 10,
    "demo": 10,
    "drawing": 10,
}
# Neighbours of one number that may see each other, one way only (cycles are found below). compile
# and comm may not: neither is above the other and each must work without it.
SIBLINGS = (
    {"errors", "knobs", "lru"},
    {"pipeline", "reference"},
    {"executable", "direct", "definition", "multidevice", "repro"},
    {"bench", "demo"},
)
STDLIB_ONLY = {"errors", "knobs", "lru", "ir"}
NO_DEVICE = {"sharding", "schedule", "codegen"}
DEVICE_PACKAGES = {"torch", "thunder", "cuda", "triton", "cupy"}
# What may be absent at run time, and so may be imported where it is used.
OPTIONAL = {"thunder", "triton", "nvfuser_direct", "liger_kernel", "quack", "matplotlib"}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "misc", "manager", "managers"}


@dataclass(frozen=True)
class Import:
    module: str  # as written, made absolute
    names: tuple[str, ...]  # of a from-import
    line: int
    local: bool  # inside a function


@dataclass(frozen=True)
class Module:
    path: str
    name: str  # "thunder_mdfuse.ir.ops"; a package's __init__ has the package's name
    tree: ast.Module

    @property
    def top(self) -> str:
        """The key of LAYERS: the folder or file below the package; "" for its __init__."""
        return self.name.split(".")[1] if "." in self.name else ""


def parse(files: Mapping[str, str]) -> list[Module]:
    out = []
    for path, text in sorted(files.items()):
        parts = [PACKAGE, *Path(path).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        out.append(Module(path, ".".join(parts), ast.parse(text, filename=path)))
    return out


def imports_of(module: Module) -> Iterator[Import]:
    """Every import statement and every call that imports, at whatever depth."""

    def walk(node: ast.AST, local: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for name, names in imported(module, child):
                yield Import(name, names, getattr(child, "lineno", 0), local)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from walk(child, local or inside)

    yield from walk(module.tree, local=False)


def imported(module: Module, node: ast.AST) -> list[tuple[str, tuple[str, ...]]]:
    """What the node itself imports, as (absolute module, names taken from it)."""
    if isinstance(node, ast.Import):
        return [(alias.name, ()) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module.name.split(".")
            up = node.level - (1 if module.path.endswith("__init__.py") else 0)
            base = ".".join([*package[: len(package) - up], *filter(None, [base])])
        return [(base, tuple(alias.name for alias in node.names))]
    if isinstance(node, ast.Call):
        called = node.func
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if name in ("import_module", "__import__"):
            known = node.args and isinstance(node.args[0], ast.Constant)
            return [(str(node.args[0].value) if known else "<computed>", ())]
    return []


def targets(found: Import, known: set[str]) -> list[str]:
    """The modules that an import loads: ``from p import m`` loads p.m when that is a module."""
    inner = [f"{found.module}.{name}" for name in found.names]
    inner = [name for name in inner if name in known]
    if found.names and len(inner) == len(found.names):
        return inner
    return [*inner, found.module]


def faults(files: Mapping[str, str]) -> list[str]:
    """One line for each breach of the architecture in the package of ``files``."""
    out = [fault for path in files for fault in name_faults(path)]
    out += [
        f"{path}:{number}: not ASCII: {line.strip()!r}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if not line.isascii()
    ]
    modules = parse(files)
    known = {module.name for module in modules}
    edges: dict[str, list[str]] = {}
    for module in modules:
        out += environment_faults(module)
        edges[module.name] = []
        for found in imports_of(module):
            for target in targets(found, known):
                out += [
                    f"{module.path}:{found.line}: {fault}"
                    for fault in import_faults(module, target, found.local, known)
                ]
                if target in known:
                    edges[module.name].append(target)
    return out + cycle_faults(edges)


def name_faults(path: str) -> Iterator[str]:
    for part in Path(path).with_suffix("").parts:
        vague = VAGUE_NAMES & set(part.lower().split("_"))
        if vague:
            yield f"{path}: a name that says nothing ({', '.join(vague)}): name what is in it"
    top = Path(path).with_suffix("").parts[0]
    if top not in LAYERS and top != "__init__":
        yield (
            f"{path}: {top!r} is in no layer: put the file into a folder that is, or add it to "
            f"LAYERS in tests/test_layering.py and to the layout in the design"
        )


def import_faults(module: Module, target: str, local: bool, known: set[str]) -> Iterator[str]:
    package, top = target.split(".")[0], module.top
    if target == "<computed>":
        if module.name != PACKAGE:  # its __init__ loads public names on first use
            yield "a module's name computed at run time hides an import; write the import"
        return
    if local and package not in OPTIONAL:
        yield f"{target} is imported inside a function; move it to the top of the file"
    if package == "thunder" and top != "thunder":
        yield f"Lightning's thunder is imported outside {PACKAGE}/thunder; go through that folder"
    if package == PACKAGE:
        yield from layer_faults(top, target, known)
    elif top in STDLIB_ONLY and package not in sys.stdlib_module_names:
        yield f"{top} uses the standard library only, but imports {package}"
    elif top in NO_DEVICE and package in DEVICE_PACKAGES:
        yield f"{top} is planned and printed without torch or a GPU, but imports {package}"


def layer_faults(top: str, target: str, known: set[str]) -> Iterator[str]:
    if target not in known:
        yield f"{target} does not exist in this package"
        return
    other = target.split(".")[1] if "." in target else ""
    if not top or not other or top == other:
        # The package's own __init__ is below everything and must stay empty of imports from it.
        if not top and other:
            yield f"the package's __init__ imports {target}; add it to its table of public names"
        return
    if top not in LAYERS or other not in LAYERS:
        return  # named by name_faults
    here, there = LAYERS[top], LAYERS[other]
    if there > here:
        yield f"{top} (layer {here}) imports {target} (layer {there}), which is above it"
    elif there == here and not any({top, other} <= group for group in SIBLINGS):
        yield f"{top} and {other} are neighbours in layer {here}; {top} may not import {target}"


def environment_faults(module: Module) -> Iterator[str]:
    if module.top == "knobs":
        return
    for node in ast.walk(module.tree):
        found: set[str] = set()
        if isinstance(node, ast.Attribute):
            found = {node.attr} & ENVIRONMENT
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found = {alias.name for alias in node.names} & ENVIRONMENT
        if found:
            yield (
                f"{module.path}:{node.lineno}: os.{found.pop()} is for knobs.py only; "
                "add a knob or a function there"
            )


def cycle_faults(edges: Mapping[str, list[str]]) -> list[str]:
    """Each import cycle once, as a path; found by a depth-first walk."""
    done: set[str] = set()
    out: dict[frozenset[str], str] = {}

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = path[path.index(name) :]
            out.setdefault(frozenset(cycle), "import cycle: " + " -> ".join([*cycle, name]))
            return
        if name in done:
            return
        for target in edges[name]:
            visit(target, [*path, name])
        done.add(name)

    for name in sorted(edges):
        visit(name, [])
    return list(out.values())


# --- The real package ----------------------------------------------------------------------------


def real_files() -> dict[str, str]:
    folder = ROOT / PACKAGE
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.py")
    }


def test_the_package_keeps_its_architecture() -> None:
    found = faults(real_files())
    assert not found, "\n" + "\n".join(found)


def test_device_sources_are_ascii() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()!r}"
        for suffix in ("*.cuh", "*.h", "*.cpp", "*.cu")
        for path in (ROOT / "csrc").rglob(suffix)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if not line.isascii()
    ]
    assert not found, "\n".join(found)


# --- Each rule on a package that breaks it -------------------------------------------------------

BASE = {
    "__init__.py": "",
    "errors.py": "",
    "knobs.py": "import os\nfrom thunder_mdfuse.errors import E\nos.environ\n",
    "ir/__init__.py": "",
    "ir/ops.py": "import math\n",
    "ir/graph.py": "from thunder_mdfuse.ir.ops import add\n",
    "compile/__init__.py": "",
    "compile/nvrtc.py": "import torch\nfrom thunder_mdfuse.ir import graph\n",
    "comm/__init__.py": "",
    "comm/mesh.py": "",
    "pipeline.py": "",
    "reference.py": "from thunder_mdfuse.pipeline import run\n",
    "thunder/__init__.py": "",
    "thunder/executor.py": "import thunder\nfrom thunder_mdfuse import pipeline\n",
}


def test_a_package_that_keeps_the_rules_has_no_faults() -> None:
    assert faults(BASE) == []


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("ir/ops.py", "from thunder_mdfuse.compile import nvrtc", "which is above it"),
        ("ir/ops.py", "import thunder_mdfuse.pipeline", "which is above it"),
        ("ir/ops.py", "from ..compile.nvrtc import x", "which is above it"),
        ("ir/__init__.py", "from ..compile.nvrtc import x", "which is above it"),
        (
            "ir/ops.py",
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from thunder_mdfuse.pipeline import x",
            "ops.py:3: ir (layer 1) imports thunder_mdfuse.pipeline (layer 7)",
        ),
        (
            "ir/ops.py",
            "class A:\n    try:\n        import thunder_mdfuse.pipeline\n    except E: pass",
            "above it",
        ),
        ("comm/mesh.py", "from thunder_mdfuse.compile import nvrtc", "neighbours in layer 5"),
        (
            "ir/ops.py",
            "from thunder_mdfuse.ir.graph import g",
            "cycle: thunder_mdfuse.ir.graph -> thunder_mdfuse.ir.ops -> thunder_mdfuse.ir.graph",
        ),
        ("ir/ops.py", "from thunder_mdfuse.ir import ops", "cycle: thunder_mdfuse.ir.ops ->"),
        ("pipeline.py", "import thunder_mdfuse.reference", "import cycle"),
        ("pipeline.py", "def f():\n    import json", "json is imported inside a function"),
        ("pipeline.py", "def f():\n    from os import path", "inside a function"),
        ("pipeline.py", "f = lambda: __import__('json')", "json is imported inside a function"),
        (
            "pipeline.py",
            "import importlib\nclass A:\n    async def f(self):\n"
            "        return importlib.import_module('json')",
            "inside a function",
        ),
        ("pipeline.py", "from importlib import import_module\nx = import_module(n)", "computed"),
        ("pipeline.py", "import thunder", "outside thunder_mdfuse/thunder"),
        ("pipeline.py", "from thunder.core import prims", "outside thunder_mdfuse/thunder"),
        ("pipeline.py", "def f():\n    import thunder", "outside thunder_mdfuse/thunder"),
        ("ir/ops.py", "import numpy as np", "standard library only, but imports numpy"),
        ("ir/ops.py", "import math, torch", "standard library only, but imports torch"),
        ("knobs.py", "import torch", "standard library only"),
        ("sharding/rules.py", "import torch.nn", "but imports torch"),
        ("schedule/plan.py", "from torch import Tensor", "but imports torch"),
        ("codegen/cuda.py", "from cuda.core import launch", "but imports cuda"),
        ("pipeline.py", "import os\nx = os.environ['A']", "pipeline.py:2: os.environ is for knobs"),
        ("pipeline.py", "import os as o\nx = o.getenv('A')", "os.getenv is for knobs.py"),
        ("pipeline.py", "from os import environ as e", "os.environ is for knobs.py"),
        ("pipeline.py", "from thunder_mdfuse.missing import x", "missing does not exist"),
        ("__init__.py", "from thunder_mdfuse.pipeline import x", "table of public names"),
        ("ir/utils.py", "", "ir/utils.py: a name that says nothing (utils)"),
        ("ir/graph_helpers.py", "", "says nothing (helpers)"),
        ("misc/x.py", "", "says nothing (misc)"),
        ("memory_manager.py", "", "says nothing (manager)"),
        ("planner.py", "", "'planner' is in no layer"),
        ("backend/x.py", "", "add it to LAYERS in tests/test_layering.py"),
        ("ir/ops.py", "# a \N{RIGHTWARDS ARROW} b", "ir/ops.py:1: not ASCII"),
    ],
)
def test_a_breach_is_named(path: str, text: str, fault: str) -> None:
    found = faults({**BASE, path: text})
    assert any(fault in line for line in found), found
    assert any(path in line or "cycle" in line for line in found), found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("thunder/executor.py", "def f():\n    import thunder"),
        ("bench/peers.py", "def f():\n    import triton"),
        ("compile/nvrtc.py", "try:\n    from cuda.bindings import nvrtc\nexcept ImportError: pass"),
        ("pipeline.py", "from thunder_mdfuse.ir.ops import utils"),
        ("pipeline.py", "utilization = manager = 1"),
        ("pipeline.py", "from thunder_mdfuse import __version__"),
    ],
)
def test_what_is_allowed_is_not_a_breach(path: str, text: str) -> None:
    extra = {"bench/__init__.py": ""} if path.startswith("bench") else {}
    assert faults({**BASE, **extra, path: text}) == []


def test_a_long_cycle_is_one_line() -> None:
    edges = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}
    assert cycle_faults(edges) == ["import cycle: a -> b -> c -> a"]
