"""Last part of localize: small collectives of one kind that may run together become one.

In and out: a local fusion. A collective's *level* is how many others lie before it on the longest
way to an input: two of the same level never wait for each other, and neither do groups in a circle.
A small collective that nothing needs yet goes to a later level where it finds company. Small ones
of one level with the same kind, team, reduction and dtype are packed into one buffer as columns of
a matrix, sent as one collective over its rows, and read back as views of the result; what leaves
the program is copied out, so that outputs share no memory.

Which ones are packed depends on global sizes alone, so it is the same on all ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import (
    CopyAttrs,
    DimAttrs,
    DimsAttrs,
    GatherCommAttrs,
    ReduceCommAttrs,
    ScatterCommAttrs,
    ShapeAttrs,
    SliceAttrs,
)
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import Mesh, TensorType
from thunder_mdfuse.sharding.spec import nominal

# Bytes up to which a collective is packed with others. Reasoned, not measured: one costs some
# 15 us whatever it moves, and packing and unpacking cost two small kernels and the bytes twice.
MOST_BYTES = 128 << 10

Shape = tuple[Size, ...]
Key = tuple[object, ...]


@dataclass(frozen=True)
class _Packing:
    """How a collective's operand becomes ``rows`` rows, and the rows of a result its result."""

    pack: Callable[[Builder, Use, Any], Use]
    unpack: Callable[[Builder, Use, Shape, Any], Use]


def coalesce(fusion: Fusion) -> Fusion:
    """``fusion`` with its small collectives packed; itself when there are none to pack."""
    if fusion.mesh is None:
        return fusion
    levels, groups = _planned(fusion, fusion.mesh)
    if not groups:
        return fusion
    return _Packer(fusion, levels, groups).run()


def _levels(fusion: Fusion, floors: dict[int, int]) -> list[int]:
    """For each node how many collectives lie before it, those in ``floors`` at their level."""
    levels: list[int] = []
    for i, node in enumerate(fusion.nodes):
        level = max((levels[a.node] for a in node.args), default=0)
        level = max(level, floors.get(i, 0))
        levels.append(level + 1 if row(node.op).kind == "wait" else level)
    return levels


def _latest(fusion: Fusion, levels: list[int]) -> list[int]:
    """For each node the last level at which it delays no collective beyond the last level."""
    starts = [i for i, node in enumerate(fusion.nodes) if row(node.op).kind == "start"]
    latest = [max((levels[i] for i in starts), default=0) + 1] * len(fusion.nodes)
    for i in starts:
        latest[i] -= 1
    for i in reversed(range(len(fusion.nodes))):
        node = fusion.nodes[i]
        for a in node.args:
            before = latest[i] - 1 if row(node.op).kind == "wait" else latest[i]
            latest[a.node] = min(latest[a.node], before)
    return latest


def _planned(fusion: Fusion, mesh: Mesh) -> tuple[list[int], list[list[int]]]:
    """The level of each node, and the groups of collectives to pack."""
    keys = {i: _key(fusion, i) for i, n in enumerate(fusion.nodes) if _fits(fusion, n, mesh)}
    floors: dict[int, int] = {}
    levels = _levels(fusion, floors)
    for i, key in keys.items():
        own, last = levels[i], _latest(fusion, levels)[i]
        company = sorted(levels[j] for j, other in keys.items() if j != i and other == key)
        later = [level for level in company if own < level <= last]
        if own not in company and later:
            floors[i] = later[0]
            levels = _levels(fusion, floors)
    found: dict[Key, list[int]] = {}
    for i, key in keys.items():
        found.setdefault((levels[i], *key), []).append(i)
    return levels, [members for members in found.values() if len(members) > 1]


def _key(fusion: Fusion, i: int) -> Key:
    """What collectives that go together have in common."""
    node = fusion.nodes[i]
    attrs: Any = node.attrs
    return node.op, attrs.team, getattr(attrs, "op", None), fusion.tensor(Use(i)).dtype


def _fits(fusion: Fusion, node: Node, mesh: Mesh) -> bool:
    """Whether ``node`` is a collective that is small on every rank and can be laid out by rows."""
    if node.op not in _PACKINGS:
        return False
    attrs: Any = node.attrs
    x, result = fusion.tensor(node.args[0]), node.types[0]
    assert isinstance(result, TensorType)
    shape = [_largest(n, mesh) for n in x.shape]
    if nominal(sizes.product(shape)) * x.dtype.itemsize > MOST_BYTES:
        return False
    if node.op == "all_reduce":
        return True
    extents = {name for n in (*x.shape, *result.shape) for name in sizes.symbols(n)}
    return f"@{attrs.team}" not in extents and getattr(attrs, "split", 1) == 1


def _largest(size: Size, mesh: Mesh) -> Size:
    """``size`` at the first position of every axis, which has the most."""
    return sizes.substitute(size, {f"@{axis.name}": 0 for axis in mesh.axes})


