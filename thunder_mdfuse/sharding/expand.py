"""Ops along a sharded dim that are rewritten while placements spread, so that less is moved.

One row an op in ``EXPANSIONS``: from the node and its placed operands to the use that stands for
its result, or None where the node stays as it is. Both rewrites give the same elements.

- ``argmax`` and ``argmin`` over a sharded dim: the extreme value is an all_reduce of a reduced
  tensor, and so is the smallest index at which it stands. Gathering would move the whole operand.
- ``gather`` and ``take_along_axis`` of an elementwise result along a sharded dim: the operands are
  looked up first; of a ``pad`` at the end of the dim, what is before its end. So a cross entropy
  over sharded classes looks up the logits, whose pending sum is reduced together with that of the
  exponentials; the logits are never gathered (loss parallel, as in Megatron-LM, arXiv:1909.08053
  section 3).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import (
    NO_ATTRS,
    Attrs,
    BroadcastAttrs,
    DimsAttrs,
    FactoryAttrs,
    SizeAttrs,
)
from thunder_mdfuse.ir.graph import Builder, Node, Use
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import REPLICATE, DType, Mesh, Partial, Placements, TensorType
from thunder_mdfuse.sharding.spec import layout, nominal

# Appends an op; its first result, with these placements or, for None, those that its rule gives.
Emit = Callable[[str, tuple[Use, ...], Attrs, Placements | None], Use]
Expansion = Callable[[Builder, Mesh, Emit, Node, tuple[Use, ...]], Use | None]


def _cut(builder: Builder, mesh: Mesh, use: Use, dims: Iterable[int]) -> bool:
    """Whether a mesh axis cuts one of ``dims`` of ``use``."""
    t = builder.tensor(use)
    assert t.placements is not None
    return any(layout(t.shape[d], t.placements, d, mesh) for d in dims)


def _wanted(node: Node) -> Placements | None:
    (t,) = node.types
    return t.placements if isinstance(t, TensorType) else None


def _where_extreme(
    builder: Builder, mesh: Mesh, emit: Emit, node: Node, args: tuple[Use, ...]
) -> Use | None:
    """argmax, argmin: the first index at which the extreme value, or a NaN, stands."""
    attrs: Any = node.attrs
    (x,) = args
    t = builder.tensor(x)
    dims = tuple(range(t.ndim)) if attrs.dim is None else (attrs.dim,)
    if not _cut(builder, mesh, x, dims):
        return None
    over = DimsAttrs(dims)
    best = emit("amax" if node.op == "argmax" else "amin", (x,), over, None)
    kept = tuple(d for d in range(t.ndim) if d not in dims)
    spread = emit("broadcast_in_dim", (best,), BroadcastAttrs(t.shape, kept), None)
    hit = emit("eq", (x, spread), NO_ATTRS, None)
    if t.dtype.is_float:
        hit = emit("logical_or", (hit, emit("isnan", (x,), NO_ATTRS, None)), NO_ATTRS, None)
    index = _linear_index(builder, emit, t, dims)
    count = _number(builder, sizes.product(t.shape[d] for d in dims))
    found = emit("where", (hit, index, count), NO_ATTRS, None)
    wanted = _wanted(node)
    if wanted is not None:
        return emit("amin", (found,), over, wanted)
    # Eager DTensor's: an index that still awaits a minimum is of no use to anybody.
    pending = builder.tensor(emit("amin", (found,), over, None)).placements
    assert pending is not None
    done = tuple(REPLICATE if isinstance(p, Partial) else p for p in pending)
    return emit("amin", (found,), over, done)


def _linear_index(builder: Builder, emit: Emit, t: TensorType, dims: tuple[int, ...]) -> Use:
    """For each element of ``t`` its row-major index within ``dims``."""
    step: Size = 1
    total: Use | None = None
    for d in reversed(dims):
        ramp = emit(
            "iota",
            (builder.const(0), _number(builder, step)),
            FactoryAttrs((t.shape[d],), DType.I64),
            None,
        )
        wide = emit("broadcast_in_dim", (ramp,), BroadcastAttrs(t.shape, (d,)), None)
        total = wide if total is None else emit("add", (total, wide), NO_ATTRS, None)
        step = sizes.multiply(step, t.shape[d])
    assert total is not None
    return total


def _number(builder: Builder, size: Size) -> Use:
    if isinstance(size, int):
        return builder.const(size)
    return builder.op("size", (), SizeAttrs(size))[0]


def _look_up_first(
    builder: Builder, mesh: Mesh, emit: Emit, node: Node, args: tuple[Use, ...]
) -> Use | None:
    """gather, take_along_axis: the elementwise op of what is looked up in its operands."""
    attrs: Any = node.attrs
    x, index = args
    t, at = builder.tensor(x), builder.tensor(index)
    rest = [d for d in range(t.ndim) if d != attrs.dim]
    fewer = nominal(at.shape[attrs.dim]) < nominal(t.shape[attrs.dim])
    if any(t.shape[d] != at.shape[d] for d in rest) or not fewer:
        return None
    maker = builder.nodes[x.node]
    if maker.op == "pad":
        return _look_up_unpadded(builder, mesh, emit, node, maker, index)
    if not _cut(builder, mesh, x, (attrs.dim,)):
        return None
    if row(maker.op).kind != "elementwise" or len(maker.types) > 1:
        return None

    def looked_up(use: Use) -> Use:
        own = builder.nodes[use.node]
        if not isinstance(builder.type_of(use), TensorType):
            return use
        if own.op == "broadcast_in_dim":
            spread: Any = own.attrs
            if attrs.dim not in spread.dims:
                # The same along the whole dim, so wherever the index points.
                return emit(own.op, own.args, BroadcastAttrs(at.shape, spread.dims), None)
        inner = replace(node, types=(builder.tensor(use).placed(None),))
        deeper = _look_up_first(builder, mesh, emit, inner, (use, index))
        return deeper or emit(node.op, (use, index), attrs, None)

    return emit(maker.op, tuple(map(looked_up, maker.args)), maker.attrs, _wanted(node))


def _look_up_unpadded(
    builder: Builder, mesh: Mesh, emit: Emit, node: Node, pad: Node, index: Use
) -> Use | None:
    """What stands in the operand of a ``pad`` at the end of the dim, or else the padding."""
    attrs: Any = node.attrs
    ends: Any = pad.attrs
    x, padding = pad.args
    size = builder.tensor(x).shape[attrs.dim]
    others = [high for d, high in enumerate(ends.high) if d != attrs.dim]
    if any(ends.low) or any(others) or size == 0 or not _cut(builder, mesh, x, (attrs.dim,)):
        return None
    inside = emit("lt", (index, _number(builder, size)), NO_ATTRS, None)
    last = _number(builder, sizes.add(size, -1))
    near = emit("minimum", (index, last), NO_ATTRS, None)
    own = replace(node, types=(TensorType(builder.tensor(x).dtype, builder.tensor(index).shape),))
    found = _look_up_first(builder, mesh, emit, own, (x, near))
    found = found or emit(node.op, (x, near), node.attrs, None)
    return emit("where", (inside, found, padding), NO_ATTRS, _wanted(node))


EXPANSIONS: dict[str, Expansion] = {
    **dict.fromkeys(("argmax", "argmin"), _where_extreme),
    **dict.fromkeys(("gather", "take_along_axis"), _look_up_first),
}
