"""A kernel in the making, and where values lie in its domain."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size, product, symbol
from thunder_mdfuse.schedule.indexing import Indices, aligned_groups
from thunder_mdfuse.schedule.lower import Lowering
from thunder_mdfuse.schedule.roles import kept


@dataclass
class Group:
    """A kernel in the making: its domain's symbols and extents, and the roots that it computes.

    ``touched`` has a bit for each node whose storage it reads or which is one of its roots,
    ``awaited`` one for each wait that has to be over before any of its roots can be computed. A
    ``closed`` one takes no more roots, one with a ``turned`` root no reductions.
    """

    names: tuple[str, ...]
    shape: tuple[Size, ...]
    lowering: Lowering
    reduced: tuple[int, ...] = ()
    outer: tuple[int, ...] = ()
    late_bytes: int = 0
    scanned: int | None = None
    roots: list[Use] = field(default_factory=list)
    places: dict[Use, Indices] = field(default_factory=dict)
    touched: int = 0
    awaited: int = 0
    closed: bool = False
    turned: bool = False

    @property
    def point(self) -> Indices:
        """The domain's own index; a dim of size 1 needs no symbol."""
        pairs = zip(self.names, self.shape, strict=True)
        return tuple(0 if extent == 1 else symbol(name) for name, extent in pairs)

    def without(self, dims: tuple[int, ...]) -> tuple[Indices, tuple[Size, ...]]:
        """Index and shape of what is left when ``dims`` are gone."""
        return kept(self.point, dims), kept(self.shape, dims)


def root_indices(shape: tuple[Size, ...], group: Group) -> Iterator[tuple[bool, Indices]]:
    """Where in a value of ``shape`` a point of the group's domain may lie, and whether it has to be
    a late value to be there.

    The shape is the domain's, or the domain's with neighbouring dims merged, or that of its rows (a
    value for each row), or of its columns (a late value for each), sizes of 1 aside.
    """
    parts = [(False, group.point, group.shape)]
    if group.reduced:
        parts.append((False, *group.without(group.reduced)))
    if group.outer:
        parts.append((True, *group.without(group.outer)))
    for late, point, extents in parts:
        index = place_in(shape, point, extents)
        if index is not None:
            yield late, index


def place_in(shape: tuple[Size, ...], point: Indices, extents: tuple[Size, ...]) -> Indices | None:
    """The index into ``shape`` of what is at ``point`` of ``extents``, neighbouring dims of which
    may be merged there; None when the shapes do not go together.
    """
    if product(shape) != product(extents):
        return None
    index: list[Size] = [0] * len(shape)
    for mine, theirs in aligned_groups(shape, extents):
        large = [d for d in mine if shape[d] != 1]
        others = [d for d in theirs if extents[d] != 1]
        if len(large) > 1:
            if [shape[d] for d in large] != [extents[d] for d in others]:
                return None
            for d, t in zip(large, others, strict=True):
                index[d] = point[t]
        elif large:
            flat: Size = 0
            for t in others:
                flat = flat * extents[t] + point[t]
            index[large[0]] = flat
    return tuple(index)
