"""What code generation sees of a kernel: a frozen ``KernelPlan``, and nothing else.

A plan is a loop nest over a *domain* of row axes and column axes, a straight-line body of
instructions and the stores at its end. Offsets are sizes over the domain's symbols; everything else
in them is an argument of the kernel, so one text serves all shapes of its class. A reduction runs
over all column axes of a row and ends a *phase*: an instruction of phase p may use reductions that
ended in phases before p.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType


@dataclass(frozen=True)
class Axis:
    """One axis of a domain: the symbol that runs over it and its extent."""

    name: str
    extent: Size


@dataclass(frozen=True)
class Buffer:
    """A tensor argument. ``value``: whose storage; ``space``: what kind of memory.

    ``global`` is the value's own storage. ``symmetric(team)``: the argument is a table of the
    addresses of the ``extent`` mailboxes that the team has for ``value``; a load waits for the
    element in each and gives their sum in f32 (``codegen/mailbox.py``). ``workspace`` and
    ``counters`` (zero before and after) are scratch memory of ``extent`` elements that the program
    provides for each launch. ``written``: the kernel writes all of it; ``updated``: it writes some
    elements, once or more often, of what an earlier kernel wrote.
    """

    value: Use
    dtype: DType
    written: bool = False
    space: str = "global"
    extent: Size = 0
    updated: bool = False

    @property
    def fresh(self) -> bool:
        """Whether nothing was there before the kernel."""
        return self.written and not self.updated


@dataclass(frozen=True)
class Scalar:
    """A number that the host passes, already converted to ``dtype``.

    ``part``: ``re`` or ``im`` where it is one half of a complex number, which is passed as two.
    """

    value: Use
    dtype: DType
    part: str = ""

    def __str__(self) -> str:
        return str(self.value) + (f".{self.part}" if self.part else "")


@dataclass(frozen=True)
class Bound:
    """The condition ``0 <= index < extent``."""

    index: Size
    extent: Size

    def __str__(self) -> str:
        return f"0 <= {self.index} < {self.extent}"


@dataclass(frozen=True)
class Load:
    """Reads element ``offset`` of buffer number ``buffer`` where all ``mask`` hold, else gives 0.

    ``access`` is set by vectorization: ``vector`` (consecutive along the innermost axis),
    ``across`` (the same from an address that is no multiple of the access), ``broadcast`` (the same
    for a whole vector), ``lane`` (one element at a time) or ``staged`` (through a tile of shared
    memory). ``reach``: how many elements from the buffer's first on are surely its memory, where
    vectors may hold elements that nobody asked for.
    """

    buffer: int
    offset: Size
    mask: tuple[Bound, ...] = ()
    access: str = "lane"
    reach: Size = 0

    def __str__(self) -> str:
        masked = f" if {' and '.join(map(str, self.mask))}" if self.mask else ""
        return f"b{self.buffer}[{self.offset}]{masked} {self.access}"


@dataclass(frozen=True)
class Const:
    """A literal, as the text of its ``repr``."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Index:
    """An integer computed from the domain's symbols."""

    value: Size

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class InRange:
    """Whether all bounds hold. ``access`` is ``vector`` where that is one answer for a vector."""

    bounds: tuple[Bound, ...]
    access: str = "lane"

    def __str__(self) -> str:
        once = " vector" if self.access == "vector" else ""
        return " and ".join(map(str, self.bounds)) + once


@dataclass(frozen=True)
class Draw:
    """A random number for index ``counter``, of [low, high) if it is uniform; operands are seed and
    offset. ``access`` is ``vector`` where the numbers of a whole vector are made at once.
    """

    counter: Size
    low: float
    high: float
    access: str = "lane"

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}) at {self.counter}"


@dataclass(frozen=True)
class Position:
    """The operand, an index from memory, as a position in a dim of ``extent`` elements.

    ``name``: the symbol that stands for it in the offsets, bounds and counters of instructions that
    have it among their operands. An index outside of the dim ends the launch, but where a ``mask``
    fails the position is 0 and nothing is checked.
    """

    name: str
    extent: Size
    mask: tuple[Bound, ...] = ()

    def __str__(self) -> str:
        masked = f" if {' and '.join(map(str, self.mask))}" if self.mask else ""
        return f"{self.name} < {self.extent}{masked}"


