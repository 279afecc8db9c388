"""Index transforms: which element of its operand a view or rearranging op reads for one of its own.

An index is a tuple of sizes over the domain's symbols, one for each dim. Transforms simplify under
the domain's ranges, so a reshape that splits what another merged leaves no division behind.
"""

from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import ChunkAttrs
from thunder_mdfuse.ir.chunks import chunk_start, position
from thunder_mdfuse.ir.graph import Node
from thunder_mdfuse.ir.sizes import Ranges, Size
from thunder_mdfuse.schedule.plan import Bound

Indices = tuple[Size, ...]
Shape = tuple[Size, ...]


def through_view(node: Node, shape: Shape, index: Indices, ranges: Ranges) -> Indices:
    """The operand's index for element ``index`` of view ``node``; ``shape`` is the operand's."""
    attrs: Any = node.attrs
    if node.op == "broadcast_in_dim":
        pairs = zip(shape, attrs.dims, strict=True)
        return tuple(0 if size == 1 else index[d] for size, d in pairs)
    if node.op == "permute":
        place = {d: i for i, d in enumerate(attrs.dims)}
        return tuple(index[place[d]] for d in range(len(shape)))
    if node.op == "squeeze":
        kept = iter(index)
        return tuple(0 if d in attrs.dims else next(kept) for d in range(len(shape)))
    if node.op == "slice":
        spans = zip(index, attrs.starts, attrs.steps, strict=True)
        return tuple(start + i * step for i, start, step in spans)
    if node.op == "unfold":
        own = index[attrs.dim] * attrs.step + index[-1]
        return tuple(own if d == attrs.dim else i for d, i in enumerate(index[:-1]))
    if node.op == "flip":
        places = enumerate(zip(index, shape, strict=True))
        return tuple(size - 1 - i if d in attrs.dims else i for d, (i, size) in places)
    if node.op == "chunk":
        own = _whole_index(attrs, shape[attrs.dim], index[attrs.dim], ranges)
        return tuple(own if d == attrs.dim else i for d, i in enumerate(index))
    assert node.op == "reshape", node.op
    return reshape_index(index, attrs.shape, shape, ranges)


def _whole_index(attrs: ChunkAttrs, extent: Size, own: Size, ranges: Ranges) -> Size:
    """Where element ``own`` of a chunk is in the whole dim. A strided chunk's parts are equal."""
    where = position(attrs.team)
    if attrs.split == 1:
        return chunk_start(extent, attrs.ranks, where) + own
    part = sizes.exact_quotient(extent, attrs.ranks * attrs.split)
    assert part is not None, f"{extent} is cut into unequal parts"
    turn, within = sizes.floordiv(own, part, ranges), sizes.mod(own, part, ranges)
    return (turn * attrs.ranks + where) * part + within


def reshape_index(index: Indices, have: Shape, want: Shape, ranges: Ranges) -> Indices:
    """The index into shape ``want`` of the element at ``index`` of shape ``have``, row-major."""
    result: list[Size] = []
    for mine, theirs in aligned_groups(have, want):
        if len(mine) == len(theirs) == 1:
            result.append(index[mine[0]])
            continue
        flat: Size = 0
        for d in mine:
            flat = flat * have[d] + index[d]
        result += unflatten(flat, [want[d] for d in theirs], ranges)
    return tuple(result)


def unflatten(flat: Size, shape: Sequence[Size], ranges: Ranges) -> list[Size]:
    """The index in ``shape`` of row-major position ``flat``."""
    index: list[Size] = []
    for d, extent in enumerate(shape):
        inner = sizes.product(shape[d + 1 :])
        whole = sizes.floordiv(flat, inner, ranges)
        if extent == 1:
            index.append(0)
        else:
            index.append(whole if d == 0 else sizes.mod(whole, extent, ranges))
    return index


def aligned_groups(a: Shape, b: Shape) -> list[tuple[list[int], list[int]]]:
    """Dims of ``a`` and of ``b`` in the smallest consecutive groups with equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    mine: list[int] = []
    theirs: list[int] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = sizes.product(a[d] for d in mine), sizes.product(b[d] for d in theirs)
        if mine and theirs and left == right:
            groups.append((mine, theirs))
            mine, theirs = [], []
            continue
        behind = not mine or (bool(theirs) and _shorter(left, right))
        if (behind and i < len(a)) or j >= len(b):
            mine.append(i)
            i += 1
        else:
            theirs.append(j)
            j += 1
    if mine or theirs:
        groups.append((mine, theirs))
    return groups


def _shorter(a: Size, b: Size) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    # A symbolic product that divides the other is the shorter one; else any order merges the rest.
    return sizes.exact_quotient(b, a) is not None


def within_part(node: Node, starts: Size, extent: Size, index: Indices) -> tuple[Indices, Bound]:
    """For the part of a ``cat`` that begins at ``starts``: its own index, and when it is meant."""
    attrs: Any = node.attrs
    own = index[attrs.dim] - starts
    return (*index[: attrs.dim], own, *index[attrs.dim + 1 :]), Bound(own, extent)


def within_padding(node: Node, shape: Shape, index: Indices) -> tuple[Indices, tuple[Bound, ...]]:
    """For a ``pad``: the operand's index, and the bounds that say it is not padding."""
    attrs: Any = node.attrs
    own = tuple(i - low for i, low in zip(index, attrs.low, strict=True))
    ends = zip(own, shape, attrs.low, attrs.high, strict=True)
    return own, tuple(Bound(i, size) for i, size, low, high in ends if low != 0 or high != 0)
