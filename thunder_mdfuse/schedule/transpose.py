"""Transposes: pointwise programs whose tensors do not all run fastest along the same axis.

A block has a tile of two axes: the *fast* one, along which most of the memory runs, and the *other*
one, along which the rest does. What runs along the fast axis is loaded and stored as it is. What
runs along the other one is *staged*: moved between global and shared memory in vectors along that
axis, and between shared memory and the values in vectors along the fast one. What runs along a
third axis goes lane by lane.

The thresholds are reasoned, none has been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule import vectorize
from thunder_mdfuse.schedule.plan import Axis, Instr, KernelPlan, Launch, Load, Store, Tile

THREADS = 256
# Lanes of a warp side by side, of vectors of 16 bytes along either axis.
LANES = 8
LINE_BYTES = 128  # of all banks, and of a line of the caches


@dataclass(frozen=True)
class TileRule:
    """The tile for staged elements of at least ``itemsize`` bytes: 16 KB of the largest.

    Each thread has 64 bytes of its loads in flight, which are 96 KB for 1536 threads of an SM; both
    sides read and write whole lines of 128 bytes, or twice that.
    """

    itemsize: int
    across: int
    down: int


TILE_RULES = (
    TileRule(16, 16, 64),
    TileRule(8, 32, 64),
    TileRule(4, 64, 64),
    TileRule(2, 64, 128),
    TileRule(1, 128, 128),
)
# Single elements of the other side: as many of them in flight as a thread has registers for.
MOST_SINGLE_DOWN = 64
# A shorter axis leaves most of a tile empty; single lanes find their neighbours in a cache then.
LEAST_EXTENT = 16
# Tiles of so many tensors at once: more leave an SM too few blocks. The others go lane by lane.
MOST_STAGED = 6
STAGED_BYTES = 96 * 1024
# Bytes that a thread may load ahead of the barrier for what is not staged.
AHEAD_BYTES = 64
AHEAD_ITEMS = 16


def turned(plan: KernelPlan, decide: Decider) -> KernelPlan | None:
    """``plan`` of family ``transpose``, its columns the other and the fast axis and what is to be
    staged marked; None where it is no transpose.
    """
    if plan.family != "pointwise" or len(plan.columns) < 2:
        return None
    along = _moved_along(plan, decide)
    last = plan.columns[-1].name
    others = [a.name for a in plan.columns[:-1] if along.get(a.name)]
    if not others or not along.get(last):
        return None
    best = max(others, key=lambda name: along[name])
    fast, other = (last, best) if along[last] >= along[best] else (best, last)
    axes = {a.name: a for a in plan.columns}
    if any(decide.less(axes[name].extent, LEAST_EXTENT) for name in (fast, other)):
        return None
    rows = tuple(a for a in plan.columns if a.name not in (fast, other))
    columns = (axes[other], axes[fast])
    found = _marked(replace(plan, family="transpose", rows=rows, columns=columns))
    return found if tiled(found) else None


def _moved_along(plan: KernelPlan, decide: Decider) -> dict[str, int]:
    """About how many bytes of accesses that move along several axes step by one along each."""
    extents = {a.name: a.extent for a in plan.columns}
    found: dict[str, int] = {}
    accesses = [(i.detail.buffer, i.detail.offset) for i in plan.body if isinstance(i.detail, Load)]
    accesses += [(s.buffer, s.offset) for s in plan.stores if s.mode == "set"]
    for buffer, offset in accesses:
        over = sizes.symbols(offset) & extents.keys()
        name = _runs_along(offset, list(extents), plan)
        if name is not None and len(over) > 1:
            count = decide.value(product(extents[n] for n in over))
            found[name] = found.get(name, 0) + count * plan.buffers[buffer].dtype.itemsize
    return found


def _runs_along(offset: Size, names: list[str], plan: KernelPlan) -> str | None:
    """The axis along which ``offset`` steps by one element, if there is one."""
    if sizes.symbols(offset) & plan.positions.keys():
        return None
    for name in names:
        step = sizes.coefficient(offset, name)
        if step is not None and step[0] == 1:
            return name
    return None


def _marked(plan: KernelPlan) -> KernelPlan:
    """``plan`` with access ``staged`` for what runs along the other axis, as far as tiles go."""
    other, fast = plan.columns
    left = MOST_STAGED
    body, stores = list(plan.body), list(plan.stores)
    for n, store in enumerate(stores):
        if left and store.mode == "set" and _is_staged(store.offset, plan):
            stores[n] = replace(store, access="staged")
            left -= 1
    for n, instr in enumerate(body):
        load = instr.detail
        if not left or not isinstance(load, Load) or not _is_staged(load.offset, plan):
            continue
        if not any(sizes.symbols(b.index) & {other.name, fast.name} for b in load.mask):
            body[n] = replace(instr, detail=replace(load, access="staged"))
            left -= 1
    return replace(plan, body=tuple(body), stores=tuple(stores))


def _is_staged(offset: Size, plan: KernelPlan) -> bool:
    other, fast = plan.columns
    if _runs_along(offset, [other.name], plan) is None:
        return False
    step = sizes.coefficient(offset, fast.name)
    return step is not None and step[0] not in (0, 1)


@dataclass(frozen=True)
class Staged:
    """What a tile is for: the load of instruction ``at``, or a store (``at`` is -1)."""

    at: int
    access: Load | Store

    @property
    def key(self) -> str:
        """The name of the value in generated text."""
        return f"x{self.at}" if self.at >= 0 else f"y{self.access.buffer}"


def tiled(plan: KernelPlan) -> list[Staged]:
    """Everything that goes through a tile, loads first."""
    loads = [Staged(n, i.detail) for n, i in enumerate(plan.body) if isinstance(i.detail, Load)]
    every = loads + [Staged(-1, s) for s in plan.stores]
    return [s for s in every if s.access.access == "staged"]


def planned(plan: KernelPlan, decide: Decider, alignments: Mapping[Use, int]) -> KernelPlan:
    """``plan``, as ``turned`` gives it, with every access classified and a launch."""
    vector = _staged_width(plan, decide, alignments)
    done, width = vectorize.vectorized(plan, decide, alignments)
    marks = [i.detail for i in plan.body]
    body = tuple(
        replace(i, detail=mark) if isinstance(mark, Load) and mark.access == "staged" else i
        for i, mark in zip(done.body, marks, strict=True)
    )
    stores = tuple(
        s if s.access == "staged" else new for s, new in zip(plan.stores, done.stores, strict=True)
    )
    plan = replace(done, body=body, stores=stores)
    dtypes = [plan.buffers[s.access.buffer].dtype for s in tiled(plan)]
    smallest, largest = (f(d.itemsize for d in dtypes) for f in (min, max))
    rule = next(r for r in TILE_RULES if largest >= r.itemsize)
    # A row of the tile has whole lines, also of the smallest elements, and a vector for each lane.
    across = max(rule.across, LINE_BYTES // smallest, LANES * width)
    down = rule.down if vector > 1 else min(rule.down, MOST_SINGLE_DOWN)
    down = max(down, LANES * vector)
    while down > max(32, LANES * vector) and _tile_bytes(dtypes, across * down) > STAGED_BYTES:
        down //= 2
    lanes = max(LANES, min(32, LINE_BYTES // (width * smallest)))
    tile = Tile(across, down, lanes, vector)
    items = across * down // (width * THREADS)
    return replace(plan, launch=Launch(THREADS, width, items, tile=tile))


def _tile_bytes(dtypes: list[DType], elements: int) -> int:
    return sum(d.itemsize for d in dtypes) * elements


def _staged_width(plan: KernelPlan, decide: Decider, alignments: Mapping[Use, int]) -> int:
    """The widest vectors along the other axis that all staged accesses allow."""
    other, fast = plan.columns
    across = replace(
        plan,
        columns=(fast, other),
        body=tuple(i if _staged(i) else _nothing(i) for i in plan.body),
        stores=tuple(s for s in plan.stores if s.access == "staged"),
    )
    widest = vectorize.WIDEST
    while widest > 1:
        found, width = vectorize.vectorized(across, decide, alignments, widest)
        accesses = [i.detail.access for i in found.body if isinstance(i.detail, Load)]
        accesses += [s.access for s in found.stores]
        if width == 1 or all(a == "vector" for a in accesses):
            return width
        widest = width // 2
    return 1


def _staged(instr: Instr) -> bool:
    return isinstance(instr.detail, Load) and instr.detail.access == "staged"


def _nothing(instr: Instr) -> Instr:
    """``instr`` without an access."""
    return replace(instr, detail=None) if isinstance(instr.detail, Load) else instr


def loaded_ahead(plan: KernelPlan) -> list[int]:
    """The loads that are not staged and made before the barrier, to be under way meanwhile."""
    launch = plan.launch
    columns = {a.name for a in plan.columns}
    if launch.items > AHEAD_ITEMS:
        return []
    left = AHEAD_BYTES
    found = []
    for n in sorted(vectorize.whole_loads(plan, launch.vector)):
        instr = plan.body[n]
        load = instr.detail
        assert isinstance(load, Load)
        if _staged(instr) or instr.args or not instr.depends & columns:
            continue
        nbytes = launch.items * launch.vector * plan.buffers[load.buffer].dtype.itemsize
        if nbytes <= left:
            found.append(n)
            left -= nbytes
    return found


def tiles_of(plan: KernelPlan, axis: Axis, size: int) -> Size:
    """How many tiles of ``size`` elements lie along ``axis``."""
    return sizes.ceildiv(axis.extent, size)