Detail = Load | Const | Index | InRange | Draw | Scalar | Position | None


@dataclass(frozen=True)
class Instr:
    """One value of the body: its op, operands (earlier instructions), dtype and when it is
    computed.

    ``depends``: the domain symbols it varies with. ``rounds``: a low-precision result is rounded
    here, not only where it is stored. ``late``: a reduction over all rows, or computed from one, so
    known only when every row has been walked.
    """

    op: str
    args: tuple[int, ...]
    dtype: DType
    detail: Detail = None
    depends: frozenset[str] = frozenset()
    phase: int = 0
    rounds: bool = False
    loose: bool = False
    late: bool = False

    @property
    def is_arg_reduction(self) -> bool:
        """Whether it finds where the largest or the smallest element stands."""
        return self.op in ("reduce_argmax", "reduce_argmin")


@dataclass(frozen=True)
class Store:
    """Puts instruction ``value`` into element ``offset`` of buffer number ``buffer``.

    ``mode``: ``set``, the only store to that element; ``scatter``, one of several of which any may
    stay; ``add``, atomically added. ``args``: the positions in ``offset``; ``when``: a bool without
    which nothing is stored.
    """

    buffer: int
    offset: Size
    value: int
    access: str = "lane"
    mode: str = "set"
    args: tuple[int, ...] = ()
    when: int | None = None

    @property
    def operands(self) -> tuple[int, ...]:
        """All instructions that the store needs."""
        return (self.value, *self.args, *(() if self.when is None else (self.when,)))

    def moved(self, place: Mapping[int, int]) -> "Store":
        """The same store when instruction ``i`` has become ``place[i]``."""
        when = None if self.when is None else place[self.when]
        args = tuple(place[a] for a in self.args)
        return replace(self, value=place[self.value], args=args, when=when)


@dataclass(frozen=True)
class Outer:
    """How a kernel that also reduces over all rows does so. Its grid has ``Launch.parts`` blocks.

    ``sums``: where a thread keeps the results so far of its columns, ``registers`` or ``shared``.
    ``ahead``: what a row needs is loaded while the row before is computed. ``fan``: the last of
    each ``fan`` blocks to finish combines their results, and the last of those all of theirs.
    ``stages``: with hold ``staged``, for how many rows a block has room in shared memory, which
    they are copied to ahead of time.
    """

    sums: str
    ahead: bool
    fan: int
    stages: int = 0


@dataclass(frozen=True)
class Tile:
    """How a block of family ``transpose`` has a tile: ``across`` elements of the fast axis by
    ``down`` of the other one.

    ``lanes`` lanes with vectors along the fast axis lie side by side. Accesses that run along the
    other axis (``staged``) go through shared memory, in vectors of ``vector`` elements.
    """

    across: int
    down: int
    lanes: int
    vector: int


@dataclass(frozen=True)
class Launch:
    """How the domain is laid over the GPU.

    ``threads`` a block; ``group`` threads work on one row (a power of two or a multiple of 32 equal
    to ``threads``); each handles ``items`` vectors of ``vector`` elements; ``exact``: group * items
    * vector is the row's length, so no bounds are needed. ``hold``: where a row lives between
    phases (``registers``, ``shared``, ``staged``: in shared memory before it is needed, or
    ``none``: it is read again). ``parts``: how many blocks
    share a row; ``cluster``: the same for blocks of one cluster, which hold it together.
    ``ragged``: vectors do not divide a flat domain, some elements are left over. ``shift``: how
    many elements, ``shift_below`` so many, before a row its first vector begins, where rows begin
    anywhere in memory; the first and the last vectors of a row then have some of their elements
    outside of it. Family
    ``outer``: ``across`` threads of a block lie side by side over the rows, each with a vector of
    them, and each part walks ``chunk`` columns.
    """

    threads: int
    vector: int
    items: int
    group: int = 1
    exact: bool = False
    hold: str = "none"
    wide_index: bool = False
    blocks: int = 0
    parts: Size = 1
    cluster: int = 1
    ragged: bool = False
    shift: Size | None = None
    shift_below: int = 1
    outer: Outer | None = None
    across: int = 0
    chunk: Size = 0
    tile: Tile | None = None


