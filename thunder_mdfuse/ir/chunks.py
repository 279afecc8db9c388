"""DTensor's chunk rule as size expressions, and the type rules of everything that moves between
ranks.

A dim of size ``n`` over ``ranks`` positions is cut into chunks of ``ceil(n / ranks)``; trailing
positions get less, or nothing. A strided shard first cuts the dim into ``split`` chunks and each of
those over the positions (torch's ``_StridedShard``).
"""

from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.infer import tensor
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import TensorType, Type


def position(team: str) -> Size:
    """This rank's position in ``team``, a run-time symbol."""
    return sizes.symbol(f"@{team}")


def chunk_size(n: Size, ranks: int, where: Size, split: int = 1) -> Size:
    """Elements of a dim of size ``n`` at position ``where`` of ``ranks``."""
    if split > 1:
        # All parts are as long as the first, then there is a shorter one, then there are empty
        # ones: two terms, however many parts.
        part = chunk_size(n, split, 0)
        even = sizes.exact_quotient(n, part)
        whole = even if even is not None else sizes.floordiv(n, part)
        total = sizes.multiply(whole, chunk_size(part, ranks, where))
        rest: Size = 0 if even is not None else sizes.mod(n, part)
        return total if rest == 0 else sizes.add(total, chunk_size(rest, ranks, where))
    even = sizes.exact_quotient(n, ranks)
    if even is not None:
        return even
    full = sizes.ceildiv(n, ranks)
    left = n - where * full
    return sizes.minimum(full, sizes.maximum(0, left))


def chunk_start(n: Size, ranks: int, where: Size) -> Size:
    """Index of the first element at position ``where``; at most ``n``."""
    even = sizes.exact_quotient(n, ranks)
    start = where * (even if even is not None else sizes.ceildiv(n, ranks))
    return start if even is not None else sizes.minimum(n, start)


def with_dim(x: TensorType, dim: int, size: Size) -> TensorType:
    """``x`` without placements and with ``size`` at ``dim``."""
    return TensorType(x.dtype, (*x.shape[:dim], size, *x.shape[dim + 1 :]))


def unchanged(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    return (TensorType(x.dtype, x.shape),)


def from_local(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    return (TensorType(x.dtype, attrs.shape),)


def to_local(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    return (TensorType(x.dtype, attrs.shape),)


def all_gather(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    return (with_dim(tensor(op, types, 0), attrs.dim, attrs.size),)


def reduce_scatter(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    size = chunk_size(attrs.size, attrs.ranks, position(attrs.team))
    return (with_dim(tensor(op, types, 0), attrs.dim, size),)


def all_to_all(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = with_dim(tensor(op, types, 0), attrs.gather_dim, attrs.gather_size)
    size = chunk_size(attrs.scatter_size, attrs.ranks, position(attrs.team))
    return (with_dim(x, attrs.scatter_dim, size),)


def broadcast(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    return (with_dim(tensor(op, types, 0), attrs.dim, attrs.size),)


def chunk(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    size = chunk_size(x.shape[attrs.dim], attrs.ranks, position(attrs.team), attrs.split)
    return (with_dim(x, attrs.dim, size),)
