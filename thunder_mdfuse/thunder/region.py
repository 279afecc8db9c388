"""From a trace to regions: which symbols go together, in which order, and what goes in and out.

Grouping follows data: a symbol joins the region of what it reads, or else the latest open region,
when no
path leaves that region and comes back. Regions hold symbols of one kind: one device, or one mesh;
forward
or backward. Order is kept where it matters beyond data: between symbols with effects, and between a
``copy_`` and whatever reads the same storage.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from thunder.core import prims
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, has_tags
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

from thunder_mdfuse.comm.team import mesh_digest
from thunder_mdfuse.thunder.claims import is_leaf


@dataclass(frozen=True)
class Kind:
    """What all symbols of one region have in common."""

    place: str
    backward: bool


def kind_of(bsym: BoundSymbol) -> Kind | None:
    """The kind of a symbol; None for symbols that make numbers alone, which the host computes."""
    if not any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs):
        return None
    tensors = [p for p in _proxies(bsym) if isinstance(p, TensorProxy)]
    backward = BoundSymbolTag.BACKWARD in bsym.tags
    on_mesh = [p for p in tensors if isinstance(p, DTensorProxy)]
    if on_mesh:
        mesh = on_mesh[0].spec._o.mesh
        return Kind(f"{on_mesh[0].device.device_str()} {mesh_digest(mesh)}", backward)
    devices = sorted({str(p.device.device_str()) for p in tensors}, key=lambda d: d == "cpu")
    return Kind(devices[0], backward)


def _proxies(bsym: BoundSymbol) -> list[Proxy]:
    return [*bsym.flat_proxy_args, *bsym.flat_proxy_outs]


def flatten(bsym: BoundSymbol) -> list[BoundSymbol]:
    """The claimed leaves of a symbol, in order; they inherit that they belong to the backward."""
    leaves: list[BoundSymbol] = []

    def visit(inner: BoundSymbol) -> None:
        if is_leaf(inner):
            leaves.append(inner)
        else:
            for sub in inner.subsymbols:
                visit(sub)

    visit(bsym)
    if BoundSymbolTag.BACKWARD not in bsym.tags or leaves == [bsym]:
        return leaves
    return [leaf.from_bsym(tags=leaf.tags | {BoundSymbolTag.BACKWARD}) for leaf in leaves]


def writes_of(bsym: BoundSymbol) -> set[str]:
    """The names of tensors whose storage the symbol writes: targets of ``copy_``, in-place ops."""
    if bsym.sym.id is PrimIDs.COPY_:
        return {bsym.args[1].name}
    names = {name for sub in bsym.subsymbols for name in writes_of(sub)}
    if OpTags.IN_PLACE in (bsym.sym.tags or ()) and bsym.flat_proxy_args:
        names.add(bsym.flat_proxy_args[0].name)
    return names


_HOST_SYMBOLS = {PrimIDs.UNPACK_TRIVIAL, PrimIDs.GET_GRAD, PrimIDs.COMMENT, PrimIDs.DEL}
_ORDERED = {PrimIDs.UPDATE_ALIASES, PrimIDs.RANDN, PrimIDs.RANDINT, PrimIDs.MULTINOMIAL}
_ORDERED_TAGS = {OpTags.DONT_DCE, OpTags.RANDOM_OP, OpTags.IN_PLACE, OpTags.DEVICE_SYNC_OP}


def has_effect(bsym: BoundSymbol) -> bool:
    """Whether the order of the symbol among others with effects must stay as it is."""
    if bsym.sym.id in _HOST_SYMBOLS:
        return False
    opaque = not bsym.sym.is_prim and not bsym.subsymbols
    if opaque or bsym.sym.id in _ORDERED or has_tags(bsym, _ORDERED_TAGS):
        return True
    return any(map(has_effect, bsym.subsymbols))


@dataclass
class _Cluster:
    """Symbols that stay together, by their positions in the trace."""

    kind: Kind | None
    members: list[int]
    before: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        return self.members[-1]


class Grouping:
    """Groups the symbols of one trace. ``groups`` gives them in an order that respects all edges."""

    def __init__(
        self, bsyms: Sequence[BoundSymbol], fusible: Callable[[BoundSymbol], bool]
    ) -> None:
        self.bsyms = bsyms
        self.clusters: dict[int, _Cluster] = {}
        self.home: dict[int, int] = {}
        self.latest: dict[Kind, int] = {}
        edges, apart = _edges(bsyms)
        for i, bsym in enumerate(bsyms):
            kind = kind_of(bsym) if fusible(bsym) else None
            self._place(i, kind, edges[i], apart[i])

    def _place(self, i: int, kind: Kind | None, edges: set[int], apart: set[int]) -> None:
        before = {self.home[j] for j in edges | apart}
        refused = {self.home[j] for j in apart}
        for c in self._candidates(kind, before) if kind else ():
            others = before - {c}
            if c not in refused and not self._reaches(others, c):
                cluster = self.clusters[c]
                cluster.members.append(i)
                cluster.before |= others
                self.home[i] = c
                return
        self.clusters[i] = _Cluster(kind, [i], before)
        self.home[i] = i
        if kind is not None:
            self.latest[kind] = i

    def _candidates(self, kind: Kind, before: set[int]) -> list[int]:
        """Regions of the symbol's kind: those that it reads from first, then the latest one."""
        direct = [c for c in sorted(before, reverse=True) if self.clusters[c].kind == kind]
        latest = self.latest.get(kind)
        return direct if latest is None or latest in direct else [*direct, latest]

    def _reaches(self, starts: set[int], goal: int) -> bool:
        """Whether a path leads from region ``goal`` to one of ``starts``."""
        seen: set[int] = set()
        stack = list(starts)
        while stack:
            c = stack.pop()
            if c == goal:
                return True
            if c not in seen:
                seen.add(c)
                stack.extend(self.clusters[c].before)
        return False

    def groups(self) -> list[tuple[Kind | None, list[BoundSymbol]]]:
        """The groups, each in trace order; kind None for a symbol that stays alone."""
        after: dict[int, set[int]] = defaultdict(set)
        waiting = {c: len(cluster.before) for c, cluster in self.clusters.items()}
        for c, cluster in self.clusters.items():
            for b in cluster.before:
                after[b].add(c)
        ready = [(self.clusters[c].last, c) for c, n in waiting.items() if not n]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, c = heapq.heappop(ready)
            cluster = self.clusters[c]
            ordered.append((cluster.kind, [self.bsyms[i] for i in cluster.members]))
            for d in after[c]:
                waiting[d] -= 1
                if not waiting[d]:
                    heapq.heappush(ready, (self.clusters[d].last, d))
        assert len(ordered) == len(self.clusters), "regions depend on each other in a cycle"
        return ordered


