"""First part of reshard: pending sums are added up before they are reduced, and reduced once.

In and out: a global fusion with placements. ``add(reshard(a), reshard(b))`` becomes
``reshard(add(a, b))`` where ``a`` and ``b`` await the same sums and nothing else reads the
reshards: the gradients of Q, K and V with respect to their common input take one all_reduce and not
three.
"""

from dataclasses import replace

from thunder_mdfuse.ir.attrs import ReshardAttrs
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use, placed
from thunder_mdfuse.ir.types import Partial, Placements, TensorType
from thunder_mdfuse.sharding.factors import LINEAR_KINDS

_SUMS = ("add", "sub")


def sums_first(fusion: Fusion) -> Fusion:
    """``fusion`` with sums of reduced values made reduced sums."""
    builder = Builder(fusion.mesh, fusion.level)
    moved: dict[Use, Use] = {}
    leaving = {o.value for o in fusion.outputs}
    for i, node in enumerate(fusion.nodes):
        args = tuple(moved[a] for a in node.args)
        once = all(
            len(fusion.users.get(a, ())) == 1 and a not in leaving for a in dict.fromkeys(node.args)
        )
        if node.op == "input":
            results: tuple[Use, ...] = (builder.input(node.types[0]),)
        elif node.op in _SUMS and once and _reduces_alike(builder, args):
            results = (_reduced_sum(builder, node, args),)
        else:
            results = builder.node(replace(node, args=args))
        moved.update({Use(i, r): use for r, use in enumerate(results)})
    outputs = tuple(
        Output(moved[o.value], None if o.writes is None else moved[Use(o.writes)].node)
        for o in fusion.outputs
    )
    return builder.finish(outputs, fusion.guards)


def _reduces_alike(builder: Builder, args: tuple[Use, ...]) -> bool:
    """Whether all operands are changes of pending sums, from and to the same placements."""
    nodes = [builder.nodes[a.node] for a in args]
    if any(node.op != "reshard" for node in nodes):
        return False
    if len({node.attrs for node in nodes}) > 1:
        return False
    found = {_placements(builder, node.args[0]) for node in nodes}
    if len(found) > 1:
        return False
    kinds = {p.op for p in found.pop() if isinstance(p, Partial)}
    return bool(kinds) and kinds <= set(LINEAR_KINDS)


def _reduced_sum(builder: Builder, node: Node, args: tuple[Use, ...]) -> Use:
    sources = tuple(builder.nodes[a.node].args[0] for a in args)
    pending, asked = _placements(builder, sources[0]), _placements(builder, args[0])
    types = placed(node.types, (pending,))
    (total,) = builder.node(replace(node, args=sources, types=types))
    wanted = node.types[0].placements if isinstance(node.types[0], TensorType) else None
    for placements in dict.fromkeys((asked, wanted)):
        if placements is not None:
            (total,) = builder.op("reshard", (total,), ReshardAttrs(placements), (placements,))
    return total


def _placements(builder: Builder, use: Use) -> Placements:
    placements = builder.tensor(use).placements
    assert placements is not None
    return placements
