"""Order beyond data: what a trace's symbols must keep when regions are formed.

Symbols with effects (random numbers, waits for the device, what we cannot look into) stay in order
among themselves; every read of a storage stays on its side of every write to it.
"""

from collections import defaultdict
from collections.abc import Sequence

from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, has_tags

from thunder_mdfuse.thunder.dtensor_twins import PLACE


def writes_of(bsym: BoundSymbol) -> set[str]:
    """The names of tensors whose storage the symbol writes: targets of ``copy_``, in-place ops."""
    if bsym.sym.id is PrimIDs.COPY_:
        return {bsym.args[1].name}
    names = {name for sub in bsym.subsymbols for name in writes_of(sub)}
    if OpTags.IN_PLACE in (bsym.sym.tags or ()) and bsym.flat_proxy_args:
        names.add(bsym.flat_proxy_args[0].name)
    return names


_HOST_SYMBOLS = {PrimIDs.UNPACK_TRIVIAL, PrimIDs.GET_GRAD, PrimIDs.COMMENT, PrimIDs.DEL}
# That draw without Thunder's tag for it.
_DRAWN = {PrimIDs.RANDN, PrimIDs.RANDINT, PrimIDs.MULTINOMIAL}
_ORDERED = {PrimIDs.UPDATE_ALIASES, *_DRAWN}
_ORDERED_TAGS = {OpTags.DONT_DCE, OpTags.RANDOM_OP, OpTags.IN_PLACE, OpTags.DEVICE_SYNC_OP}


def draws(bsym: BoundSymbol) -> bool:
    """Whether it draws random numbers: with DTensors all ranks draw from one seed, else not."""
    drawn = bsym.sym.id in _DRAWN or has_tags(bsym, {OpTags.RANDOM_OP})
    return drawn or any(map(draws, bsym.subsymbols))


def has_effect(bsym: BoundSymbol) -> bool:
    """Whether the order of the symbol among others with effects must stay as it is."""
    if bsym.sym.id in _HOST_SYMBOLS:
        return False
    opaque = not bsym.sym.is_prim and not bsym.subsymbols
    if opaque or bsym.sym.id in _ORDERED or has_tags(bsym, _ORDERED_TAGS):
        return True
    return any(map(has_effect, bsym.subsymbols))


Edges = list[set[int]]


def edges_of(bsyms: Sequence[BoundSymbol]) -> tuple[Edges, Edges]:
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
        for i, bsym in enumerate(bsyms):
            # A region writes to its inputs, so it must not make what it writes to.
            apart[i] |= {producer[name] for name in writes_of(bsym) if name in producer} - {i}
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
        # A copy_ returns its target, whatever it copies.
        sources = bsym.args[1:] if bsym.sym.id is PrimIDs.COPY_ else bsym.flat_proxy_args
        tensors = [p for p in sources if isinstance(p, TensorProxy)]
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
    PLACE,
    "torch.detach",
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
