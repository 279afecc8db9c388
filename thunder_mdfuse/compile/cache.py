"""Compiled kernels, kept in memory and on disk under the hash of everything that made them.

In: source, entry, arch, and a function that compiles. Out: a ``Cubin``. Guarantees: what comes back
was compiled from exactly that text, with those headers, flags and compiler; equal requests compile
once in a process, threads included; a file that is torn, altered, foreign or older is a miss and is
rewritten; a disk that cannot be used costs one warning and nothing else.

Parked: no limit on the folder's size. Kernels are generic over shapes, so a model leaves some
hundred files of about 30 KB, and deleting the folder is always safe.
"""

import contextlib
import hashlib
import json
import os
import secrets
import stat
import struct
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from thunder_mdfuse import knobs
from thunder_mdfuse.compile.nvrtc import (
    FLAGS,
    Cubin,
    Job,
    compile_job,
    compile_many,
    compiler_version,
)

# Part of every key and of every file: raise it when either layout changes.
FORMAT = 1
_MAGIC = b"MDFUSECB"
_HEADER = struct.Struct("<8sI32s")  # magic, format, sha256 of all that follows
_LENGTH = struct.Struct("<Q")
_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class CacheInfo:
    """What a cache did since it was made or reset."""

    memory_hits: int = 0
    disk_hits: int = 0
    compiles: int = 0


def cache_key(
    source: str,
    entry: str,
    arch: str,
    headers: Mapping[str, str],
    flags: Sequence[str],
    compiler: str,
) -> str:
    """The sha256 of everything that decides the machine code, as hex."""
    digest = hashlib.sha256()
    included = [part for name in sorted(headers) for part in (name, headers[name])]
    for part in (str(FORMAT), compiler, arch, entry, *flags, source, *included):
        # Each length goes first: moving text from one part to the next changes the key.
        encoded = part.encode()
        digest.update(_LENGTH.pack(len(encoded)))
        digest.update(encoded)
    return digest.hexdigest()


