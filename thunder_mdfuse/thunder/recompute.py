"""What the backward regions read from memory, and what they compute again.

A value that a forward region makes for a backward one is written once and read once, and takes
memory in between. Where what it comes from is cheaper to read - the function's own inputs, a
statistic of each row, a random state - the backward region gets that and the operations in between.
The choice is a minimum cut: of all sets of values from which a backward region can compute what it
needs by cheap operations, the one that moves the fewest bytes (the max-flow min-cut theorem of
Ford and Fulkerson 1956; networkx finds it).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse.thunder import draws
from thunder_mdfuse.thunder import operators as op
from thunder_mdfuse.thunder import region as rg
from thunder_mdfuse.thunder.composites import RELU
from thunder_mdfuse.thunder.dtensor import parts_of
from thunder_mdfuse.thunder.dtensor_twins import PLACE
from thunder_mdfuse.thunder.grouping import Kind

# Symbols that a kernel computes element by element, from other elements at hand.
_PRIMS = (
    "abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or "
    "bitwise_xor ceil convert_element_type cos cosh div eq erf erfc exp exp2 expm1 floor fmod "
    "ge gt isfinite le lerp log log10 log1p log2 lt maximum minimum mul ne neg pow reciprocal "
    "remainder round rsqrt sign signbit sin sinh sqrt sub tan tanh trunc where add "
    "broadcast_in_dim reshape view transpose squeeze slice flip cat pad shape shallow_copy "
    "stride_order full iota"
)
CHEAP = {
    *(PrimIDs[name.upper()] for name in _PRIMS.split()),
    *("torch.Tensor.expand", "torch.unsqueeze", op.CAST, RELU, draws.UNIFORM, draws.NORMAL, PLACE),
    *(DTensorPrimIDs.ADD, DTensorPrimIDs.MUL, DTensorPrimIDs.EXP, DTensorPrimIDs.NEG),
    *(DTensorPrimIDs.RECIPROCAL, DTensorPrimIDs.CONVERT_ELEMENT_TYPE),
    *("dtensor_from_local", "dtensor_to_local"),
}

# Symbols that torch computes, from and to memory.
STEPS = {
    *(PrimIDs.MATMUL, PrimIDs.LINEAR, PrimIDs.TOPK, PrimIDs.SORT, "torch.argsort"),
    *(op.SDPA, op.SDPA_BACKWARD, DTensorPrimIDs.LINEAR),
}


@dataclass(frozen=True)
class Piece:
    """One region in the making: ``leaves`` of a kind, the first ``borrowed`` from other pieces."""

    kind: Kind
    leaves: tuple[BoundSymbol, ...]
    borrowed: int = 0

    @property
    def own(self) -> tuple[BoundSymbol, ...]:
        """The leaves that no other piece has."""
        return self.leaves[self.borrowed :]


def needed_of(pieces: Sequence[Piece], others: Sequence[BoundSymbol]) -> set[str]:
    """The names that some piece or other symbol reads without making them itself."""
    found = {p.name for bsym in others for p in bsym.flat_proxy_args}
    for piece in pieces:
        found |= {p.name for p in rg.inputs_of(piece.leaves)}
    return found


def recomputed(pieces: Sequence[Piece], others: Sequence[BoundSymbol]) -> list[Piece]:
    """``pieces`` in their order, the backward ones with what they compute again.

    ``others``: the trace's symbols outside of regions. Sizes have to be numbers.
    """
    found = list(pieces)
    for at, piece in enumerate(pieces):
        if piece.kind.backward:
            rest = [p for n, p in enumerate(found) if n != at]
            found[at] = _Cut(piece, rest, others).piece()
    return found


class _Cut:
    """The choice for one backward piece."""

    def __init__(self, piece: Piece, rest: Sequence[Piece], others: Sequence[BoundSymbol]) -> None:
        self.consumer = piece
        forward = [p for p in rest if not p.kind.backward and p.kind.device == piece.kind.device]
        self.producers: dict[str, BoundSymbol] = {}
        self.order: dict[str, int] = {}
        # In memory whatever is decided here.
        self.kept = needed_of(rest, others)
        for n, (kind, leaf) in enumerate((p.kind, leaf) for p in forward for leaf in p.own):
            if leaf.sym.id in STEPS:
                self.kept |= {p.name for p in (*leaf.flat_proxy_args, *leaf.flat_proxy_outs)}
            if not _may_borrow(leaf, kind, piece.kind):
                continue
            for out in leaf.flat_proxy_outs:
                self.producers.setdefault(out.name, leaf)
                self.order.setdefault(out.name, n)
        inputs = [p for p in rg.inputs_of(piece.leaves) if isinstance(p, TensorProxy)]
        self.read = {p.name for p in inputs if p.name not in self.producers}
        steps = (leaf for leaf in piece.leaves if leaf.sym.id in STEPS)
        self.stepped = {p.name for leaf in steps for p in leaf.flat_proxy_args}
        self.wanted = [p for p in inputs if p.name in self.producers]

    def piece(self) -> Piece:
        """The backward piece, with the leaves that it borrows in front."""
        if not self.wanted:
            return self.consumer
        stored = self._cut()
        leaves: dict[int, BoundSymbol] = {}
        pending = [p.name for p in self.wanted]
        while pending:
            name = pending.pop()
            if name in stored or name not in self.producers or self.order[name] in leaves:
                continue
            leaf = self.producers[name]
            leaves[self.order[name]] = leaf
            pending += [p.name for p in leaf.flat_proxy_args]
        borrowed = [leaves[n] for n in sorted(leaves)]
        return replace(
            self.consumer, leaves=(*borrowed, *self.consumer.leaves), borrowed=len(borrowed)
        )

    def _cut(self) -> set[str]:
        """The names to be read from memory."""
        graph = networkx.DiGraph()
        pending, seen = list(self.wanted), {p.name for p in self.wanted}
        for p in self.wanted:
            graph.add_edge((p.name, "out"), "end")  # no capacity: never cut
            if p.name in self.stepped:  # made again, it would be written once more: not for nothing
                graph.add_edge("start", (p.name, "in"), capacity=1)
        while pending:
            p = pending.pop()
            graph.add_edge((p.name, "in"), (p.name, "out"), capacity=self._cost(p))
            leaf = self.producers.get(p.name)
            if leaf is None or not _is_cheap(leaf):
                graph.add_edge("start", (p.name, "in"))
                continue
            sources = [a for a in leaf.flat_proxy_args if isinstance(a, TensorProxy)]
            if not sources:  # constants: free to make
                graph.add_edge("start", (p.name, "in"), capacity=0)
            for a in sources:
                graph.add_edge((a.name, "out"), (p.name, "in"))
                if a.name not in seen:
                    seen.add(a.name)
                    pending.append(a)
        if "start" not in graph:
            return set()
        _, (left, _) = networkx.minimum_cut(graph, "start", "end")
        names = (node[0] for node in left if isinstance(node, tuple) and node[1] == "in")
        return {name for name in names if (name, "out") not in left}

    def _cost(self, p: TensorProxy) -> int:
        """Bytes that reading ``p`` in the backward region adds."""
        if p.name in self.read:
            return 0
        stored = p.name not in self.producers or p.name in self.kept
        return _nbytes(p) * (1 if stored else 2)


def _may_borrow(leaf: BoundSymbol, producer: Kind, consumer: Kind) -> bool:
    """Whether a region of kind ``consumer`` may have ``leaf``, which is in one of ``producer``.

    As when regions are formed: DTensors are of one mesh, and plain tensors are beside them only
    where all parts are alike.
    """
    if any(isinstance(p, DTensorProxy) for p in (*leaf.flat_proxy_args, *leaf.flat_proxy_outs)):
        return producer.mesh == consumer.mesh and (producer.mixes or not consumer.mixes)
    return consumer.mixes or consumer.mesh is None


def _nbytes(p: TensorProxy) -> int:
    """What a rank has of it at most: the choice must be the same on all ranks."""
    count: int = p.dtype.bytes
    parts = parts_of(p) if isinstance(p, DTensorProxy) else [1] * p.ndim
    for size in (-(-size // n) for size, n in zip(p.shape, parts, strict=True)):
        count *= size
    return count


def _is_cheap(leaf: BoundSymbol) -> bool:
    """Whether a region may compute ``leaf`` again: element by element, without communication."""
    if leaf.sym.id not in CHEAP:
        return False
    on_mesh = [
        p for p in (*leaf.flat_proxy_args, *leaf.flat_proxy_outs) if isinstance(p, DTensorProxy)
    ]
    placements = {tuple(p.spec._o.placements) for p in on_mesh}
    partial = any(placement.is_partial() for each in placements for placement in each)
    return len(placements) <= 1 and not partial
