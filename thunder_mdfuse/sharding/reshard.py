"""Second stage: every disagreement about placements becomes one explicit ``reshard`` node.

In: a global fusion with placements on every value of the mesh. Out: the same, in which each
node's operands have what its rule needs for its result, which ``check`` verifies.

A value that costs nothing to make with other placements (a factory, a broadcast) is made again
rather than changed, so that a replicated weight is cut before it is broadcast and not after.
Changes of one value are made from one another where that moves fewer bytes, and a change of a
change is one change.
"""

from dataclasses import replace

from thunder_mdfuse.errors import ShardingError
from thunder_mdfuse.ir.attrs import ReshardAttrs
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use, placed
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.types import Mesh, Placements, TensorType
from thunder_mdfuse.sharding.changes import Route, route
from thunder_mdfuse.sharding.choice import Choice, Places, agrees, choose
from thunder_mdfuse.sharding.propagate import places_of, site_of
from thunder_mdfuse.sharding.rules import RULES, Unsupported
from thunder_mdfuse.sharding.sums import sums_first

# What may be computed a second time with other placements: a broadcast, which reads less than it
# writes, and what follows from numbers alone (masks, positions, random numbers), so that a rank
# makes only its own part.
_ROOTS = ("factory", "random", "rng_state")
_BRANCHES = ("elementwise", "view")


def reshard(fusion: Fusion) -> Fusion:
    """``fusion`` with explicit changes of placement; without a mesh, ``fusion`` itself."""
    if fusion.mesh is None:
        return fusion
    return _merged(_explicit(sums_first(fusion), fusion.mesh), fusion.mesh)


def _explicit(fusion: Fusion, mesh: Mesh) -> Fusion:
    changer = _Changer(mesh, fusion.level)
    values: dict[Use, Use] = {}
    for i, node in enumerate(fusion.nodes):
        args = tuple(values[a] for a in node.args)
        for r, use in enumerate(changer.emit(node, args)):
            values[Use(i, r)] = use
    outputs = tuple(
        Output(values[o.value], None if o.writes is None else values[Use(o.writes)].node)
        for o in fusion.outputs
    )
    return changer.builder.finish(outputs, fusion.guards)


class _Changer:
    """Builds the fusion, and brings values to other placements on the way."""

    def __init__(self, mesh: Mesh, level: str) -> None:
        self.mesh = mesh
        self.builder = Builder(mesh, level)
        self.rootless: set[Use] = set()  # values that follow from numbers and 0-dim tensors alone

    def emit(self, node: Node, args: tuple[Use, ...]) -> tuple[Use, ...]:
        """``node`` with operands as its rule needs them and results as they are typed."""
        if node.op == "input":
            use = self.builder.input(node.types[0])
            if isinstance(node.types[0], TensorType) and not node.types[0].shape:
                self.rootless.add(use)
            return (use,)
        if node.op == "reshard":
            assert isinstance(node.attrs, ReshardAttrs)
            return (self.change(args[0], node.attrs.placements),)
        if not _has_rule(node):
            return self.builder.node(replace(node, args=args))
        choice = self._choice(node, args)
        needed = zip(args, choice.operands, strict=True)
        args = tuple(a if p is None else self.change(a, p) for a, p in needed)
        made = self.builder.node(replace(node, args=args, types=placed(node.types, choice.results)))
        if self._is_rootless(node, args):
            self.rootless.update(made)
        wanted = zip(made, _places(node), strict=True)
        return tuple(use if p is None else self.change(use, p) for use, p in wanted)

    def _choice(self, node: Node, args: tuple[Use, ...]) -> Choice:
        site = site_of(self.builder, replace(node, args=args))
        return choose(site, places_of(self.builder, args), _places(node), self.mesh)

    def change(self, use: Use, wanted: Placements) -> Use:
        """``use`` with the placements ``wanted``: itself, made again, or changed."""
        t = self.builder.tensor(use)
        assert t.placements is not None
        if t.placements == wanted:
            return use
        way = route(t.shape, t.dtype.itemsize, self.mesh, t.placements, wanted)
        return self._made_again(use, wanted, way) or self._changed(use, wanted)

    def _changed(self, use: Use, wanted: Placements) -> Use:
        return self.builder.op("reshard", (use,), ReshardAttrs(wanted), (wanted,))[0]

    def _made_again(self, use: Use, wanted: Placements, way: Route) -> Use | None:
        """``use`` computed once more as ``wanted``, where that costs no more than ``way``."""
        maker = self.builder.nodes[use.node]
        again = use in self.rootless or maker.op == "broadcast_in_dim"
        if maker.op == "input" or len(maker.types) > 1 or not again:
            return None
        node = replace(maker, types=placed(maker.types, (wanted,)))
        choice = self._choice(node, maker.args)
        if choice.results != (wanted,) or choice.cost > way.cost:
            return None
        return self.emit(node, maker.args)[0]

    def _is_rootless(self, node: Node, args: tuple[Use, ...]) -> bool:
        kind = row(node.op).kind
        tensors = (a for a in args if isinstance(self.builder.type_of(a), TensorType))
        grown = kind in _BRANCHES and all(a in self.rootless for a in tensors)
        return kind in _ROOTS or grown


