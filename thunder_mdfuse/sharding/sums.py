"""First part of reshard: pending sums are added up before they are reduced, and reduced once.

In and out: a global fusion with placements. ``add(reshard(a), reshard(b))`` becomes
``reshard(add(a, b))`` where ``a`` and ``b`` await the same sums and nothing else reads the
reshards: the gradients of Q, K and V with respect to their common input take one all_reduce and not
three. So it does where the sums are of plain tensors, behind ``to_local`` and casts that keep
all values: the cotangents of what several modules of ``parallelize_module`` read. What goes over
the wire has the dtype that it had, so a sum in a wider one must be rounded to that afterwards.
"""

from dataclasses import dataclass, replace

from thunder_mdfuse.ir.attrs import CastAttrs, ReshardAttrs
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use, placed
from thunder_mdfuse.ir.types import DType, Partial, Placements, TensorType
from thunder_mdfuse.sharding.factors import LINEAR_KINDS

_SUMS = ("add", "sub")


def sums_first(fusion: Fusion) -> Fusion:
    """``fusion`` with sums of reduced values made reduced sums."""
    builder = Builder(fusion.mesh, fusion.level)
    moved: dict[Use, Use] = {}
    leaving = {o.value for o in fusion.outputs}
    kept: set[Use] = set()  # values that something else reads
    for i, node in enumerate(fusion.nodes):
        args = tuple(moved[a] for a in node.args)
        found = [_way(builder, a, kept) for a in args] if node.op in _SUMS else []
        ways = [way for way in found if way is not None]
        if node.op == "input":
            results: tuple[Use, ...] = (builder.input(node.types[0]),)
        elif (
            ways
            and len(ways) == len(found)
            and _reduces_alike(builder, ways)
            and _is_rounded(fusion, i, ways[0].change, leaving)
        ):
            results = (_reduced_sum(builder, node, ways),)
        else:
            results = builder.node(replace(node, args=args))
        for r, use in enumerate(results):
            moved[Use(i, r)] = use
            if len(fusion.users.get(Use(i, r), ())) != 1 or Use(i, r) in leaving:
                kept.add(use)
    outputs = tuple(
        Output(moved[o.value], None if o.writes is None else moved[Use(o.writes)].node)
        for o in fusion.outputs
    )
    return builder.finish(outputs, fusion.guards)


@dataclass(frozen=True)
class _Way:
    """From a reshard to a value: as a plain tensor or not, and in what dtype."""

    change: Node
    out: Node | None  # the to_local
    dtype: DType


def _way(builder: Builder, use: Use, kept: set[Use]) -> _Way | None:
    """The way to ``use``, which nothing else reads; None if there is more than casts that keep all
    values, or another reader, between.
    """
    dtype, out = _dtype(builder, use), None
    passed: set[DType | None] = {dtype}
    while use not in kept:
        node = builder.nodes[use.node]
        if node.op == "reshard":
            sent = builder.tensor(use).dtype
            exact = all(d is sent or (d is not None and _is_wider(d, sent)) for d in passed)
            return _Way(node, out, dtype) if exact and dtype is not None else None
        if node.op == "to_local":
            out = node
        elif node.op != "cast":
            break
        use = node.args[0]
        passed.add(_dtype(builder, use))
    return None


def _dtype(builder: Builder, use: Use) -> DType | None:
    t = builder.type_of(use)
    return t.dtype if isinstance(t, TensorType) else None


def _is_wider(to: DType, sent: DType) -> bool:
    return to.is_float and sent.is_float and to.itemsize > sent.itemsize


def _reduces_alike(builder: Builder, ways: list[_Way]) -> bool:
    """Whether all operands are changes of pending sums, from and to the same placements, and are
    then seen alike.
    """
    seen = {(w.change.attrs, w.out and w.out.attrs, w.dtype) for w in ways}
    found = {(_placements(builder, w.change.args[0]), w.change.types) for w in ways}
    if len(seen) > 1 or len(found) > 1:
        return False
    kinds = {p.op for p in found.pop()[0] if isinstance(p, Partial)}
    return bool(kinds) and kinds <= set(LINEAR_KINDS)


def _is_rounded(fusion: Fusion, i: int, change: Node, leaving: set[Use]) -> bool:
    """Whether the sum of node ``i`` has the dtype that is sent, or all that reads it rounds it to
    that: else digits would be lost that somebody wants.
    """
    (sent,), (t,) = change.types, fusion.nodes[i].types
    assert isinstance(sent, TensorType) and isinstance(t, TensorType)
    if t.dtype is sent.dtype:
        return True
    readers = [fusion.nodes[r] for r in fusion.users.get(Use(i), ())]
    rounds = [
        node.op == "cast" and isinstance(n := node.types[0], TensorType) and n.dtype is sent.dtype
        for node in readers
    ]
    return bool(rounds) and all(rounds) and Use(i) not in leaving


def _reduced_sum(builder: Builder, node: Node, ways: list[_Way]) -> Use:
    change, out, dtype = ways[0].change, ways[0].out, ways[0].dtype
    sources = [way.change.args[0] for way in ways]
    pending, (t,) = _placements(builder, sources[0]), node.types
    sent = builder.tensor(sources[0])
    assert isinstance(t, TensorType) and isinstance(change.attrs, ReshardAttrs)

    def cast(use: Use, to: DType, placements: Placements | None) -> Use:
        if builder.tensor(use).dtype is to:
            return use
        pins = None if placements is None else (placements,)
        return builder.op("cast", (use,), CastAttrs(to), pins)[0]

    sources = [cast(s, dtype, pending) for s in sources]
    types = placed((replace(sent, dtype=t.dtype),), (pending,))
    (total,) = builder.node(replace(node, args=tuple(sources), types=types))
    total = cast(total, sent.dtype, pending)
    (total,) = builder.op("reshard", (total,), change.attrs, (change.attrs.placements,))
    if out is not None:
        (seen,) = out.types
        assert isinstance(seen, TensorType)
        (total,) = builder.node(
            replace(out, args=(total,), types=(replace(seen, dtype=sent.dtype),))
        )
    total = cast(total, t.dtype, None if out is not None else change.attrs.placements)
    if t.placements not in (None, change.attrs.placements):
        (total,) = builder.op("reshard", (total,), ReshardAttrs(t.placements), (t.placements,))
    return total


def _placements(builder: Builder, use: Use) -> Placements:
    placements = builder.tensor(use).placements
    assert placements is not None
    return placements
