"""Gathers: values that are looked up at a position that another value gives.

``take``, ``take_along_axis``, ``gather`` and ``embedding`` all read one element of a *table*, whose
place along one dim is an index out of memory. What they read and where is told here; the lowering
asks for both values and lets a symbol stand for the position.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.schedule.indexing import Indices


@dataclass(frozen=True)
class Site:
    """One element of a gather: the element ``where`` of ``index`` says where along a dim of
    ``extent`` elements of ``table`` it is; ``place`` completes that to an index of the table.
    """

    table: Use
    index: Use
    where: Indices
    extent: Size
    place: Callable[[Size], Indices]


def gather_site(fusion: Fusion, node: Node, at: Indices) -> Site:
    """Where element ``at`` of the result of ``node`` comes from."""
    attrs: Any = node.attrs
    if node.op == "embedding":
        index, table = node.args
        extent = fusion.tensor(table).shape[0]
        return Site(table, index, at[:-1], extent, lambda position: (position, at[-1]))
    table, index = node.args
    dim, shape = attrs.dim, fusion.tensor(table).shape
    if node.op == "take":
        end = dim + fusion.tensor(index).ndim
        where = at[dim:end]
        return Site(table, index, where, shape[dim], lambda p: (*at[:dim], p, *at[end:]))
    # A table may be broadcast along the other dims, which torch.take_along_dim allows.
    own = tuple(0 if size == 1 else i for i, size in zip(at, shape, strict=True))
    return Site(table, index, at, shape[dim], lambda p: (*own[:dim], p, *own[dim + 1 :]))
