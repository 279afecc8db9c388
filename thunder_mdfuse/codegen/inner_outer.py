"""Kernels that reduce each row and, over all rows, each column.

    sums of my columns = identity
    for each of this block's rows:            the next rows' loads are under way meanwhile
      for each phase: the body; combine; store; add to the sums
    leave the block's sums in the workspace
    the last block of each group combines the group's, the last group combines those of the groups
    that block computes and stores what needs the sums of all rows

The order of every addition depends on the sizes and on the plan alone.
"""

from collections.abc import Callable

from thunder_mdfuse.codegen.accumulators import Accumulator
from thunder_mdfuse.codegen.body import BodyWriter
from thunder_mdfuse.codegen.exprs import CPP_TYPES, functor
from thunder_mdfuse.codegen.index import IndexPrinter
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.codegen.rows import RowsWriter
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.ir.sizes import Size, ceildiv
from thunder_mdfuse.schedule.axes import positions
from thunder_mdfuse.schedule.inner_outer import (
    late_needed,
    late_reductions,
    moves,
    row_loads,
    row_numbers,
)
from thunder_mdfuse.schedule.launch import MOST_UNROLLED, needed_in, store_phase
from thunder_mdfuse.schedule.plan import Instr, KernelPlan, Load


class LateBody(BodyWriter):
    """A body whose late reductions are kept for each column: ``o`` so far, ``s`` in the end.

    ``ahead``: loads that were made while the row before was computed, as ``n``.
    """

    guard = ""
    ahead: frozenset[int] = frozenset()

    def _accumulate(self, block: Block, n: int) -> None:
        instr = self.plan.body[n]
        if not instr.late:
            super()._accumulate(block, n)
            return
        combine = f"{functor(instr.op, instr.dtype)}::apply"
        value = self._value(instr.args[0])
        condition = f"if ({self.guard}) " if self.guard else ""
        assert self.plan.launch.outer is not None
        if self.plan.launch.outer.sums == "registers":
            mine = f"o{n}[t].v[{self._slot()}]"
            block.add(f"{condition}{mine} = {combine}({mine}, {value});")
        else:
            place = self.place()
            new = f"{combine}(mdf::load1(o{n}, {place}), {value})"
            block.add(f"{condition}mdf::store1(o{n}, {place}, {new});")

    def place(self) -> str:
        """Where a thread's shared result for the current element is: no two lanes share a bank."""
        vector, threads = self.plan.launch.vector, self.plan.launch.threads
        return f"(t * {vector} + {self._slot()}) * {threads} + threadIdx.x"

    def _written(self, at: int, printer: Callable[[Size], str]) -> str:
        instr = self.plan.body[at]
        if instr.late and instr.op.startswith("reduce_"):
            return f"s{at}.v[{self._slot()}]"
        return f"n{at}" if at in self.ahead else super()._written(at, printer)

    def load_ahead(self, block: Block, at: int) -> None:
        """Load the number of instruction ``at`` for the row whose symbols are declared."""
        block.add(f"n{at} = {super()._written(at, self.at_vector)};")

    def declare(self, block: Block, at: int) -> None:
        """Declare instruction ``at``, which has one value for all columns."""
        self._declare(block, at, self.at_vector)


