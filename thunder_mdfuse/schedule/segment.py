"""Segmentation: a local fusion cut into units - generated kernels, ATen steps, starts and waits.

*Roots* are the values that something outside a kernel needs, and all reductions. Everything else is
computed inside the kernels that use it. Roots go, in order, to the first kernel whose domain they
fit and with which they share a read or a value, unless that would close a cycle; a value that
another kernel already writes is read back instead of computed again. Units come out in an order
that starts collectives as early and waits for them as late as their neighbours allow; it depends on
the program alone, so all ranks issue the same collectives in the same order.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.ir.types import ScalarType
from thunder_mdfuse.schedule.generated import is_generated as is_generated
from thunder_mdfuse.schedule.group import Group, place_in, root_indices
from thunder_mdfuse.schedule.indexing import Indices
from thunder_mdfuse.schedule.keeping import kept_values
from thunder_mdfuse.schedule.lower import Lowering, Misaligned
from thunder_mdfuse.schedule.outer import walks_few
from thunder_mdfuse.schedule.plan import Store
from thunder_mdfuse.schedule.roles import (
    inner_and_outer,
    kept,
    reduced_dims,
    reduces,
    runs_along,
    same_dims,
    scanned_dim,
)
from thunder_mdfuse.schedule.scatter import points, put

# How far back from a value to the permute that it comes from somebody looks.
MOST_STEPS = 4


@dataclass(frozen=True)
class Unit:
    """One step to be: ``kernel`` (a group), or the node of an ``aten``, ``start`` or ``wait``."""

    kind: str
    group: Group | None = None
    node: int = -1


class Segmenter:
    """Assigns every root of ``fusion`` to a unit; ``units`` gives them in order."""

    def __init__(
        self,
        fusion: Fusion,
        layouts: dict[Use, Layout],
        measure: Callable[[Size], int],
        round_all: bool = False,
        narrow: Callable[[Size, int], bool] = lambda columns, nbytes: False,
        deterministic: bool = False,
    ) -> None:
        """``measure``: about how large a size is, for choices that only speed depends on.

        ``narrow``: whether a block has room for results of so many columns and bytes a column.
        ``deterministic``: scatters are ATen steps.
        """
        self.fusion, self.layouts, self.round_all = fusion, layouts, round_all
        self.measure, self.narrow = measure, narrow
        self.home: dict[Use, int] = {}
        self.kinds: list[Unit] = []
        self.needs: list[set[int]] = []
        self.generated = [is_generated(fusion, n, deterministic) for n in fusion.nodes]
        # For each unit a bit for every unit that has to run before it.
        self._before: list[int] = []
        # For each node a bit for every node whose storage a kernel that computes it reads.
        self._sources: list[int] = []
        # For each node a bit for every wait that has to be over before it can be computed.
        self._awaited: list[int] = []
        self._waits = 0
        self._last_start: int | None = None
        # Whether a kernel may be made one that reduces its rows and over all rows, too.
        self._takes_both = False
        self._roots = self._find_roots()
        self._roots |= kept_values(fusion, layouts, self.generated, self._roots, measure)
        self._assign()

    def _find_roots(self) -> set[Use]:
        roots: set[Use] = set()
        wanted = [o.value for o in self.fusion.outputs]
        for i, node in enumerate(self.fusion.nodes):
            if not self.generated[i]:
                wanted += node.args
            elif (
                row(node.op).kind == "scatter"
                or scanned_dim(self.fusion, node) is not None
                or reduces(self.fusion, node)
            ):
                roots.add(Use(i))
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
                if row(node.op).kind == "scatter":
                    self._open_puts(Use(i))

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
        is worth more than what reading an operand once would save. A reduction goes to a kernel
        that reduces those dims anyway before it makes one reduce both its rows and all rows.
        """
        sources, awaited = self._sources[root.node], self._awaited[root.node]
        both = (False, True) if reduces(self.fusion, self.fusion.nodes[root.node]) else (False,)
        for self._takes_both in both:
            for at in range(len(self.kinds) - 1, -1, -1):
                group = self.kinds[at].group
                if group is None or group.closed or group.awaited != awaited:
                    continue
                if group.touched & sources and self._join(root, at, group):
                    return
        self._open(root)

    def _open(self, root: Use) -> None:
        """A new kernel for ``root``."""
        node = self.fusion.nodes[root.node]
        shape = self.fusion.tensor(node.args[0] if reduces(self.fusion, node) else root).shape
        names = tuple(f"d{i}" for i in range(len(shape)))
        at = len(self.kinds)
        lowering = self._lowering(dict(zip(names, shape, strict=True)), at)
        group = Group(names, shape, lowering, awaited=self._awaited[root.node])
        self._add_unit(Unit("kernel", group))
        joined = self._join(root, at, group)
        assert joined, f"{root} does not fit a kernel of its own"

    def _open_puts(self, root: Use) -> None:
        """A second kernel for scatter ``root``, whose storage another one writes first."""
        shape = points(self.fusion, self.fusion.nodes[root.node])
        names = tuple(f"d{i}" for i in range(len(shape)))
        at, base = len(self.kinds), self.home[root]
        lowering = self._lowering(dict(zip(names, shape, strict=True)), at)
        group = Group(names, shape, lowering, closed=True, awaited=self._awaited[root.node])
        put(lowering, root, group.point, self.layouts[root])
        self._add_unit(Unit("kernel", group))
        self._need(at, {self.home[u] for u in lowering.read if u in self.home} | {base})
        self.home[root] = at

    def _lowering(self, extents: dict[str, Size], at: int) -> Lowering:
        """An empty body for unit ``at``."""
        in_memory = partial(self._in_memory, at=at)
        return Lowering(self.fusion, self.layouts, extents, in_memory, self.round_all)

    def _in_memory(self, use: Use, at: int) -> bool:
        home = self.home.get(use)
        return self.fusion.nodes[use.node].op == "input" or (home is not None and home != at)

    def _join(self, root: Use, at: int, group: Group) -> bool:
        lowering = group.lowering
        mark, reads = lowering.snapshot(), len(lowering.read)
        reduced, outer, scanned = group.reduced, group.outer, group.scanned
        places, late_bytes = group.places, group.late_bytes
        found = self._lower(root, at, group)
        if found is not None and self._goes_with(root, found, group):
            again = group.lowering is not lowering  # everything was lowered anew
            new = group.lowering.read[0 if again else reads :]
            needs = {self.home[u] for u in new if u in self.home}
            if not any(unit == at or self._before[unit] >> at & 1 for unit in needs):
                group.roots.append(root)
                group.touched |= 1 << root.node
                for use in new:
                    group.touched |= 1 << use.node
                self._need(at, needs)
                self.home[root] = at
                turned = [index for _, index in self._turned(root, group)]
                group.turned = group.turned or (bool(turned) and turned[0] == group.places[root])
                return True
        lowering.restore(mark)
        group.lowering, group.places, group.late_bytes = lowering, places, late_bytes
        group.reduced, group.outer, group.scanned = reduced, outer, scanned
        return False

    def _turned(self, root: Use, group: Group) -> Iterator[tuple[bool, Indices]]:
        """Where a point of the domain lies in ``root`` when that is a value of the domain, turned.

        It leaves through tiles then, and what it comes from is read once. A kernel that walks rows
        has no tiles.
        """
        if group.reduced or group.outer or group.scanned is not None:
            return
        node = self.fusion.nodes[root.node]
        for _ in range(MOST_STEPS):
            operands = self._tensors(node)
            if len(operands) != 1 or row(node.op).kind not in ("elementwise", "copy"):
                break
            node = self.fusion.nodes[operands[0].node]
        if node.op == "permute":
            index = place_in(self.fusion.tensor(node.args[0]).shape, group.point, group.shape)
            if index is not None:
                yield False, tuple(index[d] for d in node.attrs.dims)  # type: ignore[union-attr]

    def _goes_with(self, root: Use, found: int, group: Group) -> bool:
        """Whether a kernel may have ``root``, lowered to instruction ``found``, and should."""
        lowering = group.lowering
        if group.outer and lowering.looks_up:
            return False
        if group.outer or group.scanned is not None or not group.reduced:
            return True
        reduced = {group.names[d] for d in group.reduced}
        walked = root in lowering.reductions
        moving = walked or any(sizes.symbols(i) & reduced for i in group.places[root])
        if not moving or lowering.body[found].phase < 1 + walked:
            return True
        extents = dict(zip(group.names, group.shape, strict=True))
        return not walks_few(lowering.body, extents, reduced, self.measure)

    def _lower(self, root: Use, at: int, group: Group) -> int | None:
        """Put ``root`` into the body of group ``at``; its instruction, or None when it does not
        fit.
        """
        node = self.fusion.nodes[root.node]
        try:
            if reduces(self.fusion, node):
                return self._lower_reduction(root, node, at, group)
            dim = scanned_dim(self.fusion, node)
            if dim is not None:
                return self._lower_scan(root, dim, group)
        except Misaligned:
            return None
        shape, mark = self.fusion.tensor(root).shape, group.lowering.snapshot()
        for late, index in (*self._turned(root, group), *root_indices(shape, group)):
            try:
                found = group.lowering.stored(root, index)
                # What all rows have to be walked for is stored by column, and only that.
                if group.lowering.body[found].late == late:
                    group.places[root] = index
                    return found
            except Misaligned:
                pass
            group.lowering.restore(mark)
        return None

    def _lower_reduction(self, root: Use, node: Node, at: int, group: Group) -> int | None:
        places = same_dims(self.fusion.tensor(node.args[0]).shape, group.shape)
        if places is None or group.scanned is not None or group.turned:
            return None
        all_dims = reduced_dims(self.fusion, node)
        dims = tuple(sorted(places[d] for d in all_dims if places[d] >= 0))
        if not group.lowering.reductions and not group.outer:
            group.reduced = dims
        elif dims != group.reduced:
            # The other dims: results that are known when all rows have been walked.
            if not group.outer and not self._take_both(dims, at, group):
                return None
            if dims != group.reduced and (dims != group.outer or not self._has_room(root, group)):
                return None
        late = dims != group.reduced
        if late:
            group.late_bytes += self.fusion.tensor(root).dtype.compute.itemsize
        point = tuple(group.point[d] if d >= 0 else 0 for d in places)
        return group.lowering.reduce(root, kept(point, all_dims), point, late)

    def _take_both(self, dims: tuple[int, ...], at: int, group: Group) -> bool:
        """Make the group one that reduces its rows and, late, over all rows; anew if need be."""
        found = inner_and_outer(group.shape, group.reduced, dims) if self._takes_both else None
        if found is None or not runs_along(group.lowering.body, group.names[found[0][-1]]):
            return False
        swapped = found[0] != group.reduced
        group.reduced, group.outer = found
        if swapped:
            extents = dict(zip(group.names, group.shape, strict=True))
            group.lowering, group.places = self._lowering(extents, at), {}
            # Every root that is a reduction so far becomes a late one.
            return all(self._lower(r, at, group) is not None for r in group.roots)
        return True

    def _has_room(self, root: Use, group: Group) -> bool:
        """Whether a block can keep one more result for each column, beside those it keeps."""
        if row(self.fusion.nodes[root.node].op).kind != "reduction":
            return False  # where the largest element stands is more than one number
        columns = product(group.shape[d] for d in group.reduced)
        own = self.fusion.tensor(root).dtype.compute.itemsize
        return self.narrow(columns, group.late_bytes + own)

    def _lower_scan(self, root: Use, dim: int, group: Group) -> int | None:
        """Scans share a kernel with other scans along the same dim, and with no reduction."""
        known = group.lowering.reductions
        if self.fusion.tensor(root).shape != group.shape or (known and group.scanned != dim):
            return None
        group.reduced, group.scanned = (dim,), dim
        return group.lowering.scan(root, dim, group.point)

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
            index = group.places[root]
            value = lowering.stored(root, index)
        offset: Size = layout.offset
        for i, stride in zip(index, layout.strides, strict=True):
            offset = offset + i * stride
        lowering.stores.append(Store(lowering.buffer(root, written=True), offset, value))
