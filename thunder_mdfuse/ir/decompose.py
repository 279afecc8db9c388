"""Composite reductions as sums: global program in, global program out, before placements spread.

``var`` and ``var_mean`` become two sums (the mean, then the squared distances from it), so that
sharding, scheduling and code generation know one kind of float reduction. Half types are computed
in f32 and cast back. The number of elements is a ``size`` node: it stays the global number when
shapes become local. The placements that a composite's results are pinned to go to the nodes that
replace them.
"""

from collections.abc import Callable
from dataclasses import replace

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import BroadcastAttrs, CastAttrs, DimsAttrs, SizeAttrs, VarAttrs
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use
from thunder_mdfuse.ir.types import Placements, TensorType, Type


def decompose(fusion: Fusion) -> Fusion:
    """``fusion`` without ``var`` and ``var_mean``."""

    def change(b: Builder, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...] | None:
        if not isinstance(node.attrs, VarAttrs):
            return None
        return _var(b, args[0], node.attrs, node.types)

    return rewritten(fusion, change)


Change = Callable[[Builder, Node, tuple[Use, ...]], tuple[Use, ...] | None]


def rewritten(fusion: Fusion, change: Change) -> Fusion:
    """``fusion`` node by node: what ``change`` makes of a node with these operands in its place,
    or the node itself where that is None. The inputs stay as they are.
    """
    builder = Builder(fusion.mesh, fusion.level)
    moved: dict[Use, Use] = {}
    for i, node in enumerate(fusion.nodes):
        args = tuple(moved[a] for a in node.args)
        if node.op == "input":
            results: tuple[Use, ...] = (builder.input(node.types[0]),)
        else:
            results = change(builder, node, args) or builder.node(replace(node, args=args))
        moved.update({Use(i, r): result for r, result in enumerate(results)})
    outputs = tuple(
        Output(moved[o.value], None if o.writes is None else moved[Use(o.writes)].node)
        for o in fusion.outputs
    )
    return builder.finish(outputs, fusion.guards)


def _var(b: Builder, x: Use, attrs: VarAttrs, types: tuple[Type, ...]) -> tuple[Use, ...]:
    """The variance, and the mean where ``types`` has two."""
    whole = b.tensor(x)
    dims = DimsAttrs(attrs.dims)
    if whole.dtype.compute is not whole.dtype:
        (x,) = b.op("cast", (x,), CastAttrs(whole.dtype.compute))
    (count,) = b.op("size", (), SizeAttrs(sizes.product(whole.shape[d] for d in attrs.dims)))
    (total,) = b.op("sum", (x,), dims)
    (mean,) = b.op("div", (total, count))
    shown = mean
    if len(types) > 1:
        shown = _finished(b, mean, types[1])
        # Where nothing was rounded, what leaves is also what the distances are taken from.
        mean = shown if b.tensor(shown).dtype is b.tensor(mean).dtype else mean
    kept = tuple(d for d in range(whole.ndim) if d not in attrs.dims)
    (spread,) = b.op("broadcast_in_dim", (mean,), BroadcastAttrs(whole.shape, kept))
    (distance,) = b.op("sub", (x, spread))
    (squares,) = b.op("sum", (_square(b, distance),), dims)
    # Torch divides by max(0, n - correction), so too few elements give inf or NaN.
    (free,) = b.op("sub", (count, b.const(float(attrs.correction))))
    (divisor,) = b.op("maximum", (free, b.const(0.0)))
    (variance,) = b.op("div", (squares, divisor))
    variance = _finished(b, variance, types[0])
    return (variance, shown) if len(types) > 1 else (variance,)


def _square(b: Builder, x: Use) -> Use:
    """``|x|**2``."""
    if not b.tensor(x).dtype.is_complex:
        return b.op("mul", (x, x))[0]
    squares = [b.op("mul", (part, part))[0] for (part,) in (b.op("real", (x,)), b.op("imag", (x,)))]
    return b.op("add", (squares[0], squares[1]))[0]


def _finished(b: Builder, value: Use, wanted: Type) -> Use:
    """``value`` as the composite's result: cast back, and with its pinned placements."""
    assert isinstance(wanted, TensorType)
    if b.tensor(value).dtype is not wanted.dtype:
        (value,) = b.op("cast", (value,), CastAttrs(wanted.dtype))
    return _pinned(b, value, wanted.placements)


def _pinned(b: Builder, value: Use, placements: Placements | None) -> Use:
    if placements is None:
        return value
    node = b.nodes[value.node]
    types = tuple(t.placed(placements) if isinstance(t, TensorType) else t for t in node.types)
    return b.node(Node(node.op, node.args, node.attrs, types))[0]