class _Packer:
    def __init__(self, fusion: Fusion, levels: list[int], groups: list[list[int]]) -> None:
        self.fusion, self.levels = fusion, levels
        self.builder = Builder(fusion.mesh, "local")
        self.values: dict[Use, Use] = {}
        self.group_of = {i: members for members in groups for i in members}
        self.leaving = {o.value for o in fusion.outputs}

    def run(self) -> Fusion:
        nodes = self.fusion.nodes
        # By level, so that the operands of a group are there before anything waits for it.
        for i in sorted(range(len(nodes)), key=lambda i: (self.levels[i], i)):
            node = nodes[i]
            if node.op == "input":
                self.values[Use(i)] = self.builder.input(node.types[0])
            elif i in self.group_of:
                if i == self.group_of[i][-1]:
                    self._pack(self.group_of[i])
            elif row(node.op).kind == "wait" and node.args[0].node in self.group_of:
                self._unpacked(i, node.args[0])
            else:
                args = tuple(self.values[a] for a in node.args)
                for r, use in enumerate(self.builder.node(replace(node, args=args))):
                    self.values[Use(i, r)] = use
        outputs = tuple(
            Output(
                self.values[o.value],
                None if o.writes is None else self.values[Use(o.writes)].node,
            )
            for o in self.fusion.outputs
        )
        return self.builder.finish(outputs, self.fusion.guards)

    def _pack(self, members: list[int]) -> None:
        """One collective of ``members``; the value of each is its columns of the waited result."""
        b, nodes = self.builder, self.fusion.nodes
        first: Any = nodes[members[0]].attrs
        how = _PACKINGS[nodes[members[0]].op]
        packed = [how.pack(b, self.values[nodes[m].args[0]], nodes[m].attrs) for m in members]
        (whole,) = b.op("cat", tuple(packed), DimAttrs(1))
        (started,) = b.op(nodes[members[0]].op, (whole,), _over_rows(nodes[members[0]].op, first))
        (received,) = b.op("wait", (started,))
        rows = b.tensor(received).shape[0]
        begin: Size = 0
        for m, part in zip(members, packed, strict=True):
            end = sizes.add(begin, b.tensor(part).shape[1])
            spans = SliceAttrs((0, begin), (rows, end), (1, 1))
            (self.values[Use(m)],) = b.op("slice", (received,), spans)
            begin = end

    def _unpacked(self, i: int, start: Use) -> None:
        node, t = self.fusion.nodes[start.node], self.fusion.tensor(Use(i))
        use = _PACKINGS[node.op].unpack(self.builder, self.values[start], t.shape, node.attrs)
        if Use(i) in self.leaving:
            (use,) = self.builder.op("copy", (use,), CopyAttrs())
        self.values[Use(i)] = use


def _over_rows(op: str, attrs: Any) -> Any:
    if op == "all_reduce":
        return ReduceCommAttrs(attrs.team, attrs.ranks, attrs.op)
    if op == "all_gather":
        return GatherCommAttrs(attrs.team, attrs.ranks, 0, attrs.ranks)
    return ScatterCommAttrs(attrs.team, attrs.ranks, 0, attrs.ranks, attrs.op)


def _reshape(b: Builder, use: Use, *shape: Size) -> Use:
    return b.op("reshape", (use,), ShapeAttrs(shape))[0]


def _one_row(b: Builder, use: Use, attrs: Any) -> Use:
    return _reshape(b, use, 1, sizes.product(b.tensor(use).shape))


def _row_each(b: Builder, use: Use, attrs: Any) -> Use:
    """reduce_scatter: row p is what position p will have."""
    shape, d = b.tensor(use).shape, attrs.dim
    part = sizes.exact_quotient(shape[d], attrs.ranks)
    assert part is not None
    use = _reshape(b, use, *shape[:d], attrs.ranks, part, *shape[d + 1 :])
    order = (d, *(i for i in range(len(shape) + 1) if i != d))
    (use,) = b.op("permute", (use,), DimsAttrs(order))
    return _reshape(b, use, attrs.ranks, sizes.product((*shape[:d], part, *shape[d + 1 :])))


def _from_row(b: Builder, use: Use, shape: Shape, attrs: Any) -> Use:
    return _reshape(b, use, *shape)


def _from_rows(b: Builder, use: Use, shape: Shape, attrs: Any) -> Use:
    """all_gather: row p is what position p had."""
    d = attrs.dim
    part = sizes.exact_quotient(shape[d], attrs.ranks)
    assert part is not None
    use = _reshape(b, use, attrs.ranks, *shape[:d], part, *shape[d + 1 :])
    order = (*range(1, d + 1), 0, *range(d + 1, len(shape) + 1))
    (use,) = b.op("permute", (use,), DimsAttrs(order))
    return _reshape(b, use, *shape)


_PACKINGS = {
    "all_reduce": _Packing(_one_row, _from_row),
    "all_gather": _Packing(_one_row, _from_rows),
    "reduce_scatter": _Packing(_row_each, _from_row),
}
