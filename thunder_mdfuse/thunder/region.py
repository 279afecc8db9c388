"""What a region holds and what goes in and out: flat prims without dead code, inputs, outputs.

In: the symbols of one group, as they stand in the trace. Numbers that the host works out from
shapes are copied into the regions that need them, so that a region's sizes follow from its tensors'
shapes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core import prims
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag

from thunder_mdfuse.thunder.claims import is_leaf, refusal
from thunder_mdfuse.thunder.deciding import dims, inner_first, numbers


@dataclass(frozen=True)
class Region:
    """What ``fuse`` is given: symbols, what they read, what the rest of the trace needs of them."""

    bound_symbols: tuple[BoundSymbol, ...]
    inputs: tuple[Proxy, ...]
    outputs: tuple[Proxy, ...]


def _proxies(bsym: BoundSymbol) -> list[Proxy]:
    return [*bsym.flat_proxy_args, *bsym.flat_proxy_outs]


# Composites that leave integers as they are: Thunder returns the tensor itself, torch a copy.
_ROUNDING = {"torch.floor", "torch.ceil", "torch.round", "torch.trunc", "torch.abs", "torch.fix"}
_LOG_SOFTMAX = ("torch.log_softmax", "torch.logsumexp")


def flatten(bsym: BoundSymbol) -> list[BoundSymbol]:
    """The claimed leaves of a symbol, in order; they inherit that they belong to the backward."""
    leaves: list[BoundSymbol] = []

    def visit(inner: BoundSymbol, outer: tuple[Any, ...]) -> None:
        if outer and outer[-1] in _ROUNDING and inner.sym.id is PrimIDs.SHALLOW_COPY:
            inner = prims.clone.bind(*inner.args, output=inner.output)
        # A row's maximum is left out of its sum of exponentials where it is infinite. As torch, a
        # log_softmax does so for -inf only: a row with inf is NaN throughout.
        elif outer[-3:-1] == _LOG_SOFTMAX and inner.sym.id is PrimIDs.ABS:
            inner = prims.neg.bind(*inner.args, output=inner.output)
        if is_leaf(inner):
            leaves.append(inner)
            return
        given = {p.name for p in inner.flat_proxy_args}
        made = [p.name for p in inner.flat_proxy_outs if p.name not in given]
        assert inner.subsymbols or not made, f"{inner.sym.name} makes {made}: {refusal(inner)}"
        for sub in inner.subsymbols:
            visit(sub, (*outer, inner.sym.id))

    visit(bsym, ())
    if BoundSymbolTag.BACKWARD not in bsym.tags or leaves == [bsym]:
        return leaves
    return [leaf.from_bsym(tags=leaf.tags | {BoundSymbolTag.BACKWARD}) for leaf in leaves]


def is_view(bsym: BoundSymbol) -> bool:
    """Whether all that a symbol does is to look at a tensor in another way, or to ask its shape."""
    if bsym.sym.id is PrimIDs.SHAPE or OpTags.SHAPE_OP in (bsym.sym.tags or ()):
        return True
    return bool(bsym.subsymbols) and all(map(is_view, bsym.subsymbols))


def rearranges(leaves: Sequence[BoundSymbol]) -> bool:
    """Whether views end in a copy: ``x.t().contiguous()``."""
    made: set[str] = set()
    for leaf in leaves:
        if leaf.sym.id is PrimIDs.STRIDE_ORDER and leaf.args[0].name in made:
            return True
        made |= {p.name for p in leaf.flat_proxy_outs}
    return False


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


def without_dead(bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """``bsyms`` without regions whose outputs are all recomputed elsewhere, and without the host's
    size arithmetic that regions do for themselves.

    Thunder's own pass would do, but it takes time in the square of a region's size, and it comes
    after the split in two: a shape that nobody asks for keeps its tensor for the backward pass,
    which then does not let go of it.
    """
    needed: set[str] = set()
    kept: list[BoundSymbol] = []
    for bsym in reversed(bsyms):
        writes = any(sub.sym.id is PrimIDs.COPY_ for sub in bsym.subsymbols)
        made = {p.name for p in bsym.flat_proxy_outs}
        region = bsym.sym.is_fusion and not writes
        if (region or _is_size_arithmetic(bsym)) and not made & needed:
            continue
        kept.append(bsym)
        needed |= {p.name for p in bsym.flat_proxy_args}
    return kept[::-1]


def _is_size_arithmetic(bsym: BoundSymbol) -> bool:
    outs = bsym.flat_proxy_outs
    return bool(outs) and all(isinstance(p, NumberProxy) for p in outs) and is_leaf(bsym)


def with_sizes(bsyms: Sequence[BoundSymbol], inputs: Sequence[Proxy]) -> list[BoundSymbol]:
    """``bsyms``, each size that one of them reads made by a ``prims.shape`` before it."""
    read = {p.name for b in bsyms for p in b.flat_proxy_args if isinstance(p, NumberProxy)}
    read -= {p.name for p in inputs} | {p.name for b in bsyms for p in b.flat_proxy_outs}
    found: list[BoundSymbol] = []

    def show(p: Proxy) -> None:
        names = set(_dim_names(p))
        if names & read:
            found.append(prims.shape.bind(p, output=tuple(p._shape)))
            read.difference_update(names)

    for p in inputs:
        show(p)
    for bsym in bsyms:
        found.append(bsym)
        for p in bsym.flat_proxy_outs:
            show(p)
    return found


def _dim_names(p: Any) -> list[str]:
    return [d.name for d in dims(p)]


def inputs_of(bsyms: Sequence[BoundSymbol]) -> list[Proxy]:
    """What ``bsyms`` read and do not make, in order of appearance; dims of tensors are known by
    them.
    """
    found: dict[str, Proxy] = {}
    made: set[str] = set()  # so far, dims included: a later symbol may ask for one again
    for bsym in bsyms:
        args = (p for p in bsym.flat_proxy_args if p.name not in made)
        found.update((p.name, p) for p in args if p.name not in found)
        for p in bsym.flat_proxy_outs:
            made.update((p.name, *_dim_names(p)))
    known = {n for p in found.values() for n in _dim_names(p)}
    return [p for name, p in found.items() if name not in known and not _is_baked(p)]


def _is_baked(p: Proxy) -> bool:
    return isinstance(p, NumberProxy) and p.is_static_constrained()


def outputs_of(bsyms: Sequence[BoundSymbol], needed: set[str]) -> list[Proxy]:
    """Tensors that ``bsyms`` make and that something else needs, in order of appearance."""
    found: dict[str, Proxy] = {}
    for bsym in bsyms:
        given = {p.name for p in bsym.flat_proxy_args}
        for p in bsym.flat_proxy_outs:
            if isinstance(p, TensorProxy) and p.name not in given and p.name in needed:
                found.setdefault(p.name, p)
    return list(found.values())


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
    """``bsyms`` with a ``prims.shape`` for every size that the host reads and no symbol of its own
    makes.

    Under symbolic values Thunder asks for a shape inside of composites; those that are fused take
    the only producer of the name with them.
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


