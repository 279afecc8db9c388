"""g++ for the emulator: generated CUDA text in, a shared object out, kept on disk by content.

The runtime is compiled once and linked into every kernel; the device headers are compiled ahead.
A small kernel takes 0.07 s with g++ 12 at -O0 and at -O1; to parse the headers each time would take
0.04 s more, and to read the C++ library's symbols 0.13 s. Guarantee: an object is loaded only if it
is ours, whole, and built from exactly this source, these headers, these flags and this compiler;
anything else on disk is a miss.
"""

import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from thunder_mdfuse import knobs
from thunder_mdfuse.compile.sources import csrc_root, device_headers, emulator_sources
from thunder_mdfuse.errors import CompileError

_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-ffp-contract=off")
# trace-pc: every basic block counts as a step, so that a loop without end is found. The others make
# C++ as forgiving as CUDA: arithmetic wraps and no libm call has to set errno.
_KERNEL = (
    *_COMMON,
    "-O1",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fsanitize-coverage=trace-pc",
    "-Wno-unknown-pragmas",
    "-DMDF_EMULATOR=1",
)
_HEADERS = "mdfuse.cuh"
_RUNTIME = (*_COMMON, "-O2")
# An empty library that goes by the C++ library's name, so that the linker has no symbols to read
# and the loader, which looks for that name, finds the real one and with it libc and libgcc_s.
_STAND_IN = ("-shared", "-nostdlib", "-Wl,-soname,libstdc++.so.6", "-x", "c++", "/dev/null")
# As far as a linker can see nothing of the stand-in is needed. Functions of libm have versions, so
# that one is read.
_LINK = ("-shared", "-nodefaultlibs", "-Wl,--no-as-needed")
_LIBRARIES = ("-lm", "-lgcc")
_TIMEOUT = 300
# Attributes such as __launch_bounds__(256) may stand before the name.
_KERNEL_NAME = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__\w+__\s*\([^)]*\)\s*)*(\w+)\s*\('
)

# The runtime is built by one thread while others wait; kernels may be built side by side.
_runtime_lock = threading.Lock()
_private: list[Path] = []


@cache
def compiler() -> tuple[str, str]:
    """Path and version text of the C++ compiler."""
    path = shutil.which("g++")
    if path is None:
        raise CompileError(
            "the emulator needs g++ (9 or later) and none is on the PATH: install it, or set "
            "MDFUSE_BACKEND=reference"
        )
    found = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return path, found.stdout.splitlines()[0] if found.stdout else "unknown"


def kernel_names(source: str) -> list[str]:
    """The kernels that ``source`` defines, in order."""
    return _KERNEL_NAME.findall(source)


def shared_object(source: str) -> Path:
    """The shared object of all kernels in ``source``, from disk or compiled now."""
    entries = "".join(f"MDF_EMULATOR_ENTRY({name})\n" for name in kernel_names(source))
    translated = f'#line 1 "kernel.cu"\n{source}\n#include "entry.hpp"\n{entries}'
    key = _key(translated, *_KERNEL, *_LINK, *_LIBRARIES)
    found = _find(f"{key}.so")
    if found is not None:
        return found
    with _runtime_lock:
        headers, *parts = map(str, _runtime())
    with _turn(key), tempfile.TemporaryDirectory(prefix="mdfuse-") as work:
        found = _find(f"{key}.so")
        if found is not None:
            return found
        text = Path(work) / "kernel.cpp"
        text.write_text(translated, encoding="ascii")
        built = Path(work) / "kernel.so"
        # g++ takes the compiled one where it finds both and nothing stands before the include.
        (Path(work) / f"{_HEADERS}.gch").symlink_to(headers)
        flags = [*_KERNEL, *_LINK, f"-I{work}", *_includes()]
        log = _run([*flags, str(text), *parts, *_LIBRARIES, "-o", str(built)])
        if log is not None:
            raise CompileError(_report(source, log))
        return _keep(built, f"{key}.so")


def _runtime() -> tuple[Path, Path, Path]:
    """What every kernel is built with: the device headers, compiled; the emulator's runtime; and
    the C++ library's stand-in.
    """
    device, emulator = (csrc_root() / name for name in ("device", "emulator"))
    ahead = ["-w", "-x", "c++-header", str(device / _HEADERS)]
    return (
        _part("headers", ".gch", _KERNEL, [*_includes(), *ahead]),
        _part("runtime", ".o", _RUNTIME, [*_includes(), "-c", str(emulator / "runtime.cpp")]),
        _part("stand-in", ".so", _STAND_IN, []),
    )


