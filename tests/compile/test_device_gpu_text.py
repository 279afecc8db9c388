"""Every function of csrc/device compiles by NVRTC for every supported generation of GPUs.

The kernels are those that the emulator's tests run, so that both compilers see the same text. One
type of each kind is enough here: the functions are templates or macros over the others.
"""

from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
import test_device_convert as convert
import test_device_integer as integer
import test_device_math as math
import test_device_philox as philox
import test_device_reduce as reduce
import test_device_scatter as scatter
import test_emulate_launch as launching
from kernels.emulated import INCLUDE, KERNELS, table_kernel

from thunder_mdfuse.compile.sources import csrc_root

pytest.importorskip("cuda.core", reason="NVRTC comes with cuda-core, which is not installed")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


def _calls(names: object, arguments: str) -> list[str]:
    assert isinstance(names, dict)
    return [f"mdf::{name}({arguments})" for name in names]


def _source() -> str:
    """All of mdf:: on one type each, without clusters."""
    f32, i32 = "f32", "i32"
    tables = [
        table_kernel("unary", 1, [*_calls(math.UNARY, "x"), "mdf::erfcinv(x)"], f32, f32),
        table_kernel("binary", 2, _calls(math.BINARY | math.BINARY_SAME, "x, y"), f32, f32),
        table_kernel("ternary", 3, [*_calls(math.TERNARY, "x, y, z")], f32, f32),
        table_kernel("integers", 2, _calls(integer.BINARY, "x, y"), i32, i32),
        table_kernel("integer", 1, _calls(integer.UNARY, "x"), i32, i32),
        table_kernel("bools", 2, [f"mdf::{op}(x, y)" for op in integer.BOOL], "bool", "bool"),
        math._complex("c64"),
    ]
    tables += [convert._cast_kernel(kind) for kind in ("f32", "c64")]
    tables += [convert._vector_kernel(kind) for kind in convert.SMALL]
    tables += [scatter._kernels(kind) for kind in scatter.DTYPES]
    tables += [reduce._group_kernel(f32, op, *reduce.GROUPS[3]) for op in reduce.OPS]
    bodies = [philox.SOURCE, reduce.PAIRS, launching.SOURCE]
    text = "".join(chain(tables, (body.removeprefix(INCLUDE) for body in bodies)))
    return INCLUDE + text + launching.MAILBOX


def _compile(source: str, architecture: str) -> bytes:
    core = import_module("cuda.core")
    options = core.ProgramOptions(
        std="c++17", arch=architecture, fma=False, include_path=[str(csrc_root() / "device")]
    )
    return bytes(core.Program(source, "c++", options).compile("cubin").code)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_function_compiles(architecture: str) -> None:
    assert len(_compile(_source(), architecture)) > 10_000


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_clusters_compile_from_sm_90_on(architecture: str) -> None:
    assert _compile(launching.CLUSTER, architecture)


def test_clusters_are_an_error_before_sm_90() -> None:
    with pytest.raises(Exception, match="cluster_barrier"):
        _compile(launching.CLUSTER, "sm_80")


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.cu")), ids=lambda path: path.stem)
def test_golden_kernels_compile(path: Path) -> None:
    assert _compile(path.read_text(), "sm_90")


def test_f64_math_compiles() -> None:
    calls = [*_calls(math.UNARY, "x"), "mdf::erfcinv(x)"]
    pairs = _calls(math.BINARY | math.BINARY_SAME, "x, y")
    tables = table_kernel("one", 1, calls, "f64", "f64") + table_kernel(
        "two", 2, pairs, "f64", "f64"
    )
    assert _compile(INCLUDE + tables, "sm_90")