# What a kernel of each family does, in words for readers of reports.
FAMILIES: dict[str, str] = {
    "pointwise": "each element by itself",
    "row": "reductions along the dims that lie together in memory",
    "outer": "reductions along dims that do not: columns",
    "inner_outer": "both in one pass, as a norm's gradients of input and weight",
    "scan": "running sums, products and extremes",
    "transpose": "reads along one dim and writes along another, in tiles",
}


@dataclass(frozen=True)
class KernelPlan:
    """One kernel. ``family``: one of ``FAMILIES``. The domain of ``row``, ``inner_outer`` and
    ``scan`` has what is reduced or scanned as columns; ``outer`` the same where memory runs along
    the rows; ``pointwise`` is flat over all axes; the columns of ``transpose`` are two axes, along
    each of which some of the memory runs, and its rows all others.
    """

    family: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Instr, ...]
    stores: tuple[Store, ...]
    launch: Launch

    @property
    def fast(self) -> Axis | None:
        """The axis that vectors lie along; None where there is none."""
        axes = self.rows if self.family == "outer" else self.columns
        return axes[-1] if axes else None

    def is_vector(self, at: int) -> bool:
        """Whether instruction ``at`` loads consecutive elements, a vector at a time."""
        detail = self.body[at].detail
        return isinstance(detail, Load) and detail.access in ("vector", "across")

    @property
    def phases(self) -> int:
        """Number of phases; one more than the longest chain of reductions."""
        return 1 + max((i.phase for i in self.body), default=0)

    @cached_property
    def unordered(self) -> frozenset[int]:
        """The buffers whose last bits, or more, depend on which thread comes when."""
        floats = {"float", "complex"}
        added = {s.buffer for s in self.stores if s.mode == "add"}
        rounded = {n for n in added if self.buffers[n].dtype.kind in floats}
        return frozenset(rounded | {s.buffer for s in self.stores if s.mode == "scatter"})

    @cached_property
    def positions(self) -> dict[str, int]:
        """The symbols of positions, each with its instruction."""
        found = enumerate(self.body)
        return {i.detail.name: n for n, i in found if isinstance(i.detail, Position)}

    def moving(self, axis: str) -> set[str]:
        """The symbols that vary along ``axis``: its own, and those of positions."""
        return {axis} | {n for n, at in self.positions.items() if axis in self.body[at].depends}

    def __str__(self) -> str:
        lines = [f"{self.family} kernel: {self.launch}"]
        lines += [f"  row {a.name} < {a.extent}" for a in self.rows]
        lines += [f"  column {a.name} < {a.extent}" for a in self.columns]
        for i, b in enumerate(self.buffers):
            mode = "updated" if b.updated else "written" if b.written else "read"
            size = f" of {b.extent}" if b.extent != 0 else ""
            lines.append(f"  b{i}: {b.dtype} {b.value} {mode} {b.space}{size}")
        for i, instr in enumerate(self.body):
            lines.append(f"  v{i} = {_describe(instr)}")
        for s in self.stores:
            sign = "+=" if s.mode == "add" else "="
            when = "" if s.when is None else f" if v{s.when}"
            any_stays = " any stays" if s.mode == "scatter" else ""
            lines.append(f"  b{s.buffer}[{s.offset}] {sign} v{s.value} {s.access}{any_stays}{when}")
        return "\n".join(lines) + "\n"


def _describe(instr: Instr) -> str:
    args = ", ".join(f"v{a}" for a in instr.args)
    detail = f" {instr.detail}" if instr.detail is not None else ""
    extra = (" rounded" if instr.rounds else "") + (" loose" if instr.loose else "")
    extra += " late" if instr.late else ""
    return f"{instr.op}({args}){detail} : {instr.dtype} phase {instr.phase}{extra}"
