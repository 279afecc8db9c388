"""Kernels that reduce over other axes than the one along which memory runs.

k(b0, b1, ..., p0, p1, ..., s0, ...)      buffers, sizes, scalars
  r = the first of the row elements that this thread has, side by side
  for each phase:
    walk down the columns: load several vectors, then for each the body; accumulate; store
    combine the accumulators of the block's threads, then of the parts where several blocks share
"""

from collections.abc import Callable
from functools import cached_property

from thunder_mdfuse.codegen.accumulators import Accumulator
from thunder_mdfuse.codegen.body import BodyWriter
from thunder_mdfuse.codegen.exprs import CPP_TYPES
from thunder_mdfuse.codegen.index import IndexPrinter
from thunder_mdfuse.codegen.kernel import KernelText, KernelWriter
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.schedule.axes import nested_positions, positions
from thunder_mdfuse.schedule.launch import needed_in, store_phase
from thunder_mdfuse.schedule.outer import (
    accumulator_bytes,
    held_instructions,
    shared_columns,
)
from thunder_mdfuse.schedule.plan import Const, KernelPlan, Position, Store
from thunder_mdfuse.schedule.vectorize import whole_loads

WARP = 32


class OuterBody(BodyWriter):
    """The body where lanes lie along the rows: ``w`` holds what each lane's row has of its own."""

    @cached_property
    def whole(self) -> set[int]:
        """The loads that are fetched as whole vectors."""
        return whole_loads(self.plan, self.plan.launch.vector)

    def _printer(self, names: dict[str, str]) -> Callable[[Size], str]:
        """Prints through the flat positions of rows and of columns, each where that is simpler."""
        fast, (r, c) = self.plan.fast, ("r", "c")
        assert fast is not None
        lane = self.plan.launch.vector > 1 and names.get(fast.name) != fast.name
        names = {**names, "r": "(r + j)" if lane else "r", "c": "c"}
        for symbol, at in self.plan.positions.items():
            if self._of_lane(at):
                names[symbol] = f"w{at}.v[{self._slot()}]"
        write = IndexPrinter(self.arguments, names)
        flats = ((positions(self.plan.rows, r), r), (positions(self.plan.columns, c), c))

        def printed(size: Size) -> str:
            for flat, name in flats:
                other = sizes.substitute(size, flat)
                if sizes.coefficient(other, name) is not None:
                    size = other
            return write(size)

        return printed

    def rows_ready(self, block: Block, phase: int) -> None:
        """Declare what does not vary along columns and becomes known in ``phase``."""
        mine = [
            n
            for n, i in enumerate(self.plan.body)
            if i.phase == phase
            and not i.depends & self.columns
            and not i.op.startswith("reduce_")
            and not isinstance(i.detail, Const)
        ]
        lanes = [n for n in mine if self._of_lane(n)]
        for n in mine:
            if n not in lanes:
                self._declare(block, n, self.at_vector)
        if not lanes:
            return
        for n in lanes:
            if self._is_vector_load(n):
                self.fetch(block, n, f"const auto x{n}")
            block.add(f"mdf::Vec<{self._compute(n)}, {self.plan.launch.vector}> w{n};")
        self.declare_words(block, lanes)
        inner = self._lanes(block, [])
        for n in lanes:
            vector = self._is_vector_load(n)
            text = f"mdf::to_compute(x{n}, {self._slot()})" if vector else ""
            inner.add(f"w{n}.v[{self._slot()}] = {text or self._written(n, self.at_lane)};")

    def rows_stored(self, block: Block, stores: list[Store]) -> None:
        """Stores of values that do not vary along columns."""
        self._stores(block, self._lanes(block, stores), stores, "")

    def accumulator(self, n: int) -> Accumulator:
        """Reduction ``n``, for the element that the lane loop has."""
        found = Accumulator(self.plan, n)
        found.name = self._accumulator(n)
        return found

    def lane_loop(self, block: Block) -> Block:
        """The loop over the elements of a vector."""
        return self._lanes(block, [])

    def slot(self) -> str:
        """Which element of a vector the lane loop has."""
        return self._slot()

    def _compute(self, n: int) -> str:
        instr = self.plan.body[n]
        return self.index if isinstance(instr.detail, Position) else CPP_TYPES[instr.dtype.compute]

    def _of_lane(self, at: int) -> bool:
        """Whether instruction ``at`` varies along the rows of a vector and not along columns."""
        depends = self.plan.body[at].depends
        return not depends & self.columns and self.fast in depends

    def _is_vector_load(self, at: int) -> bool:
        return at in self.whole

    def _value(self, at: int) -> str:
        mine = f"w{at}.v[{self._slot()}]"
        if self.plan.body[at].op.startswith("reduce_"):
            return Accumulator(self.plan, at).outcome(mine)
        return mine if self._of_lane(at) else super()._value(at)

    def _accumulator(self, n: int) -> str:
        return f"a{n}.v[{self._slot()}]"


