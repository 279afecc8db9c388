"""First stage: every tensor value gets placements.

In: a global fusion in which inputs, and nodes that the caller pins, have placements. Out: the
same with placements on every value of the mesh. What is pinned stays; what is not follows from
the operands by the rule of the op, so that as little as possible must be communicated.

A *plain* value is one rank's own tensor: an input without placements, what ``to_local`` gives,
and what is computed from such values only. Plain values and values of the mesh meet in
``from_local`` alone. What is computed from numbers and 0-dim tensors only is the same on all
ranks; it goes with either.
"""

from dataclasses import replace

from thunder_mdfuse.errors import ShardingError
from thunder_mdfuse.ir.attrs import Attrs, LocalAttrs, ReshardAttrs, ShapeAttrs
from thunder_mdfuse.ir.graph import Builder, Fusion, Node, Output, Use, number, placed
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.types import Mesh, Placements, TensorType, Type
from thunder_mdfuse.sharding.choice import Places, choose
from thunder_mdfuse.sharding.expand import EXPANSIONS
from thunder_mdfuse.sharding.factors import Site
from thunder_mdfuse.sharding.spec import check_placed, replicated


def propagate(fusion: Fusion, *, keep_pending: bool = False) -> Fusion:
    """``fusion`` with placements on every tensor of its mesh; without a mesh, ``fusion`` itself.

    ``keep_pending``: a pending reduction passes wherever it can, also where it grows or makes
    another value pending, as is right for results that are pinned to be pending. Raises
    ``ShardingError`` for placements that do not fit and for plain tensors beside placed ones.
    """
    if fusion.mesh is None:
        return fusion
    return _Propagation(fusion, fusion.mesh, keep_pending).run()


def site_of(fusion_or_builder: Fusion | Builder, node: Node) -> Site:
    """``node`` as the rules see it."""
    constants = []
    for use in node.args:
        maker = fusion_or_builder.nodes[use.node]
        constants.append(number(maker.attrs) if maker.op == "const" else None)  # type: ignore[arg-type]
    operands = tuple(fusion_or_builder.type_of(use) for use in node.args)
    return Site(node.op, node.attrs, operands, node.types, tuple(constants), node.args)


def places_of(fusion_or_builder: Fusion | Builder, uses: tuple[Use, ...]) -> Places:
    """The placements of ``uses``; None for scalars and plain tensors."""
    types = (fusion_or_builder.type_of(use) for use in uses)
    return tuple(t.placements if isinstance(t, TensorType) else None for t in types)


def _unplaced(t: Type) -> Type:
    return t.placed(None) if isinstance(t, TensorType) else t


