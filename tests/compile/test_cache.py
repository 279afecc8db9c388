"""The kernel cache: what makes a key, what a bad file or a bad disk does, threads, processes."""

import dataclasses
import hashlib
import multiprocessing
import os
import stat
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from thunder_mdfuse.compile import cache as cache_module
from thunder_mdfuse.compile.cache import (
    CacheInfo,
    DiskStore,
    KernelCache,
    cache_key,
    cached_cubin,
    cached_cubins,
    decode,
    encode,
    kernel_cache,
)
from thunder_mdfuse.compile.nvrtc import Cubin, Job
from thunder_mdfuse.errors import CompileError, MdfuseError

CUBIN = Cubin(bytes(range(256)) * 20, "k", "sm_90", "ptxas info: 10 registers\n", 0.03)
ASKED: dict[str, Any] = {"headers": {}, "flags": ("-a",), "compiler": "c 1"}
KERNEL = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1; }'


@pytest.fixture(autouse=True)
def no_earlier_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own as far as the one warning is concerned."""
    monkeypatch.setattr(cache_module, "_warned", threading.Event())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "thunder_mdfuse" / "cubin"


class Compiler:
    """A compile function that counts its calls."""

    def __init__(self, cubin: Cubin = CUBIN) -> None:
        self.cubin = cubin
        self.calls = 0

    def __call__(self) -> Cubin:
        self.calls += 1
        return self.cubin


def get(cache: KernelCache, compiler: Compiler, source: str = "s", **changes: Any) -> Cubin:
    return cache.get_or_compile(source, "k", "sm_90", compiler, **{**ASKED, **changes})


def only_file(root: Path) -> Path:
    (path,) = root.iterdir()
    return path


def test_memory_then_disk_then_compiler(root: Path) -> None:
    compiler = Compiler()
    cache = KernelCache(root)
    assert get(cache, compiler) == get(cache, compiler) == CUBIN
    assert cache.info() == CacheInfo(memory_hits=1, disk_hits=0, compiles=1)
    later = KernelCache(root)
    assert get(later, compiler) == CUBIN
    assert later.info() == CacheInfo(memory_hits=0, disk_hits=1, compiles=0)
    cache.forget()
    assert get(cache, compiler) == CUBIN
    assert cache.info() == CacheInfo(disk_hits=1)
    assert compiler.calls == 1


KEY = {
    "source": "s",
    "entry": "k",
    "arch": "sm_90",
    "headers": {"a.cuh": "1", "b.cuh": "2"},
    "flags": ("--x", "--y"),
    "compiler": "NVRTC 13.0",
}


@pytest.mark.parametrize(
    "change",
    [
        {"source": "s "},
        {"entry": "k2"},
        {"arch": "sm_90a"},
        {"headers": {"a.cuh": "1", "b.cuh": "3"}},
        {"headers": {"a.cuh": "1", "c.cuh": "2"}},
        {"headers": {"a.cuh": "1b.cuh2"}},
        {"flags": ("--x",)},
        {"flags": ("--x--y",)},
        {"flags": ("--y", "--x")},
        {"compiler": "NVRTC 13.1"},
        {"source": "sa.cuh", "headers": {"": "1", "b.cuh": "2"}},
    ],
    ids=str,
)
def test_everything_that_decides_the_code_is_in_the_key(change: dict[str, Any]) -> None:
    assert cache_key(**KEY) != cache_key(**{**KEY, **change})


def test_the_order_of_headers_is_not_in_the_key_but_the_format_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turned = {**KEY, "headers": {"b.cuh": "2", "a.cuh": "1"}}
    before = cache_key(**KEY)
    assert before == cache_key(**turned)
    monkeypatch.setattr(cache_module, "FORMAT", cache_module.FORMAT + 1)
    assert cache_key(**KEY) != before


def test_a_file_round_trips_every_field() -> None:
    assert decode("key", encode("key", CUBIN)) == CUBIN
    empty = dataclasses.replace(CUBIN, code=b"", log="")
    assert decode("key", encode("key", empty)) == empty


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[:-7] + bytes([data[-7] ^ 1]) + data[-6:]


def foreign(data: bytes) -> bytes:
    return b"\x7fELF" + data


def longer(data: bytes) -> bytes:
    return data + b"\0"


def older_format(data: bytes) -> bytes:
    return data[:8] + b"\0\0\0\0" + data[12:]


def checksum_of_another(data: bytes) -> bytes:
    return data[:12] + hashlib.sha256(b"another").digest() + data[44:]


def made_for_another_key(data: bytes) -> bytes:
    return encode("0" * 64, Cubin(b"evil", "k", "sm_90", "", 0.0))


def empty(data: bytes) -> bytes:
    return b""


DAMAGE = [
    torn,
    flipped,
    foreign,
    longer,
    older_format,
    checksum_of_another,
    made_for_another_key,
    empty,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_bad_file_is_a_miss_and_is_rewritten(damage: Any, root: Path) -> None:
    compiler = Compiler()
    get(KernelCache(root), compiler)
    path = only_file(root)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    cache = KernelCache(root)
    assert get(cache, compiler) == CUBIN
    assert cache.info() == CacheInfo(compiles=1)
    assert only_file(root).read_bytes() == good
    last = KernelCache(root)
    assert get(last, compiler) == CUBIN
    assert last.info() == CacheInfo(disk_hits=1)


@pytest.mark.parametrize("length", range(0, 200, 7))
def test_no_truncation_is_accepted_or_raises(length: int) -> None:
    assert decode("key", encode("key", CUBIN)[:length]) is None


def test_a_folder_where_the_file_should_be_is_a_miss(root: Path) -> None:
    key = cache_key("s", "k", "sm_90", **ASKED)
    DiskStore(root).path(key).mkdir(parents=True)
    cache = KernelCache(root)
    with pytest.warns(UserWarning, match="not kept on disk"):
        assert get(cache, Compiler()) == CUBIN
    assert cache.info() == CacheInfo(compiles=1)


def test_folders_are_private_and_no_temporary_stays(root: Path) -> None:
    get(KernelCache(root), Compiler())
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert only_file(root).suffix == ".cubin"


def test_what_a_killed_process_left_is_swept_but_not_what_is_being_written(root: Path) -> None:
    root.mkdir(parents=True)
    old, new = root / "dead.tmp", root / "live.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    DiskStore(root)
    assert not old.exists()
    assert new.exists()


def test_a_folder_of_another_user_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    get(KernelCache(root), compiler)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    cache = KernelCache(root)
    with pytest.warns(UserWarning, match=f"belongs to user {owner}, not to user {owner + 1}"):
        assert get(cache, compiler) == CUBIN
    assert cache.info() == CacheInfo(compiles=1)


@pytest.mark.parametrize("which", ["the folder", "its parent"])
def test_a_folder_that_others_can_write_is_not_used(root: Path, which: str) -> None:
    get(KernelCache(root), Compiler())
    (root if which == "the folder" else root.parent).chmod(0o777)
    cache = KernelCache(root)
    with pytest.warns(UserWarning, match="can be written by others"):
        assert get(cache, Compiler()) == CUBIN
    assert cache.info() == CacheInfo(compiles=1)


def test_a_file_in_the_folders_place_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "thunder_mdfuse").write_text("not a folder")
    cache = KernelCache(tmp_path / "thunder_mdfuse" / "cubin")
    compiler = Compiler()
    with pytest.warns(UserWarning, match="not kept on disk") as caught:
        for source in ("a", "b", "c"):
            assert get(cache, compiler, source) == CUBIN
    assert len(caught) == 1
    assert cache.info() == CacheInfo(compiles=3)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("write_bytes", OSError(28, "No space left on device")),
        ("replace", OSError(30, "Read-only file system")),
    ],
)
def test_a_disk_that_cannot_be_written_is_one_warning(
    name: str, error: OSError, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path if name == "write_bytes" else os, name, fail)
    compiler = Compiler()
    cache = KernelCache(root)
    with pytest.warns(UserWarning, match=error.strerror) as caught:
        for source in ("a", "b", "a"):
            assert get(cache, compiler, source) == CUBIN
    assert len(caught) == 1
    assert cache.info() == CacheInfo(memory_hits=1, compiles=2)
    assert list(root.iterdir()) == []  # the half-written file is gone


def test_a_folder_that_goes_away_is_one_warning(root: Path) -> None:
    cache = KernelCache(root)
    get(cache, Compiler(), "a")
    only_file(root).unlink()
    root.rmdir()
    with pytest.warns(UserWarning, match="not kept on disk"):
        assert get(cache, Compiler(), "b") == CUBIN


def test_the_knob_turns_the_disk_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_DISK_CACHE", "0")
    compiler = Compiler()
    cache = KernelCache(root)
    get(cache, compiler)
    get(cache, compiler)
    assert cache.info() == CacheInfo(memory_hits=1, compiles=1)
    assert not root.exists()
    monkeypatch.setenv("MDFUSE_DISK_CACHE", "perhaps")
    with pytest.raises(MdfuseError, match="MDFUSE_DISK_CACHE"):
        get(cache, compiler, "other")


def test_the_default_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache()
    for name in ("first", "second"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        get(cache, Compiler(), name)
        assert only_file(tmp_path / name / "thunder_mdfuse" / "cubin").suffix == ".cubin"


def test_threads_that_ask_for_one_key_compile_once(root: Path) -> None:
    compiler = Compiler()
    inside = threading.Event()

    def slow() -> Cubin:
        inside.set()
        time.sleep(0.2)
        return compiler()

    cache = KernelCache(root)
    found: list[Cubin] = []

    def ask() -> None:
        found.append(cache.get_or_compile("s", "k", "sm_90", slow, **ASKED))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    threads[0].start()
    assert inside.wait(10)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiler.calls == 1
    assert all(cubin is CUBIN for cubin in found) and len(found) == 8
    assert cache.info() == CacheInfo(memory_hits=7, compiles=1)


def test_a_failure_reaches_every_waiting_thread_and_is_not_kept(root: Path) -> None:
    cache = KernelCache(root)
    inside, go_on = threading.Event(), threading.Event()
    caught: list[BaseException] = []

    def failing() -> Cubin:
        inside.set()
        assert go_on.wait(10)
        raise CompileError("refused")

    def ask() -> None:
        try:
            cache.get_or_compile("s", "k", "sm_90", failing, **ASKED)
        except CompileError as e:
            caught.append(e)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads[0].start()
    assert inside.wait(10)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.1)
    go_on.set()
    for thread in threads:
        thread.join()
    assert [str(e) for e in caught] == ["refused"] * 3
    assert get(cache, Compiler()) == CUBIN


def _write_often(root: Path, seed: int) -> None:
    warnings.simplefilter("error")
    for turn in range(40):
        cache = KernelCache(root)
        size = 10_000 + 1000 * ((seed + turn) % 5)
        found = get(cache, Compiler(Cubin(bytes([7]) * size, "k", "sm_90", "", 0.0)))
        assert set(found.code) == {7}
        if turn % 3 == 0:
            for path in root.glob("*.cubin"):
                path.unlink(missing_ok=True)


def test_processes_that_write_one_file_never_tear_it(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_often, args=(root, seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert not list(root.glob("*.tmp"))


def test_nvrtc_through_the_cache(root: Path) -> None:
    cache = KernelCache(root)
    job = Job(KERNEL, "k", "sm_90")
    first = cached_cubin(job, cache)
    assert cached_cubin(job, cache) is first
    assert first.code.startswith(b"\x7fELF")
    assert cached_cubin(job, KernelCache(root)) == first
    other = cached_cubin(dataclasses.replace(job, headers={"unused.cuh": ""}), cache)
    assert other.code == first.code
    assert cache.info() == CacheInfo(memory_hits=1, compiles=2)


def test_many_through_the_cache_compile_each_text_once(root: Path) -> None:
    jobs = [Job(KERNEL.replace("= 1", f"= {n % 2}"), "k", "sm_90") for n in range(6)]
    cache = KernelCache(root)
    cubins = cached_cubins(jobs, cache)
    assert [c.code for c in cubins[:2]] * 3 == [c.code for c in cubins]
    assert cache.info() == CacheInfo(memory_hits=4, compiles=2)


def test_the_process_has_one_cache() -> None:
    assert kernel_cache() is kernel_cache()
    before = kernel_cache().info()
    cached_cubin(Job(KERNEL + "// of the process", "k", "sm_90"))
    after = kernel_cache().info()
    assert (after.compiles + after.disk_hits) - (before.compiles + before.disk_hits) == 1