def _part(name: str, suffix: str, flags: tuple[str, ...], others: list[str]) -> Path:
    """From disk or built now; ``others``: arguments that do not change what is built."""
    kept = f"{name}-{_key(*flags)}{suffix}"
    found = _find(kept)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="mdfuse-") as work:
        built = Path(work) / kept
        log = _run([*flags, *others, "-o", str(built)])
        if log is not None:
            version = compiler()[1]
            raise CompileError(f"the emulator's {name} cannot be built with {version}:\n{log}")
        return _keep(built, kept)


@contextmanager
def _turn(key: str) -> Iterator[None]:
    """Ranks come to the same source at the same time: one of them builds it, the others wait.

    This only saves work. Where the cache takes no writes, and after as long as the compiler may
    take, everybody builds for itself.
    """
    folder = knobs.cache_root() / "emulator"
    handle = None
    with contextlib.suppress(OSError):
        # Some sources share a lock, so that there are not as many files as sources.
        if knobs.flag("MDFUSE_DISK_CACHE") and _is_ours(folder):
            handle = os.open(folder / f"lock-{key[:2]}", os.O_CREAT | os.O_RDWR, 0o600)
    if handle is None:
        yield
        return
    try:
        end = time.monotonic() + _TIMEOUT
        while not _locked(handle) and time.monotonic() < end:
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _includes() -> list[str]:
    return [f"-I{csrc_root() / folder}" for folder in ("device", "emulator")]


def _run(arguments: list[str]) -> str | None:
    """None when the compiler is content, its log otherwise."""
    path, version = compiler()
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"{version} did not end within {_TIMEOUT} s"
    return None if done.returncode == 0 else done.stderr


def _report(source: str, log: str) -> str:
    numbered = "\n".join(f"{n:4} {line}" for n, line in enumerate(source.splitlines(), 1))
    log = re.sub(r"\S*/(device|emulator)/", r"\1/", log)
    names = ", ".join(kernel_names(source)) or "a source without kernels"
    return f"{names} does not compile for the emulator:\n{log}\nsource:\n{numbered}"


@cache
def _environment_digest() -> str:
    digest = hashlib.sha256(compiler()[1].encode())
    for texts in (device_headers(), emulator_sources()):
        for name, text in texts.items():
            digest.update(f"\0{name}\0{text}".encode())
    return digest.hexdigest()


def _key(*parts: str) -> str:
    text = "\0".join((_environment_digest(), *parts))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _is_ours(path: Path) -> bool:
    """A plain file or folder of this user that nobody else may write to."""
    try:
        found = path.lstat()
    except OSError:
        return False
    foreign = stat.S_IWGRP | stat.S_IWOTH
    kind = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return kind and found.st_uid == os.getuid() and not found.st_mode & foreign


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _find(name: str) -> Path | None:
    folders = list(_private)
    if knobs.flag("MDFUSE_DISK_CACHE"):
        folders.insert(0, knobs.cache_root() / "emulator")
    for folder in folders:
        path, note = folder / name, folder / f"{name}.sum"
        if not (_is_ours(folder) and _is_ours(path) and _is_ours(note)):
            continue
        try:
            if note.read_text(encoding="ascii") == _checksum(path):
                return path
        except (OSError, UnicodeDecodeError):
            continue
    return None


def _keep(built: Path, name: str) -> Path:
    """Copies ``built`` into the cache, or into a private folder if the cache takes no writes."""
    if knobs.flag("MDFUSE_DISK_CACHE"):
        folder = knobs.cache_root() / "emulator"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(folder):
                return _place(built, folder, name)
            reason = "it does not belong to this user alone"
        except OSError as e:
            reason = e.strerror or str(e)
        if not _private:
            warnings.warn(
                f"the kernel cache {folder} cannot be used ({reason}): emulated kernels are "
                "compiled again in every process",
                stacklevel=4,
            )
    return _place(built, _private_folder(), name)


def _place(built: Path, folder: Path, name: str) -> Path:
    path = folder / name
    for data, target in ((built.read_bytes(), path), (_checksum(built).encode(), f"{path}.sum")):
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, target)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    return path


def _private_folder() -> Path:
    if not _private:
        folder = Path(tempfile.mkdtemp(prefix="mdfuse-emulator-"))
        _private.append(folder)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _private[0]