class _Propagation:
    def __init__(self, fusion: Fusion, mesh: Mesh, keep_pending: bool) -> None:
        self.fusion, self.mesh, self.keep_pending = fusion, mesh, keep_pending
        self.builder = Builder(mesh, fusion.level)
        self.values: dict[Use, Use] = {}
        self.anywhere: set[Use] = set()  # values of the new fusion that go with plain ones too

    def run(self) -> Fusion:
        for i, node in enumerate(self.fusion.nodes):
            results = self._input(i, node) if node.op == "input" else self._node(i, node)
            for r, use in enumerate(results):
                self.values[Use(i, r)] = use
        outputs = tuple(self._output(o) for o in self.fusion.outputs)
        return self.builder.finish(outputs, self.fusion.guards)

    def _input(self, i: int, node: Node) -> tuple[Use, ...]:
        (t,) = node.types
        if isinstance(t, TensorType) and t.placements is not None:
            check_placed(f"input %{i}", t, self.mesh)
        elif isinstance(t, TensorType) and not t.shape:
            use = self.builder.input(t.placed(replicated(self.mesh)))
            self.anywhere.add(use)
            return (use,)
        return (self.builder.input(t),)

    def _node(self, i: int, node: Node) -> tuple[Use, ...]:
        args = tuple(self.values[a] for a in node.args)
        tensors = [a for a in args if isinstance(self.builder.type_of(a), TensorType)]
        plain = [a for a in tensors if self.builder.tensor(a).placements is None]
        for r, t in enumerate(node.types):
            if isinstance(t, TensorType) and t.placements is not None:
                check_placed(f"{node.op} %{i}, result {r}", t, self.mesh)
        if node.op == "from_local":
            assert isinstance(node.attrs, LocalAttrs)
            args = tuple(self._plain(a, i, node) for a in args)
            return self._emit(node, args, (node.attrs.placements,))
        if node.op == "to_local" or plain:
            return self._local(i, node, args, tensors)
        if node.op == "reshard":
            assert isinstance(node.attrs, ReshardAttrs)
            return self._emit(node, args, (node.attrs.placements,))
        expand = EXPANSIONS.get(node.op)
        expanded = expand(self.builder, self.mesh, self._op, node, args) if expand else None
        if expanded is not None:
            return (expanded,)
        wanted = tuple(t.placements if isinstance(t, TensorType) else None for t in node.types)
        results = self._emit(node, args, self._results(node, args, wanted))
        if not any(wanted) and all(a in self.anywhere for a in tensors):
            self.anywhere.update(results)
        return results

    def _op(self, name: str, args: tuple[Use, ...], attrs: Attrs, wanted: Placements | None) -> Use:
        """A further op with one result, pinned to ``wanted`` where that is not None."""
        types = row(name).rule(name, tuple(map(self.builder.type_of, args)), attrs)
        node = Node(name, args, attrs, tuple(map(_unplaced, types)))
        return self._emit(node, args, self._results(node, args, (wanted,)))[0]

    def _results(self, node: Node, args: tuple[Use, ...], wanted: Places) -> Places:
        """What is pinned, and by the rule what is not."""
        free = [
            r for r, t in enumerate(node.types) if isinstance(t, TensorType) and wanted[r] is None
        ]
        if not free:
            return wanted
        draft = replace(node, args=args)
        site = site_of(self.builder, draft)
        places = places_of(self.builder, args)
        chosen = choose(site, places, wanted, self.mesh, keep_pending=self.keep_pending).results
        return tuple(chosen[r] if r in free else p for r, p in enumerate(wanted))

    def _local(
        self, i: int, node: Node, args: tuple[Use, ...], tensors: list[Use]
    ) -> tuple[Use, ...]:
        """A node whose results are plain: to_local, and whatever has a plain operand."""
        if node.op != "to_local":
            args = tuple(self._plain(a, i, node) if a in tensors else a for a in args)
            pinned = [t for t in node.types if isinstance(t, TensorType) and t.placements]
            if pinned:
                raise ShardingError(
                    f"{node.op} %{i} is computed from plain tensors only, but its result is to be "
                    f"{pinned[0]}; bring it onto {self.mesh} with from_local first"
                )
        return self._emit(node, args, (None,) * len(node.types))

    def _plain(self, use: Use, i: int, node: Node) -> Use:
        """``use`` as a plain tensor, for node ``i``, which has to do with plain tensors."""
        t = self.builder.tensor(use)
        if t.placements is None:
            return use
        if use not in self.anywhere:
            others = ", ".join(str(self.builder.type_of(self.values[a])) for a in node.args)
            raise ShardingError(
                f"{node.op} %{i}: operands are a tensor of {self.mesh} and a plain tensor, found "
                f"{others}; needed are tensors of the mesh only, so make the plain one such with "
                "from_local, or plain tensors only, so take the other's local part with to_local"
            )
        return self.builder.op("to_local", (use,), ShapeAttrs(t.shape), (None,))[0]

    def _emit(self, node: Node, args: tuple[Use, ...], places: Places) -> tuple[Use, ...]:
        return self.builder.node(replace(node, args=args, types=placed(node.types, places)))

    def _output(self, output: Output) -> Output:
        """What is written into an input must have that input's placements.

        What goes with either kind leaves as a plain tensor, as it does in eager torch.
        """
        value = self.values[output.value]
        if output.writes is None:
            # An equal value that is pinned is the same node by now, so ask what this one was.
            asked = self.fusion.type_of(output.value)
            free = isinstance(asked, TensorType) and asked.placements is None
            if free and value in self.anywhere:
                t = self.builder.tensor(value)
                (value,) = self.builder.op("to_local", (value,), ShapeAttrs(t.shape), (None,))
            return Output(value)
        target = self.builder.type_of(self.values[Use(output.writes)])
        wanted: Placements | None = target.placements if isinstance(target, TensorType) else None
        if wanted is not None and self.builder.tensor(value).placements not in (wanted, None):
            (value,) = self.builder.op("reshard", (value,), ReshardAttrs(wanted), (wanted,))
        return Output(value, self.values[Use(output.writes)].node)
