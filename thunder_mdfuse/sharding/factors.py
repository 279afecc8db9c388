"""What rules are made of: factors (how an op may be sharded) and flows (how it carries a Partial).

The algorithm is that of Shardy's sharding rules (openxla.org/shardy, "Sharding rule" of the
propagation docs) and, for one mesh axis at a time, of DTensor's single-dim strategies: an op is
described by *factors*, each present in some dims of its operands and results. To shard a factor
over a mesh axis is to shard every dim that has it. A factor that no result has is reduced over,
so the results become Partial. A *flow* is the other way in which one mesh axis may pass through:
as a pending reduction.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from thunder_mdfuse.ir.attrs import Attrs
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import REDUCTIONS, TensorType, Type

LINEAR_KINDS = ("sum", "avg")


@dataclass(frozen=True)
class Site:
    """A node as a rule sees it: global types, without regard to placements.

    ``constants`` are the operands that are literal numbers; None stands for any other operand.
    ``names`` tells which operands are one and the same value.
    """

    op: str
    attrs: Attrs
    operands: tuple[Type, ...]
    results: tuple[Type, ...]
    constants: tuple[bool | int | float | complex | None, ...]
    names: tuple[Hashable, ...]

    def shape(self, i: int) -> tuple[Size, ...]:
        """The shape of operand ``i``; that of a scalar is ()."""
        t = self.operands[i]
        return t.shape if isinstance(t, TensorType) else ()

    @property
    def tensors(self) -> tuple[int, ...]:
        """Which operands are tensors."""
        return tuple(i for i, t in enumerate(self.operands) if isinstance(t, TensorType))


@dataclass(frozen=True)
class Factor:
    """One shardable factor: for each operand and result, the dim that has it (None: no dim has).

    ``reduces``: results without it become Partial of that kind, and so must the operands in
    ``pending`` be (such as a bias, which only one position may add). ``exact``: the dims have it
    as their outermost factor of size ``size``, so its shards must be even. ``block``: a shard
    must be one contiguous block, because its start is needed, and no position's may be empty.
    """

    size: Size
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    reduces: str | None = None
    pending: tuple[int, ...] = ()
    exact: bool = False
    block: bool = False


@dataclass(frozen=True)
class Flow:
    """``operands`` Partial(``kind``) and other tensors Replicate give results Partial(``kind``).

    ``pinned``: only where the result was asked for, since reducing first is cheaper.
    """

    kind: str
    operands: tuple[int, ...]
    pinned: bool = False


Label = Hashable
Labels = Sequence[Label | None]
FactorRule = Callable[[Site], tuple[Factor, ...]]
FlowRule = Callable[[Site], tuple[Flow, ...]]


@dataclass(frozen=True)
class Traits:
    """What is special about a label: see the fields of ``Factor``."""

    reduces: str | None = None
    pending: tuple[int, ...] = ()
    exact: bool = False
    block: bool = False
    size: Size | None = None


_PLAIN = Traits()


def from_labels(
    site: Site,
    operands: Sequence[Labels],
    results: Sequence[Labels],
    traits: Mapping[Label, Traits] | None = None,
) -> tuple[Factor, ...]:
    """Factors from one label a dim, as einsum writes them; None marks a dim that cannot be sharded.

    A label that a result lacks is no factor unless its traits say how it reduces.
    """
    traits = traits or {}
    sizes: dict[Label, Size] = {}
    for labels, t in zip((*operands, *results), (*site.operands, *site.results), strict=True):
        if isinstance(t, TensorType):
            for label, n in zip(labels, t.shape, strict=True):
                if label is not None:
                    sizes.setdefault(label, n)
    found = []
    for label, n in sizes.items():
        kind = traits.get(label, _PLAIN)
        has = tuple(_index(labels, label) for labels in results)
        if kind.reduces is None and None in has:
            continue
        found.append(
            Factor(
                n if kind.size is None else kind.size,
                tuple(_index(labels, label) for labels in operands),
                has,
                kind.reduces,
                kind.pending,
                kind.exact,
                kind.block,
            )
        )
    return tuple(found)


def _index(labels: Labels, label: Label) -> int | None:
    return list(labels).index(label) if label in labels else None


# Flow rules.


def no_flow(site: Site) -> tuple[Flow, ...]:
    return ()


def additive(site: Site) -> tuple[Flow, ...]:
    """add, sub: the sum of sums. A scalar is no sum: each position would add it once."""
    if len(site.tensors) < len(site.operands):
        return ()
    return tuple(Flow(kind, site.tensors) for kind in LINEAR_KINDS)


def multiplicative(site: Site) -> tuple[Flow, ...]:
    """mul, matmul: linear in each operand while the others stay."""
    return tuple(Flow(kind, (i,)) for i in site.tensors for kind in LINEAR_KINDS)


def grouped(site: Site) -> tuple[Flow, ...]:
    """grouped_mm: linear in a and in b; the offsets are no factor."""
    return tuple(Flow(kind, (i,)) for i in (0, 1) for kind in LINEAR_KINDS)


def affine(site: Site) -> tuple[Flow, ...]:
    """linear: as ``multiplicative`` in x and w; a bias must be pending too."""
    bias = (2,) if len(site.operands) == 3 else ()
    return tuple(Flow(kind, (i, *bias)) for i in (0, 1) for kind in LINEAR_KINDS)


def first_linear(site: Site) -> tuple[Flow, ...]:
    """Linear in operand 0: neg, real, imag, cumsum, embedding_backward."""
    return tuple(Flow(kind, (0,)) for kind in LINEAR_KINDS) if 0 in site.tensors else ()


def dividing(site: Site) -> tuple[Flow, ...]:
    """True division is linear in the dividend; of integers it rounds, so it is not."""
    exact = site.results[0].dtype.is_float or site.results[0].dtype.is_complex
    return first_linear(site) if exact else ()


def casting(site: Site) -> tuple[Flow, ...]:
    """A cast keeps a pending sum where it does not truncate."""
    found, wanted = site.operands[0].dtype, site.results[0].dtype
    numbers = found.kind != "bool" and wanted.kind != "bool"
    truncates = wanted.is_integer and not found.is_integer
    discards = found.is_complex and not wanted.is_complex
    return first_linear(site) if numbers and not truncates and not discards else ()


def extreme(kind: str) -> FlowRule:
    """maximum and minimum of values that are pending reductions of the same kind."""
    return lambda site: (Flow(kind, site.tensors),)


def moving(*operands: int) -> FlowRule:
    """Ops that only move elements of ``operands`` (all tensors when empty) keep every kind."""
    return lambda site: tuple(Flow(kind, operands or site.tensors) for kind in REDUCTIONS)


def growing(site: Site) -> tuple[Flow, ...]:
    """broadcast_in_dim moves elements, but reducing before it grew is cheaper than after."""
    x, result = site.operands[0], site.results[0]
    if not isinstance(x, TensorType):
        return ()
    assert isinstance(result, TensorType)
    # It grows unless the result has the operand's dims and only further ones of size 1.
    grows = [n for n in x.shape if n != 1] != [n for n in result.shape if n != 1]
    return tuple(Flow(kind, (0,), pinned=grows) for kind in REDUCTIONS)


def reducing(*kinds: str) -> FlowRule:
    """Reductions and scans pass on a pending reduction that commutes with them."""
    return lambda site: tuple(Flow(kind, (0,)) for kind in kinds)


def padding(site: Site) -> tuple[Flow, ...]:
    """pad: the fill value must be what the pending reduction makes of it at every position."""
    kinds = ["avg", "min", "max"] + (["sum"] if site.constants[1] == 0 else [])
    return tuple(Flow(kind, (0,)) for kind in kinds)
