"""Scatters: values that are put, or added, where other values say.

A scatter is two kernels. One writes what the values go into: a copy of the operand, or zeros. The
other has a point for each value and changes the element whose place along one dim is an index out
of memory. Both compute what they read, like every kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from thunder_mdfuse.ir.attrs import (
    BroadcastAttrs,
    CastAttrs,
    DimAttrs,
    EmbeddingBackwardAttrs,
    FactoryAttrs,
    PadAttrs,
    ShapeAttrs,
    SizeAttrs,
)
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.decompose import rewritten
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.indexing import Indices
from thunder_mdfuse.schedule.lower import Lowering
from thunder_mdfuse.schedule.plan import Const, Store

# Sums in f32 beside a 16-bit result are written and read once more than the result. With a row of
# them for each index instead of each row of the result that pays while indices are so many times
# fewer. (H200, bf16[8192, 4096] into 128256 rows: 563 us instead of 1332, eager 876; into 16000
# rows 289 instead of 314; into 8000 rows 259 instead of 238.)
FEW_ROWS = 2


@dataclass(frozen=True)
class Target:
    """Where one value goes: ``source`` has it at ``point``, the element ``where`` of ``index`` is
    its place along a dim of ``extent`` elements; ``place`` completes that to an index.
    """

    source: Use
    index: Use
    where: Indices
    extent: Size
    place: Callable[[Size], Indices]


def points(fusion: Fusion, node: Node) -> tuple[Size, ...]:
    """The shape of the domain of scatter ``node``: a point for each value that it puts."""
    if node.op in ("scatter", "scatter_add"):
        return fusion.tensor(node.args[1]).shape
    return fusion.tensor(node.args[2 if node.op == "index_add" else 0]).shape


def _target(fusion: Fusion, node: Node, point: Indices) -> Target:
    attrs: Any = node.attrs
    if node.op == "embedding_backward":
        grad, index = node.args
        return Target(grad, index, point[:-1], attrs.rows, lambda p: (p, point[-1]))
    base, index, source = node.args
    dim = attrs.dim
    where = point
    if node.op == "index_add":
        where = (point[dim],) if fusion.tensor(index).ndim else ()
    extent = fusion.tensor(base).shape[dim]
    return Target(source, index, where, extent, lambda p: (*point[:dim], p, *point[dim + 1 :]))


def put(lowering: Lowering, root: Use, point: Indices, layout: Layout) -> None:
    """Lower the store of the value at ``point`` of scatter ``root``, whose storage is written."""
    fusion = lowering.fusion
    node = fusion.nodes[root.node]
    target = _target(fusion, node, point)
    position = lowering.position(lowering.emit(target.index, target.where), target.extent)
    offset = layout.offset
    for i, stride in zip(target.place(position), layout.strides, strict=True):
        offset = offset + i * stride
    value = lowering.element(target.source, point, fusion.tensor(root).dtype)
    when = None
    if node.op == "embedding_backward":
        value, when = _without_zeros(lowering, value)
    buffer = lowering.buffer(root, written=True)
    lowering.buffers[buffer] = replace(lowering.buffers[buffer], updated=True)
    mode = "scatter" if node.op == "scatter" else "add"
    args = lowering.positions_in(position, offset)
    lowering.stores.append(Store(buffer, offset, value, mode=mode, args=args, when=when))


def _without_zeros(lowering: Lowering, value: int) -> tuple[int, int | None]:
    """What is added to zeros, and where: gradients of padding and of other ranks' rows are none.

    All of those would go to one row, whose turn it is at one thread at a time.
    """
    instr = lowering.body[value]
    if instr.op == "where":
        other = lowering.body[instr.args[2]].detail
        if isinstance(other, Const) and float(other.text) == 0:
            return instr.args[1], instr.args[0]
    return value, None


def spelled_out(fusion: Fusion, decide: Decider) -> Fusion:
    """``fusion`` with gradients of embeddings as plain sums in a dtype that keeps them.

    As in torch, a 16-bit gradient is added up in f32 and rounded once. Padding, and the division by
    how often an index occurs, become nodes of their own. The fusion has the same inputs.
    """
    if not any(isinstance(n.attrs, EmbeddingBackwardAttrs) for n in fusion.nodes):
        return fusion

    def change(b: Builder, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...] | None:
        if not isinstance(node.attrs, EmbeddingBackwardAttrs):
            return None
        return (_embedding_backward(b, args[0], args[1], node.attrs, decide),)

    return rewritten(fusion, change)


def _embedding_backward(
    b: Builder, grad: Use, index: Use, attrs: EmbeddingBackwardAttrs, decide: Decider
) -> Use:
    stored = b.tensor(grad).dtype
    if stored.compute is not stored:
        (grad,) = b.op("cast", (grad,), CastAttrs(stored.compute))
    shape, dims = b.tensor(grad).shape, tuple(range(b.tensor(index).ndim))
    if attrs.scale_grad_by_freq:
        (often,) = b.op("cast", (_counted(b, index, attrs.rows),), CastAttrs(stored.compute))
        (spread,) = b.op("broadcast_in_dim", (often,), BroadcastAttrs(shape, dims))
        (grad,) = b.op("div", (grad, spread))
    if attrs.padding_idx is not None:
        (counts,) = b.op("ne", (index, b.const(attrs.padding_idx)))
        (kept,) = b.op("broadcast_in_dim", (counts,), BroadcastAttrs(shape, dims))
        (grad,) = b.op("where", (kept, grad, b.const(0.0)))
    if stored.compute is stored:
        return b.op("embedding_backward", (grad, index), EmbeddingBackwardAttrs(attrs.rows))[0]
    few = decide.at_most(FEW_ROWS * product(b.tensor(index).shape), attrs.rows)
    total = _few_rows(b, grad, index, attrs.rows) if few else _all_rows(b, grad, index, attrs.rows)
    return b.op("cast", (total,), CastAttrs(stored))[0]


def _all_rows(b: Builder, grad: Use, index: Use, rows: Size) -> Use:
    return b.op("embedding_backward", (grad, index), EmbeddingBackwardAttrs(rows))[0]


def _few_rows(b: Builder, grad: Use, index: Use, rows: Size) -> Use:
    """The same by way of a row for each index, where those are fewer than the rows of the result.

    Each row of the result remembers one place at which its number occurs among the indices, any of
    them; all gradients of the row are added up there, and are read back from there.
    """
    shape, columns = b.tensor(index).shape, b.tensor(grad).shape[-1]
    count = product(shape)
    (flat,) = b.op("reshape", (index,), ShapeAttrs((count,)))
    (lines,) = b.op("reshape", (grad,), ShapeAttrs((count, columns)))
    size = b.op("size", (), SizeAttrs(count))[0]
    (nowhere,) = b.op("full", (size,), FactoryAttrs((rows,), DType.I64))
    numbers = (b.const(0), b.const(1))
    (places,) = b.op("iota", numbers, FactoryAttrs((count,), DType.I64))
    (chosen,) = b.op("scatter", (nowhere, flat, places), DimAttrs(0))
    (mine,) = b.op("take", (chosen, flat), DimAttrs(0))
    (sums,) = b.op("embedding_backward", (lines, mine), EmbeddingBackwardAttrs(count))
    # Behind the sums a row of zeros, which is in no memory: for rows that occur nowhere.
    (more,) = b.op("pad", (sums, b.const(0.0)), PadAttrs((0, 0), (1, 0)))
    return b.op("take", (more, chosen), DimAttrs(0))[0]


def _counted(b: Builder, index: Use, rows: Size) -> Use:
    """For each element of ``index`` how often its value occurs."""
    count = product(b.tensor(index).shape)
    (flat,) = b.op("reshape", (index,), ShapeAttrs((count,)))
    (none,) = b.op("full", (b.const(0),), FactoryAttrs((rows,), DType.I64))
    (ones,) = b.op("full", (b.const(1),), FactoryAttrs((count,), DType.I64))
    (counts,) = b.op("scatter_add", (none, flat, ones), DimAttrs(0))
    return b.op("take", (counts, index), DimAttrs(0))[0]
