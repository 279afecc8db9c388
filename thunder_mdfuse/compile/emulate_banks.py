"""Bank conflicts of a kernel's shared memory, from every access that it makes in the emulator.

In: a kernel and a launch of it. Out: for each line of its source how many times more than needed
the memory has to be asked. A warp's access is served at once when its lanes meet no bank twice, the
same word aside: 32 banks of 4 bytes, the lanes taken by halves where each moves 8 bytes and by
quarters where each moves 16.
"""

import ctypes
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from thunder_mdfuse.compile.emulate import EmulatedKernel

BANKS = 32
WORD = 4
WARP = 32
_ROOM = 1 << 20


class _Access(ctypes.Structure):
    _fields_ = (
        ("thread", ctypes.c_uint32),
        ("site", ctypes.c_int32),
        ("offset", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Access:
    """``thread`` of the grid moved ``nbytes`` bytes at ``offset`` of its block's shared memory."""

    thread: int
    line: int
    offset: int
    nbytes: int


def shared_accesses(kernel: EmulatedKernel, **launch: Any) -> list[Access]:
    """The accesses of one launch, each thread's in order; ``launch``: as ``EmulatedKernel.launch``.

    Raises ``EmulatorError`` as that does. No other thread may launch kernels of the same source.
    """
    library = kernel.library
    library.mdf_emu_traced.restype = ctypes.c_uint64
    found = (_Access * _ROOM)()
    library.mdf_emu_trace(found, ctypes.c_uint64(_ROOM))
    try:
        kernel.launch(**launch)
        count = library.mdf_emu_traced()
    finally:
        library.mdf_emu_trace(None, ctypes.c_uint64(0))
    assert count < _ROOM, "a launch with so many accesses is too large to be looked at"
    return [Access(a.thread, a.site, a.offset, a.bytes) for a in found[:count]]


def conflicts(accesses: Iterable[Access]) -> dict[int, int]:
    """For each line with shared accesses, the rounds that its warps need beyond one each."""
    warps: dict[tuple[int, int, int], list[Access]] = defaultdict(list)
    turns: dict[tuple[int, int], int] = defaultdict(int)
    for access in accesses:
        turn = turns[access.thread, access.line]
        turns[access.thread, access.line] += 1
        warps[access.line, access.thread // WARP, turn].append(access)
    found: dict[int, int] = defaultdict(int)
    for (line, _, _), lanes in warps.items():
        found[line] += _rounds(lanes)
    return dict(found)


def _rounds(lanes: list[Access]) -> int:
    """Of one access of a warp: how many rounds more than none of its parts meeting would take."""
    nbytes = max(a.nbytes for a in lanes)
    together = WARP * WORD // max(nbytes, WORD)
    parts: dict[int, list[Access]] = defaultdict(list)
    for access in lanes:
        parts[access.thread % WARP // together].append(access)
    extra = 0
    for part in parts.values():
        words: dict[int, set[int]] = defaultdict(set)
        for access in part:
            last = access.offset + access.nbytes - 1
            for word in range(access.offset // WORD, last // WORD + 1):
                words[word % BANKS].add(word)
        extra += max(map(len, words.values())) - 1
    return extra
