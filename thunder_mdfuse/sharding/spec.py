"""Layouts: what a value's placements mean for one tensor dim, and what one rank then holds.

In: tensor types with placements, and a mesh. Out: local sizes and starts as expressions in the
mesh coordinate. Everything else in this folder asks here what a placement means.

A dim that several mesh axes cut is cut from the leftmost axis to the rightmost (DTensor's order),
each axis cutting what the axes before it left. So the layout of a dim is a stack of *cuts*,
outermost first, and only its innermost cut can be undone by a collective. Where the sizes are
provably even, a strided cut followed by the axis whose size it skips is the same layout as the
two plain cuts in the other order; layouts are kept in that plain order, so an FSDP-style
``StridedShard`` is gathered by one collective.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from thunder_mdfuse.errors import ShardingError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.chunks import chunk_size, chunk_start, position
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import (
    REPLICATE,
    DType,
    Mesh,
    Partial,
    Placement,
    Placements,
    Replicate,
    Shard,
    StridedShard,
    TensorType,
)

# What an unknown size counts as when bytes on the wire are compared. It must depend on nothing
# that differs between ranks; the value only weighs symbolic dims against known ones.
NOMINAL_SIZE = 1024


@dataclass(frozen=True)
class Cut:
    """Mesh axis number ``axis``, of ``ranks`` positions, cuts a dim; ``split`` > 1: strided."""

    axis: int
    ranks: int
    split: int = 1


Layout = tuple[Cut, ...]


def is_sharded(placement: Placement) -> bool:
    """Whether ``placement`` cuts a tensor dim."""
    return isinstance(placement, Shard | StridedShard)


def shard(dim: int, split: int = 1) -> Shard | StridedShard:
    """The placement that cuts tensor dim ``dim``, strided when ``split`` > 1."""
    return Shard(dim) if split == 1 else StridedShard(dim, split)


def shard_of(placement: Placement) -> tuple[int, int] | None:
    """``(dim, split)`` of a placement that cuts a tensor dim, else None."""
    if isinstance(placement, Shard):
        return placement.dim, 1
    if isinstance(placement, StridedShard):
        return placement.dim, placement.split
    return None


def replicated(mesh: Mesh) -> Placements:
    """``Replicate`` on every axis of ``mesh``."""
    return (REPLICATE,) * len(mesh.axes)


def all_replicate(placements: Placements) -> bool:
    """Whether every rank holds the whole value."""
    return all(isinstance(p, Replicate) for p in placements)


def commute(kinds: Iterable[str]) -> bool:
    """Whether reductions of these kinds may be done in any order: placements do not say which."""
    found = set(kinds)
    return len(found) <= 1 or found <= {"sum", "avg"}


def check_placed(what: str, t: TensorType, mesh: Mesh) -> None:
    """Raise ``ShardingError`` unless the placements of ``t`` fit its dims and ``mesh``."""
    placements = t.placements
    assert placements is not None
    if len(placements) != len(mesh.axes):
        raise ShardingError(
            f"{what} has {len(placements)} placements, found {t}; needed is one for each axis of "
            f"{mesh}"
        )
    for axis, p in zip(mesh.axes, placements, strict=True):
        cut = shard_of(p)
        if cut is not None and not (0 <= cut[0] < t.ndim and cut[1] >= 1):
            raise ShardingError(
                f"{what}: mesh axis {axis.name!r} has {p}, but the tensor is {t}; needed is a dim "
                f"from 0 to {t.ndim - 1} and a split of at least 1"
            )
    _check_reducible(what, t)
    pairs = zip(mesh.axes, placements, strict=True)
    kinds = {a.name: p.op for a, p in pairs if isinstance(p, Partial)}
    if not commute(kinds.values()):
        found = ", ".join(f"{name!r}: {kind}" for name, kind in kinds.items())
        raise ShardingError(
            f"{what} is Partial of different kinds on its mesh axes ({found}), found {t}; "
            "the order of the reductions would matter, so redistribute one kind to Replicate first"
        )


_F8 = (DType.F8E4M3, DType.F8E5M2)


def why_not_reduced(dtype: DType, kind: str) -> str | None:
    """Why ranks do not reduce ``dtype`` by ``kind``, with what to do instead; None where they do.

    Sums of i8, u8 and i16 wrap as torch's do (``comm/reductions.py``).
    """
    ordered = kind in ("min", "max")
    if dtype in _F8 and not ordered:
        return "each step would be rounded to 8 bits; cast to bf16 or f32 first"
    if kind == "avg" and not (dtype.is_float or dtype.is_complex):
        return "an average is no whole number; use Partial(sum), or cast first"
    if ordered and dtype.is_complex:
        return "complex numbers have no order; reduce the real and imaginary parts"
    return None


def _check_reducible(what: str, t: TensorType) -> None:
    """Raise ``ShardingError`` where the dtype of ``t`` has no such reduction over ranks."""
    for p in t.placements or ():
        why = why_not_reduced(t.dtype, p.op) if isinstance(p, Partial) else None
        if why is not None:
            raise ShardingError(f"{what}: {p} of {t.dtype} is not done, found {t}: {why}")


@lru_cache(maxsize=65536)
def layout(size: Size, placements: Placements, dim: int, mesh: Mesh) -> Layout:
    """The cuts of tensor dim ``dim`` of size ``size``. Axes of one position cut nothing."""
    cuts = []
    for i, (axis, p) in enumerate(zip(mesh.axes, placements, strict=True)):
        cut = shard_of(p)
        if cut is not None and cut[0] == dim and axis.size > 1:
            cuts.append(Cut(i, axis.size, cut[1]))
    return in_plain_order(size, tuple(cuts), mesh)


def in_plain_order(size: Size, cuts: Layout, mesh: Mesh) -> Layout:
    """``cuts`` with strided ones exchanged for plain ones in another order, where sizes are even.

    Cutting into ``s`` parts and dealing each over axis ``a``, then giving each position of axis
    ``b`` (whose size divides ``s``) its share of consecutive parts, is cutting over ``b`` first
    and then over ``a``, strided by what is left of ``s``.
    """
    found = list(cuts)
    i = 0
    while i + 1 < len(found):
        a, b = found[i], found[i + 1]
        extent = local_size(size, tuple(found[:i]), mesh)
        skips = a.split > 1 and b.split == 1 and a.split % b.ranks == 0
        if skips and sizes.exact_quotient(extent, a.split * a.ranks) is not None:
            found[i : i + 2] = [b, Cut(a.axis, a.ranks, a.split // b.ranks)]
            i = max(i - 1, 0)
        else:
            i += 1
    return tuple(found)


def local_size(size: Size, cuts: Layout, mesh: Mesh) -> Size:
    """What one rank holds of a dim of size ``size``."""
    for cut in cuts:
        size = chunk_size(size, cut.ranks, position(mesh.axes[cut.axis].name), cut.split)
    return size


def local_start(size: Size, cuts: Layout, mesh: Mesh) -> Size:
    """Index in the whole dim of the first element that one rank holds; the cuts must be plain."""
    start: Size = 0
    for cut in cuts:
        assert cut.split == 1, "a strided shard is no block"
        where = position(mesh.axes[cut.axis].name)
        start = sizes.add(start, chunk_start(size, cut.ranks, where))
        size = chunk_size(size, cut.ranks, where)
    return start


def local_shape(t: TensorType, mesh: Mesh) -> tuple[Size, ...]:
    """The shape of the part of ``t`` that one rank holds; that of a plain tensor is its own."""
    if t.placements is None:
        return t.shape
    return tuple(
        local_size(n, layout(n, t.placements, d, mesh), mesh) for d, n in enumerate(t.shape)
    )


def local_type(t: TensorType, mesh: Mesh) -> TensorType:
    """The type of the part of ``t`` that one rank holds."""
    return TensorType(t.dtype, local_shape(t, mesh))


@lru_cache(maxsize=65536)
def nominal(size: Size) -> int:
    """``size`` with each unknown taken as ``NOMINAL_SIZE``, for comparing costs."""
    return sizes.evaluate(size, dict.fromkeys(sizes.symbols(size), NOMINAL_SIZE))
