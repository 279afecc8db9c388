"""Lowering: from values of a local fusion to the straight-line body of a kernel.

A value is asked for at an index over the domain's symbols; views become index arithmetic,
elementwise ops become instructions, and what is in memory becomes a load. A reduction of this
kernel may be used at its own row only; asked for anywhere else it raises ``Misaligned``, and the
caller puts the value elsewhere.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from thunder_mdfuse.errors import ScheduleError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.chunks import position
from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, ScalarType
from thunder_mdfuse.schedule.indexing import Indices, through_view, within_padding, within_part
from thunder_mdfuse.schedule.plan import (
    Bound,
    Buffer,
    Const,
    Draw,
    Index,
    InRange,
    Instr,
    Load,
    Scalar,
    Store,
)

Mask = tuple[Bound, ...]
Key = tuple[Use, Indices, Mask]
# Asks for values one after the other, is told their instructions and returns its own: so a chain of
# ops of any length is lowered without recursion.
Steps = Generator[Key, int, int]


class Misaligned(Exception):
    """A reduction's result is needed at another index than the row that computes it."""


# Torch computes these with a number as it is; for the other ops the number becomes a tensor of the
# dtype beside it first, and is rounded to that.
KEEP_NUMBERS = ("add", "sub", "mul", "div", "floor_div", "trunc_div", "pow", "lerp")
# Powers that torch does not leave to the power function, which has another value at -inf and -0.0
# for some, and costs many times as much.
POWERS = {
    0.5: ("sqrt",),
    -0.5: ("rsqrt",),
    -1.0: ("reciprocal",),
    -2.0: ("mul", "reciprocal"),
    2.0: ("mul",),
    3.0: ("mul", "mul"),
}
# What the other positions hold when a replicated value becomes partial. An average, a minimum or a
# maximum of equal values is that value, so there all hold it.
IDENTITIES = {"sum": "0", "product": "1"}


