"""CUDA C++ text to a cubin, by NVRTC, with headers handed over in memory. Needs no GPU.

In: ``Job`` (source, entry, arch, headers). Out: ``Cubin``, or ``CompileError`` with the numbered
source lines that the compiler complains about and its log. Guarantees: the flags are ``FLAGS`` and
nothing from the environment; no header is read from disk; the entry is in the cubin under its name.

``cuda.core.Program`` takes no in-memory headers, so this file uses the NVRTC binding below it.
"""

import importlib.metadata
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from thunder_mdfuse.errors import CompileError

try:
    from cuda.bindings import nvrtc as _nvrtc
except ImportError:  # no wheel for this platform: everything but the cuda backend works
    _nvrtc = None

# --fmad=false: x*y - x*y is exactly 0, and an fma stands where the generator writes one.
# --no-source-include: a stray file in the working directory is never included.
# --minimal: no textures, no runtime API in device code; the same code in 31 ms instead of 39 (small
# kernel, median of 25, one core of a server).
# -v: the resource report, which is the only place with spill counts; it costs no measurable time.
FLAGS = (
    "--std=c++17",
    "--fmad=false",
    "--no-source-include",
    "--minimal",
    "--ptxas-options=-v",
)

# NVRTC compiles in parallel on one process's threads; more than this many gain nothing because a
# program rarely has more kernels, and several ranks of one host compile at the same time.
MAX_THREADS = 8


@dataclass(frozen=True)
class Job:
    """One kernel to compile. ``headers`` maps the name in ``#include "name"`` to its text."""

    source: str
    entry: str
    arch: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cubin:
    """Machine code for one arch, with what the compiler said about it."""

    code: bytes
    entry: str
    arch: str
    log: str
    seconds: float


@dataclass(frozen=True)
class ResourceUsage:
    """What one block of a kernel needs. Bytes, and registers per thread.

    ``local_bytes`` is the stack frame of a thread: spills and arrays indexed at run time. The spill
    counts are static loads and stores; None when the cubin came without the compiler's report.
    """

    registers: int
    local_bytes: int
    static_shared: int
    parameter_sizes: tuple[int, ...]
    spill_store_bytes: int | None
    spill_load_bytes: int | None


def compile_cubin(source: str, entry: str, arch: str, headers: Mapping[str, str]) -> Cubin:
    """Compile ``source`` for ``arch`` ("sm_90"); its ``extern "C"`` kernel is called ``entry``."""
    return compile_job(Job(source, entry, arch, headers))


def compile_job(job: Job) -> Cubin:
    """``compile_cubin`` on a ``Job``."""
    _refuse_unsupported(job.arch)
    begin = time.perf_counter()
    program = _create(job)
    try:
        options = [f"--gpu-architecture={job.arch}".encode(), *(flag.encode() for flag in FLAGS)]
        (status,) = _binding().nvrtcCompileProgram(program, len(options), options)
        log = _read(program, "ProgramLog").decode(errors="replace").strip("\0 \n")
        if int(status) != 0:
            raise CompileError(_failure(job, log or str(status)))
        code = _read(program, "CUBIN")
    finally:
        _binding().nvrtcDestroyProgram(program)
    # The time that ptxas took would make two equal compilations differ.
    log = "\n".join(line for line in log.splitlines() if "Compile time" not in line)
    cubin = Cubin(code, job.entry, job.arch, log, time.perf_counter() - begin)
    if f".text.{job.entry}" not in _elf_sections(code):
        raise CompileError(
            f"the compiled source has no kernel {job.entry!r}; declare it "
            f'extern "C" __global__ void {job.entry}(...)\n{_numbered(job.source)}'
        )
    return cubin


