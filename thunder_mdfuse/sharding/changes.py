"""The way from one list of placements to another: a sequence of steps, each over one mesh axis.

In: shape, element size, mesh, both placement lists. Out: the steps that move the fewest bytes,
found by Dijkstra's algorithm over layouts. Deterministic, and independent of the number of ranks
but for its value in the costs.

The moves, ``n`` being the positions of the axis and ``B`` the bytes of the value that one rank
holds *with the axis's cut undone*; each is possible only where the stack of cuts (see ``spec``)
allows it. Shards count as long as the longest, since that is what is sent:

    found           wanted           step               bytes that each rank receives
    Shard(d)        Replicate        all_gather         (n-1)/n * B      d's innermost cut only
    Partial(op)     Replicate        all_reduce         2*(n-1)/n * B
    Partial(op)     Shard(d)         reduce_scatter     (n-1)/n * B
    Shard(d)        Shard(e)         all_to_all         (n-1)/n * B/n    d's innermost cut only
    Shard(d) on i   Shard(d) on k    broadcast          B/n              i, k of one size; or d of
    Shard(d)        Replicate        broadcast          B                size 1: position 0 has all
    Replicate       Shard(d)         chunk              0
    Replicate       Partial(sum)     keep_first         0                likewise product
    Replicate       Partial(avg)     none               0                likewise min and max
    Partial(sum)    Partial(avg)     multiply           0                by n

Everything else is a path of these: a cut below another is undone after it (inner axes are
gathered first); Shard -> Partial and a Partial of another kind go through Replicate; a strided
cut takes part in all_gather and chunk only, so Partial -> StridedShard is all_reduce, chunk.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.chunks import position
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import REPLICATE, Mesh, Partial, Placements
from thunder_mdfuse.sharding.spec import Cut, Layout, commute, layout, local_size, nominal

Shape = tuple[Size, ...]
# Partial kinds whose identity other positions must hold; of the others every position may hold
# the value.
_KEPT_BY_FIRST = ("sum", "product")
_LOCAL_OPS = ("chunk", "keep_first", "multiply")


@dataclass(frozen=True)
class Step:
    """One local op: its name and its attributes."""

    op: str
    attrs: at.Attrs

    @property
    def communicates(self) -> bool:
        return self.op not in _LOCAL_OPS


@dataclass(frozen=True)
class Route:
    """Steps in order, and what they cost: bytes received by one rank times the square of all ranks.

    The factor makes every cost an exact integer, so that equal costs compare equal.
    """

    steps: tuple[Step, ...]
    cost: int


@dataclass(frozen=True)
class _State:
    """The cuts of each tensor dim, and the pending reductions as (mesh axis, kind), ascending."""

    dims: tuple[Layout, ...]
    pending: tuple[tuple[int, str], ...]

    def cut(self, dim: int, cuts: Layout) -> "_State":
        return _State((*self.dims[:dim], cuts, *self.dims[dim + 1 :]), self.pending)

    def without(self, axis: int) -> "_State":
        return _State(self.dims, tuple(p for p in self.pending if p[0] != axis))

    def awaiting(self, axis: int, kind: str) -> "_State":
        return _State(self.dims, tuple(sorted((*self.pending, (axis, kind)))))


_NOTHING = "nothing"


class _Move(NamedTuple):
    """A step before its attributes are known.

    ``other``: the dim that all_to_all scatters, the mesh axis that a broadcast cuts instead.
    """

    op: str
    axis: int
    dim: int = -1
    other: int = -1
    split: int = 1
    kind: str = ""


def route(shape: Shape, itemsize: int, mesh: Mesh, found: Placements, wanted: Placements) -> Route:
    """The cheapest way from ``found`` to ``wanted`` for a tensor of ``shape``."""
    if found == wanted:
        return Route((), 0)
    return _route(shape, itemsize, mesh, found, wanted)


def received_bytes(way: Route, mesh: Mesh) -> float:
    """The bytes that each rank receives on the way."""
    return way.cost / mesh.ranks**2


def debt(shape: Shape, itemsize: int, mesh: Mesh, found: Placements, wanted: Placements) -> int:
    """What making ``found`` a pending reduction defers: the cost of doing that reduction later.

    Zero where ``wanted`` has no Partial that ``found`` has not.
    """
    pairs = zip(found, wanted, strict=True)
    reduced = tuple(REPLICATE if isinstance(q, Partial) and p != q else q for p, q in pairs)
    return route(shape, itemsize, mesh, wanted, reduced).cost


@lru_cache(maxsize=65536)
def _route(shape: Shape, itemsize: int, mesh: Mesh, found: Placements, wanted: Placements) -> Route:
    start, goal = _state(shape, mesh, found), _state(shape, mesh, wanted)
    # Entries order by cost, then number of steps, then the moves themselves: a total order, so
    # the choice among equals is the same in every process.
    queue: list[tuple[int, int, tuple[_Move, ...], _State]] = [(0, 0, (), start)]
    done: set[_State] = set()
    while queue:
        cost, count, moves, state = heapq.heappop(queue)
        if state == goal:
            return Route(_steps(shape, mesh, start, moves), cost)
        if state in done:
            continue
        done.add(state)
        for move, after in _moves(shape, state, goal, mesh):
            if after not in done:
                price = _price(move, state, after, shape, itemsize, mesh)
                heapq.heappush(queue, (cost + price, count + 1, (*moves, move), after))
    raise AssertionError(f"no way from {found} to {wanted}")


def _state(shape: Shape, mesh: Mesh, placements: Placements) -> _State:
    pending = tuple(
        (i, p.op)
        for i, p in enumerate(placements)
        if isinstance(p, Partial) and mesh.axes[i].size > 1
    )
    return _State(tuple(layout(n, placements, d, mesh) for d, n in enumerate(shape)), pending)


def _moves(shape: Shape, state: _State, goal: _State, mesh: Mesh) -> Iterator[tuple[_Move, _State]]:
    """The moves that may lead to ``goal``, and the states after them."""
    yield from _undo_cuts(state, goal)
    yield from _hand_out(shape, state, goal, mesh)
    yield from _reduce(state, goal)
    bound = {cut.axis for cuts in state.dims for cut in cuts} | {axis for axis, _ in state.pending}
    for axis in range(len(mesh.axes)):
        if axis not in bound:
            yield from _split_up(axis, state, goal)


def _undo_cuts(state: _State, goal: _State) -> Iterator[tuple[_Move, _State]]:
    """The innermost cut of a dim whose cuts are not those of the goal so far."""
    for d, cuts in enumerate(state.dims):
        if not cuts or cuts == goal.dims[d][: len(cuts)]:
            continue
        cut, lifted = cuts[-1], state.cut(d, cuts[:-1])
        yield _Move("all_gather", cut.axis, d), lifted
        target = _landing(cut.axis, state, goal)
        if target and cut.split == target[1].split == 1 and target[0] != d:
            e, landed = target
            yield _Move("all_to_all", cut.axis, d, e), lifted.cut(e, (*state.dims[e], landed))


def _hand_out(
    shape: Shape, state: _State, goal: _State, mesh: Mesh
) -> Iterator[tuple[_Move, _State]]:
    """Broadcasts: what one position of a team holds is all that the others need.

    A shard that is to lie along another axis of as many positions is held by the position whose
    number is the coordinate on that axis. Of a dim of size 1 the first position has everything.
    """
    bound = {cut.axis for cuts in state.dims for cut in cuts} | {axis for axis, _ in state.pending}
    for d, cuts in enumerate(state.dims):
        if not cuts or cuts == goal.dims[d][: len(cuts)]:
            continue
        cut, above = cuts[-1], cuts[:-1]
        if local_size(shape[d], above, mesh) == 1:
            yield _Move("broadcast", cut.axis, d), state.cut(d, above)
        new = goal.dims[d][len(above)] if len(goal.dims[d]) > len(above) else None
        same = new is not None and new.axis not in bound and new.ranks == cut.ranks
        if same and new and above == goal.dims[d][: len(above)] and cut.split == new.split == 1:
            yield _Move("broadcast", cut.axis, d, new.axis), state.cut(d, (*above, new))


def _reduce(state: _State, goal: _State) -> Iterator[tuple[_Move, _State]]:
    """A pending reduction that does not stay."""
    for axis, kind in state.pending:
        if (axis, kind) in goal.pending:
            continue
        reduced = state.without(axis)
        others = {k for a, k in reduced.pending}
        if kind == "sum" and (axis, "avg") in goal.pending and commute({"avg", *others}):
            yield _Move("multiply", axis, kind="avg"), reduced.awaiting(axis, "avg")
        yield _Move("all_reduce", axis, kind=kind), reduced
        target = _landing(axis, state, goal)
        if target and target[1].split == 1:
            d, cut = target
            yield _Move("reduce_scatter", axis, d, kind=kind), reduced.cut(d, (*state.dims[d], cut))


def _split_up(axis: int, state: _State, goal: _State) -> Iterator[tuple[_Move, _State]]:
    """What a replicated axis becomes, without communication."""
    target = _landing(axis, state, goal)
    if target:
        d, cut = target
        yield _Move("chunk", axis, d, split=cut.split), state.cut(d, (*state.dims[d], cut))
    awaited = {kind for _, kind in state.pending}
    for kind in (k for a, k in goal.pending if a == axis):
        if not commute({kind, *awaited}):
            continue  # the ones that stand in for a product would be added up by a pending sum
        op = "keep_first" if kind in _KEPT_BY_FIRST else _NOTHING
        yield _Move(op, axis, kind=kind), state.awaiting(axis, kind)


def _landing(axis: int, state: _State, goal: _State) -> tuple[int, Cut] | None:
    """The dim that ``axis`` cuts in the goal, if the cuts above its own are there already."""
    for d, cuts in enumerate(goal.dims):
        for i, cut in enumerate(cuts):
            if cut.axis == axis:
                return (d, cut) if state.dims[d] == cuts[:i] else None
    return None


def _price(
    move: _Move, state: _State, after: _State, shape: Shape, itemsize: int, mesh: Mesh
) -> int:
    """Bytes that a rank receives, times all ranks squared."""
    if move.op in (*_LOCAL_OPS, _NOTHING):
        return 0
    ranks = mesh.axes[move.axis].size
    before, held = (_held(s, shape, itemsize) * mesh.ranks**2 for s in (state, after))
    if move.op == "all_gather":
        return before * (ranks - 1)
    if move.op == "reduce_scatter":
        return held * (ranks - 1)
    if move.op == "broadcast":
        return held
    return before * (ranks - 1) // ranks * (2 if move.op == "all_reduce" else 1)


def _held(state: _State, shape: Shape, itemsize: int) -> int:
    """Bytes that the rank with the longest shards holds."""
    total = itemsize
    for size, cuts in zip(shape, state.dims, strict=True):
        length = nominal(size)
        for cut in cuts:
            part = -(-length // cut.split)
            length = min(length, -(-part // cut.ranks) * cut.split)
        total *= length
    return total


def _steps(shape: Shape, mesh: Mesh, state: _State, moves: tuple[_Move, ...]) -> tuple[Step, ...]:
    """``moves`` with their attributes, following the cuts that each of them leaves."""
    steps = []
    source: Size
    dims = list(state.dims)

    def size(d: int) -> Size:
        return local_size(shape[d], dims[d], mesh)

    for op, number, d, e, split, kind in moves:
        team, ranks = mesh.axes[number].name, mesh.axes[number].size
        attributes: at.Attrs
        if op == "all_gather":
            split = dims[d][-1].split
            dims[d] = dims[d][:-1]
            attributes = at.GatherCommAttrs(team, ranks, d, size(d), split)
        elif op == "broadcast":
            dims[d], source = dims[d][:-1], 0
            if e >= 0:
                dims[d], source = (*dims[d], Cut(e, ranks)), position(mesh.axes[e].name)
            attributes = at.SourceCommAttrs(team, ranks, d, size(d), source)
        elif op == "all_to_all":
            dims[d] = dims[d][:-1]
            attributes = at.ExchangeCommAttrs(team, ranks, d, size(d), e, size(e))
            dims[e] = (*dims[e], Cut(number, ranks))
        elif op == "reduce_scatter":
            attributes = at.ScatterCommAttrs(team, ranks, d, size(d), kind)
            dims[d] = (*dims[d], Cut(number, ranks))
        elif op == "chunk":
            attributes = at.ChunkAttrs(team, ranks, d, split)
            dims[d] = (*dims[d], Cut(number, ranks, split))
        else:
            attributes = at.ReduceCommAttrs(team, ranks, kind)
        if op != _NOTHING:
            steps.append(Step(op, attributes))
    return tuple(steps)
