"""The border between Python and the emulator's runtime: structures, arguments, one launch.

In: a loaded shared object and a launch as plain numbers. Out: a report and, if a fault ended the
launch, a message that names the thread, the fault and the line of the generated source.
"""

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thunder_mdfuse.errors import EmulatorError

ORDERS = ("ascending", "descending", "random")
_MESSAGE_BYTES = 4096
# A thread of the grid is named by 32 bits, two values of which mean something else.
_THREAD_LIMIT = 2**32 - 4
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)

Argument = int | float | bool | ctypes._SimpleCData  # type: ignore[type-arg]

_LETTERS: dict[str, tuple[type, str]] = {
    "P": (ctypes.c_void_p, "pointer"),
    "b": (ctypes.c_int8, "i8"),
    "B": (ctypes.c_uint8, "u8"),
    "h": (ctypes.c_int16, "i16"),
    "H": (ctypes.c_uint16, "u16"),
    "i": (ctypes.c_int32, "i32"),
    "I": (ctypes.c_uint32, "u32"),
    "q": (ctypes.c_int64, "i64"),
    "Q": (ctypes.c_uint64, "u64"),
    "f": (ctypes.c_float, "float"),
    "d": (ctypes.c_double, "double"),
    "?": (ctypes.c_bool, "bool"),
}
_INTEGER_RANGES = {
    "P": (0, 2**64 - 1),
    "b": (-(2**7), 2**7 - 1),
    "B": (0, 2**8 - 1),
    "h": (-(2**15), 2**15 - 1),
    "H": (0, 2**16 - 1),
    "i": (-(2**31), 2**31 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
    "Q": (0, 2**64 - 1),
}


@dataclass(frozen=True)
class Allocation:
    """Memory that a kernel may touch. ``fresh``: holds nothing to be read before it is written.

    ``unordered``: what it holds in the end may depend on the order of threads.
    """

    address: int
    nbytes: int
    writable: bool
    name: str = ""
    fresh: bool = False
    unordered: bool = False


@dataclass(frozen=True)
class Unwritten:
    """Bytes of a writable allocation that no thread wrote."""

    name: str
    nbytes: int
    first: int


@dataclass(frozen=True)
class Report:
    """What one launch did. A step is a basic block of the kernel's code."""

    steps: int
    unwritten: tuple[Unwritten, ...]


@dataclass(frozen=True)
class Geometry:
    """Grid, block, dynamic shared memory and cluster of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: int = 1


class _AllocationSpec(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_uint32),
        ("fresh", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("unwritten", ctypes.c_uint64),
        ("first_unwritten", ctypes.c_uint64),
    )


class _LaunchSpec(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("allocation_count", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("step_limit", ctypes.c_uint64),
        ("timeout", ctypes.c_double),
        ("allocations", ctypes.POINTER(_AllocationSpec)),
        ("entry", ctypes.c_void_p),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_uint64),
        ("steps", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Entry:
    """One kernel of a loaded shared object: how to launch it, and one letter a parameter."""

    launch: Callable[..., int]
    address: int
    signature: str


def load(path: str) -> ctypes.CDLL:
    """The shared object of one source."""
    library = ctypes.CDLL(path)
    library.mdf_emu_launch.argtypes = (ctypes.POINTER(_LaunchSpec),)
    library.mdf_emu_launch.restype = ctypes.c_int
    return library


def find_entry(library: ctypes.CDLL, name: str) -> Entry:
    """The kernel ``name`` of a loaded source."""
    function = getattr(library, f"mdf_emu_entry_{name}")
    signature = getattr(library, f"mdf_emu_signature_{name}")
    signature.restype = ctypes.c_char_p
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return Entry(library.mdf_emu_launch, address, signature().decode("ascii"))


def check_geometry(name: str, geometry: Geometry, thread_bound: int | None) -> None:
    """Raises ``EmulatorError`` for what a driver would refuse to launch."""
    grid, block, cluster = geometry.grid, geometry.block, geometry.cluster
    threads = block[0] * block[1] * block[2]
    blocks = grid[0] * grid[1] * grid[2]
    problem = None
    if any(not 1 <= n <= limit for n, limit in zip(grid, _GRID_LIMITS, strict=True)):
        problem = f"grid {grid} is not within 1 and {_GRID_LIMITS}"
    elif any(not 1 <= n <= limit for n, limit in zip(block, _BLOCK_LIMITS, strict=True)):
        problem = f"block {block} is not within 1 and {_BLOCK_LIMITS}"
    elif threads > 1024:
        problem = f"block {block} has {threads} threads, the limit is 1024"
    elif thread_bound is not None and threads > thread_bound:
        problem = f"block {block} has {threads} threads, __launch_bounds__ promises {thread_bound}"
    elif not 1 <= cluster <= 16 or grid[0] % cluster:
        problem = f"a cluster of {cluster} blocks does not divide grid {grid} (1 to 16 are allowed)"
    elif not 0 <= geometry.shared_bytes <= 227 * 1024:
        problem = (
            f"{geometry.shared_bytes} bytes of dynamic shared memory, the limit is {227 * 1024}"
        )
    elif blocks * threads > _THREAD_LIMIT:
        problem = f"grid {grid} of blocks {block} has more threads than the emulator can name"
    if problem:
        raise EmulatorError(f"kernel {name} cannot be launched: {problem}")


def _packed(name: str, k: int, letter: str, value: Argument) -> ctypes._SimpleCData:  # type: ignore[type-arg]
    kind, words = _LETTERS[letter]
    if isinstance(value, ctypes._SimpleCData):
        value = value.value if value.value is not None else 0
    wrong = EmulatorError(
        f"kernel {name}, argument {k}: {value!r} does not fit a parameter of type {words}"
    )
    if letter == "?":
        if not isinstance(value, bool | int):
            raise wrong
        return ctypes.c_bool(bool(value))
    if letter in "fd":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong
        packed: ctypes._SimpleCData = kind(value)  # type: ignore[type-arg]
        return packed
    low, high = _INTEGER_RANGES[letter]
    if not isinstance(value, int) or not low <= value <= high:
        raise wrong
    return kind(int(value))  # type: ignore[no-any-return]


def pack_arguments(
    name: str, signature: str, args: Sequence[Argument]
) -> list[ctypes._SimpleCData]:  # type: ignore[type-arg]
    """One ctypes value a parameter; each is checked against the kernel's C++ signature."""
    if len(args) != len(signature):
        words = ", ".join(_LETTERS[letter][1] for letter in signature)
        raise EmulatorError(
            f"kernel {name} takes {len(signature)} arguments ({words}), got {len(args)}"
        )
    pairs = enumerate(zip(signature, args, strict=True))
    return [_packed(name, k, letter, value) for k, (letter, value) in pairs]


def run(
    entry: Entry,
    geometry: Geometry,
    packed: Sequence[ctypes._SimpleCData],  # type: ignore[type-arg]
    allocations: Sequence[Allocation],
    order: str,
    seed: int,
    step_limit: int,
    timeout: float,
) -> tuple[Report, str | None]:
    """One launch in one order: its report, and the message of the fault that ended it, if any."""
    specs = (_AllocationSpec * max(1, len(allocations)))()
    for k, a in enumerate(allocations):
        label = (a.name or f"allocation {k}").encode("ascii", "replace")
        specs[k] = _AllocationSpec(a.address, a.nbytes, a.writable, a.fresh, label, 0, 0)
    pointers = (ctypes.c_void_p * max(1, len(packed)))(
        *(ctypes.addressof(value) for value in packed)
    )
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    spec = _LaunchSpec(
        grid=(ctypes.c_uint32 * 3)(*geometry.grid),
        block=(ctypes.c_uint32 * 3)(*geometry.block),
        dynamic_shared=geometry.shared_bytes,
        cluster=geometry.cluster,
        order=ORDERS.index(order),
        allocation_count=len(allocations),
        seed=seed,
        step_limit=step_limit,
        timeout=timeout,
        allocations=specs,
        entry=entry.address,
        args=pointers,
        message=ctypes.cast(message, ctypes.c_char_p),
        message_bytes=_MESSAGE_BYTES,
    )
    failed = entry.launch(ctypes.byref(spec))
    unwritten = tuple(
        Unwritten(specs[k].name.decode(), specs[k].unwritten, specs[k].first_unwritten)
        for k in range(len(allocations))
        if specs[k].unwritten
    )
    fault = message.value.decode("ascii", "replace") if failed else None
    return Report(steps=spec.steps, unwritten=unwritten), fault


def described(name: str, order: str, fault: str, source: str) -> str:
    """A fault with the text of the source line that it names."""
    found = re.search(r"\[line (\d+)\]$", fault)
    lines = source.splitlines()
    where = ""
    if found and int(found.group(1)) <= len(lines):
        number = int(found.group(1))
        where = f"\n  {number}: {lines[number - 1].strip()}"
    return f"kernel {name}, threads {order}: {fault}{where}"