class KernelCache:
    """Cubins by key. Thread safe. Without ``root``, the folder follows the knobs at each miss."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._memory: dict[str, Cubin] = {}
        self._pending: dict[str, Future[Cubin]] = {}
        self._store: DiskStore | None = None
        self._info = CacheInfo()

    def get_or_compile(
        self,
        source: str,
        entry: str,
        arch: str,
        compile_fn: Callable[[], Cubin],
        *,
        headers: Mapping[str, str],
        flags: Sequence[str],
        compiler: str,
    ) -> Cubin:
        """The cubin of that text; ``compile_fn`` is called when neither memory nor disk has it.

        Threads that ask for the same key wait for the first and get its cubin or its exception; a
        failure is not kept.
        """
        key = cache_key(source, entry, arch, headers, flags, compiler)
        with self._lock:
            found = self._memory.get(key)
            if found is not None:
                self._count(memory_hits=1)
                return found
            pending = self._pending.get(key)
            if pending is None:
                mine: Future[Cubin] = Future()
                self._pending[key] = mine
        if pending is not None:
            cubin = pending.result()
            with self._lock:
                self._count(memory_hits=1)
            return cubin
        return self._resolve(key, mine, compile_fn)

    def _resolve(self, key: str, mine: Future[Cubin], compile_fn: Callable[[], Cubin]) -> Cubin:
        """Load or compile, and let those who wait for ``mine`` know, whatever happens."""
        try:
            store = self._disk()
            cubin = store.load(key) if store else None
            from_disk = cubin is not None
            if cubin is None:
                cubin = compile_fn()
                if store:
                    store.save(key, cubin)
        except BaseException as e:
            with self._lock:
                del self._pending[key]
            mine.set_exception(e)
            raise
        with self._lock:
            self._memory[key] = cubin
            del self._pending[key]
            self._count(disk_hits=int(from_disk), compiles=int(not from_disk))
        mine.set_result(cubin)
        return cubin

    def _count(self, memory_hits: int = 0, disk_hits: int = 0, compiles: int = 0) -> None:
        now = self._info
        self._info = CacheInfo(
            now.memory_hits + memory_hits, now.disk_hits + disk_hits, now.compiles + compiles
        )

    def _disk(self) -> "DiskStore | None":
        if not knobs.flag("MDFUSE_DISK_CACHE"):
            return None
        root = self._root or knobs.cache_root() / "cubin"
        with self._lock:
            if self._store is None or self._store.root != root:
                self._store = DiskStore(root)
            return self._store

    def info(self) -> CacheInfo:
        """Counts of memory hits, disk hits and compilations."""
        with self._lock:
            return self._info

    def forget(self) -> None:
        """Drop the memory and the counts; the disk stays. What a new process would find."""
        with self._lock:
            self._memory.clear()
            self._store = None
            self._info = CacheInfo()


class DiskStore:
    """One folder of ``<key>.cubin`` files. What cannot be used is a miss and one warning."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._usable = self._prepare()

    def _prepare(self) -> bool:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.root.parent, self.root):
                problem = _untrusted(folder)
                if problem:
                    _warn_once(f"{folder} {problem}")
                    return False
            self._sweep()
        except OSError as e:
            _warn_once(str(e))
            return False
        return True

    def _sweep(self) -> None:
        """Remove what killed processes left behind; younger files may still be in the making."""
        for left in self.root.glob("*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                    left.unlink()

    def path(self, key: str) -> Path:
        """Where the cubin of ``key`` is kept."""
        return self.root / f"{key}.cubin"

    def load(self, key: str) -> Cubin | None:
        """The cubin of ``key``, or None when there is no file or the file is not wholly ours."""
        if not self._usable:
            return None
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            _warn_once(str(e))
            return None
        return decode(key, data)

    def save(self, key: str, cubin: Cubin) -> None:
        """Write the file whole or not at all: readers see the old file, the new one or none."""
        if not self._usable:
            return
        temporary = self.root / f"{key[:16]}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            # No fsync: what a power cut tears is found by the checksum.
            temporary.write_bytes(encode(key, cubin))
            os.replace(temporary, self.path(key))
        except OSError as e:
            with contextlib.suppress(OSError):
                temporary.unlink()
            _warn_once(str(e))


def encode(key: str, cubin: Cubin) -> bytes:
    """The file of ``cubin``: checksum, then what the code is, then the code."""
    about = {"key": key, "entry": cubin.entry, "arch": cubin.arch, "log": cubin.log}
    text = json.dumps({**about, "seconds": cubin.seconds}).encode()
    payload = _LENGTH.pack(len(text)) + text + cubin.code
    return _HEADER.pack(_MAGIC, FORMAT, hashlib.sha256(payload).digest()) + payload


def decode(key: str, data: bytes) -> Cubin | None:
    """The cubin in ``data``, or None unless it is whole, of this format and made for ``key``."""
    if len(data) < _HEADER.size + _LENGTH.size:
        return None
    magic, version, checksum = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if (magic, version) != (_MAGIC, FORMAT) or hashlib.sha256(payload).digest() != checksum:
        return None
    (size,) = _LENGTH.unpack_from(payload)
    text, code = payload[_LENGTH.size : _LENGTH.size + size], payload[_LENGTH.size + size :]
    about = json.loads(text)  # sound: the checksum says that encode() wrote it
    if about["key"] != key:
        return None
    return Cubin(code, about["entry"], about["arch"], about["log"], about["seconds"])


def _untrusted(folder: Path) -> str | None:
    """Why code must not be loaded from ``folder``, or None. Who can write there runs code as us."""
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):o}); chmod it to 700"
    return None


_warned = threading.Event()


def _warn_once(problem: str) -> None:
    if _warned.is_set():
        return
    _warned.set()
    warnings.warn(
        f"compiled kernels are not kept on disk: {problem}. Set XDG_CACHE_HOME to a folder that "
        "only you can write, or MDFUSE_DISK_CACHE=0 to be silent",
        stacklevel=2,
    )


_process_cache = KernelCache()


def kernel_cache() -> KernelCache:
    """The cache of this process."""
    return _process_cache


def cached_cubin(job: Job, store: KernelCache | None = None) -> Cubin:
    """The cubin of ``job`` out of the cache, compiled by NVRTC when it is in neither part of it."""
    return (store or _process_cache).get_or_compile(
        job.source,
        job.entry,
        job.arch,
        lambda: compile_job(job),
        headers=job.headers,
        flags=FLAGS,
        compiler=compiler_version(),
    )


def cached_cubins(jobs: Sequence[Job], store: KernelCache | None = None) -> list[Cubin]:
    """``cached_cubin`` of each job, in order; what must be compiled is compiled in parallel."""
    return compile_many(jobs, lambda job: cached_cubin(job, store))
