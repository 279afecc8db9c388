"""Segmentation: a local fusion cut into units - generated kernels, ATen steps, starts and waits.

*Roots* are the values that something outside a kernel needs, and all reductions. Everything else is
computed inside the kernels that use it. Roots go, in order, to the first kernel whose domain they
fit and with which they share a read or a value, unless that would close a cycle; a value that
another kernel already writes is read back instead of computed again. Units come out in an order
that starts collectives as early and waits for them as late as their neighbours allow; it depends on
the program alone, so all ranks issue the same collectives in the same order.
"""

from dataclasses import dataclass, field

from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size, product, symbol
from thunder_mdfuse.ir.types import ScalarType, TensorType
from thunder_mdfuse.schedule.indexing import Indices, aligned_groups
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
    """A kernel in the making: its domain's symbols and extents, and the roots that it computes."""

    names: tuple[str, ...]
    shape: tuple[Size, ...]
    lowering: Lowering
    reduced: tuple[int, ...] = ()
    roots: list[Use] = field(default_factory=list)

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
    types = [fusion.type_of(a) for a in node.args] + list(node.types)
    return not any(isinstance(t, TensorType) and t.dtype.is_complex for t in types)


class Segmenter:
    """Assigns every root of ``fusion`` to a unit; ``units`` gives them in order."""

    def __init__(self, fusion: Fusion, layouts: dict[Use, Layout], round_all: bool = False) -> None:
        self.fusion, self.layouts, self.round_all = fusion, layouts, round_all
        self.groups: list[Group] = []
        self.home: dict[Use, int] = {}
        self.needs: list[set[int]] = []
        self.kinds: list[Unit] = []
        self.generated = [is_generated(fusion, n) for n in fusion.nodes]
        self._roots = self._find_roots()
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
            if node.op == "input" or isinstance(node.types[0], ScalarType):
                continue
            if not self.generated[i]:
                self._add_step(i, node)
            elif Use(i) in self._roots:
                self._place(Use(i))

    def _add_step(self, i: int, node: Node) -> None:
        kind = row(node.op).kind
        unit = Unit(kind if kind in ("start", "wait") else "aten", None, i)
        needs = {
            self.home[base]
            for base in (self.layouts[a].base for a in self._tensors(node))
            if base in self.home
        }
        self.kinds.append(unit)
        self.needs.append(needs)
        for result in range(len(node.types)):
            self.home[Use(i, result)] = len(self.kinds) - 1

    def _tensors(self, node: Node) -> list[Use]:
        return [a for a in node.args if not isinstance(self.fusion.type_of(a), ScalarType)]

    def _place(self, root: Use) -> None:
        for at in range(len(self.kinds) - 1, -1, -1):
            group = self.kinds[at].group
            if group is not None and self._join(root, at, group):
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
        group = Group(names, shape, lowering)
        self.kinds.append(Unit("kernel", group))
        self.needs.append(set())
        joined = self._join(root, at, group, alone=True)
        assert joined, f"{root} does not fit a kernel of its own"

    def _in_memory(self, use: Use, at: int) -> bool:
        home = self.home.get(use)
        return self.fusion.nodes[use.node].op == "input" or (home is not None and home != at)

    def _join(self, root: Use, at: int, group: Group, alone: bool = False) -> bool:
        lowering = group.lowering
        mark, reduced, before = lowering.snapshot(), group.reduced, set(lowering.read)
        value = self._lower(root, group)
        if value is not None:
            needs = {self.home[u] for u in lowering.read if u in self.home} - {at}
            shares = bool(before & lowering.reads_of(value)) or self._uses(root, at)
            if (alone or shares) and not self._closes_cycle(needs, at):
                group.roots.append(root)
                self.needs[at] = needs
                self.home[root] = at
                return True
        lowering.restore(mark)
        group.reduced = reduced
        return False

    def _uses(self, root: Use, at: int) -> bool:
        """Whether a root of unit ``at`` is an operand of ``root``, seen through inlined values."""
        seen: set[Use] = set()
        stack = [root]
        while stack:
            for arg in self.fusion.nodes[stack.pop().node].args:
                if self.home.get(arg) == at:
                    return True
                if arg not in seen and arg not in self.home:
                    seen.add(arg)
                    stack.append(arg)
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

    def _closes_cycle(self, needs: set[int], at: int) -> bool:
        stack, seen = list(needs), set(needs)
        while stack:
            unit = stack.pop()
            if unit == at:
                return True
            stack += [n for n in self.needs[unit] if n not in seen]
            seen |= self.needs[unit]
        return False

    def units(self) -> list[Unit]:
        """All units in the order in which they run, kernels with the stores that others need."""
        self._store_what_is_needed()
        left = set(range(len(self.kinds)))
        rank = {"start": 0, "kernel": 1, "aten": 1, "wait": 2}
        order: list[Unit] = []
        done: set[int] = set()
        while left:
            ready = [u for u in left if self.needs[u] <= done]
            best = min(ready, key=lambda u: (rank[self.kinds[u].kind], u))
            left.remove(best)
            done.add(best)
            order.append(self.kinds[best])
        return order

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