Edges = list[set[int]]


def _edges(bsyms: Sequence[BoundSymbol]) -> tuple[Edges, Edges]:
    """For each symbol which earlier ones it follows, and which it must not share a region with."""
    edges: Edges = [set() for _ in bsyms]
    apart: Edges = [set() for _ in bsyms]
    producer: dict[str, int] = {}
    effect: int | None = None
    for i, bsym in enumerate(bsyms):
        edges[i] |= {producer[p.name] for p in bsym.flat_proxy_args if p.name in producer}
        for p in bsym.flat_proxy_outs:
            producer.setdefault(p.name, i)
        if bsym.sym.id is PrimIDs.RETURN:
            edges[i] |= set(range(i))
        elif has_effect(bsym):
            edges[i] |= set() if effect is None else {effect}
            effect = i
    if any(map(writes_of, bsyms)):
        _storage_edges(bsyms, edges, apart)
    for i in range(len(bsyms)):
        edges[i].discard(i)
    return edges, apart


def _storage_edges(bsyms: Sequence[BoundSymbol], edges: Edges, apart: Edges) -> None:
    """Order every read of a storage against every write to it.

    Inside one region a read of the *written proxy itself* is safe: the IR orders it. A read through
    another name of the storage (a view, an alias) must be in another region.
    """
    storage = _storages(bsyms)
    touched: dict[str, list[tuple[int, set[str], bool]]] = defaultdict(list)
    for i, bsym in enumerate(bsyms):
        targets = writes_of(bsym)
        names = {p.name for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)}
        for s in {storage[n] for n in names if n in storage}:
            mine = {n for n in names if storage.get(n) == s}
            writes = bool(targets & mine)
            for j, theirs, wrote in touched[s]:
                if writes or wrote:
                    edges[i].add(j)
                    if (writes and wrote) or len(mine | theirs) > 1:
                        apart[i].add(j)
            touched[s].append((i, mine, writes))


