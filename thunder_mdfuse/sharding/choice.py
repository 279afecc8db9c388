"""The choice of placements at one node: for each mesh axis one strategy of the node's rule.

In: a site, what its operands have (``found``), what its results must have (``wanted``; None where
it is free). Out: what operands and results should have, and what that costs on the wire. Mesh
axes choose independently but for the joint conditions in ``_allowed``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.chunks import chunk_size
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import (
    REPLICATE,
    Mesh,
    Partial,
    Placement,
    Placements,
    TensorType,
    Type,
)
from thunder_mdfuse.sharding.changes import debt, route
from thunder_mdfuse.sharding.factors import Factor, Flow, Site
from thunder_mdfuse.sharding.rules import RULES, Unsupported
from thunder_mdfuse.sharding.spec import (
    Cut,
    commute,
    in_plain_order,
    is_sharded,
    shard,
    shard_of,
    why_not_reduced,
)

Places = tuple[Placements | None, ...]


@dataclass(frozen=True)
class Strategy:
    """What one mesh axis does: a placement for each operand and result, None for scalars."""

    operands: tuple[Placement | None, ...]
    results: tuple[Placement | None, ...]
    factor: Factor | None = None
    split: int = 1


@dataclass(frozen=True)
class Choice:
    """Placements of all operands and results; ``cost`` and ``debt`` as in ``changes``."""

    operands: Places
    results: Places
    cost: int
    debt: int
    changes: int


def choose(
    site: Site, found: Places, wanted: Places, mesh: Mesh, *, keep_pending: bool = False
) -> Choice:
    """The best choice: fewest bytes, fewest pending reductions, most sharded, fewest changes.

    Bytes count those of bringing the results to what is wanted, and those that making an operand
    a pending reduction only defers: ``Partial + Replicate`` reduces, whereas the bias of a
    row-parallel linear, being small, becomes pending. Remaining ties go to the strategy that
    comes first, which follows the first operand. ``keep_pending``: as in ``propagate``.
    """
    best: Choice | None = None
    rank: tuple[int, int, int, int] | None = None
    for combination in _combinations(site, found, wanted, mesh, keep_pending):
        choice = _weigh(site, combination, found, wanted, mesh)
        # An axis of one position shards nothing and reduces nothing.
        real = (s for s, axis in zip(combination, mesh.axes, strict=True) if axis.size > 1)
        places = [p for s in real for p in s.results if p is not None]
        pending = sum(isinstance(p, Partial) for p in places)
        cost = choice.cost + (0 if keep_pending else choice.debt)
        key = (cost, pending, -sum(map(is_sharded, places)), choice.changes)
        if rank is None or key < rank:
            best, rank = choice, key
    assert best is not None, "Replicate on every axis is always allowed"
    return best


def agrees(site: Site, found: Places, wanted: Places, mesh: Mesh) -> bool:
    """Whether operands with placements ``found`` give results with placements ``wanted``."""
    return any(
        _by_value(combination) == (found, wanted)
        for combination in _combinations(site, found, wanted, mesh)
    )


def _combinations(
    site: Site, found: Places, wanted: Places, mesh: Mesh, keep_pending: bool = False
) -> Iterator[tuple[Strategy, ...]]:
    """One strategy for each mesh axis, those that go together."""
    options = [strategies(site, found, wanted, i, keep_pending) for i in range(len(mesh.axes))]
    return (combination for combination in product(*options) if _allowed(combination, mesh))


def strategies(
    site: Site, found: Places, wanted: Places, axis: int, keep_pending: bool = False
) -> list[Strategy]:
    """What mesh axis number ``axis`` may do. Only what an operand has or a result wants is tried.

    So nothing is cut over an axis without a reason: a pending reduction that cannot pass becomes
    Replicate, not Shard, unless another operand or the wanted result is sharded.
    """
    rule = RULES[site.op]
    options = []
    if not isinstance(rule, Unsupported):
        have = tuple(None if p is None else p[axis] for p in found)
        want = tuple(None if p is None else p[axis] for p in wanted)
        options += [
            _sharding(site, factor, split)
            for factor in _by_operand(rule.factors(site))
            for split in _splits(factor, have, want)
        ]
        asked = {p.op for p in want if isinstance(p, Partial)}
        given = {p.op for p in have if isinstance(p, Partial)}
        options += [
            _flowing(site, flow)
            for flow in rule.flows(site)
            if flow.kind in asked or (flow.kind in given and (keep_pending or not flow.pinned))
        ]
    options = [option for option in options if _reducible(site, option)]
    operands = tuple(_all(site.operands, REPLICATE))
    return [*options, Strategy(operands, tuple(_all(site.results, REPLICATE)))]


def _reducible(site: Site, option: Strategy) -> bool:
    """Whether ranks can do the reductions that ``option`` leaves: f8 is never summed."""
    types = (*site.operands, *site.results)
    return not any(
        isinstance(p, Partial) and why_not_reduced(t.dtype, p.op)
        for t, p in zip(types, (*option.operands, *option.results), strict=True)
    )


def _all(types: tuple[Type, ...], placement: Placement) -> Iterator[Placement | None]:
    return (placement if isinstance(t, TensorType) else None for t in types)


def _by_operand(factors: tuple[Factor, ...]) -> list[Factor]:
    """Factors of the first operand first, so that among equals the first operand is followed."""
    return sorted(factors, key=lambda factor: [d is None for d in factor.operands])


def _splits(
    factor: Factor, have: tuple[Placement | None, ...], want: tuple[Placement | None, ...]
) -> list[int]:
    """In how many ways (by split) an operand or a wanted result has ``factor`` sharded."""
    splits = []
    for d, p in zip((*factor.operands, *factor.results), (*have, *want), strict=True):
        cut = None if p is None else shard_of(p)
        if cut is not None and cut[0] == d and cut[1] not in splits:
            splits.append(cut[1])
    return splits


def _sharding(site: Site, factor: Factor, split: int) -> Strategy:
    operands: list[Placement | None] = list(_all(site.operands, REPLICATE))
    results: list[Placement | None] = list(_all(site.results, REPLICATE))
    for i, d in enumerate(factor.operands):
        if d is not None:
            operands[i] = shard(d, split)
    for i, d in enumerate(factor.results):
        if d is not None:
            results[i] = shard(d, split)
        elif factor.reduces is not None:
            results[i] = Partial(factor.reduces)
    for i in factor.pending:
        assert factor.reduces is not None
        operands[i] = Partial(factor.reduces)
    return Strategy(tuple(operands), tuple(results), factor, split)


def _flowing(site: Site, flow: Flow) -> Strategy:
    operands: list[Placement | None] = list(_all(site.operands, REPLICATE))
    for i in flow.operands:
        operands[i] = Partial(flow.kind)
    return Strategy(tuple(operands), tuple(_all(site.results, Partial(flow.kind))))


def _allowed(combination: tuple[Strategy, ...], mesh: Mesh) -> bool:
    """Whether the axes' strategies go together: even where needed, reductions that commute."""
    for factor in {s.factor for s in combination if s.factor is not None}:
        cuts = tuple(
            Cut(i, axis.size, s.split)
            for i, (s, axis) in enumerate(zip(combination, mesh.axes, strict=True))
            if s.factor == factor and axis.size > 1
        )
        cuts = in_plain_order(factor.size, cuts, mesh)
        parts: Size = 1
        for cut in cuts:
            parts = sizes.multiply(parts, cut.ranks * cut.split)
        if factor.exact and sizes.exact_quotient(factor.size, parts) is None:
            return False
        if factor.block and not _in_blocks(factor.size, cuts):
            return False
    rows = zip(*((*s.operands, *s.results) for s in combination), strict=True)
    return all(commute(p.op for p in row if isinstance(p, Partial)) for row in rows)


