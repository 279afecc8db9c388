"""Lowering: from values of a local fusion to the straight-line body of a kernel.

A value is asked for at an index over the domain's symbols; views become index arithmetic,
elementwise ops become instructions, and what is in memory becomes a load. A reduction of this
kernel may be used at its own row only; asked for anywhere else it raises ``Misaligned``, and the
caller puts the value elsewhere.
"""

from collections.abc import Callable, Generator
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
from thunder_mdfuse.schedule.gather import gather_site
from thunder_mdfuse.schedule.growing import GrowingBody, Mask
from thunder_mdfuse.schedule.indexing import Indices, through_view, within_padding, within_part
from thunder_mdfuse.schedule.plan import (
    Bound,
    Const,
    Draw,
    Index,
    Instr,
)
from thunder_mdfuse.schedule.roles import reduced_dims, reduces, scanned_dim

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


class Lowering(GrowingBody):
    """The body of one kernel as it grows. ``in_memory``: which values are loaded, not computed."""

    def __init__(
        self,
        fusion: Fusion,
        layouts: dict[Use, Layout],
        extents: dict[str, Size],
        in_memory: Callable[[Use], bool],
        round_all: bool = False,
    ) -> None:
        super().__init__(fusion, layouts, extents)
        self.in_memory, self.round_all = in_memory, round_all
        self.reductions: dict[Use, tuple[Indices, int]] = {}
        self._known: dict[Key, int] = {}

    def _growing(self) -> tuple[list[Any] | dict[Any, Any], ...]:
        return (*super()._growing(), self.reductions, self._known)

    def reduce(self, value: Use, row_index: Indices, index: Indices, late: bool = False) -> int:
        """Lower reduction ``value``: its operand at ``index``, its own place at ``row_index``.

        ``late``: it goes over all rows, and ends no phase.
        """
        node = self.fusion.nodes[value.node]
        operand = self.emit(node.args[0], index)
        if self.body[operand].late:
            raise Misaligned(f"{value} reduces what is known only when all rows have been walked")
        depends = frozenset().union(*(sizes.symbols(i) for i in row_index))
        phase = self.body[operand].phase + (not late)
        dtype = self.fusion.tensor(value).dtype
        detail = None
        if row(node.op).kind == "arg_reduction":
            if late:
                raise Misaligned(f"{value} is a pair for each column, which no kernel keeps")
            operand = self._as_stored(operand)
            detail = Index(flat_index(index, self.fusion, node))
        made = Instr(f"reduce_{node.op}", (operand,), dtype, detail, depends, phase, late=late)
        at = self.append(made)
        if self.round_all and dtype.is_low_precision:
            at = self.append(Instr("cast", (at,), dtype, None, depends, phase, True))
        self.reductions[value] = (row_index, at)
        return at

    def scan(self, value: Use, dim: int, index: Indices) -> int:
        """Lower scan ``value`` along ``dim`` at ``index``, the place of its operand's element."""
        node = self.fusion.nodes[value.node]
        operand = self.emit(node.args[0], index)
        first = self.body[operand]
        depends = first.depends | self._domain(sizes.symbols(index[dim]))
        dtype = self.fusion.tensor(value).dtype
        # A phase of its own: what uses the result comes after all lanes have their operand.
        scanned = Instr(f"scan_{node.op}", (operand,), dtype, None, depends, first.phase + 1)
        at = self.append(scanned)
        self.reductions[value] = (index, at)
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
        if kind == "arg_reduction":
            assert not reduces(self.fusion, node), f"{use} is neither in memory nor computed here"
            return self.append(Instr("const", (), DType.I64, Const("0")))
        if kind == "reduction" and not reduces(self.fusion, node):
            return (yield from self._single_element(use, node, index, mask))
        if kind == "scan":
            assert scanned_dim(self.fusion, node) is None, (
                f"{use} is neither loaded nor scanned here"
            )
            return (yield node.args[0], index, mask)
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
            "index": self._gather,
        }
        if kind not in emitters:
            raise ScheduleError(f"{use} = {node.op} is neither in memory nor generated")
        return (yield from emitters[kind](use, node, index, mask))

    def _single_element(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        """A reduction of one element each. A sum starts at 0, so that -0.0 becomes 0.0."""
        attrs: Any = node.attrs
        dtype = self.fusion.tensor(use).dtype
        left = iter(index)
        own = [0 if d in attrs.dims else next(left) for d in range(self._ndim(node.args[0]))]
        at = yield node.args[0], tuple(own), mask
        if node.op == "sum" and dtype.is_float:
            zero = self.append(Instr("const", (), dtype.compute, Const("0")))
            at = self.append(self._over("add", (at, zero), dtype))
        return at

    def _ndim(self, use: Use) -> int:
        return len(self.fusion.tensor(use).shape)

    def _gather(self, use: Use, node: Node, index: Indices, mask: Mask) -> Steps:
        site = gather_site(self.fusion, node, index)
        position = self.position((yield site.index, site.where, mask), site.extent, mask)
        return (yield site.table, site.place(position), mask)

    def stored(self, use: Use, index: Indices) -> int:
        """What the kernel that is the home of ``use`` stores as its element ``index``.

        Of a scatter that is what is there before anything is put; the result is read from memory.
        """
        node = self.fusion.nodes[use.node]
        if row(node.op).kind != "scatter":
            return self.emit(use, index)
        if node.op == "embedding_backward":
            return self.append(Instr("const", (), self.fusion.tensor(use).dtype, Const("0")))
        return self.emit(node.args[0], index)

    def element(self, use: Use, index: Indices, dtype: DType) -> int:
        """Element ``index`` of ``use``, or the number that it is as an element of ``dtype``."""
        if isinstance(self.fusion.type_of(use), ScalarType):
            return self._number(use, dtype)
        return self.emit(use, index)

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
        # No promotion makes an 8-bit float, whose range a value may well leave.
        asked = node.op == "cast" and (attrs.user or result.itemsize == 1)
        rounds = result.is_low_precision and (self.round_all or asked)
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
        dtype = self.fusion.tensor(use).dtype
        return self._placed(node.op, tuple(args), dtype, detail, counter, rounds=True)

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


def flat_index(index: Indices, fusion: Fusion, node: Node) -> Size:
    """Where ``index`` is in the dims that ``node`` reduces, counted row by row."""
    flat: Size = 0
    shape = fusion.tensor(node.args[0]).shape
    for d in reduced_dims(fusion, node):
        flat = flat * shape[d] + index[d]
    return flat