def _storages(bsyms: Sequence[BoundSymbol]) -> dict[str, str]:
    """For each tensor the name of one that may share its storage: the same for all that may."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for bsym in bsyms:
        tensors = [p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)]
        outs = [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]
        for p in (*tensors, *outs):
            root(p.name)
        if not _may_alias(bsym):
            continue
        for out, source in ((o, t) for o in outs for t in tensors):
            parent[root(out.name)] = root(source.name)
    return {name: root(name) for name in parent}


_FRESH = {OpTags.REDUCTION_OP, OpTags.MATMUL_OP, OpTags.RANDOM_OP}
_ALIASING = {
    PrimIDs.COPY_,
    PrimIDs.UPDATE_ALIASES,
    PrimIDs.REAL,
    PrimIDs.IMAG,
    PrimIDs.BITCAST,
    "dtensor_from_local",
    "dtensor_to_local",
    "dtensor_redistribute",
}


def _may_alias(bsym: BoundSymbol) -> bool:
    """Whether an output may share storage with an argument: a view, or what we cannot look into."""
    if bsym.sym.is_prim:
        return bsym.sym.id in _ALIASING or OpTags.SHAPE_OP in (bsym.sym.tags or ())
    if bsym.subsymbols:
        return any(map(_may_alias, bsym.subsymbols))
    return not has_tags(bsym, _FRESH)


def dead_code_free(bsyms: Sequence[BoundSymbol], outputs: Iterable[Any]) -> list[BoundSymbol]:
    """``bsyms`` without those that no output and no write needs."""
    needed = {p.name for p in outputs}
    kept: list[BoundSymbol] = []
    for bsym in reversed(bsyms):
        made = {p.name for p in bsym.flat_proxy_outs}
        if bsym.sym.id is not PrimIDs.COPY_ and not made & needed:
            continue
        # A tensor's dims are known by its type, so what Thunder unrolls to ask for them can go.
        if bsym.sym.id is PrimIDs.SHAPE and made <= set(_dim_names(bsym.args[0])):
            continue
        kept.append(bsym)
        needed |= {p.name for p in bsym.flat_proxy_args}
    return kept[::-1]


def _dim_names(p: Any) -> list[str]:
    if not isinstance(p, TensorProxy):
        return []
    return [d.name for d in p._shape if isinstance(d, NumberProxy)]


def inputs_of(bsyms: Sequence[BoundSymbol]) -> list[Proxy]:
    """What ``bsyms`` read and do not make, in order of appearance; dims of inputs are known by
    them.
    """
    made = {p.name for bsym in bsyms for p in bsym.flat_proxy_outs}
    found = {p.name: p for bsym in bsyms for p in bsym.flat_proxy_args if p.name not in made}
    known = {n for p in found.values() for n in _dim_names(p)}
    return [p for name, p in found.items() if name not in known and not _is_baked(p)]


def _is_baked(p: Proxy) -> bool:
    return isinstance(p, NumberProxy) and p.is_static_constrained()


def outputs_of(
    bsyms: Sequence[BoundSymbol], used: dict[str, int], inside: dict[str, int]
) -> list[Proxy]:
    """Tensors that ``bsyms`` make and that something else reads, in order of appearance.

    ``used`` counts all readers of a name in the trace, ``inside`` those among ``bsyms``.
    """
    found: dict[str, Proxy] = {}
    for bsym in bsyms:
        given = {p.name for p in bsym.flat_proxy_args}
        for p in bsym.flat_proxy_outs:
            if not isinstance(p, TensorProxy) or p.name in given:
                continue
            if used.get(p.name, 0) > inside.get(p.name, 0):
                found.setdefault(p.name, p)
    return list(found.values())


def count_reads(bsyms: Iterable[BoundSymbol]) -> dict[str, int]:
    """How many symbols read each name."""
    counts: dict[str, int] = defaultdict(int)
    for bsym in bsyms:
        for name in {p.name for p in bsym.flat_proxy_args}:
            counts[name] += 1
    return counts


def number_producers(bsyms: Iterable[BoundSymbol]) -> dict[str, BoundSymbol]:
    """Symbols on numbers alone, by the name that they make: the host's size arithmetic."""
    found: dict[str, BoundSymbol] = {}
    for bsym in bsyms:
        outs = bsym.flat_proxy_outs
        if outs and is_leaf(bsym) and not any(isinstance(p, TensorProxy) for p in _proxies(bsym)):
            found.update((p.name, bsym) for p in outs)
    return found


def with_numbers(
    bsyms: Sequence[BoundSymbol], producers: dict[str, BoundSymbol]
) -> list[BoundSymbol]:
    """``bsyms`` after copies of the host's size arithmetic that starts from dims of their inputs.

    So ``x.reshape(x.shape[0] * x.shape[1])`` stays symbolic although the product is made outside.
    """
    found = inputs_of(bsyms)
    known = {n for p in found for n in _dim_names(p)}
    extra: dict[str, BoundSymbol] = {}

    def pull(name: str) -> bool:
        if name in known or name in extra:
            return True
        source = producers.get(name)
        if source is None or not all(pull(p.name) for p in source.flat_proxy_args):
            return False
        extra[name] = source
        return True

    for p in found:
        if isinstance(p, NumberProxy):
            pull(p.name)
    return [*extra.values(), *bsyms]


def with_shapes(bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """``bsyms`` with a ``prims.shape`` for every size that the host reads and no symbol of its own makes.

    Under symbolic values Thunder asks for a shape inside of composites; those that are fused take the
    only producer of the name with them.
    """
    made = {p.name for b in bsyms for p in b.flat_proxy_outs}
    missing = {
        p.name
        for b in bsyms
        for p in b.flat_proxy_args
        if isinstance(p, NumberProxy) and p.name not in made
    }
    found: list[BoundSymbol] = []
    for bsym in bsyms:
        found.append(bsym)
        for p in bsym.flat_proxy_outs:
            if missing & set(_dim_names(p)):
                found.append(prims.shape.bind(p, output=tuple(p._shape)))
                missing -= set(_dim_names(p))
    return found
