"""Kernels whose work items lie along rows: pointwise ones and reductions of rows.

k(b0, b1, ..., p0, p1, ..., s0, ...)      buffers, sizes, scalars
  row = which row this group of threads has        (family row)
  for each phase:
    load what later phases use too, all items first, so that many loads are in flight
    for each item, for each lane: the body; accumulate; store
    combine the accumulators of the group
"""

from functools import partial

from thunder_mdfuse.codegen import mailbox
from thunder_mdfuse.codegen.accumulators import Accumulator
from thunder_mdfuse.codegen.exprs import CPP_TYPES
from thunder_mdfuse.codegen.index import IndexPrinter
from thunder_mdfuse.codegen.kernel import KernelText, KernelWriter
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.schedule.axes import nested_positions
from thunder_mdfuse.schedule.launch import (
    MOST_UNROLLED,
    held_instructions,
    needed_in,
    store_phase,
)
from thunder_mdfuse.schedule.plan import Instr, KernelPlan, Load, Store

# What is not held is fetched so many vectors of each load at a time, so many bytes of all. With
# 2048 threads an SM 16 bytes each are 32 KB in flight; 45 are wanted while some threads compute.
FEW_AT_ONCE = 4
BYTES_AT_ONCE = 64


class RowsWriter(KernelWriter):
    """Writes kernels of the families ``pointwise`` and ``row``."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__(plan)
        self.held = held_instructions(plan)
        # The phase that fetches what is held: not always the first one of the kernel.
        self.fetched_in = {
            at: next(p for p in range(plan.phases) if at in needed_in(plan, p)) for at in self.held
        }
        self.shares_rows = plan.launch.parts != 1
        # Whether vectors may lie outside of the row.
        self.bounded = not plan.launch.exact

    def write(self) -> KernelText:
        """The kernel's text."""
        if self.plan.family == "row":
            self._open_rows()
        else:
            self.body.row_statements(self.top, 0)
        self._declare_scratch()
        self._declare_held()
        for phase in range(self.plan.phases):
            self._phase(phase)
        return self.finish(self._blocks())

    def _open_rows(self) -> None:
        if self.shares_rows:
            parts = self.arguments.name(self.launch.parts)
            self.top.add(f"const {self.index} row = blockIdx.x / {parts};")
            self.top.add(f"const {self.index} part = blockIdx.x % {parts};")
        else:
            self.take_row()
        self.enter_row()
        self._declare_shift()

    def _declare_shift(self) -> None:
        """How many elements before the row its first vector begins."""
        if self.launch.shift is not None:
            names = {a.name: a.name for a in self.plan.rows} | {
                symbol: f"v{at}" for symbol, at in self.plan.positions.items()
            }
            shift = IndexPrinter(self.arguments, names)(self.launch.shift)
            self.top.add(f"const {self.index} shift = {shift};")

    # In how many places of its scratch a reduction takes turns.
    turns = 1

    def _declare_scratch(self) -> None:
        """Each reduction has shared memory of its own, so that no barrier has to say it is free."""
        if self.launch.group > 32:
            for n, _ in self._reductions():
                mine = Accumulator(self.plan, n)
                count = self.launch.threads // 32 * self.turns
                self.top.add(f"MDF_SHARED({mine.cpp}, {mine.scratch}, {count});")

    def _reductions(self, ends: int | None = None) -> list[tuple[int, Instr]]:
        """The reductions that end a phase, or those that end phase ``ends``, by number."""
        found = [(n, i) for n, i in enumerate(self.plan.body) if i.op.startswith("reduce_")]
        return [(n, i) for n, i in found if ends is None or i.phase == ends + 1]

    def _declare_held(self) -> None:
        for at in self.held if self.launch.hold != "none" else []:
            load = self.plan.body[at].detail
            assert isinstance(load, Load)
            if self.launch.hold == "registers":
                self.top.add(f"{self.body.vector_type(at)} h{at}[{self.launch.items}];")
                continue
            dtype = self.plan.buffers[load.buffer].dtype
            count = self.launch.threads * self.launch.items * self.launch.vector
            array = f"{CPP_TYPES[dtype]}, h{at}, {count}, {self.shared}"
            self.top.add(f"MDF_DYNAMIC_SHARED_AT({array});")
            self.shared += count * dtype.itemsize

    def _blocks(self) -> Size:
        if self.plan.family == "row":
            rows = product(a.extent for a in self.plan.rows)
            per_block = self.launch.threads // self.launch.group
            blocks = rows if per_block == 1 else (rows + per_block - 1) // per_block
            return blocks * self.launch.parts
        chunk = self.launch.threads * self.launch.items * self.launch.vector
        return (self.length + chunk - 1) // chunk

    def _phase(self, phase: int) -> None:
        reductions = [n for n, _ in self._reductions(phase)]
        for n in reductions:
            mine = Accumulator(self.plan, n)
            self.top.add(f"{mine.cpp} {mine.name} = {mine.identity};")
        stores = [s for s in self.plan.stores if store_phase(self.plan, s.value) == phase]
        inside = [s for s in stores if self._moves(s)]
        if reductions or inside:
            self._loops(phase, reductions, inside)
        self._combine(reductions)
        if reductions and self.shares_rows:
            self._combine_parts(reductions)
        if reductions:
            self.body.row_statements(self.top, phase + 1)
        once = [s for s in stores if not self._moves(s)]
        if once:
            self._store_once(once)

    def _combine(self, reductions: list[int]) -> None:
        """What the group's threads have, combined; all of it with one barrier."""
        every = [Accumulator(self.plan, n) for n in reductions]
        group, threads = self.launch.group, self.launch.threads
        turn = "turn" if self.turns > 1 else "0"
        if group > 32 and every:
            for mine in every:
                put = f"mdf::group_put<{mine.functor}>({mine.name}, {mine.scratch}, {turn});"
                self.top.add(put)
            self.top.add("mdf::barrier();")
        for mine in every:
            call = f"mdf::group_reduce<{mine.functor}, {group}>({mine.name})"
            if group > 32:
                kind = f"{mine.functor}, {group}, {threads}"
                call = f"mdf::group_get<{kind}>({mine.scratch}, {turn})"
            if self.shares_rows:
                self.top.add(f"{mine.name} = {call};")
            else:
                self.top.add(*mine.declared(call))

    def _combine_parts(self, reductions: list[int]) -> None:
        """All parts of a row leave their results; the last to arrive combines them in order."""
        parts = self.arguments.name(self.launch.parts)
        every = [Accumulator(self.plan, n) for n in reductions]
        spaces: dict[int, list[int]] = {}
        for k, b in enumerate(self.plan.buffers):
            if b.space == "workspace":
                spaces.setdefault(b.value.node, []).append(k)
        (counters,) = [k for k, b in enumerate(self.plan.buffers) if b.space == "counters"]
        first = self.top.open("if (lane == 0)")
        for n, mine in zip(reductions, every, strict=True):
            for k, part in mine.fields(spaces[n]):
                first.add(f"mdf::store1(b{k}, row * {parts} + part, {part});")
        arrive = f"mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b{counters}), row, {parts})"
        self.top.add(f"if (!{arrive}) return;")
        for mine in every:
            self.top.add(f"{mine.name} = {mine.functor}::identity<decltype({mine.name})>();")
        loop = self.top.open(f"for (mdf::i32 q = lane; q < {parts}; q += {self.launch.group})")
        for n, mine in zip(reductions, every, strict=True):
            other = mine.of([f"mdf::load1(b{k}, row * {parts} + q)" for k in spaces[n]])
            loop.add(f"{mine.name} = {mine.functor}::apply({mine.name}, {other});")
        for mine in every:
            kind = f"{mine.functor}, {self.launch.group}, {self.launch.threads}"
            self.top.add(*mine.declared(f"mdf::group_reduce<{kind}>({mine.name}, {mine.scratch})"))

    def _store_once(self, stores: list[Store]) -> None:
        first = "lane == 0" if self.plan.family != "pointwise" else "threadIdx.x == 0"
        if self.launch.threads != self.launch.group:
            first += " && live"
        inner = self.top.open(f"if ({first})")
        for store in stores:
            self.body.store_once(inner, store)

    def _loops(self, phase: int, reductions: list[int], stores: list[Store]) -> None:
        skip = set(self.held) if self.launch.hold != "none" else set()
        needed = sorted(needed_in(self.plan, phase, skip))
        guard = "live" if self.launch.threads != self.launch.group else ""
        if self._streams(needed, skip):
            self._chunks(needed, reductions, stores, guard)
            return
        early = [at for at in needed if self.fetched_in.get(at) == phase]
        unrolled = self.launch.items <= MOST_UNROLLED and self.launch.hold != "none"
        if self.launch.hold == "registers":
            # What waits for other ranks comes last, when all other loads are under way.
            waiting = [at for at in early if self._is_mailbox(at)]
            for group in ([at for at in early if at not in waiting], waiting):
                inner = self._item_loop(True) if group else Block()
                self.body.declare_operands(inner, group)
                for at in group:
                    self.body.fetch(inner, at, f"h{at}[t]")
        inner = self._item_loop(unrolled)
        if self.launch.hold == "shared":
            known = self.body.declare_operands(inner, early)
            needed = [at for at in needed if at not in known]
        for at in needed:
            if at in skip:
                self._use_held(inner, at, phase)
        self.body.element_statements(inner, needed, skip, reductions, stores, guard)

    def _streams(self, needed: list[int], held: set[int]) -> bool:
        """Whether the row only passes by: several vectors a thread, nothing of it held."""
        vectors = [at for at in needed if self.plan.is_vector(at)]
        waits = any(self._is_mailbox(at) for at in vectors)
        return bool(vectors) and self.launch.items > 1 and not held and not waits

    def _chunks(
        self, needed: list[int], reductions: list[int], stores: list[Store], guard: str
    ) -> None:
        """Fetch some vectors, all loads of them first, then compute with them; and so on."""
        vectors = [at for at in needed if self.plan.is_vector(at)]
        each = sum(self.plan.body[at].dtype.itemsize for at in vectors) * self.launch.vector
        items = self.launch.items
        count = min(items, FEW_AT_ONCE, max(1, BYTES_AT_ONCE // each))
        whole = items - items % count
        chunks = [(self.top, count, "")]
        if count < items:
            head = f"for (mdf::i32 f = 0; f < {whole}; f += {count})"
            loop = self.top.open(head, "#pragma unroll 1")
            chunks = [(loop, count, "f + ")]
        if whole < items:
            chunks.append((self.top.open(""), items - whole, f"{whole} + "))
        for top, count, first in chunks:
            chunk = partial(self._chunk, vectors, needed, reductions, stores, guard, count, first)
            if self.launch.exact or self.plan.family == "pointwise":
                chunk(top)
                continue
            # Most chunks lie in their row, whichever thread it is: those need no tests.
            begin, end = (self._position(f"{first}{t}", lane) for t, lane in ((0, 0), (count, 0)))
            within = f"{begin} >= 0 && {end} <= {self.arguments.name(self.length)}"
            self.bounded, edges = False, self.body.edges
            self.body.edges = False
            chunk(top.open(f"if (MDF_IN_BOUNDS({within}))"))
            self.bounded, self.body.edges = True, edges
            chunk(top.open("else"))

    def _chunk(
        self,
        vectors: list[int],
        needed: list[int],
        reductions: list[int],
        stores: list[Store],
        guard: str,
        count: int,
        first: str,
        top: Block,
    ) -> None:
        for at in vectors:
            top.add(f"{self.body.vector_type(at)} h{at}[{count}];")
        inner = self._item_loop(True, top, count, first)
        self.body.declare_operands(inner, vectors)
        for at in vectors:
            self.body.fetch(inner, at, f"h{at}[t]")
        inner = self._item_loop(True, top, count, first)
        for at in vectors:
            inner.add(f"const {self.body.vector_type(at)} x{at} = h{at}[t];")
        self.body.element_statements(inner, needed, set(vectors), reductions, stores, guard)

    def _position(self, item: str, lane: str | int) -> str:
        """Where along the row a lane's vector of an item begins."""
        step = f"(part * {self.launch.items} + {item})"
        if not self.shares_rows:
            step = self._wide(f"({item})" if not item.isidentifier() else item)
        begin = " - shift" if self.launch.shift is not None else ""
        return f"({step} * {self.launch.group} + {lane}) * {self.launch.vector}{begin}"

    def _is_mailbox(self, at: int) -> bool:
        load = self.plan.body[at].detail
        return isinstance(load, Load) and mailbox.is_mailbox(self.plan.buffers[load.buffer])

    def _use_held(self, inner: Block, at: int, phase: int) -> None:
        if self.launch.hold == "registers":
            inner.add(f"const {self.body.vector_type(at)} x{at} = h{at}[t];")
            return
        # Each thread reads only what it wrote itself, so shared memory needs no barrier here.
        place = f"(t * {self.launch.threads} + threadIdx.x) * {self.launch.vector}"
        if phase == self.fetched_in[at]:
            self.body.fetch(inner, at, f"const {self.body.vector_type(at)} x{at}")
            inner.add(f"mdf::store<{self.launch.vector}>(h{at}, {place}, x{at});")
        else:
            inner.add(f"const auto x{at} = mdf::load<{self.launch.vector}>(h{at}, {place});")

    def _item_loop(
        self, unrolled: bool, top: Block | None = None, count: int = 0, first: str = ""
    ) -> Block:
        """The loop over this thread's items, or ``count`` of them after the ``first``, inside its
        bounds; sets the columns' symbols.
        """
        pragma = "#pragma unroll" if unrolled else ""
        head = f"for (mdf::i32 t = 0; t < {count or self.launch.items}; ++t)"
        loop = (top or self.top).open(head, pragma)
        vector, threads = self.launch.vector, self.launch.threads
        if self.plan.family != "pointwise":
            loop.add(f"const {self.index} c = {self._position(f'{first}t', 'lane')};")
        else:
            block = f"(static_cast<{self.index}>(blockIdx.x) * {self.launch.items} + {first}t)"
            loop.add(f"const {self.index} c = ({block} * {threads} + threadIdx.x) * {vector};")
        if self.bounded:
            loop = loop.open(f"if (MDF_IN_BOUNDS(c < {self.arguments.name(self.length)}))")
        flat = IndexPrinter(self.arguments, {"c": "c"})
        loop.add(*flat.definitions(self.index, nested_positions(self.plan.columns, "c")))
        return loop
