"""The program: a ``Fusion`` is a list of nodes, their inputs first, and the outputs among their
results.

Nodes are functional and immutable. A use is (node, result index). ``Builder.finish`` drops what no
output needs and puts nodes into one canonical order, so two fusions that compute the same from the
same inputs are equal however they were built, and ``Fusion.key`` can name a cache entry.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.attrs import NO_ATTRS, Attrs, ConstAttrs, InputAttrs
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, Mesh, Placements, ScalarType, TensorType, Type


class Use(NamedTuple):
    """Result number ``result`` of node ``node``."""

    node: int
    result: int = 0

    def __str__(self) -> str:
        return f"%{self.node}" + (f".{self.result}" if self.result else "")


@dataclass(frozen=True)
class Node:
    """One operation: op name, operands, attributes, and the types of its results."""

    op: str
    args: tuple[Use, ...]
    attrs: Attrs
    types: tuple[Type, ...]


@dataclass(frozen=True)
class Output:
    """A value that leaves the fusion. ``writes``: the input (by node) whose storage it is put into.

    Whether an output that writes nothing is fresh or a view of an input follows from the ops' view
    rules and the inputs' strides (``ir/layout.py``).
    """

    value: Use
    writes: int | None = None


@dataclass(frozen=True)
class Guard:
    """A fact about sizes that a specialised program relies on: ``left relation right``."""

    left: Size
    relation: str
    right: Size

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(frozen=True)
class Fusion:
    """``level``: global (logical shapes, placements) or local (a rank's shapes, collectives)."""

    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    mesh: Mesh | None = None
    level: str = "global"
    guards: tuple[Guard, ...] = ()

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The input nodes, in the order of the signature."""
        return tuple(i for i, n in enumerate(self.nodes) if n.op == "input")

    def type_of(self, use: Use) -> Type:
        """The type of the value ``use``."""
        return self.nodes[use.node].types[use.result]

    def tensor(self, use: Use) -> TensorType:
        """The type of ``use``, which must be a tensor."""
        found = self.type_of(use)
        assert isinstance(found, TensorType), f"{use} is a {found}"
        return found

    @cached_property
    def users(self) -> dict[Use, tuple[int, ...]]:
        """For each value the nodes that read it, ascending, each once."""
        found: dict[Use, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for use in dict.fromkeys(node.args):
                found.setdefault(use, []).append(i)
        return {use: tuple(nodes) for use, nodes in found.items()}

    @cached_property
    def key(self) -> str:
        """A digest of the structure; equal for equal fusions, in every process."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def placed(types: tuple[Type, ...], placements: tuple[Placements | None, ...]) -> tuple[Type, ...]:
    """``types`` with each tensor's placements set."""
    pairs = zip(types, placements, strict=True)
    return tuple(t.placed(p) if isinstance(t, TensorType) else t for t, p in pairs)


class Builder:
    """Builds a fusion node by node. Equal nodes are one, so common subexpressions are shared."""

    def __init__(self, mesh: Mesh | None = None, level: str = "global") -> None:
        self.mesh, self.level = mesh, level
        self.nodes: list[Node] = []
        self._known: dict[Node, int] = {}
        self._inputs = 0

    def type_of(self, use: Use) -> Type:
        """The type of a value built so far."""
        return self.nodes[use.node].types[use.result]

    def tensor(self, use: Use) -> TensorType:
        """The type of ``use``, which must be a tensor."""
        found = self.type_of(use)
        assert isinstance(found, TensorType), f"{use} is a {found}"
        return found

    def input(self, type: Type) -> Use:
        """A further input."""
        self._inputs += 1
        return Use(self._append(Node("input", (), InputAttrs(self._inputs - 1), (type,))))

    def const(self, value: bool | int | float | complex, dtype: DType | None = None) -> Use:
        """A number, as a scalar of its Python type's dtype unless told otherwise."""
        kinds = {bool: DType.BOOL, int: DType.I64, float: DType.F64, complex: DType.C128}
        dtype = dtype or kinds[type(value)]
        return self.op("const", (), ConstAttrs(number_text(value), dtype))[0]

    def op(
        self,
        name: str,
        args: tuple[Use, ...],
        attrs: Attrs = NO_ATTRS,
        placements: tuple[Placements | None, ...] | None = None,
    ) -> tuple[Use, ...]:
        """Append op ``name``; its results. Raises ``IRError`` when operands or attributes do not
        fit.
        """
        op = row(name)
        if not op.operands[0] <= len(args) <= op.operands[1]:
            raise IRError(f"{name}: {len(args)} operands found, {op.operands} (least, most) needed")
        if not isinstance(attrs, op.attrs):
            raise IRError(f"{name}: attributes {attrs} found, {op.attrs.__name__} needed")
        types = op.rule(name, tuple(self.type_of(a) for a in args), attrs)
        if placements is not None:
            types = placed(types, placements)
        return self.node(Node(name, args, attrs, types))

    def node(self, node: Node) -> tuple[Use, ...]:
        """Append a ready node, whose types are taken as they are; its results."""
        at = self._known.get(node)
        if at is None or node.op == "input":
            at = self._append(node)
            self._known[node] = at
        return tuple(Use(at, i) for i in range(len(node.types)))

    def _append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def finish(self, outputs: tuple[Output | Use, ...], guards: tuple[Guard, ...] = ()) -> Fusion:
        """The fusion of ``outputs``, without dead nodes and in canonical order."""
        wanted = tuple(o if isinstance(o, Output) else Output(o) for o in outputs)
        order = [i for i, n in enumerate(self.nodes) if n.op == "input"]
        order += _depth_first(self.nodes, [o.value.node for o in wanted], set(order))
        moved = {old: new for new, old in enumerate(order)}
        nodes = tuple(
            replace(
                self.nodes[old],
                args=tuple(Use(moved[a.node], a.result) for a in self.nodes[old].args),
            )
            for old in order
        )
        placed_outputs = tuple(
            Output(
                Use(moved[o.value.node], o.value.result),
                None if o.writes is None else moved[o.writes],
            )
            for o in wanted
        )
        return Fusion(nodes, placed_outputs, self.mesh, self.level, guards)


def _depth_first(nodes: list[Node], roots: list[int], seen: set[int]) -> list[int]:
    order: list[int] = []
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((a.node, False) for a in reversed(nodes[node].args) if a.node not in seen)
    return order


def number_text(value: bool | int | float | complex) -> str:
    """A text that distinguishes all numbers, NaN and -0.0 included, and that ``number`` reads."""
    if isinstance(value, complex):
        return f"{value.real!r} {value.imag!r}"
    return repr(value) if isinstance(value, float) else str(int(value))


def number(attrs: ConstAttrs) -> bool | int | float | complex:
    """The Python number of a ``const`` node."""
    if attrs.dtype.is_complex:
        real, _, imag = attrs.value.partition(" ")
        return complex(float(real), float(imag or "0"))
    if attrs.dtype.is_float:
        return float(attrs.value)
    return bool(int(attrs.value)) if attrs.dtype is DType.BOOL else int(attrs.value)


def scalar(dtype: DType) -> ScalarType:
    """The scalar type of ``dtype``."""
    return ScalarType(dtype)
