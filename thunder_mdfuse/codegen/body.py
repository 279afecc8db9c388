"""The body of a kernel: each instruction as C++ at the level where it varies.

Levels, outside in: the row (nothing varies along columns), the vector (varies, but not along the
fastest axis, or is fetched as a whole) and the lane (one element of a vector).
"""

from collections.abc import Callable, Sequence

from thunder_mdfuse.codegen import mailbox
from thunder_mdfuse.codegen.accumulators import Accumulator
from thunder_mdfuse.codegen.exprs import CPP_TYPES, literal, write
from thunder_mdfuse.codegen.index import Arguments, IndexPrinter
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.axes import positions
from thunder_mdfuse.schedule.plan import (
    Bound,
    Const,
    Draw,
    Index,
    InRange,
    Instr,
    KernelPlan,
    Load,
    Position,
    Scalar,
    Store,
)
from thunder_mdfuse.schedule.vectorize import WORDS


class BodyWriter:
    """Writes instructions and stores of ``plan``; collects its ``arguments`` and ``scalars``."""

    def __init__(
        self, plan: KernelPlan, arguments: Arguments, scalars: list[Scalar], index: str
    ) -> None:
        self.plan, self.arguments, self.scalars, self.index = plan, arguments, scalars, index
        self.columns = {a.name for a in plan.columns}
        self.fast = plan.fast.name if plan.fast is not None else ""
        names = {a.name: a.name for a in (*plan.rows, *plan.columns)}
        names |= {symbol: f"v{at}" for symbol, at in plan.positions.items()}
        self.flat = positions(plan.columns, "c")
        # Where vectors do not begin where rows do, some of their elements belong to no row.
        self.edges = plan.launch.shift is not None
        # The loads whose vectors are in scope, to be stored as they are.
        self.loaded: set[int] = set()
        self.at_vector = self._printer({**names, "c": "c"})
        if plan.launch.vector > 1:
            names |= {self.fast: f"({self.fast} + j)", "c": "(c + j)"}
        self.at_lane = self._printer({**names, "c": names.get("c", "c")})

    def _printer(self, names: dict[str, str]) -> Callable[[Size], str]:
        """Prints expressions of the columns' symbols, through the flat position where that is
        simpler.

        A tensor that is as contiguous as the domain is read at ``c`` itself, however many axes
        there are, without the divisions that tell the axes apart.
        """
        write_index = IndexPrinter(self.arguments, names)

        def write(size: Size) -> str:
            flat = sizes.substitute(size, self.flat)
            return write_index(flat if sizes.coefficient(flat, "c") is not None else size)

        return write

    def row_statements(self, block: Block, phase: int) -> None:
        """Declare what does not vary along columns and becomes known in ``phase``."""
        for at, instr in enumerate(self.plan.body):
            if instr.depends & self.columns or instr.op.startswith("reduce_") or instr.late:
                continue
            if instr.phase == phase and not isinstance(instr.detail, Const):
                self._declare(block, at, self.at_vector)

    def fetch(self, block: Block, at: int, target: str) -> None:
        """Load the vector of instruction ``at`` into ``target``."""
        load = self.plan.body[at].detail
        assert isinstance(load, Load)
        buffer, vector = self.plan.buffers[load.buffer], self.plan.launch.vector
        offset = self.at_vector(load.offset)
        value = f"mdf::load<{vector}>(b{load.buffer}, {offset})"
        if vector > 1 and (self.edges or load.access == "across"):
            function = "load_across" if load.access == "across" else "load_within"
            reach = self.arguments.name(load.reach)
            value = f"mdf::{function}<{vector}>(b{load.buffer}, {offset}, {reach})"
        if mailbox.is_mailbox(buffer):
            count = self.arguments.name(buffer.extent)
            value = mailbox.gather(block, f"b{load.buffer}", buffer, count, vector, offset)
        if load.mask:
            empty = f"{self.vector_type(at)}{{}}"
            value = f"{self._bounds(load.mask, self.at_vector)} ? {value} : {empty}"
        block.add(f"{target} = {value};")

    def copy(self, block: Block, at: int, array: str, place: str) -> None:
        """Start the copy of the vector of instruction ``at`` to ``place`` of a shared array."""
        load = self.plan.body[at].detail
        assert isinstance(load, Load)
        source = f"b{load.buffer}, {self.at_vector(load.offset)}"
        block.add(f"mdf::copy_async<{self.plan.launch.vector}>({array}, {place}, {source});")

    def vector_type(self, at: int) -> str:
        """The type of what ``fetch`` loads for instruction ``at``."""
        load = self.plan.body[at].detail
        assert isinstance(load, Load)
        buffer = self.plan.buffers[load.buffer]
        dtype = buffer.dtype.compute if mailbox.is_mailbox(buffer) else buffer.dtype
        return f"mdf::Vec<{CPP_TYPES[dtype]}, {self.plan.launch.vector}>"

    def element_statements(
        self,
        block: Block,
        needed: list[int],
        fetched: set[int],
        reductions: list[int],
        stores: list[Store],
        guard: str,
    ) -> None:
        """One vector: fetch, compute each lane, accumulate, store. ``guard``: when stores may be
        made.
        """
        vectors = [n for n in needed if self._is_vector_load(n)]
        new = [n for n in vectors if n not in fetched]
        first = self.declare_operands(block, new)
        for at in new:
            self.fetch(block, at, f"const auto x{at}")
        # Where a vector is one element, a load may be the same for all lanes and yet be a vector.
        whole = [n for n in needed if self._is_whole(n)]
        for at in whole:
            if at in vectors:
                self._lane_of_vector(block, at)
            elif at not in first:
                self._declare(block, at, self.at_vector)
        self.declare_words(block, needed)
        rest = [at for at in needed if at not in whole]
        self.loaded = set(vectors)
        if self.edges and self.plan.launch.vector > 1:
            # Nearly all vectors are whole, and need none of the tests.
            inside = block.open(f"if ({self._all_inside()})")
            self.edges = False
            self._every_lane(inside, rest, vectors, reductions, stores, guard)
            self.edges, block = True, block.open("else")
        self._every_lane(block, rest, vectors, reductions, stores, guard)
        self.loaded = set()

    def _all_inside(self) -> str:
        """Whether all elements of a vector are the row's."""
        end = f"{self.fast} + {self.plan.launch.vector} <= {self._row_end()}"
        return f"MDF_IN_BOUNDS({self.fast} >= 0 && {end})"

    def _every_lane(
        self,
        block: Block,
        needed: list[int],
        vectors: list[int],
        reductions: list[int],
        stores: list[Store],
        guard: str,
    ) -> None:
        """The elements of a vector whose loads and common values are there."""
        at_once = [n for n in reductions if self._is_added_at_once(n)]
        self._declare_added(block, at_once)
        lanes = self._lanes(block, stores)
        for at in needed:
            if at in vectors:
                self._lane_of_vector(lanes, at)
            else:
                self._declare(lanes, at, self.at_lane)
        for n in reductions:
            self._accumulate(lanes, n)
        self._add(block, at_once)
        self._stores(block, lanes, stores, guard)

    def _declare_added(self, block: Block, at_once: list[int]) -> None:
        """The vectors that are ``_add``ed to their reductions."""
        for n in at_once:
            cpp = CPP_TYPES[Accumulator(self.plan, n).number]
            block.add(f"mdf::Vec<{cpp}, {self.plan.launch.vector}> r{n};")

    def _add(self, block: Block, at_once: list[int]) -> None:
        for n in at_once:
            block.add(f"a{n} = {Accumulator(self.plan, n).pushed(f'a{n}', f'r{n}', '')};")

    def _is_added_at_once(self, n: int) -> bool:
        """Whether the elements of a vector are added to reduction ``n`` together."""
        scan = self.plan.body[n].op.startswith("scan_")
        return not scan and bool(Accumulator(self.plan, n).filler)

    def _row_end(self) -> str:
        """Where the fast axis ends."""
        assert self.plan.fast is not None
        return self.arguments.name(self.plan.fast.extent)

    def _is_whole(self, at: int) -> bool:
        """Whether instruction ``at`` has one value for all elements of a vector."""
        instr = self.plan.body[at]
        if isinstance(instr.detail, InRange) and instr.detail.access == "vector":
            return True
        return self.fast not in instr.depends and not instr.late

    def _lanes(self, block: Block, stores: list[Store]) -> Block:
        """The loop over the elements of a vector, after the vectors that ``stores`` will fill."""
        for s in stores:
            if s.access == "vector" and not self._is_moved(s):
                cpp = CPP_TYPES[self.plan.body[s.value].dtype.compute]
                block.add(f"mdf::Vec<{cpp}, {self.plan.launch.vector}> y{s.buffer};")
        if self.plan.launch.vector == 1:
            return block
        head = f"for (mdf::i32 j = 0; j < {self.plan.launch.vector}; ++j)"
        lanes = block.open(head, "#pragma unroll")
        if self.edges:
            # What lies before the row is beyond its end as an unsigned number: one comparison.
            unsigned = self.index.replace("mdf::i", "mdf::u")
            place, end = f"{unsigned}({self.fast} + j)", f"{unsigned}({self._row_end()})"
            lanes.add(f"const bool inside = MDF_IN_BOUNDS({place} < {end});")
        return lanes

    def _stores(self, block: Block, lanes: Block, stores: list[Store], guard: str) -> None:
        condition = f"if ({guard}) " if guard else ""
        inside = "if (inside) " if self.edges else ""
        for s in stores:
            if s.access == "vector":
                self._fill(lanes, s)
            else:
                store = self._store(s, self.at_lane(s.offset), self._stored(s))
                lanes.add(condition + inside + store)
        for s in stores:
            if s.access == "vector":
                vector = f"b{s.buffer}, {self.at_vector(s.offset)}, {self._stored_vector(s)}"
                call = f"mdf::store<{self.plan.launch.vector}>({vector});"
                if self.edges:
                    whole = f"{vector}, {self.fast}, {self._row_end()}"
                    call = f"mdf::store_within<{self.plan.launch.vector}>({whole});"
                block.add(condition + call)

    def store_once(self, block: Block, store: Store) -> None:
        """A store of a value that the whole group shares."""
        offset = self.at_vector(store.offset)
        block.add(self._store(store, offset, self._stored(store)))

    def _store(self, store: Store, offset: str, value: str) -> str:
        """The statement that stores one element."""
        condition = "" if store.when is None else f"if ({self._value(store.when)}) "
        function = {"set": "store1", "scatter": "scatter_store", "add": "scatter_add"}[store.mode]
        return f"{condition}mdf::{function}(b{store.buffer}, {offset}, {value});"

    def _is_moved(self, store: Store) -> bool:
        """Whether what is stored is what was loaded, bit by bit."""
        load = self.plan.body[store.value].detail
        if store.value not in self.loaded or not isinstance(load, Load) or store.mode != "set":
            return False
        source = self.plan.buffers[load.buffer]
        same = source.dtype is self.plan.buffers[store.buffer].dtype
        return same and not mailbox.is_mailbox(source)

    def _fill(self, lanes: Block, store: Store) -> None:
        """Put an element into the vector that will be stored."""
        if not self._is_moved(store):
            lanes.add(f"y{store.buffer}.v[{self._slot()}] = {self._value(store.value)};")

    def _stored(self, store: Store) -> str:
        if self._is_moved(store):
            return f"x{store.value}.v[{self._slot()}]"
        dtype = self.plan.buffers[store.buffer].dtype
        return f"mdf::from_compute<{CPP_TYPES[dtype]}>({self._value(store.value)})"

    def _stored_vector(self, store: Store) -> str:
        """All elements of a vector, converted together: pairs share an instruction."""
        if self._is_moved(store):
            return f"x{store.value}"
        dtype = self.plan.buffers[store.buffer].dtype
        return f"mdf::from_compute<{CPP_TYPES[dtype]}>(y{store.buffer})"

    def _is_vector_load(self, at: int) -> bool:
        return self.plan.is_vector(at)

    def _lane_of_vector(self, block: Block, at: int) -> None:
        cpp = CPP_TYPES[self.plan.body[at].dtype.compute]
        block.add(f"const {cpp} v{at} = mdf::to_compute(x{at}, {self._slot()});")

    def _slot(self) -> str:
        """Which element of a vector the lane loop has."""
        return "j" if self.plan.launch.vector > 1 else "0"

    def _accumulate(self, block: Block, n: int) -> None:
        """Add the element that the lane loop ``block`` has to reduction or scan ``n``."""
        instr = self.plan.body[n]
        value, slot = self._value(instr.args[0]), f"r{n}.v[{self._slot()}]"
        if instr.op.startswith("scan_"):
            block.add(f"{slot} = {value};")
            return
        whole, mine = Accumulator(self.plan, n), self._accumulator(n)
        if whole.filler:
            value = f"inside ? {value} : {whole.filler}" if self.edges else value
            block.add(f"{slot} = {value};")
            return
        place = self.at_lane(instr.detail.value) if isinstance(instr.detail, Index) else ""
        inner = block.open("if (inside)") if self.edges else block
        inner.add(f"{mine} = {whole.pushed(mine, value, place)};")

    def _accumulator(self, n: int) -> str:
        """What a thread has of reduction ``n`` so far, for the element that the lane loop has."""
        return f"a{n}"

    def declare_operands(self, block: Block, loads: Sequence[int]) -> set[int]:
        """Declare what the offsets of vector ``loads`` need that varies along columns.

        Returns the instructions, so that nobody declares them in the same block again.
        """
        found: set[int] = set()
        stack = list(loads)
        while stack:
            operands = self.plan.body[stack.pop()].args
            new = {a for a in operands if self.plan.body[a].depends & self.columns} - found
            found |= new
            stack += new
        for operand in sorted(found):
            if not isinstance(self.plan.body[operand].detail, Const):
                self._declare(block, operand, self.at_vector)
        return found

    def _declare(self, block: Block, at: int, printer: Callable[[Size], str]) -> None:
        if isinstance(self.plan.body[at].detail, Position):
            block.add(f"const {self.index} v{at} = {self._written(at, printer)};")
            return
        cpp = CPP_TYPES[self.plan.body[at].dtype.compute]
        block.add(f"const {cpp} v{at} = {self._written(at, printer)};")

    def _value(self, at: int) -> str:
        instr = self.plan.body[at]
        if isinstance(instr.detail, Const):
            return literal(instr.detail.text, instr.dtype.compute)
        return f"v{at}"

    def _written(self, at: int, printer: Callable[[Size], str]) -> str:
        instr = self.plan.body[at]
        detail = instr.detail
        if isinstance(detail, Load):
            return self._load(detail, instr.dtype, printer)
        if isinstance(detail, Scalar):
            if detail not in self.scalars:
                self.scalars.append(detail)
            return f"s{self.scalars.index(detail)}"
        if isinstance(detail, Index):
            return f"static_cast<mdf::i64>({printer(detail.value)})"
        if isinstance(detail, InRange):
            return self._bounds(detail.bounds, printer)
        if isinstance(detail, Position):
            return self._position(detail, self._value(instr.args[0]), printer)
        if isinstance(detail, Draw):
            return self._rounded(instr, self._draw(at, printer))
        if instr.op == "cast":
            return self._cast(instr)
        if instr.op.startswith("scan_"):
            return f"r{at}.v[{self._slot()}]"
        if instr.op == "amax_of":
            return f"mdf::sum_exp_high(w{instr.args[0]})"
        among = self.plan.body[instr.args[-1]].dtype.compute
        text = write(instr.op, among, [self._value(a) for a in instr.args], instr.loose)
        return self._rounded(instr, text)

    def _load(self, load: Load, dtype: DType, printer: Callable[[Size], str]) -> str:
        value = f"mdf::to_compute(mdf::load1(b{load.buffer}, {printer(load.offset)}))"
        tests = [self._bounds(load.mask, printer)] if load.mask else []
        tests += ["inside"] if self._needs_inside(printer) else []
        if not tests:
            return value
        cpp = CPP_TYPES[dtype.compute]
        empty = f"{cpp}{{}}" if dtype.is_complex else f"static_cast<{cpp}>(0)"
        return f"{' && '.join(tests)} ? {value} : {empty}"

    def _needs_inside(self, printer: Callable[[Size], str]) -> bool:
        """Whether what is printed may lie outside of the row."""
        return self.edges and printer is self.at_lane

    def _position(self, position: Position, index: str, printer: Callable[[Size], str]) -> str:
        extent = self.arguments.name(position.extent)
        value = f"mdf::position<{self.index}>({index}, {extent})"
        tests = [self._bounds(position.mask, printer)] if position.mask else []
        tests += ["inside"] if self._needs_inside(printer) else []
        return f"{' && '.join(tests)} ? {value} : {self.index}(0)" if tests else value

    def _bounds(self, bounds: tuple[Bound, ...], printer: Callable[[Size], str]) -> str:
        tests = []
        for b in bounds:
            at, extent = printer(b.index), self.arguments.name(b.extent)
            tests.append(f"{at} >= 0 && {at} < {extent}")
        return f"MDF_IN_BOUNDS({' && '.join(tests)})"

    def _cast(self, instr: Instr) -> str:
        source = self.plan.body[instr.args[0]]
        value = self._value(instr.args[0])
        if source.dtype.is_low_precision and not instr.dtype.is_float and not source.rounds:
            # What leaves the floats is seen, so it is rounded as eager would have stored it.
            value = _round(value, source.dtype)
        cpp = CPP_TYPES[instr.dtype.compute]
        if source.dtype.compute is not instr.dtype.compute:
            value = f"mdf::cast<{cpp}>({value})"
        return self._rounded(instr, value)

    def _rounded(self, instr: Instr, text: str) -> str:
        return _round(text, instr.dtype) if instr.rounds and instr.dtype.is_low_precision else text

    def _is_drawn_at_once(self, at: int) -> bool:
        """Whether the random words of a whole vector are made before its elements."""
        detail = self.plan.body[at].detail
        vector = self.plan.launch.vector
        return isinstance(detail, Draw) and detail.access == "vector" and vector % WORDS == 0

    def declare_words(self, block: Block, needed: Sequence[int]) -> None:
        """The random words of the vectors of numbers that are drawn at once."""
        for at in needed:
            if self._is_drawn_at_once(at):
                block.add(f"const auto u{at} = {self._words(at)};")

    def _words(self, at: int) -> str:
        """The random words of a vector."""
        instr, detail = self.plan.body[at], self.plan.body[at].detail
        assert isinstance(detail, Draw)
        state = self._state(instr)
        counter = f"static_cast<mdf::u64>({self.at_vector(detail.counter)})"
        return f"mdf::draw_words<{self.plan.launch.vector}>({state}, {counter})"

    def _state(self, instr: Instr) -> str:
        """Seed and offset of a draw."""
        seed, offset = (self._value(a) for a in instr.args[:2])
        return f"static_cast<mdf::u64>({seed}), static_cast<mdf::u64>({offset})"

    def _draw(self, at: int, printer: Callable[[Size], str]) -> str:
        instr, draw = self.plan.body[at], self.plan.body[at].detail
        assert isinstance(draw, Draw)
        words = self._state(instr)
        counter = f"static_cast<mdf::u64>({printer(draw.counter)})"
        if instr.op == "normal":
            return f"mdf::draw_normal<{CPP_TYPES[instr.dtype.compute]}>({words}, {counter})"
        low, high = (literal(repr(x), instr.dtype.compute) for x in (draw.low, draw.high))
        if self._is_drawn_at_once(at):
            return f"mdf::draw_of(u{at}.v[{self._slot()}], {low}, {high})"
        return f"mdf::draw({words}, {counter}, {low}, {high})"


def _round(text: str, dtype: DType) -> str:
    return f"mdf::to_compute(mdf::from_compute<{CPP_TYPES[dtype]}>({text}))"
