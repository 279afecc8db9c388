"""The emulator's kernel cache: hits, misses, torn and foreign files, folders without writes."""

import os
import re
import subprocess
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from kernels.emulated import INCLUDE, launch

from thunder_mdfuse.compile import emulate_build, sources
from thunder_mdfuse.compile.emulate import build
from thunder_mdfuse.errors import CompileError


def _source(tag: str) -> str:
    return INCLUDE + f'// {tag}\nextern "C" __global__ void one(MDF_OUT(float) out) {{}}\n'


def _use_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is taken from the cache of the test run, wherever a test moves the cache."""
    runtime = emulate_build._runtime()
    monkeypatch.setattr(emulate_build, "_runtime", lambda: runtime)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which tests compile kernels only."""
    _use_runtime(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(emulate_build, "_private", [])
    return tmp_path / "thunder_mdfuse" / "emulator"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The calls of the compiler since the test began, for kernels only."""
    _use_runtime(monkeypatch)
    calls: list[list[str]] = []
    run = emulate_build._run

    def counted(arguments: list[str]) -> str | None:
        calls.append(arguments)
        return run(arguments)

    monkeypatch.setattr(emulate_build, "_run", counted)
    return calls


def test_a_source_is_compiled_once(cache: Path, compiled: list[list[str]]) -> None:
    first = emulate_build.shared_object(_source("once"))
    assert emulate_build.shared_object(_source("once")) == first
    assert len(compiled) == 1
    assert first.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    emulate_build.shared_object(_source("another"))
    assert len(compiled) == 2


def test_torn_and_foreign_files_are_misses(cache: Path, compiled: list[list[str]]) -> None:
    source = _source("torn")
    path = emulate_build.shared_object(source)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    emulate_build.shared_object(source)
    assert len(compiled) == 2
    assert len(path.read_bytes()) == len(whole)
    path.chmod(0o666)
    emulate_build.shared_object(source)
    assert len(compiled) == 3
    path.unlink()
    path.symlink_to("/dev/null")
    emulate_build.shared_object(source)
    assert len(compiled) == 4
    assert not path.is_symlink()


def test_a_folder_that_others_may_write_to_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.warns(UserWarning, match="it does not belong to this user alone"):
        path = emulate_build.shared_object(_source("shared folder"))
    assert path.parent != cache
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        emulate_build.shared_object(_source("shared folder, again"))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_runtime(monkeypatch)
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(emulate_build, "_private", [])
    with pytest.warns(UserWarning, match="cannot be used"):
        path = emulate_build.shared_object(_source("read only"))
    assert path.exists()
    assert emulate_build.shared_object(_source("read only")) == path


def test_without_a_disk_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_DISK_CACHE", "0")
    path = emulate_build.shared_object(_source("memory only"))
    assert path.parent != cache
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_build_gives_kernels_of_one_source_one_object(compiled: list[list[str]]) -> None:
    two = 'extern "C" __global__ void __launch_bounds__(32, 2)\ntwo(float x) {}\n'
    source = _source("two") + two
    assert emulate_build.kernel_names(source) == ["one", "two"]
    assert build(source, "one").signature == "P"
    assert build(source, "two").signature == "f"
    assert len(compiled) == 1


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    emulate_build.compiler.cache_clear()
    with pytest.raises(CompileError, match=r"needs g\+\+ .* MDFUSE_BACKEND=reference"):
        emulate_build.compiler()
    monkeypatch.undo()
    emulate_build.compiler.cache_clear()


def test_runtime_compiles_without_warnings_with_both_switches() -> None:
    path, _ = emulate_build.compiler()
    source = sources.csrc_root() / "emulator" / "runtime.cpp"
    for extra in ([], ["-DMDF_EMU_UCONTEXT=1"]):
        flags = [*emulate_build._RUNTIME, "-Wall", "-Wextra", "-Werror", *extra, "-fsyntax-only"]
        done = subprocess.run(
            [path, *flags, str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_portable_switch_works(monkeypatch: pytest.MonkeyPatch) -> None:
    portable = (*emulate_build._RUNTIME, "-DMDF_EMU_UCONTEXT=1")
    monkeypatch.setattr(emulate_build, "_RUNTIME", portable)
    source = INCLUDE + (
        'extern "C" __global__ void sum(MDF_OUT(float) out) {\n  MDF_SHARED(float, s, 2);\n'
        "  const float v = mdf::block_reduce<mdf::Sum, 64>(float(threadIdx.x), s);\n"
        "  if (threadIdx.x == 63) mdf::store1(out, 0, v);\n}\n"
    )
    out = np.zeros(1, np.float32)
    launch(source, "sum", outputs=[out], block=64)
    assert out[0] == 63 * 32


def test_sources_are_found_and_complete() -> None:
    headers = sources.device_headers()
    assert "mdfuse.cuh" in headers
    included = {
        line.split('"')[1]
        for text in headers.values()
        for line in text.splitlines()
        if line.startswith("#include")
    }
    assert included - set(headers) == {"platform.hpp"}
    assert {"runtime.cpp", "platform.hpp"} <= set(sources.emulator_sources())


def test_a_wheel_without_its_sources_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_PACKAGE", tmp_path / "thunder_mdfuse")
    sources.csrc_root.cache_clear()
    with pytest.raises(CompileError, match="Reinstall thunder_mdfuse"):
        sources.csrc_root()
    folder = tmp_path / "thunder_mdfuse" / "_csrc" / "device"
    folder.mkdir(parents=True)
    (folder / "mdfuse.cuh").write_text("")
    assert sources.csrc_root() == folder.parent
    sources.csrc_root.cache_clear()


def test_ptx_stands_where_it_has_a_twin() -> None:
    for name, text in sources.device_headers().items():
        has_ptx = re.search(r"\basm\b", text) is not None
        assert has_ptx == (name in ("platform.cuh", "loose.cuh", "convert.cuh")), name


def test_files_are_private(cache: Path) -> None:
    build(_source("private"), "one")
    assert len(list(cache.iterdir())) >= 2
    for path in cache.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert cache.stat().st_uid == os.getuid()


def test_who_comes_to_a_source_together_compiles_it_once(
    cache: Path, compiled: list[list[str]]
) -> None:
    """As ranks do; an open file is locked against others of one process, too."""
    emulate_build.shared_object(_source("makes the folder"))
    compiled.clear()
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: emulate_build.shared_object(_source("together")), range(4)))
    assert len(compiled) == len(found) == 1