def compile_many(
    jobs: Sequence[Job], compile_one: Callable[[Job], Cubin] = compile_job
) -> list[Cubin]:
    """The cubins of ``jobs`` in order, compiled by a few threads; the first failure is raised.

    The binding drops the GIL: on two cores 16 kernels took 4.24 s one after the other and 2.33 s
    on two threads, and a Python loop beside them ran at full speed (NVRTC 13.0).
    """
    threads = min(len(jobs), MAX_THREADS, _cores())
    if threads <= 1:
        return [compile_one(job) for job in jobs]
    with ThreadPoolExecutor(threads, thread_name_prefix="mdfuse-nvrtc") as pool:
        futures = [pool.submit(compile_one, job) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@cache
def compiler_version() -> str:
    """The compiler as it enters cache keys. NVRTC reports no patch level, its package does."""
    status, major, minor = _binding().nvrtcVersion()
    _check(status, "nvrtcVersion")
    try:
        package = importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        package = "system"
    return f"NVRTC {major}.{minor} ({package})"


@cache
def supported_archs() -> tuple[int, ...]:
    """Compute capabilities that this NVRTC compiles for, as 80, 90, 100."""
    status, archs = _binding().nvrtcGetSupportedArchs()
    _check(status, "nvrtcGetSupportedArchs")
    return tuple(archs)


def resource_usage(cubin: Cubin) -> ResourceUsage:
    """What the kernel needs, read from the cubin's own tables and the compiler's report."""
    sections = _elf_sections(cubin.code)
    info, own_info = sections.get(".nv.info"), sections.get(f".nv.info.{cubin.entry}")
    if info is None or own_info is None:
        raise CompileError(
            f"cubin of {cubin.entry!r} has no resource table (.nv.info), only {', '.join(sections)}"
        )
    symbol = _elf_symbol(cubin.code, sections, cubin.entry)
    per_symbol = {
        (attribute, *struct.unpack_from("<I", payload)): struct.unpack_from("<I", payload, 4)[0]
        for attribute, payload in _attributes(_body(cubin.code, info))
        if attribute in (_REGCOUNT, _FRAME_SIZE)
    }
    shared = sections.get(f".nv.shared.{cubin.entry}")
    spill = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", _own_log(cubin))
    return ResourceUsage(
        registers=per_symbol[_REGCOUNT, symbol],
        local_bytes=per_symbol.get((_FRAME_SIZE, symbol), 0),
        static_shared=0 if shared is None else _static_shared(shared.size, cubin.arch),
        parameter_sizes=_parameter_sizes(_body(cubin.code, own_info)),
        spill_store_bytes=None if spill is None else int(spill[1]),
        spill_load_bytes=None if spill is None else int(spill[2]),
    )


# --- NVRTC ---------------------------------------------------------------------------------------


def _binding() -> Any:
    if _nvrtc is None:
        raise CompileError(
            "no compiler: the package cuda-bindings is not installed; 'pip install cuda-bindings "
            "cuda-core nvidia-cuda-nvrtc' installs it, and MDFUSE_BACKEND=reference does without"
        )
    return _nvrtc


def _check(status: Any, call: str) -> None:
    if int(status) != 0:
        raise CompileError(f"{call} failed: {status}")


def _refuse_unsupported(arch: str) -> None:
    known = supported_archs()
    number = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not number.isdigit() or int(number) not in known:
        raise CompileError(
            f"{compiler_version()} does not compile for {arch!r}; it knows "
            f"{', '.join(f'sm_{n}' for n in known)}; an nvidia-cuda-nvrtc that knows it is needed"
        )


def _create(job: Job) -> Any:
    names = [name.encode() for name in job.headers]
    texts = [text.encode() for text in job.headers.values()]
    status, program = _binding().nvrtcCreateProgram(
        job.source.encode(), f"{job.entry}.cu".encode(), len(names), texts, names
    )
    _check(status, "nvrtcCreateProgram")
    return program


def _read(program: Any, what: str) -> bytes:
    """The program's log or cubin: NVRTC fills a buffer of the size that it names first."""
    status, size = getattr(_binding(), f"nvrtcGet{what}Size")(program)
    _check(status, f"nvrtcGet{what}Size")
    buffer = bytearray(size)
    (status,) = getattr(_binding(), f"nvrtcGet{what}")(program, buffer)
    _check(status, f"nvrtcGet{what}")
    return bytes(buffer)


def _cores() -> int:
    """Cores that this process may use: a launcher often pins each rank to a few."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Messages ------------------------------------------------------------------------------------


_ERROR_LINE = re.compile(r"^(\S+)\((\d+)\): (?:catastrophic )?error", re.MULTILINE)


def _failure(job: Job, log: str) -> str:
    texts = {f"{job.entry}.cu": job.source, **job.headers}
    shown: list[str] = []
    for name, line in dict.fromkeys(_ERROR_LINE.findall(log)):
        if name in texts and len(shown) < 3:
            shown.append(f"--- {name}\n{_numbered(texts[name], around=int(line))}")
    excerpt = "\n".join(shown) or f"--- {job.entry}.cu\n{_numbered(job.source)}"
    return f"{compiler_version()} refused {job.entry!r} for {job.arch}:\n{log}\n{excerpt}"


def _numbered(text: str, around: int | None = None, reach: int = 5, most: int = 120) -> str:
    lines = text.splitlines()
    first, last = (1, most) if around is None else (max(1, around - reach), around + reach)
    out = [
        f"{'>' if number == around else ' '}{number:5} | {line}"
        for number, line in enumerate(lines[first - 1 : last], start=first)
    ]
    if around is None and len(lines) > most:
        out.append(f"       ... {len(lines) - most} more lines")
    return "\n".join(out)


# --- The cubin: an ELF file whose .nv.info sections hold (format, attribute, payload) records ----
# Layout as read from NVRTC 13.0's output for sm_80, sm_90 and sm_100; tests compare each field with
# the compiler's own report.

_REGCOUNT, _FRAME_SIZE, _PARAMETER = 0x2F, 0x11, 0x17
_FORMAT_WITH_PAYLOAD = 4


@dataclass(frozen=True)
class _Section:
    offset: int
    size: int


def _elf_sections(code: bytes) -> dict[str, _Section]:
    try:
        if code[:4] != b"\x7fELF":
            raise ValueError("no ELF magic")
        (table,) = struct.unpack_from("<Q", code, 0x28)
        entry_size, count, names_index = struct.unpack_from("<HHH", code, 0x3A)
        headers = [
            struct.unpack_from("<IIQQQQ", code, table + i * entry_size) for i in range(count)
        ]
        names = headers[names_index][4]
        return {_text_at(code, names + h[0]): _Section(h[4], h[5]) for h in headers}
    except (struct.error, IndexError, ValueError) as e:
        raise CompileError(f"not a cubin ({len(code)} bytes): {e}") from None


def _text_at(code: bytes, offset: int) -> str:
    return code[offset : code.index(b"\0", offset)].decode()


def _body(code: bytes, section: _Section) -> bytes:
    return code[section.offset : section.offset + section.size]


def _elf_symbol(code: bytes, sections: dict[str, _Section], name: str) -> int:
    """The index of the kernel's symbol: how .nv.info names what a record is about."""
    symbols, names = sections[".symtab"], sections[".strtab"]
    for index in range(symbols.size // 24):
        (name_offset,) = struct.unpack_from("<I", code, symbols.offset + index * 24)
        if _text_at(code, names.offset + name_offset) == name:
            return index
    raise CompileError(f"cubin has no symbol {name!r}")


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(body):
        form, attribute, value = struct.unpack_from("<BBH", body, at)
        at += 4
        if form == _FORMAT_WITH_PAYLOAD:
            yield attribute, body[at : at + value]
            at += value


def _parameter_sizes(body: bytes) -> tuple[int, ...]:
    """Bytes of each kernel parameter, in order."""
    sizes = {}
    for attribute, payload in _attributes(body):
        if attribute == _PARAMETER:
            _, ordinal, _, packed = struct.unpack("<IHHI", payload)
            sizes[ordinal] = packed >> 18
    return tuple(size for _, size in sorted(sizes.items()))


def _static_shared(section_size: int, arch: str) -> int:
    # From sm_90 on the section begins with the 1 KiB that the system reserves for each block.
    reserved = 1024 if int(arch.removeprefix("sm_").rstrip("af")) >= 90 else 0
    return max(0, section_size - reserved)


def _own_log(cubin: Cubin) -> str:
    """The part of the compiler's report that is about the entry itself, not about callees."""
    _, _, rest = cubin.log.partition(f"Function properties for {cubin.entry}\n")
    return rest.partition("Function properties for")[0]