class OuterWriter(KernelWriter):
    """Writes kernels of the family ``outer``."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__(plan)
        self.lanes = OuterBody(plan, self.arguments, self.scalars, self.index)
        self.down = self.launch.threads // self.launch.across
        self.blocks = shared_columns(plan)
        self.shares = self.launch.parts != 1
        self.declared: set[str] = set()
        held = held_instructions(plan, self.launch.vector)
        self.held = held if self.launch.hold == "registers" else []

    def write(self) -> KernelText:
        """The kernel's text."""
        self._open()
        self.lanes.rows_ready(self.top, 0)
        for at in self.held:
            self.top.add(f"{self.lanes.vector_type(at)} h{at}[{self.launch.items}];")
        for phase in range(self.plan.phases):
            self._phase(phase)
        return self.finish(self.blocks * self.launch.parts)

    def _open(self) -> None:
        launch, top, index = self.launch, self.top, self.index
        rows, length = self.arguments.name(self.rows), self.arguments.name(self.length)
        block = "blockIdx.x"
        if self.shares:
            blocks = self.arguments.name(self.blocks)
            # Neighbouring blocks read neighbouring memory, and the parts follow one another.
            top.add(f"const {index} block = blockIdx.x % {blocks};")
            top.add(f"const {index} part = blockIdx.x / {blocks};")
            block = "block"
        top.add(f"const mdf::i32 x = threadIdx.x % {launch.across};")
        top.add(f"const mdf::i32 y = threadIdx.x / {launch.across};")
        mine = f"({self._wide(block)} * {launch.across} + x) * {launch.vector}"
        top.add(f"const {index} mine = {mine};")
        top.add(f"const bool live = MDF_IN_BOUNDS(mine < {rows});")
        # Threads past the end have to meet barriers: they walk no columns, and store nothing.
        top.add(f"const {index} r = live ? mine : 0;")
        flat = IndexPrinter(self.arguments, {"r": "r"})
        top.add(*flat.definitions(index, nested_positions(self.plan.rows, "r")))
        begin, end = "0", length
        if self.shares:
            chunk = self.arguments.name(launch.chunk)
            begin = f"part * {chunk}"
            end = f"begin + {chunk} < {length} ? begin + {chunk} : {length}"
        top.add(f"const {index} begin = {begin};")
        top.add(f"const {index} end = {end};")

    def _phase(self, phase: int) -> None:
        reductions = [
            n
            for n, i in enumerate(self.plan.body)
            if i.op.startswith("reduce_") and i.phase == phase + 1
        ]
        for n in reductions:
            self.top.add(f"auto a{n} = {self._identities(n)};")
        stores = [s for s in self.plan.stores if store_phase(self.plan, s.value) == phase]
        moving = [s for s in stores if self._moves(s)]
        if reductions or moving:
            self._walk(phase, reductions, moving)
        for n in reductions:
            target = f"a{n}" if self.shares else f"const auto w{n}"
            self.top.add(f"{target} = {self._combined(n)};")
        if reductions and self.shares:
            self._combine_parts(reductions)
        if reductions:
            self.lanes.rows_ready(self.top, phase + 1)
        once = [s for s in stores if not self._moves(s)]
        if once:
            self.lanes.rows_stored(self.top.open("if (live && y == 0)"), once)

    def _identities(self, n: int) -> str:
        """A vector of accumulators that have seen nothing."""
        mine = self.lanes.accumulator(n)
        return f"mdf::identities<{mine.functor}, {mine.cpp}, {self.launch.vector}>()"

    def _combined(self, n: int) -> str:
        """The accumulators of all threads with the same rows, as one vector that all of them get.

        All reductions use the same shared memory: each begins with a barrier.
        """
        launch, mine = self.launch, self.lanes.accumulator(n)
        kind = f"{mine.functor}, {launch.across}, {launch.threads}"
        if launch.threads == max(launch.across, WARP):
            return f"mdf::column_reduce<{kind}>(a{n})"
        count = launch.threads // max(launch.across, WARP) * launch.across * launch.vector
        declared = f"MDF_DYNAMIC_SHARED_AT({mine.cpp}, {mine.scratch}, {count}, 0);"
        if mine.scratch not in self.declared:
            self.declared.add(mine.scratch)
            self.top.add(declared)
        self.shared = max(self.shared, count * accumulator_bytes(self.plan.body[n]))
        return f"mdf::column_reduce<{kind}>(a{n}, {mine.scratch})"

    def _combine_parts(self, reductions: list[int]) -> None:
        """All parts leave their results; the last to arrive combines them in order."""
        launch, top = self.launch, self.top
        parts, rows = self.arguments.name(launch.parts), self.arguments.name(self.rows)
        spaces: dict[int, list[int]] = {}
        for k, buffer in enumerate(self.plan.buffers):
            if buffer.space == "workspace":
                spaces.setdefault(buffer.value.node, []).append(k)
        (counters,) = [k for k, b in enumerate(self.plan.buffers) if b.space == "counters"]
        every = [(n, self.lanes.accumulator(n), spaces[n]) for n in reductions]
        self._leave(top.open("if (live && y == 0)"), every)
        arrive = f"mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b{counters}), block, {parts})"
        top.add(f"if (!{arrive}) return;")
        for n in reductions:
            top.add(f"a{n} = {self._identities(n)};")
        head = f"for ({self.index} q = y; live && q < {parts}; q += {self.down})"
        loop = top.open(head, "#pragma unroll 4")
        for _, _, buffers in every:
            for k in buffers:
                loop.add(f"const auto o{k} = mdf::load<{launch.vector}>(b{k}, q * {rows} + r);")
        lanes = self.lanes.lane_loop(loop)
        for _, mine, buffers in every:
            other = mine.of([f"o{k}.v[{self.lanes.slot()}]" for k in buffers])
            lanes.add(f"{mine.name} = {mine.functor}::apply({mine.name}, {other});")
        for n in reductions:
            top.add(f"const auto w{n} = {self._combined(n)};")

    def _leave(self, block: Block, every: list[tuple[int, Accumulator, list[int]]]) -> None:
        """Store what this part has in the workspaces."""
        width, rows = self.launch.vector, self.arguments.name(self.rows)
        fields = [field for _, mine, buffers in every for field in mine.fields(buffers)]
        for k, _ in fields:
            block.add(f"mdf::Vec<{CPP_TYPES[self.plan.buffers[k].dtype]}, {width}> o{k};")
        lanes = self.lanes.lane_loop(block)
        for k, part in fields:
            lanes.add(f"o{k}.v[{self.lanes.slot()}] = {part};")
        for k, _ in fields:
            block.add(f"mdf::store<{width}>(b{k}, part * {rows} + r, o{k});")

    def _walk(self, phase: int, reductions: list[int], stores: list[Store]) -> None:
        """The loop down the columns, several vectors at a time."""
        items = self.launch.items
        block = self.top
        if self.launch.hold != "registers":
            step = f"{self.down * items}"
            head = f"for ({self.index} k = begin + y; live && k < end; k += {step})"
            block = self.top.open(head)
        needed = sorted(needed_in(self.plan, phase, self.lanes.whole))
        loads = [at for at in needed if at in self.lanes.whole]
        early = loads if items > 1 else []
        if self.launch.hold == "registers":
            before = {a for p in range(phase) for a in needed_in(self.plan, p)}
            early = [at for at in loads if at not in self.held or at not in before]
        kept = {*early, *self.held}
        for at in early:
            if at not in self.held:
                block.add(f"{self.lanes.vector_type(at)} h{at}[{items}];")
        if early:
            inner = self._item_loop(block)
            self.lanes.declare_operands(inner, early)
            for at in early:
                self.lanes.fetch(inner, at, f"h{at}[t]")
        inner = self._item_loop(block)
        used = [at for at in loads if at in kept]
        for at in used:
            inner.add(f"const {self.lanes.vector_type(at)} x{at} = h{at}[t];")
        self.lanes.element_statements(inner, needed, set(used), reductions, stores, "")

    def _item_loop(self, block: Block) -> Block:
        """The loop over the vectors that are under way together; sets the columns' symbols."""
        items = self.launch.items
        held = self.launch.hold == "registers"
        if items > 1 or held:
            loop = block.open(f"for (mdf::i32 t = 0; t < {items}; ++t)", "#pragma unroll")
            first = "begin + y" if held else "k"
            loop.add(f"const {self.index} c = {first} + t * {self.down};")
            live = "live && " if held else ""
            loop = loop.open(f"if (MDF_IN_BOUNDS({live}c < end))")
        else:
            loop = block
            loop.add(f"const {self.index} c = k;")
        flat = IndexPrinter(self.arguments, {"c": "c"})
        loop.add(*flat.definitions(self.index, nested_positions(self.plan.columns, "c")))
        return loop