def with_made_sizes(bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
    """``bsyms``, a whole trace with its regions, and a ``prims.shape`` before each symbol that
    reads a size whose only maker a region has taken with it.
    """
    made: set[str] = set()
    homes: dict[str, TensorProxy] = {}
    found: list[BoundSymbol] = []
    for bsym in bsyms:
        for p in bsym.flat_proxy_args:
            if isinstance(p, NumberProxy) and p.name not in made and p.name in homes:
                home = homes[p.name]
                found.append(prims.shape.bind(home, output=tuple(home._shape)))
                made.update(_dim_names(home))
        found.append(bsym)
        for p in bsym.flat_proxy_outs:
            made.add(p.name)
            for name in _dim_names(p):
                homes.setdefault(name, p)
    return found


def name_sizes(bsyms: Sequence[BoundSymbol]) -> None:
    """Let tensors have the names for their sizes by which these are read.

    Thunder gives what another executor takes new names for its sizes, and leaves those that ask for
    them as they were: they unpack its shape to the old ones.
    """
    known: dict[str, tuple[Any, ...]] = {}
    everything = list(inner_first(bsyms))
    for bsym in everything:
        if bsym.sym.id is PrimIDs.SHAPE and len(bsym.output) == len(bsym.args[0]._shape):
            known.setdefault(bsym.args[0].name, tuple(bsym.output))
    for bsym in everything:
        for p in _proxies(bsym):
            names = known.get(p.name)
            if names is not None and _dim_names(p) != [d.name for d in numbers(names)]:
                p._shape = names
