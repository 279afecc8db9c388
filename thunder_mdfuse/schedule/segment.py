"""Segmentation: a local fusion cut into units - generated kernels, ATen steps, starts and waits.

*Roots* are the values that something outside a kernel needs, and all reductions. Everything else is
computed inside the kernels that use it. Roots go, in order, to the first kernel whose domain they
fit and with which they share a read or a value, unless that would close a cycle; a value that
another kernel already writes is read back instead of computed again. Units come out in an order
that starts collectives as early and waits for them as late as their neighbours allow; it depends on
the program alone, so all ranks issue the same collectives in the same order.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from thunder_mdfuse.ir.attrs import ChunkAttrs
from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size, exact_quotient, product, symbol
from thunder_mdfuse.ir.types import ScalarType, TensorType
from thunder_mdfuse.schedule.indexing import Indices, aligned_groups
from thunder_mdfuse.schedule.keeping import kept_values
from thunder_mdfuse.schedule.lower import Lowering, Misaligned
from thunder_mdfuse.schedule.plan import Store

GENERATED_KINDS = (
    "elementwise",
    "view",
    "copy",
    "rearrange",
    "chunk",
    "factory",
    "random",
    "reduction",
)
# Ops of generated kinds that no kernel computes: special functions without a device version.
ATEN_ELEMENTWISE = ("digamma", "ndtri", "zeta")


@dataclass
class Group:
    """A kernel in the making: its domain's symbols and extents, and the roots that it computes.

    ``touched`` has a bit for each node whose storage it reads or which is one of its roots,
    ``awaited`` one for each wait that has to be over before any of its roots can be computed.
    """

    names: tuple[str, ...]
    shape: tuple[Size, ...]
    lowering: Lowering
    reduced: tuple[int, ...] = ()
    roots: list[Use] = field(default_factory=list)
    touched: int = 0
    awaited: int = 0

    @property
    def point(self) -> Indices:
        """The domain's own index; a dim of size 1 needs no symbol."""
        pairs = zip(self.names, self.shape, strict=True)
        return tuple(0 if extent == 1 else symbol(name) for name, extent in pairs)

    @property
    def rows(self) -> tuple[Indices, tuple[Size, ...]]:
        """Index and shape of what is left when the reduced dims are gone."""
        kept = [d for d in range(len(self.shape)) if d not in self.reduced]
        point = self.point
        return tuple(point[d] for d in kept), tuple(self.shape[d] for d in kept)


@dataclass(frozen=True)
class Unit:
    """One step to be: ``kernel`` (a group), or the node of an ``aten``, ``start`` or ``wait``."""

    kind: str
    group: Group | None = None
    node: int = -1


def is_generated(fusion: Fusion, node: Node) -> bool:
    """Whether kernels compute the node, as opposed to ATen or a collective."""
    kind = row(node.op).kind
    if kind not in GENERATED_KINDS or node.op in ATEN_ELEMENTWISE:
        return False
    if node.op == "nextafter" and node.types[0].dtype.is_low_precision:
        return False  # kernels compute in f32, whose next number is another one
    if isinstance(node.attrs, ChunkAttrs) and not _divides(fusion.tensor(node.args[0]), node.attrs):
        return False
    types = [fusion.type_of(a) for a in node.args] + list(node.types)
    return not any(isinstance(t, TensorType) and t.dtype.is_complex for t in types)


def _divides(x: TensorType, attrs: ChunkAttrs) -> bool:
    """Whether a strided chunk's parts are of one size. A chunk that is not strided is a range."""
    parts = attrs.ranks * attrs.split
    return attrs.split == 1 or exact_quotient(x.shape[attrs.dim], parts) is not None