class Lowering:
    """The body of one kernel as it grows. ``in_memory``: which values are loaded, not computed."""

    def __init__(
        self,
        fusion: Fusion,
        layouts: dict[Use, Layout],
        extents: dict[str, Size],
        in_memory: Callable[[Use], bool],
        round_all: bool = False,
    ) -> None:
        self.fusion, self.layouts, self.ranges = fusion, layouts, extents
        self.in_memory, self.round_all = in_memory, round_all
        self.body: list[Instr] = []
        self.buffers: list[Buffer] = []
        self.stores: list[Store] = []
        self.read: list[Use] = []
        self.reductions: dict[Use, tuple[Indices, int]] = {}
        self._known: dict[Key, int] = {}
        self._same: dict[Instr, int] = {}
        self._places: dict[tuple[Use, bool], int] = {}

    def _growing(self) -> tuple[list[Any] | dict[Any, Any], ...]:
        """All that a root may add to, and only ever at the end."""
        lists = (self.body, self.buffers, self.read)
        return (*lists, self.reductions, self._known, self._same, self._places)

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

    def reduce(self, value: Use, row_index: Indices, index: Indices) -> int:
        """Lower reduction ``value``: its operand at ``index``, its own place at ``row_index``."""
        node = self.fusion.nodes[value.node]
        operand = self.emit(node.args[0], index)
        depends = frozenset().union(*(sizes.symbols(i) for i in row_index))
        phase = self.body[operand].phase + 1
        dtype = self.fusion.tensor(value).dtype
        at = self.append(Instr(f"reduce_{node.op}", (operand,), dtype, None, depends, phase))
        if self.round_all and dtype.is_low_precision:
            at = self.append(Instr("cast", (at,), dtype, None, depends, phase, True))
        self.reductions[value] = (row_index, at)
        return at

    def emit(self, use: Use, index: Indices, mask: Mask = ()) -> int:
        """The instruction for element ``index`` of ``use``; any value where ``mask`` fails."""
        found = self._known.get((use, index, mask))
        pending = [] if found is not None else [((use, index, mask), self._emit(use, index, mask))]
        while pending:
            key, steps = pending[-1]
            try:
                asked = next(steps) if found is None else steps.send(found)
            except StopIteration as done:
                pending.pop()
                found = self._known[key] = done.value
                continue
            found = self._known.get(asked)
            if found is None:
                pending.append((asked, self._emit(*asked)))
        assert found is not None
        return found

    def _emit(self, use: Use, index: Indices, mask: Mask) -> Steps:
        node = self.fusion.nodes[use.node]
        if isinstance(self.fusion.type_of(use), ScalarType):
            return self._scalar(use, node)
        if use in self.reductions:
            expected, at = self.reductions[use]
            if expected != index:
                raise Misaligned(f"{use} is computed at {expected} and needed at {index}")
            return at
        if self.in_memory(use):
            return self._load(use, index, mask)
        kind = row(node.op).kind
        if kind == "view" or node.op in ("flip", "chunk"):
            shape = self.fusion.type_of(node.args[0])
            if isinstance(shape, ScalarType):
                return self._weak(node.args[0], self.fusion.tensor(use).dtype)
            return (yield node.args[0], through_view(node, shape.shape, index, self.ranges), mask)
        emitters: dict[str, Callable[[Use, Node, Indices, Mask], Steps]] = {
            "elementwise": self._elementwise,
            "copy": self._copy,
            "factory": self._factory,
            "random": self._random,
            "rearrange": self._pad if node.op == "pad" else self._cat,
            "chunk": self._keep_first,
        }
        if kind not in emitters:
            raise ScheduleError(f"{use} = {node.op} is neither in memory nor generated")
        return (yield from emitters[kind](use, node, index, mask))

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
        return self.append(Instr("scalar", (), dtype.compute, Scalar(use, dtype.compute)))

    def _load(self, use: Use, index: Indices, mask: Mask) -> int:
        layout = self.layouts[use]
        if (layout.base, False) not in self._places:
            self.read.append(layout.base)
        offset: Size = layout.offset
        for i, stride in zip(index, layout.strides, strict=True):
            offset = offset + i * stride
        detail = Load(self.buffer(layout.base), offset, mask)
        depends = sizes.symbols(offset).union(*(sizes.symbols(b.index) for b in mask))
        return self.append(
            Instr("load", (), self.fusion.tensor(use).dtype, detail, self._domain(depends))
        )

    def _domain(self, names: set[str]) -> frozenset[str]:
        return frozenset(n for n in names if n in self.ranges)

    def _over(self, op: str, args: tuple[int, ...], dtype: DType, **more: Any) -> Instr:
        depends = frozenset[str]().union(*(self.body[a].depends for a in args))
        phase = max((self.body[a].phase for a in args), default=0)
        return replace(Instr(op, args, dtype, None, depends, phase), **more)

    def _elementwise(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        result = self.fusion.tensor(use).dtype
        args: list[int] = []
        for i, a in enumerate(node.args):
            if isinstance(self.fusion.type_of(a), ScalarType):
                exact = node.op in KEEP_NUMBERS
                args.append(self._number(a, self._beside(node, i, result), exact))
            else:
                args.append((yield a, index, mask))
        attrs: Any = node.attrs
        rounds = result.is_low_precision and (self.round_all or (node.op == "cast" and attrs.user))
        power = self._known_power(node, args[-1], result)
        if power is not None:
            return self._power(args[0], power, result, rounds)
        return self.append(self._over(node.op, tuple(args), result, rounds=rounds))

    def _known_power(self, node: Node, exponent: int, dtype: DType) -> tuple[str, ...] | None:
        """What a power by a number is computed by, when that is not the power function."""
        number = self.body[exponent].detail
        tensor = not isinstance(self.fusion.type_of(node.args[-1]), ScalarType)
        if node.op != "pow" or tensor or not isinstance(number, Const):
            return None
        ops = POWERS.get(float(number.text))
        return ops if ops is None or dtype.is_float or set(ops) == {"mul"} else None

    def _power(self, base: int, ops: tuple[str, ...], dtype: DType, rounds: bool) -> int:
        """``ops`` one after the other, of ``base`` or, for products, with ``base``."""
        value = base
        for op in ops:
            operands = (value, base) if op == "mul" else (value,)
            value = self.append(self._over(op, operands, dtype))
        return self.append(replace(self.body[value], rounds=True)) if rounds else value

    def _beside(self, node: Node, position: int, result: DType) -> DType:
        """The dtype that operand ``position``, a number, takes from the tensors beside it."""
        if node.op == "where":
            return result if position else DType.BOOL
        tensors = [a for a in node.args if not isinstance(self.fusion.type_of(a), ScalarType)]
        return self.fusion.tensor(tensors[-1]).dtype

    def _number(self, use: Use, dtype: DType, exact: bool = False) -> int:
        """A number as an element of ``dtype``; ``exact``: not rounded to it, only to its compute
        dtype.
        """
        at = self._weak(use, dtype)
        if exact or not dtype.is_low_precision:
            return at
        return self.append(self._over("cast", (at,), dtype, rounds=True))

    def _copy(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        return (yield node.args[0], index, mask)

    def _factory(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        dtype = self.fusion.tensor(use).dtype
        if node.op == "full":
            return (yield from self._single(node.args[0], dtype))
        exact = DType.F64 if dtype.is_float else DType.I64
        start, step = (self._weak(a, exact) for a in node.args)
        at = self._index(index[0])
        if dtype.is_float:
            at = self.append(self._over("cast", (at,), DType.F64))
        scaled = self.append(self._over("mul", (at, step), exact))
        total = self.append(self._over("add", (start, scaled), exact))
        return self.append(self._over("cast", (total,), dtype))

    def _index(self, value: Size) -> int:
        depends = self._domain(sizes.symbols(value))
        return self.append(Instr("index", (), DType.I64, Index(value), depends))

    def _random(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        attrs: Any = node.attrs
        whole = attrs.whole or attrs.shape
        starts = attrs.starts or (0,) * len(whole)
        counter: Size = 0
        for i, start, extent in zip(index, starts, whole, strict=True):
            counter = counter * extent + i + start
        args: list[int] = []
        for a in node.args:
            number = isinstance(self.fusion.type_of(a), ScalarType)
            args.append(self._scalar(a, self.fusion.nodes[a.node]) if number else (yield a, (), ()))
        detail = Draw(counter, attrs.low, attrs.high)
        depends = self._domain(sizes.symbols(counter))
        dtype = self.fusion.tensor(use).dtype
        drawn = self._over("uniform", tuple(args), dtype, detail=detail, rounds=True)
        return self.append(replace(drawn, depends=drawn.depends | depends))

    def _in_range(self, bounds: Sequence[Bound]) -> int:
        depends = self._domain(set().union(*(sizes.symbols(b.index) for b in bounds)))
        return self.append(Instr("in_range", (), DType.BOOL, InRange(tuple(bounds)), depends))

    def _pad(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        dtype = self.fusion.tensor(use).dtype
        shape = self.fusion.tensor(node.args[0]).shape
        own, bounds = within_padding(node, shape, index)
        inside = yield node.args[0], own, mask + bounds
        if not bounds:
            return inside
        filler = yield from self._single(node.args[1], dtype)
        return self.append(self._over("where", (self._in_range(bounds), inside, filler), dtype))

    def _single(self, use: Use, dtype: DType) -> Steps:
        """A number or a 0-dim tensor as an element of ``dtype``."""
        if isinstance(self.fusion.type_of(use), ScalarType):
            return self._number(use, dtype)
        at = yield use, (), ()
        if self.fusion.tensor(use).dtype is dtype:
            return at
        return self.append(self._over("cast", (at,), dtype, rounds=dtype.is_low_precision))

    def _cat(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        attrs: Any = node.attrs
        dtype = self.fusion.tensor(use).dtype
        start: Size = 0
        parts: list[tuple[Bound, int]] = []
        for arg in node.args:
            extent = self.fusion.tensor(arg).shape[attrs.dim]
            own, bound = within_part(node, start, extent, index)
            parts.append((bound, (yield arg, own, (*mask, bound))))
            start = start + extent
        result = parts[-1][1]
        for bound, value in reversed(parts[:-1]):
            args = (self._in_range([bound]), value, result)
            result = self.append(self._over("where", args, dtype))
        return result

    def _keep_first(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        """Replicate to Partial: position 0 keeps the value, the others hold the identity."""
        attrs: Any = node.attrs
        dtype = self.fusion.tensor(use).dtype
        value = yield node.args[0], index, mask
        if attrs.op not in IDENTITIES:
            return value
        identity = self.append(Instr("const", (), dtype.compute, Const(IDENTITIES[attrs.op])))
        first = self._in_range([Bound(position(attrs.team), 1)])
        return self.append(self._over("where", (first, value, identity), dtype))
