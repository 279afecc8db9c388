"""The body of one kernel as it grows: instructions, buffers and the positions that indices are.

Instructions that are equal are one. What was added last can be taken back, so that a root which
turns out not to fit leaves no trace.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.indexing import Indices
from thunder_mdfuse.schedule.plan import (
    Bound,
    Buffer,
    Const,
    Detail,
    Index,
    InRange,
    Instr,
    Load,
    Position,
    Scalar,
    Store,
)

Mask = tuple[Bound, ...]


class GrowingBody:
    """Instructions of one kernel, each with what it varies with and the phase it is known in."""

    def __init__(
        self, fusion: Fusion, layouts: dict[Use, Layout], extents: dict[str, Size]
    ) -> None:
        """``extents``: the domain's symbols; symbols of positions join them."""
        self.fusion, self.layouts, self.ranges = fusion, layouts, extents
        self.body: list[Instr] = []
        self.buffers: list[Buffer] = []
        self.stores: list[Store] = []
        self.read: list[Use] = []
        self._same: dict[Instr, int] = {}
        self._places: dict[tuple[Use, bool], int] = {}
        # The positions that indices from memory are, by what makes them and by their symbols.
        self._positions: dict[tuple[int, Size, Mask], Size] = {}
        self._position_at: dict[str, int] = {}

    def _growing(self) -> tuple[list[Any] | dict[Any, Any], ...]:
        """All that a root may add to, and only ever at the end."""
        lists = (self.body, self.buffers, self.read)
        return (*lists, self._same, self._places, self._positions, self._position_at, self.ranges)

    @property
    def looks_up(self) -> bool:
        """Whether something is read at a position that comes out of memory."""
        return bool(self._positions)

    def snapshot(self) -> tuple[int, ...]:
        """A mark to go back to with ``restore`` when a root turns out not to fit."""
        return tuple(map(len, self._growing()))

    def restore(self, mark: tuple[int, ...]) -> None:
        """Forget everything after ``mark``."""
        for grown, length in zip(self._growing(), mark, strict=True):
            if isinstance(grown, list):
                del grown[length:]
            else:
                while len(grown) > length:
                    grown.popitem()

    def append(self, instr: Instr) -> int:
        """Add an instruction unless an equal one is there; its number."""
        if any(self.body[a].late for a in instr.args):
            instr = replace(instr, late=True)
        at = self._same.get(instr)
        if at is None:
            at = len(self.body)
            self.body.append(instr)
            self._same[instr] = at
        return at

    def buffer(self, value: Use, written: bool = False) -> int:
        """The number of the buffer argument for the storage of ``value``."""
        at = self._places.get((value, written))
        if at is None:
            at = self._places[value, written] = len(self.buffers)
            self.buffers.append(Buffer(value, self.fusion.tensor(value).dtype, written))
        return at

    def _scalar(self, use: Use, node: Node) -> int:
        dtype = self.fusion.type_of(use).dtype
        if node.op == "const":
            attrs: Any = node.attrs
            return self.append(Instr("const", (), dtype, Const(attrs.value)))
        return self.append(Instr("scalar", (), dtype, Scalar(use, dtype)))

    def _weak(self, use: Use, dtype: DType) -> int:
        """A scalar beside tensors of ``dtype``: converted once, by the host."""
        node = self.fusion.nodes[use.node]
        if node.op == "const":
            attrs: Any = node.attrs
            return self.append(Instr("const", (), dtype.compute, Const(attrs.value)))
        if dtype.is_complex:
            return self._halves(use, dtype)
        return self.append(Instr("scalar", (), dtype.compute, Scalar(use, dtype.compute)))

    def _halves(self, use: Use, dtype: DType) -> int:
        """A complex number that the host knows: it passes the two halves."""
        real = DType.F32 if dtype is DType.C64 else DType.F64
        halves = (Scalar(use, real, part) for part in ("re", "im"))
        args = tuple(self.append(Instr("scalar", (), real, half)) for half in halves)
        return self.append(self._over("complex", args, dtype))

    def _number(self, use: Use, dtype: DType, exact: bool = False) -> int:
        """A number as an element of ``dtype``; ``exact``: not rounded to it, only to its compute
        dtype.
        """
        at = self._weak(use, dtype)
        if exact or not dtype.is_low_precision:
            return at
        return self.append(self._over("cast", (at,), dtype, rounds=True))

    def _load(self, use: Use, index: Indices, mask: Mask) -> int:
        layout = self.layouts[use]
        if (layout.base, False) not in self._places:
            self.read.append(layout.base)
        offset: Size = layout.offset
        for i, stride in zip(index, layout.strides, strict=True):
            offset = offset + i * stride
        detail = Load(self.buffer(layout.base), offset, mask)
        dtype = self.fusion.tensor(use).dtype
        return self._placed("load", (), dtype, detail, offset, *(b.index for b in mask))

    def _placed(
        self,
        op: str,
        args: tuple[int, ...],
        dtype: DType,
        detail: Detail,
        *values: Size,
        rounds: bool = False,
    ) -> int:
        """An instruction whose ``detail`` has ``values`` in it; positions in them are operands."""
        operands = (*args, *self.positions_in(*values))
        instr = self._over(op, operands, dtype, detail=detail, rounds=rounds)
        names = set[str]().union(*map(sizes.symbols, values))
        return self.append(replace(instr, depends=instr.depends | self._domain(names)))

    def position(self, index: int, extent: Size, mask: Mask = ()) -> Size:
        """The symbol of instruction ``index``, an integer, as a position in a dim of ``extent``."""
        found = self._positions.get((index, extent, mask))
        if found is None:
            name = f"#{len(self._positions)}"
            bounds = (b.index for b in mask)
            detail = Position(name, extent, mask)
            at = self._placed("position", (index,), DType.I64, detail, *bounds)
            self._position_at[name], self.ranges[name] = at, extent
            found = self._positions[index, extent, mask] = sizes.symbol(name)
        return found

    def positions_in(self, *values: Size) -> tuple[int, ...]:
        """The instructions of the positions whose symbols are in ``values``."""
        names = set[str]().union(*map(sizes.symbols, values))
        return tuple(sorted(self._position_at[n] for n in names if n in self._position_at))

    def _domain(self, names: set[str]) -> frozenset[str]:
        return frozenset(n for n in names if n in self.ranges and n not in self._position_at)

    def _over(self, op: str, args: tuple[int, ...], dtype: DType, **more: Any) -> Instr:
        depends = frozenset[str]().union(*(self.body[a].depends for a in args))
        phase = max((self.body[a].phase for a in args), default=0)
        return replace(Instr(op, args, dtype, None, depends, phase), **more)

    def _index(self, value: Size) -> int:
        return self._placed("index", (), DType.I64, Index(value), value)

    def _in_range(self, bounds: Sequence[Bound]) -> int:
        detail = InRange(tuple(bounds))
        return self._placed("in_range", (), DType.BOOL, detail, *(b.index for b in bounds))

    def _as_stored(self, at: int) -> int:
        """Instruction ``at`` with the bits that eager would have stored: which of two numbers is
        larger is seen, also where they differ in what a 16-bit float does not keep.
        """
        instr = self.body[at]
        if not instr.dtype.is_low_precision or instr.op == "load" or instr.rounds:
            return at
        return self.append(self._over("cast", (at,), instr.dtype, rounds=True))