def _in_blocks(size: Size, cuts: tuple[Cut, ...]) -> bool:
    """Whether each position is known to hold one contiguous part with something in it."""
    parts = [size]
    for cut in cuts:
        if cut.split > 1:
            return False
        even = [sizes.exact_quotient(n, cut.ranks) for n in parts]
        if all(n is not None for n in even):
            parts = [n for n in even if n is not None]
        elif all(isinstance(n, int) for n in parts):
            found = {chunk_size(n, cut.ranks, i) for n in parts for i in range(cut.ranks)}
            parts = list(found)
        else:
            return False
    return size == 0 or 0 not in parts


def _weigh(
    site: Site, combination: tuple[Strategy, ...], found: Places, wanted: Places, mesh: Mesh
) -> Choice:
    operands, results = _by_value(combination)
    before = zip(site.names, site.operands, found, operands, strict=True)
    after = zip(range(len(results)), site.results, results, wanted, strict=True)
    # A value that several operands need in the same way is changed once.
    changed = {
        (name, need): (t, have)
        for name, t, have, need in (*before, *after)
        if have is not None and need is not None and have != need
    }
    cost = owed = 0
    for (_, need), (t, have) in changed.items():
        assert isinstance(t, TensorType) and have is not None and need is not None
        cost += route(t.shape, t.dtype.itemsize, mesh, have, need).cost
        owed += debt(t.shape, t.dtype.itemsize, mesh, have, need)
    return Choice(operands, results, cost, owed, len(changed))


def _by_value(combination: tuple[Strategy, ...]) -> tuple[Places, Places]:
    """The placement lists of all operands and of all results."""
    operands = _transposed([s.operands for s in combination])
    return operands, _transposed([s.results for s in combination])


def _transposed(by_axis: list[tuple[Placement | None, ...]]) -> Places:
    """From one tuple a mesh axis to one placement list a value; None for scalars."""
    lists: list[Placements | None] = []
    for values in zip(*by_axis, strict=True):
        kept = tuple(p for p in values if p is not None)
        lists.append(kept if len(kept) == len(values) else None)
    return tuple(lists)