class InnerOuterWriter(RowsWriter):
    """Writes kernels of the family ``inner_outer``."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__(plan)
        assert plan.launch.outer is not None
        self.outer, self.late = plan.launch.outer, late_reductions(plan)
        self.body: LateBody = LateBody(plan, self.arguments, self.scalars, self.index)
        self.shares_rows = False
        self.held = row_loads(plan) if self.launch.hold in ("registers", "staged") else []
        self.staged = self.launch.hold == "staged"
        self.numbers = row_numbers(plan) if self.outer.ahead else []
        self.per_block = self.launch.threads // self.launch.group
        self.body.guard = "live" if self.per_block > 1 else ""
        unrolled = self.launch.items <= MOST_UNROLLED and self.launch.hold != "none"
        self.unrolled = "#pragma unroll" if unrolled else ""
        # Of two phases the barrier of one tells the other, a row later, that its scratch is free;
        # one alone takes another place in every second row.
        phases = {i.phase for _, i in self._reductions()}
        self.turns = 2 if self.launch.group > 32 and len(phases) == 1 else 1

    def write(self) -> KernelText:
        """The kernel's text."""
        parts, total = self.arguments.name(self.launch.parts), self.arguments.name(self.rows)
        self._open_grid()
        self._declare_scratch()
        self._declare_sums()
        if self.outer.ahead:
            self._declare_ahead()
            self._load_row(self.top.open(""), "first")
        top = self.top
        step = f"{parts} * {self.per_block}" if self.per_block > 1 else parts
        if self.staged:
            self._fill_stages(step)
        if self.turns > 1:
            self.top.add("mdf::u32 turn = 0;")
        walk = f"{self.index} base = block * {self.per_block}; base < {total}; base += {step}"
        self.top = top.open(f"for ({walk})")
        self._open_row(step, total)
        for phase in range(self.plan.phases):
            self._phase(phase)
        if self.turns > 1:
            self.top.add(f"turn ^= {self.launch.threads // 32};")
        if self.staged:
            self._refill_stage(step)
        self.top = top
        self._leave_sums()
        self._combine_blocks(parts)
        return self.finish(self.launch.parts)

    def _reductions(self, ends: int | None = None) -> list[tuple[int, Instr]]:
        return [(n, i) for n, i in super()._reductions(ends) if not i.late]

    def _open_grid(self) -> None:
        group = self.launch.group
        self.top.add(f"const {self.index} block = blockIdx.x;")
        if self.per_block == 1:
            self.top.add("const mdf::i32 lane = threadIdx.x;")
            self.top.add(f"const {self.index} first = block;")
        else:
            self.top.add(f"const mdf::i32 lane = threadIdx.x % {group};")
            self.top.add(f"const mdf::i32 mate = threadIdx.x / {group};")
            self.top.add(f"const {self.index} first = block * {self.per_block} + mate;")

    def _declare_sums(self) -> None:
        """What all rows so far give for each column of this thread."""
        vector, items, threads = self.launch.vector, self.launch.items, self.launch.threads
        for n, instr in self.late:
            cpp = CPP_TYPES[instr.dtype.compute]
            identity = f"{functor(instr.op, instr.dtype)}::identity<{cpp}>()"
            if self.outer.sums == "registers":
                self.top.add(f"mdf::Vec<{cpp}, {vector}> o{n}[{items}];")
            else:
                count = threads * items * vector
                self.top.add(f"MDF_DYNAMIC_SHARED_AT({cpp}, o{n}, {count}, {self.shared});")
                self.shared += count * instr.dtype.compute.itemsize
            lanes = self._every_slot(self.top)
            if self.outer.sums == "registers":
                lanes.add(f"o{n}[t].v[j] = {identity};")
            else:
                lanes.add(f"mdf::store1(o{n}, {self._slot_of_thread()}, {identity});")

    def _every_slot(self, block: Block) -> Block:
        """The loop over items, in it that over the elements of a vector."""
        items = block.open(f"for (mdf::i32 t = 0; t < {self.launch.items}; ++t)", self.unrolled)
        return items.open(f"for (mdf::i32 j = 0; j < {self.launch.vector}; ++j)", "#pragma unroll")

    def _slot_of_thread(self) -> str:
        return f"(t * {self.launch.vector} + j) * {self.launch.threads} + threadIdx.x"

    def _declare_ahead(self) -> None:
        for at in self.numbers:
            self.top.add(f"{CPP_TYPES[self.plan.body[at].dtype.compute]} n{at} = {{}};")
        for at in self.held:
            if self.staged:
                self._declare_stages(at)
            else:
                self.top.add(f"{self.body.vector_type(at)} g{at}[{self.launch.items}] = {{}};")

    def _load_row(self, block: Block, row: str) -> None:
        """Load what row number ``row`` needs, if there is such a row."""
        block.add(f"const {self.index} row = {row};")
        inner = block.open(f"if (MDF_IN_BOUNDS(row < {self.arguments.name(self.rows)}))")
        self._row_symbols(inner)
        for at in self.numbers:
            self.body.load_ahead(inner, at)
        if not self.staged:
            self._fetch_held(inner, "g")

    # Rows that wait in shared memory. Each thread copies and reads the places of its own columns,
    # so that no barrier has to stand between.

    def _declare_stages(self, at: int) -> None:
        load = self.plan.body[at].detail
        assert isinstance(load, Load)
        dtype = self.plan.buffers[load.buffer].dtype
        count = self.outer.stages * self.launch.items * self.launch.threads * self.launch.vector
        array = f"{CPP_TYPES[dtype]}, g{at}, {count}, {self.shared}"
        self.top.add(f"MDF_DYNAMIC_SHARED_AT({array});")
        self.shared += count * dtype.itemsize

    def _stage_place(self) -> str:
        items, threads, vector = self.launch.items, self.launch.threads, self.launch.vector
        return f"((stage * {items} + t) * {threads} + threadIdx.x) * {vector}"

    def _fill_stages(self, step: str) -> None:
        """Start the copies of the first rows, a group for each, if there are so many."""
        stages = self.outer.stages
        fill = self.top.open(f"for (mdf::i32 stage = 0; stage < {stages}; ++stage)")
        self._copy_row(fill, f"first + stage * {step}")
        self.top.add("mdf::i32 stage = 0;")

    def _refill_stage(self, step: str) -> None:
        """Start the copy of a later row to where this row was; all is computed that reads it."""
        stages = self.outer.stages
        self._copy_row(self.top.open(""), f"base + {stages} * {step}")
        self.top.add(f"stage = stage == {stages - 1} ? 0 : stage + 1;")

    def _copy_row(self, block: Block, row: str) -> None:
        block.add(f"const {self.index} row = {row};")
        inner = block.open(f"if (MDF_IN_BOUNDS(row < {self.arguments.name(self.rows)}))")
        self._row_symbols(inner)
        self.top, top = inner, self.top
        items = self._item_loop(True)
        self.top = top
        for at in self.held:
            self.body.copy(items, at, f"g{at}", self._stage_place())
        # A group for each row, whether there is one or not: waiting counts groups.
        block.add("mdf::commit_copies();")

    def _row_symbols(self, block: Block) -> None:
        flat = IndexPrinter(self.arguments, {"row": "row"})
        for name, value in positions(self.plan.rows, "row").items():
            block.add(f"const {self.index} {name} = {flat(value)};")

    def _fetch_held(self, block: Block, array: str) -> None:
        if self.held:
            self.top, top = block, self.top
            inner = self._item_loop(True)
            self.top = top
            for at in self.held:
                self.body.fetch(inner, at, f"{array}{at}[t]")

    def _open_row(self, step: str, total: str) -> None:
        """This iteration's row, and the start of the next one's loads."""
        top, self.body.ahead = self.top, frozenset(self.numbers)
        if self.per_block > 1:
            top.add(f"const {self.index} mine = base + mate;")
            top.add(f"const bool live = MDF_IN_BOUNDS(mine < {total});")
            # A group past the end works on row 0 again, since all threads have to meet barriers.
            top.add(f"const {self.index} row = live ? mine : 0;")
        else:
            top.add(f"const {self.index} row = base;")
        self._row_symbols(top)
        self.body.row_statements(top, 0)
        if self.staged:
            top.add(f"mdf::wait_copies<{self.outer.stages - 1}>();")
        for at in self.held if not self.staged else []:
            top.add(f"{self.body.vector_type(at)} h{at}[{self.launch.items}];")
        if not self.outer.ahead:
            self._fetch_held(top, "h")
            return
        if self.held and not self.staged:
            copy = top.open(f"for (mdf::i32 t = 0; t < {self.launch.items}; ++t)", "#pragma unroll")
            for at in self.held:
                copy.add(f"h{at}[t] = g{at}[t];")
        following = "base" if self.per_block == 1 else "mine"
        ahead = top.open("")
        ahead.add(f"const {self.index} next = {following} + {step};")
        self._load_row(ahead, "next")

    def _phase(self, phase: int) -> None:
        ending = [n for n, _ in self._reductions(phase)]
        late = [n for n, i in self.late if i.phase == phase]
        for n in ending:
            mine = Accumulator(self.plan, n)
            self.top.add(f"{mine.cpp} {mine.name} = {mine.identity};")
        stores = [s for s in self.plan.stores if store_phase(self.plan, s.value) == phase]
        inside = [s for s in stores if self._moves(s)]
        if ending or late or inside:
            inner = self._item_loop(bool(self.unrolled))
            held = set(self.held)
            needed = sorted(needed_in(self.plan, phase, held))
            for at in needed:
                if at in held:
                    inner.add(f"const {self.body.vector_type(at)} x{at} = {self._held(at)};")
            guard = self.body.guard
            self.body.element_statements(inner, needed, held, ending + late, inside, guard)
        self._combine(ending)
        if ending:
            self.body.row_statements(self.top, phase + 1)
        once = [s for s in stores if not self._moves(s)]
        if once:
            self._store_once(once)

    def _held(self, at: int) -> str:
        if not self.staged:
            return f"h{at}[t]"
        return f"mdf::load<{self.launch.vector}>(g{at}, {self._stage_place()})"

    def _workspace(self, n: int) -> str:
        """The buffer that holds the blocks' results of reduction ``n``."""
        (k,) = [
            k
            for k, b in enumerate(self.plan.buffers)
            if b.space == "workspace" and b.value.node == n
        ]
        return f"b{k}"

    def _leave_sums(self) -> None:
        """The block's results, one row of the workspace for each block."""
        length = self.arguments.name(self.length)
        if self.per_block > 1:
            self._leave_sums_of_groups(length)
            return
        vector = self.launch.vector
        inner = self._item_loop(bool(self.unrolled))
        for n, instr in self.late:
            value = f"o{n}[t]"
            if self.outer.sums == "shared":
                value = f"y{n}"
                inner.add(f"mdf::Vec<{CPP_TYPES[instr.dtype.compute]}, {vector}> y{n};")
                lanes = inner.open(f"for (mdf::i32 j = 0; j < {vector}; ++j)", "#pragma unroll")
                lanes.add(f"y{n}.v[j] = mdf::load1(o{n}, {self._slot_of_thread()});")
            place = f"block * {length} + c"
            inner.add(f"mdf::store<{vector}>({self._workspace(n)}, {place}, {value});")

    def _leave_sums_of_groups(self, length: str) -> None:
        """Groups that had rows of their own add theirs up first, in the groups' order."""
        vector, items, threads = self.launch.vector, self.launch.items, self.launch.threads
        pitch = self.launch.group * items * vector
        start, most = self.shared, 0
        for n, instr in self.late:
            cpp, combine = CPP_TYPES[instr.dtype.compute], functor(instr.op, instr.dtype)
            block = self.top.open("")
            count = threads * items * vector
            block.add(f"MDF_DYNAMIC_SHARED_AT({cpp}, meet, {count}, {start});")
            if most:  # the result before this one is still being read
                block.add("mdf::barrier();")
            most = max(most, count * instr.dtype.compute.itemsize)
            lanes = self._every_slot(block)
            mine = f"o{n}[t].v[j]"
            if self.outer.sums == "shared":
                mine = f"mdf::load1(o{n}, {self._slot_of_thread()})"
            column = f"(t * {self.launch.group} + lane) * {vector} + j"
            lanes.add(f"mdf::store1(meet, mate * {pitch} + {column}, {mine});")
            block.add("mdf::barrier();")
            each = block.open(f"for (mdf::i32 c = threadIdx.x; c < {length}; c += {threads})")
            each.add(f"{cpp} sum = mdf::load1(meet, c);")
            mates = each.open(f"for (mdf::i32 q = 1; q < {self.per_block}; ++q)")
            mates.add(f"sum = {combine}::apply(sum, mdf::load1(meet, q * {pitch} + c));")
            each.add(f"mdf::store1({self._workspace(n)}, block * {length} + c, sum);")
        self.shared = start + most

    def _combine_blocks(self, parts: str) -> None:
        """The tree of blocks, and what its root computes."""
        fan = self.outer.fan
        groups = self.arguments.name(ceildiv(self.launch.parts, fan))
        (counters,) = [k for k, b in enumerate(self.plan.buffers) if b.space == "counters"]
        arrive = f"mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b{counters})"
        self.top.add(f"const {self.index} tree = block / {fan};")
        members = f"mdf::minimum<{self.index}>({fan}, {parts} - tree * {fan})"
        self.top.add(f"const {self.index} members = {members};")
        self.top.add(f"if (!{arrive}, 1 + tree, members)) return;")
        middle = self._column_loop()
        self._add_up(middle, f"tree * {fan}", "members")
        for n, _ in self.late:
            place = f"({parts} + tree) * {self.arguments.name(self.length)} + c"
            middle.add(f"mdf::store<{self.launch.vector}>({self._workspace(n)}, {place}, s{n});")
        self.top.add(f"if (!{arrive}, 0, {groups})) return;")
        needed = late_needed(self.plan)
        for at in needed:
            instr = self.plan.body[at]
            if not moves(self.plan, instr) and instr.op != "const":
                self.body.declare(self.top, at)
        last = self._column_loop()
        self._add_up(last, parts, groups)
        flat = IndexPrinter(self.arguments, {"c": "c"})
        for name, value in positions(self.plan.columns, "c").items():
            last.add(f"const {self.index} {name} = {flat(value)};")
        stores = [s for s in self.plan.stores if self.plan.body[s.value].late]
        moving = [at for at in needed if moves(self.plan, self.plan.body[at])]
        self.body.element_statements(last, moving, set(), [], stores, "")

    def _column_loop(self) -> Block:
        """All threads of a block over all columns, a vector each."""
        vector, threads = self.launch.vector, self.launch.threads
        length = self.arguments.name(self.length)
        walk = f"{self.index} c = threadIdx.x * {vector}; c < {length}; c += {threads * vector}"
        return self.top.open(f"for ({walk})")

    def _add_up(self, block: Block, first: str, count: str) -> None:
        """``s``: the rows of the workspace from ``first`` on, added up in their order."""
        length, vector = self.arguments.name(self.length), self.launch.vector
        for n, instr in self.late:
            cpp, combine = CPP_TYPES[instr.dtype.compute], functor(instr.op, instr.dtype)
            load = f"mdf::load<{vector}>({self._workspace(n)}, "
            block.add(f"mdf::Vec<{cpp}, {vector}> s{n} = {load}({first}) * {length} + c);")
            unroll = max(2, min(8, 2048 // self.launch.threads))  # what fits in the registers
            rest = block.open(f"for (mdf::i32 q = 1; q < {count}; ++q)", f"#pragma unroll {unroll}")
            rest.add(f"const mdf::Vec<{cpp}, {vector}> z = {load}({first} + q) * {length} + c);")
            lanes = rest.open(f"for (mdf::i32 j = 0; j < {vector}; ++j)", "#pragma unroll")
            lanes.add(f"s{n}.v[j] = {combine}::apply(s{n}.v[j], z.v[j]);")
