"""What code generation sees of a kernel: a frozen ``KernelPlan``, and nothing else.

A plan is a loop nest over a *domain* of row axes and column axes, a straight-line body of
instructions and the stores at its end. Offsets are sizes over the domain's symbols; everything else
in them is an argument of the kernel, so one text serves all shapes of its class. A reduction runs
over all column axes of a row and ends a *phase*: an instruction of phase p may use reductions that
ended in phases before p.
"""

from dataclasses import dataclass

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
    provides for each launch.
    """

    value: Use
    dtype: DType
    written: bool = False
    space: str = "global"
    extent: Size = 0


@dataclass(frozen=True)
class Scalar:
    """A number that the host passes, already converted to ``dtype``."""

    value: Use
    dtype: DType

    def __str__(self) -> str:
        return str(self.value)


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
    ``broadcast`` (the same for a whole vector) or ``lane`` (one element at a time).
    """

    buffer: int
    offset: Size
    mask: tuple[Bound, ...] = ()
    access: str = "lane"

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
    """Whether all bounds hold."""

    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.bounds))


@dataclass(frozen=True)
class Draw:
    """A uniform number in [low, high) for index ``counter``; operands are seed and offset."""

    counter: Size
    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}) at {self.counter}"


Detail = Load | Const | Index | InRange | Draw | Scalar | None


@dataclass(frozen=True)
class Instr:
    """One value of the body: its op, operands (earlier instructions), dtype and when it is
    computed.

    ``depends``: the domain symbols it varies with. ``rounds``: a low-precision result is rounded
    here, not only where it is stored.
    """

    op: str
    args: tuple[int, ...]
    dtype: DType
    detail: Detail = None
    depends: frozenset[str] = frozenset()
    phase: int = 0
    rounds: bool = False
    loose: bool = False


@dataclass(frozen=True)
class Store:
    """Puts instruction ``value`` into element ``offset`` of buffer number ``buffer``."""

    buffer: int
    offset: Size
    value: int
    access: str = "lane"


@dataclass(frozen=True)
class Launch:
    """How the domain is laid over the GPU.

    ``threads`` a block; ``group`` threads work on one row (a power of two or a multiple of 32 equal
    to ``threads``); each handles ``items`` vectors of ``vector`` elements; ``exact``: group * items
    * vector is the row's length, so no bounds are needed. ``hold``: where a row lives between
    phases (``registers``, ``shared``, or ``none``: it is read again).
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


@dataclass(frozen=True)
class KernelPlan:
    """One kernel. ``family``: ``pointwise`` (flat over all axes) or ``row`` (reductions along
    columns).
    """

    family: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Instr, ...]
    stores: tuple[Store, ...]
    launch: Launch

    @property
    def phases(self) -> int:
        """Number of phases; one more than the longest chain of reductions."""
        return 1 + max((i.phase for i in self.body), default=0)

    def __str__(self) -> str:
        lines = [f"{self.family} kernel: {self.launch}"]
        lines += [f"  row {a.name} < {a.extent}" for a in self.rows]
        lines += [f"  column {a.name} < {a.extent}" for a in self.columns]
        for i, b in enumerate(self.buffers):
            mode = "written" if b.written else "read"
            size = f" of {b.extent}" if b.extent != 0 else ""
            lines.append(f"  b{i}: {b.dtype} {b.value} {mode} {b.space}{size}")
        for i, instr in enumerate(self.body):
            lines.append(f"  v{i} = {_describe(instr)}")
        for s in self.stores:
            lines.append(f"  b{s.buffer}[{s.offset}] = v{s.value} {s.access}")
        return "\n".join(lines) + "\n"


def _describe(instr: Instr) -> str:
    args = ", ".join(f"v{a}" for a in instr.args)
    detail = f" {instr.detail}" if instr.detail is not None else ""
    extra = (" rounded" if instr.rounds else "") + (" loose" if instr.loose else "")
    return f"{instr.op}({args}){detail} : {instr.dtype} phase {instr.phase}{extra}"