def _has_rule(node: Node) -> bool:
    """Whether placements are to be agreed on: not for scalars, plain tensors, local views."""
    return any(_places(node)) and not isinstance(RULES[node.op], Unsupported)


def _places(node: Node) -> Places:
    return tuple(t.placements if isinstance(t, TensorType) else None for t in node.types)


def _merged(fusion: Fusion, mesh: Mesh) -> Fusion:
    """``fusion`` with each value's changes made from the cheapest source among its other changes.

    The most costly change of a value is made first, so that the others may start from it: beside
    an all_reduce, the chunk of a reduce_scatter costs nothing.
    """
    roots: dict[Use, Use] = {}
    for i, node in enumerate(fusion.nodes):
        if node.op == "reshard":
            roots[Use(i)] = roots.get(node.args[0], node.args[0])
    read = {a for node in fusion.nodes if node.op != "reshard" for a in node.args}
    read |= {o.value for o in fusion.outputs}
    wanted: dict[Use, set[Placements]] = {}
    for use, root in roots.items():
        if use in read:
            wanted.setdefault(root, set()).add(_placements(fusion, use))
    builder = Builder(mesh, fusion.level)
    values: dict[Use, Use] = {}
    changed: dict[tuple[Use, Placements], Use] = {}
    for i, node in enumerate(fusion.nodes):
        if node.op == "reshard":
            at = changed.get((roots[Use(i)], _placements(fusion, Use(i))))
            if at is not None:
                values[Use(i)] = at
            continue
        if node.op == "input":
            results: tuple[Use, ...] = (builder.input(node.types[0]),)
        else:
            results = builder.node(replace(node, args=tuple(values[a] for a in node.args)))
        for r, use in enumerate(results):
            root = Use(i, r)
            values[root] = use
            for placements, made in _change_all(builder, use, wanted.get(root, set()), mesh):
                changed[root, placements] = made
    outputs = tuple(
        Output(values[o.value], None if o.writes is None else values[Use(o.writes)].node)
        for o in fusion.outputs
    )
    return builder.finish(outputs, fusion.guards)


def _placements(fusion: Fusion | Builder, use: Use) -> Placements:
    placements = fusion.tensor(use).placements
    assert placements is not None
    return placements


def _change_all(
    builder: Builder, root: Use, wanted: set[Placements], mesh: Mesh
) -> list[tuple[Placements, Use]]:
    """``root`` with each of the placements ``wanted``."""
    if not wanted:
        return []
    t = builder.tensor(root)

    def cost(source: Use, placements: Placements) -> int:
        have = _placements(builder, source)
        return route(t.shape, t.dtype.itemsize, mesh, have, placements).cost

    made: list[tuple[Placements, Use]] = [(_placements(builder, root), root)]
    for placements in sorted(wanted, key=lambda p: (-cost(root, p), str(p))):
        if placements == made[0][0]:
            continue
        source = min((use for _, use in made), key=lambda use: cost(use, placements))
        (use,) = builder.op("reshard", (source,), ReshardAttrs(placements), (placements,))
        made.append((placements, use))
    return made


def check(fusion: Fusion) -> Fusion:
    """``fusion`` itself when each node's operands have what its rule needs for its results.

    Raises ``ShardingError`` naming op, mesh axis, what was found and what is possible.
    """
    for i, node in enumerate(fusion.nodes):
        if fusion.mesh is None or not _has_rule(node):
            continue
        found, wanted = places_of(fusion, node.args), _places(node)
        site = site_of(fusion, node)
        if not agrees(site, found, wanted, fusion.mesh):
            choice = choose(site, found, wanted, fusion.mesh)
            _refuse(i, node, choice, found, wanted, fusion.mesh)
    return fusion


def _refuse(i: int, node: Node, choice: Choice, found: Places, wanted: Places, mesh: Mesh) -> None:
    values = [f"operand {n}" for n in range(len(found))] + [
        f"result {n}" for n in range(len(wanted))
    ]
    have, need = (*found, *wanted), (*choice.operands, *choice.results)
    for name, p, q in zip(values, have, need, strict=True):
        if p is None or q is None:
            continue
        for axis, a, b in zip(mesh.axes, p, q, strict=True):
            if a != b:
                raise ShardingError(
                    f"{node.op} %{i}, {name}, mesh axis {axis.name!r}: found {a}, needed {b} for "
                    f"operands {_show(found)} and results {_show(wanted)}; insert a reshard to {b}"
                )


def _show(places: Places) -> str:
    return "; ".join("none" if p is None else f"[{', '.join(map(str, p))}]" for p in places)