class Segmenter:
    """Assigns every root of ``fusion`` to a unit; ``units`` gives them in order."""

    def __init__(
        self,
        fusion: Fusion,
        layouts: dict[Use, Layout],
        measure: Callable[[Size], int],
        round_all: bool = False,
    ) -> None:
        """``measure``: about how large a size is, for choices that only speed depends on."""
        self.fusion, self.layouts, self.round_all = fusion, layouts, round_all
        self.home: dict[Use, int] = {}
        self.kinds: list[Unit] = []
        self.needs: list[set[int]] = []
        self.generated = [is_generated(fusion, n) for n in fusion.nodes]
        # For each unit a bit for every unit that has to run before it.
        self._before: list[int] = []
        # For each node a bit for every node whose storage a kernel that computes it reads.
        self._sources: list[int] = []
        # For each node a bit for every wait that has to be over before it can be computed.
        self._awaited: list[int] = []
        self._waits = 0
        self._last_start: int | None = None
        self._roots = self._find_roots()
        self._roots |= kept_values(fusion, layouts, self.generated, self._roots, measure)
        self._assign()

    def _find_roots(self) -> set[Use]:
        roots: set[Use] = set()
        wanted = [o.value for o in self.fusion.outputs]
        for i, node in enumerate(self.fusion.nodes):
            if row(node.op).kind == "reduction":
                roots.add(Use(i))
            elif not self.generated[i]:
                wanted += node.args
        for use in wanted:
            if isinstance(self.fusion.type_of(use), ScalarType):
                continue
            base = self.layouts[use].base
            if self.generated[base.node]:
                roots.add(base)
        return roots

    def _assign(self) -> None:
        for i, node in enumerate(self.fusion.nodes):
            self._note_operands(node)
            if node.op == "input" or isinstance(node.types[0], ScalarType):
                continue
            if not self.generated[i]:
                if self.layouts[Use(i)].base == Use(i):  # a view is read where it lies
                    self._add_step(i, node)
            elif Use(i) in self._roots:
                self._place(Use(i))

    def _note_operands(self, node: Node) -> None:
        """What the next node's value reads and waits for, through its operands."""
        sources = awaited = 0
        for arg in self._tensors(node):
            base = self.layouts[arg].base
            home = self.home.get(base)
            if home is not None:
                sources |= 1 << base.node
                awaited |= (self._before[home] | 1 << home) & self._waits
            elif self.fusion.nodes[base.node].op == "input":
                sources |= 1 << base.node
            else:
                sources |= self._sources[arg.node]
                awaited |= self._awaited[arg.node]
        self._sources.append(sources)
        self._awaited.append(awaited)

    def _add_step(self, i: int, node: Node) -> None:
        kind = row(node.op).kind
        unit = Unit(kind if kind in ("start", "wait") else "aten", None, i)
        bases = [self.layouts[a].base for a in self._tensors(node)]
        needs = {self.home[base] for base in bases if base in self.home}
        if kind == "start":
            # Ranks may lay their kernels out differently; their collectives have one order.
            if self._last_start is not None:
                needs.add(self._last_start)
            self._last_start = len(self.kinds)
        elif kind == "wait":
            self._waits |= 1 << len(self.kinds)
        self._add_unit(unit)
        self._need(len(self.kinds) - 1, needs)
        for result in range(len(node.types)):
            self.home[Use(i, result)] = len(self.kinds) - 1

    def _add_unit(self, unit: Unit) -> None:
        self.kinds.append(unit)
        self.needs.append(set())
        self._before.append(0)

    def _need(self, at: int, needs: set[int]) -> None:
        """Note that unit ``at`` runs after ``needs``."""
        self.needs[at] |= needs
        earlier = 0
        for unit in needs:
            earlier |= self._before[unit] | 1 << unit
        if not earlier & ~self._before[at]:
            return
        for unit, before in enumerate(self._before):
            if unit == at or before >> at & 1:
                self._before[unit] = before | earlier

    def _tensors(self, node: Node) -> list[Use]:
        return [a for a in node.args if not isinstance(self.fusion.type_of(a), ScalarType)]

    def _place(self, root: Use) -> None:
        """Put ``root`` into the last kernel with which it shares a read or a value, if it fits.

        What waits for other collectives stays apart: a kernel that could run while one is under way
        is worth more than what reading an operand once would save.
        """
        sources, awaited = self._sources[root.node], self._awaited[root.node]
        for at in range(len(self.kinds) - 1, -1, -1):
            group = self.kinds[at].group
            if group is None or not group.touched & sources or group.awaited != awaited:
                continue
            if self._join(root, at, group):
                return
        self._open(root)

    def _open(self, root: Use) -> None:
        """A new kernel for ``root``."""
        node = self.fusion.nodes[root.node]
        reduction = row(node.op).kind == "reduction"
        shape = self.fusion.tensor(node.args[0] if reduction else root).shape
        names = tuple(f"d{i}" for i in range(len(shape)))
        at = len(self.kinds)
        lowering = Lowering(
            self.fusion,
            self.layouts,
            dict(zip(names, shape, strict=True)),
            lambda use: self._in_memory(use, at),
            self.round_all,
        )
        group = Group(names, shape, lowering, awaited=self._awaited[root.node])
        self._add_unit(Unit("kernel", group))
        joined = self._join(root, at, group)
        assert joined, f"{root} does not fit a kernel of its own"

    def _in_memory(self, use: Use, at: int) -> bool:
        home = self.home.get(use)
        return self.fusion.nodes[use.node].op == "input" or (home is not None and home != at)

    def _join(self, root: Use, at: int, group: Group) -> bool:
        lowering = group.lowering
        mark, reduced, reads = lowering.snapshot(), group.reduced, len(lowering.read)
        if self._lower(root, group) is not None:
            new = lowering.read[reads:]
            needs = {self.home[u] for u in new if u in self.home}
            if not any(unit == at or self._before[unit] >> at & 1 for unit in needs):
                group.roots.append(root)
                group.touched |= 1 << root.node
                for use in new:
                    group.touched |= 1 << use.node
                self._need(at, needs)
                self.home[root] = at
                return True
        lowering.restore(mark)
        group.reduced = reduced
        return False

    def _lower(self, root: Use, group: Group) -> int | None:
        """Put ``root`` into the group's body; its instruction, or None when it does not fit."""
        node = self.fusion.nodes[root.node]
        try:
            if row(node.op).kind == "reduction":
                return self._lower_reduction(root, node, group)
            index = root_index(self.fusion.tensor(root).shape, group)
            return None if index is None else group.lowering.emit(root, index)
        except Misaligned:
            return None

    def _lower_reduction(self, root: Use, node: Node, group: Group) -> int | None:
        operand = self.fusion.tensor(node.args[0])
        dims: tuple[int, ...] = node.attrs.dims  # type: ignore[union-attr]
        if operand.shape != group.shape or (group.lowering.reductions and dims != group.reduced):
            return None
        group.reduced = dims
        return group.lowering.reduce(root, group.rows[0], group.point)

    def units(self) -> list[Unit]:
        """All units in the order in which they run, kernels with the stores that others need.

        Of those that can run, starts go first, then what starts have to wait for, waits last.
        """
        self._store_what_is_needed()
        urgent = 0 if self._last_start is None else self._before[self._last_start]
        later: list[list[int]] = [[] for _ in self.kinds]
        for unit, needs in enumerate(self.needs):
            for need in needs:
                later[need].append(unit)
        missing = [len(needs) for needs in self.needs]
        ready = [(self._rank(u, urgent), u) for u, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, done = heapq.heappop(ready)
            order.append(self.kinds[done])
            for unit in later[done]:
                missing[unit] -= 1
                if not missing[unit]:
                    heapq.heappush(ready, (self._rank(unit, urgent), unit))
        assert len(order) == len(self.kinds), "units need each other in a circle"
        return order

    def _rank(self, unit: int, urgent: int) -> int:
        kind = self.kinds[unit].kind
        if kind in ("start", "wait"):
            return 0 if kind == "start" else 3
        return 1 if urgent >> unit & 1 else 2

    def _store_what_is_needed(self) -> None:
        needed = {
            self.layouts[o.value].base for o in self.fusion.outputs if self._is_tensor(o.value)
        }
        for unit in self.kinds:
            if unit.group is not None:
                needed |= set(unit.group.lowering.read)
            else:
                args = self._tensors(self.fusion.nodes[unit.node])
                needed |= {self.layouts[a].base for a in args}
        for unit in self.kinds:
            if unit.group is not None:
                for root in unit.group.roots:
                    if root in needed:
                        self._store(root, unit.group)

    def _is_tensor(self, use: Use) -> bool:
        return not isinstance(self.fusion.type_of(use), ScalarType)

    def _store(self, root: Use, group: Group) -> None:
        lowering, layout = group.lowering, self.layouts[root]
        if root in lowering.reductions:
            index, value = lowering.reductions[root]
        else:
            found = root_index(self.fusion.tensor(root).shape, group)
            assert found is not None
            index, value = found, lowering.emit(root, found)
        offset: Size = layout.offset
        for i, stride in zip(index, layout.strides, strict=True):
            offset = offset + i * stride
        lowering.stores.append(Store(lowering.buffer(root, written=True), offset, value))


def root_index(shape: tuple[Size, ...], group: Group) -> Indices | None:
    """Where in a value of ``shape`` a point of the group's domain lies, or None when it does not
    fit.

    The shape is the domain's, or the domain's with neighbouring dims merged, or that of its rows (a
    value for each row), sizes of 1 aside.
    """
    full = _match(shape, group.point, group.shape)
    if full is not None or not group.reduced:
        return full
    return _match(shape, *group.rows)


def _match(shape: tuple[Size, ...], point: Indices, extents: tuple[Size, ...]) -> Indices | None:
    if product(shape) != product(extents):
        return None
    index: list[Size] = [0] * len(shape)
    for mine, theirs in aligned_groups(shape, extents):
        large = [d for d in mine if shape[d] != 1]
        others = [d for d in theirs if extents[d] != 1]
        if len(large) > 1:
            if [shape[d] for d in large] != [extents[d] for d in others]:
                return None
            for d, t in zip(large, others, strict=True):
                index[d] = point[t]
        elif large:
            flat: Size = 0
            for t in others:
                flat = flat * extents[t] + point[t]
            index[large[0]] = flat
    return tuple(index)
