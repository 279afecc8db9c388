"""Third stage: from the global view to one rank's program, the same text for every rank.

In: a global fusion whose changes of placement are explicit. Out: a local fusion: types have the
sizes that one rank holds, as expressions in its mesh coordinate (``@axis``), without placements;
each ``reshard`` is its sequence of steps (``changes``), a collective being a start and a
``wait``; attributes that carry sizes are local. The mesh stays on the fusion to say what the
teams are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thunder_mdfuse.errors import ShardingError
from thunder_mdfuse.ir.attrs import (
    NO_ATTRS,
    Attrs,
    BroadcastAttrs,
    EmbeddingAttrs,
    ReduceCommAttrs,
    SizeAttrs,
    TurnCommAttrs,
)
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import Mesh, TensorType
from thunder_mdfuse.sharding.changes import route
from thunder_mdfuse.sharding.coalesce import coalesce
from thunder_mdfuse.sharding.spec import (
    layout,
    local_shape,
    local_size,
    local_start,
    local_type,
)


def localize(fusion: Fusion) -> Fusion:
    """The local program of ``fusion``.

    Raises ``ShardingError`` where a local tensor has not the shape that its placements say.
    """
    if fusion.mesh is None:
        return replace(fusion, level="local")
    localizer = _Localizer(fusion, fusion.mesh)
    values: dict[Use, Use] = {}
    for i, node in enumerate(fusion.nodes):
        args = tuple(values[a] for a in node.args)
        for r, use in enumerate(localizer.emit(i, node, args)):
            values[Use(i, r)] = use
    outputs = tuple(
        Output(values[o.value], None if o.writes is None else values[Use(o.writes)].node)
        for o in fusion.outputs
    )
    return coalesce(localizer.builder.finish(outputs, fusion.guards))


class _Localizer:
    def __init__(self, fusion: Fusion, mesh: Mesh) -> None:
        self.fusion, self.mesh = fusion, mesh
        self.builder = Builder(mesh, "local")

    def emit(self, i: int, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
        """The local nodes of ``node``; their results stand for the node's."""
        (t, *_) = node.types
        if node.op == "input":
            return (
                self.builder.input(local_type(t, self.mesh) if isinstance(t, TensorType) else t),
            )
        if node.op in ("from_local", "to_local"):
            return (self._border(i, node, args[0]),)
        if node.op == "reshard":
            return (self._change(node, args[0]),)
        if not _placed(t):
            return self.builder.node(replace(node, args=args))
        results = _LOCAL.get(node.op, _unchanged)(self, node, args)
        for r, use in enumerate(results):
            expected = local_type(self.fusion.tensor(Use(i, r)), self.mesh)
            assert self.builder.type_of(use) == expected, f"{node.op} %{i}: {expected}"
        return results

    def _border(self, i: int, node: Node, use: Use) -> Use:
        """from_local, to_local: the same value, whose two types must agree on the local shape."""
        outside, inside = node.types[0], self.fusion.tensor(node.args[0])
        if node.op == "from_local":
            outside, inside = inside, outside
        assert isinstance(outside, TensorType) and isinstance(inside, TensorType)
        expected = local_shape(inside, self.mesh)
        if outside.shape != expected:
            listing = ", ".join(map(str, expected))
            raise ShardingError(
                f"{node.op} %{i}: the local tensor is {outside}, but a rank's part of {inside} on "
                f"{self.mesh} has shape [{listing}]; give the local tensor that shape, or a "
                "global shape and placements that fit it"
            )
        return use

    def _change(self, node: Node, use: Use) -> Use:
        """The steps of a reshard, one mesh axis at a time."""
        before, after = self.fusion.tensor(node.args[0]), node.types[0]
        assert isinstance(after, TensorType) and before.placements and after.placements
        way = route(
            before.shape, before.dtype.itemsize, self.mesh, before.placements, after.placements
        )
        for step in way.steps:
            if step.op == "multiply":
                assert isinstance(step.attrs, ReduceCommAttrs)
                use = self.op("mul", use, self.size(step.attrs.ranks))
                continue
            (use,) = self.builder.op(step.op, (use,), step.attrs)
            if step.communicates:
                (use,) = self.builder.op("wait", (use,))
        assert self.builder.type_of(use) == local_type(after, self.mesh)
        return use

    def size(self, size: Size) -> Use:
        """``size`` as a scalar value."""
        if isinstance(size, int):
            return self.builder.const(size)
        return self.builder.op("size", (), SizeAttrs(size))[0]

    def op(self, name: str, *args: Use, attrs: Attrs = NO_ATTRS) -> Use:
        """Append an op with one result."""
        return self.builder.op(name, args, attrs)[0]

    def block(self, t: TensorType, dim: int) -> tuple[Size, Size] | None:
        """Start and size of the block of ``dim`` that this rank holds; None for all of it."""
        assert t.placements is not None
        cuts = layout(t.shape[dim], t.placements, dim, self.mesh)
        if not cuts:
            return None
        n = t.shape[dim]
        return local_start(n, cuts, self.mesh), local_size(n, cuts, self.mesh)


