"""The emulator: generated CUDA text runs on the CPU, and its faults are found.

In: the text of a kernel, a launch, and the memory that it may touch. Out: the memory as the kernel
left it, or an ``EmulatorError``. Guaranteed to be found: races on shared and global memory, stray,
misaligned and forbidden accesses, shared memory read before it is written, divergent barriers,
wrong shuffle masks, deadlocks and loops without end, and results that depend on the order in which
threads and blocks run. See ``csrc/emulator`` for how, ``csrc/device/mdfuse.cuh`` for what a kernel
may call. Blocks run one after another (the blocks of one cluster together), so a kernel must not
wait for another block of its grid; it may wait for another rank, emulated by another thread.
"""

import ctypes
import itertools
import re
import threading
from collections.abc import Sequence

from thunder_mdfuse import knobs
from thunder_mdfuse.compile.emulate_build import kernel_names, shared_object
from thunder_mdfuse.compile.emulate_launch import (
    Allocation,
    Argument,
    Geometry,
    Report,
    Unwritten,
    check_geometry,
    described,
    find_entry,
    load,
    pack_arguments,
    run,
)
from thunder_mdfuse.errors import CompileError, EmulatorError

__all__ = ["Allocation", "EmulatedKernel", "Report", "Unwritten", "build", "poison"]

AllocationLike = Allocation | tuple[int, int, bool]
Size3 = tuple[int, int, int]

STEP_LIMIT = 4_000_000_000
TIMEOUT = 120.0
# NaN as f16, bf16, f32 and f64, and no likely value as an integer.
_POISON = b"\xf1\x7f"

_sources: dict[str, "_Source"] = {}
_sources_lock = threading.Lock()


class _Source:
    """One compiled source. Its kernels share the state of the emulator, so launches take turns."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = kernel_names(text)
        self.library = load(str(shared_object(text)))
        self.turn = threading.Lock()


class EmulatedKernel:
    """One kernel of a source, compiled for the CPU."""

    def __init__(self, compiled: _Source, entry: str) -> None:
        source = compiled.text
        if entry not in compiled.names:
            known = ", ".join(compiled.names) or "none"
            raise CompileError(f"the source defines no kernel {entry}; it defines: {known}")
        self.source = source
        self.entry = entry
        self.library = compiled.library
        self._found = find_entry(compiled.library, entry)
        self.signature = self._found.signature
        bound = re.search(
            r"__launch_bounds__\(\s*(\d+)\s*[,)][^;{]*?\b" + re.escape(entry) + r"\s*\(", source
        )
        self._thread_bound = int(bound.group(1)) if bound else None
        self._turn = compiled.turn

    def launch(
        self,
        *,
        grid: Size3,
        block: Size3,
        args: Sequence[Argument],
        allocations: Sequence[AllocationLike],
        shared_bytes: int = 0,
        cluster: int = 1,
        order: str = "ascending",
        seed: int = 0,
        step_limit: int = STEP_LIMIT,
        timeout: float = TIMEOUT,
    ) -> Report:
        """Runs the kernel once, in place; ``order``: ascending, descending or random (``seed``)."""
        geometry = Geometry(grid, block, shared_bytes, cluster)
        check_geometry(self.entry, geometry, self._thread_bound)
        packed = pack_arguments(self.entry, self.signature, args)
        known = _checked(self.entry, allocations)
        with self._turn:
            report, fault = run(
                self._found, geometry, packed, known, order, seed, step_limit, timeout
            )
        if fault is not None:
            raise EmulatorError(described(self.entry, order, fault, self.source))
        return report

    def launch_checked(
        self,
        *,
        grid: Size3,
        block: Size3,
        args: Sequence[Argument],
        allocations: Sequence[AllocationLike],
        shared_bytes: int = 0,
        cluster: int = 1,
        orders: int | None = None,
        exact: bool = True,
        step_limit: int = STEP_LIMIT,
        timeout: float = TIMEOUT,
    ) -> Report:
        """Runs the kernel in several orders from the same memory; all have to leave the same bits.

        ``orders`` defaults to ``MDFUSE_EMULATOR_ORDERS``. With ``exact=False`` (float atomics) the
        results are not compared. After a fault the memory is as it was before the call.
        """
        count = knobs.integer("MDFUSE_EMULATOR_ORDERS") if orders is None else orders
        known = _checked(self.entry, allocations)
        writable = [a for a in known if a.writable and a.nbytes]
        before = [ctypes.string_at(a.address, a.nbytes) for a in writable]
        first: list[bytes] = []
        report = Report(steps=0, unwritten=())
        try:
            for k in range(max(1, count)):
                order = ("ascending", "descending", "random")[min(k, 2)]
                _restore(writable, before)
                report = self.launch(
                    grid=grid,
                    block=block,
                    args=args,
                    allocations=known,
                    shared_bytes=shared_bytes,
                    cluster=cluster,
                    order=order,
                    seed=k,
                    step_limit=step_limit,
                    timeout=timeout,
                )
                if k == 0 or not exact:
                    first = [ctypes.string_at(a.address, a.nbytes) for a in writable]
                else:
                    self._compare(writable, first, order)
        except EmulatorError:
            _restore(writable, before)
            raise
        return report

    def _compare(self, writable: list[Allocation], first: list[bytes], order: str) -> None:
        for a, expected in zip(writable, first, strict=True):
            found = ctypes.string_at(a.address, a.nbytes)
            if found == expected or a.unordered:
                continue
            at = _first_difference(found, expected)
            raise EmulatorError(
                f"kernel {self.entry}: the result depends on the order of threads and blocks. Byte "
                f"{at} of '{a.name or hex(a.address)}' is 0x{expected[at]:02x} when they run "
                f"ascending and 0x{found[at]:02x} when they run {order}"
            )


def build(source: str, entry: str) -> EmulatedKernel:
    """The kernel ``entry`` of ``source``; a source is compiled once for all of its kernels."""
    with _sources_lock:
        found = _sources.get(source)
    if found is None:
        # Outside the lock: sources may be compiled side by side.
        found = _Source(source)
        with _sources_lock:
            found = _sources.setdefault(source, found)
    return EmulatedKernel(found, entry)


def poison(address: int, nbytes: int) -> None:
    """Fills memory with a pattern that is NaN in every float of 16 bits or more."""
    pattern = _POISON * (nbytes // 2 + 1)
    ctypes.memmove(address, pattern, nbytes)


def _checked(name: str, allocations: Sequence[AllocationLike]) -> list[Allocation]:
    known = [a if isinstance(a, Allocation) else Allocation(*a) for a in allocations]
    ranges = sorted((a.address, a.address + a.nbytes, a.name) for a in known if a.nbytes)
    for (_, end, left), (start, _, right) in itertools.pairwise(ranges):
        if start < end:
            raise EmulatorError(
                f"kernel {name}: the allocations '{left}' and '{right}' overlap; pass storage that "
                "several arguments share once"
            )
    return [a for a in known if a.nbytes]


def _first_difference(a: bytes, b: bytes) -> int:
    start, end = 0, len(a)
    while end - start > 1:
        middle = (start + end) // 2
        start, end = (start, middle) if a[start:middle] != b[start:middle] else (middle, end)
    return start


def _restore(writable: list[Allocation], saved: list[bytes]) -> None:
    for a, data in zip(writable, saved, strict=True):
        ctypes.memmove(a.address, data, a.nbytes)