def _placed(t: object) -> bool:
    return isinstance(t, TensorType) and t.placements is not None


# One function for each way in which an op becomes local. Dims along which an op rearranges
# elements are never sharded (see the rules), so most attributes stay as they are.

_Local = Callable[[_Localizer, Node, tuple[Use, ...]], tuple[Use, ...]]


def _unchanged(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    return loc.builder.op(node.op, args, node.attrs)


def _result_shape(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """The attribute names the result's shape."""
    attrs: Any = node.attrs
    return loc.builder.op(node.op, args, replace(attrs, shape=local_shape(_type(node), loc.mesh)))


def _type(node: Node) -> TensorType:
    t = node.types[0]
    assert isinstance(t, TensorType)
    return t


def _starts(loc: _Localizer, node: Node) -> tuple[Size, ...]:
    """Where this rank's block of the result begins in the whole."""
    t = _type(node)
    blocks = [loc.block(t, d) for d in range(t.ndim)]
    return tuple(0 if block is None else block[0] for block in blocks)


def _slice(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """A dim that is taken whole ends where this rank's part ends."""
    attrs: Any = node.attrs
    whole = loc.fusion.tensor(node.args[0]).shape
    local = loc.builder.tensor(args[0]).shape
    ends = [have if e == n else e for e, n, have in zip(attrs.ends, whole, local, strict=True)]
    return loc.builder.op(node.op, args, replace(attrs, ends=tuple(ends)))


def _flip(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """Each part is flipped where it lies, then parts of a flipped dim trade places."""
    attrs: Any = node.attrs
    use, t = loc.op(node.op, args[0], attrs=attrs), _type(node)
    assert t.placements is not None
    for d in attrs.dims:
        for cut in layout(t.shape[d], t.placements, d, loc.mesh):
            axis = loc.mesh.axes[cut.axis]
            use = loc.op("permute_ranks", use, attrs=TurnCommAttrs(axis.name, axis.size))
            use = loc.op("wait", use)
    return (use,)


def _iota(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """start + index * step, the index beginning where this rank's block does."""
    (offset,) = _starts(loc, node)
    start, step = args
    if offset != 0:
        start = loc.op("add", start, loc.op("mul", loc.size(offset), step))
    return _result_shape(loc, node, (start, step))


def _random(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """The counter runs over the whole, so that shards draw what the whole would."""
    attrs: Any = node.attrs
    t = _type(node)
    local = local_shape(t, loc.mesh)
    if local != t.shape:
        attrs = replace(attrs, shape=local, whole=t.shape, starts=_starts(loc, node))
    return loc.builder.op(node.op, args, attrs)


def _take(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    attrs: Any = node.attrs
    block = loc.block(loc.fusion.tensor(node.args[0]), attrs.dim)
    if block is None:
        return _unchanged(loc, node, args)
    index, inside = _within(loc, args[1], block)
    dims = range(attrs.dim, attrs.dim + loc.builder.tensor(index).ndim)
    return _masked(loc, loc.op(node.op, args[0], index, attrs=attrs), inside, tuple(dims))


def _gather(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    attrs: Any = node.attrs
    block = loc.block(loc.fusion.tensor(node.args[0]), attrs.dim)
    if block is None:
        return _unchanged(loc, node, args)
    index, inside = _within(loc, args[1], block)
    return _masked(loc, loc.op(node.op, args[0], index, attrs=attrs), inside)


def _embedding(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """Row-parallel: the padding row plays no part in the forward direction, so it is left out."""
    block = loc.block(loc.fusion.tensor(node.args[1]), 0)
    if block is None:
        return _unchanged(loc, node, args)
    index, inside = _within(loc, args[0], block)
    dims = tuple(range(loc.builder.tensor(index).ndim))
    return _masked(loc, loc.op(node.op, index, args[1], attrs=EmbeddingAttrs()), inside, dims)


def _embedding_backward(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """A block of rows adds up the gradients that fall into it, but those of the padding row."""
    attrs: Any = node.attrs
    block = loc.block(_type(node), 0)
    if block is None:
        return _unchanged(loc, node, args)
    index, inside = _within(loc, args[1], block)
    if attrs.padding_idx is not None:
        counts = loc.op("ne", args[1], loc.size(attrs.padding_idx))
        inside = loc.op("logical_and", inside, counts)
    (grad,) = _masked(loc, args[0], inside, tuple(range(loc.builder.tensor(index).ndim)))
    attrs = replace(attrs, rows=block[1], padding_idx=None)
    return loc.builder.op(node.op, (grad, index), attrs)


def _scatter_add(loc: _Localizer, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
    """scatter_add, index_add: a block of ``dim`` takes the sources that fall into it."""
    attrs: Any = node.attrs
    block = loc.block(_type(node), attrs.dim)
    if block is None:
        return _unchanged(loc, node, args)
    index, inside = _within(loc, args[1], block)
    dims = (attrs.dim,) if node.op == "index_add" else None
    (source,) = _masked(loc, args[2], inside, dims)
    return loc.builder.op(node.op, (args[0], index, source), attrs)


def _within(loc: _Localizer, index: Use, block: tuple[Size, Size]) -> tuple[Use, Use]:
    """``index`` relative to the block, 0 where it lies outside; and whether it lies inside."""
    start, size = block
    index = loc.op("sub", index, loc.size(start))
    above, below = loc.op("ge", index, loc.size(0)), loc.op("lt", index, loc.size(size))
    inside = loc.op("logical_and", above, below)
    return loc.op("where", inside, index, loc.size(0)), inside


def _masked(
    loc: _Localizer, x: Use, keep: Use, dims: tuple[int, ...] | None = None
) -> tuple[Use, ...]:
    """``x`` where ``keep``, which has the dims ``dims`` of ``x``, else 0."""
    shape = loc.builder.tensor(x).shape
    if dims is not None and len(dims) < len(shape):
        keep = loc.op("broadcast_in_dim", keep, attrs=BroadcastAttrs(shape, dims))
    return (loc.op("where", keep, x, loc.size(0)),)


_LOCAL: dict[str, _Local] = {
    "reshape": _result_shape,
    "broadcast_in_dim": _result_shape,
    "full": _result_shape,
    "iota": _iota,
    **dict.fromkeys(("uniform", "normal"), _random),
    "slice": _slice,
    "flip": _flip,
    "take": _take,
    "gather": _gather,
    "take_along_axis": _gather,
    "embedding": _embedding,
    **dict.fromkeys(("scatter_add", "index_add"), _scatter_add),
    "embedding_backward": _embedding_backward,
}
