"""Kernels in which some of the memory runs fastest along another axis than the rest.

k(b0, b1, ..., p0, p1, ..., s0, ...)      buffers, sizes, scalars
  which tile this block has
  load what is staged, in vectors along the other axis, into tiles of shared memory
  load what is not staged and needed soon; barrier
  for each item, for each lane along the fast axis: the body; store, or put into a tile; barrier
  store from tiles, in vectors along the other axis
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from thunder_mdfuse.codegen.body import BodyWriter
from thunder_mdfuse.codegen.exprs import CPP_TYPES
from thunder_mdfuse.codegen.index import IndexPrinter
from thunder_mdfuse.codegen.kernel import KernelText, KernelWriter
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.schedule.axes import nested_positions
from thunder_mdfuse.schedule.launch import MOST_UNROLLED, needed_in
from thunder_mdfuse.schedule.plan import KernelPlan, Load, Store
from thunder_mdfuse.schedule.transpose import (
    LANES,
    Staged,
    loaded_ahead,
    tiled,
    tiles_of,
)
from thunder_mdfuse.schedule.vectorize import whole_loads

UNIT = 4
GRAIN = 16
# A thread loads so many bytes into registers before it puts them into tiles.
FLIGHT_BYTES = 128


class TransposeBody(BodyWriter):
    """The body where staged values come from and go to tiles, at row ``lb`` from ``la`` on."""

    def _printer(self, names: dict[str, str]) -> Callable[[Size], str]:
        return IndexPrinter(self.arguments, {k: v for k, v in names.items() if k != "c"})

    @cached_property
    def whole(self) -> set[int]:
        """The loads that are fetched as whole vectors."""
        return whole_loads(self.plan, self.plan.launch.vector)

    def masked(self, load: Load) -> str:
        """Whether the mask of a staged load holds."""
        return self._bounds(load.mask, self.at_vector)

    def _is_vector_load(self, at: int) -> bool:
        return at in self.whole

    def _lanes(self, block: Block, stores: list[Store]) -> Block:
        whole = [replace(s, access="vector") if s.access == "staged" else s for s in stores]
        return super()._lanes(block, whole)

    def _stores(self, block: Block, lanes: Block, stores: list[Store], guard: str) -> None:
        super()._stores(block, lanes, [s for s in stores if s.access != "staged"], guard)
        for s in stores:
            if s.access == "staged":
                self._fill(lanes, s)
                key, vector = Staged(-1, s).key, self._stored_vector(s)
                block.add(f"Tile_{key}::set_row(tile_{key}, lb, la, {vector});")


class TransposeWriter(KernelWriter):
    """Writes kernels of the family ``transpose``."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__(plan)
        self.inner = TransposeBody(plan, self.arguments, self.scalars, self.index)
        assert plan.launch.tile is not None
        self.tile = plan.launch.tile
        self.other, self.fast = plan.columns
        self.ahead = loaded_ahead(plan)

    def write(self) -> KernelText:
        """The kernel's text."""
        across = tiles_of(self.plan, self.fast, self.tile.across)
        down = tiles_of(self.plan, self.other, self.tile.down)
        self._open(across, down)
        self.inner.row_statements(self.top, 0)
        staged = tiled(self.plan)
        for each in staged:
            self._declare_tile(each)
        loads, stores = (
            [s for s in staged if isinstance(s.access, kind)] for kind in (Load, Store)
        )
        for at in self.ahead:
            self.top.add(f"{self.inner.vector_type(at)} h{at}[{self.launch.items}];")
        self._stage(loads)
        if loads:
            self.top.add("mdf::barrier();")
        self._compute()
        if stores:
            self.top.add("mdf::barrier();")
        for each in stores:
            self._unstage(each)
        return self.finish(across * down * self.rows)

    def _open(self, across: Size, down: Size) -> None:
        top, index = self.top, self.index
        wide, high = self.arguments.name(across), self.arguments.name(down)
        if self.plan.rows:
            top.add(f"const {index} row = blockIdx.x / {wide} / {high};")
        flat = IndexPrinter(self.arguments, {"row": "row"})
        top.add(*flat.definitions(index, nested_positions(self.plan.rows, "row")))
        top.add(f"const {index} from_b = blockIdx.x / {wide} % {high} * {self.tile.down};")
        top.add(f"const {index} from_a = blockIdx.x % {wide} * {self.tile.across};")
        top.add("const mdf::u32 thread = threadIdx.x;")

    def _declare_tile(self, staged: Staged) -> None:
        dtype, key = self.plan.buffers[staged.access.buffer].dtype, staged.key
        cpp, tile = CPP_TYPES[dtype], self.tile
        grain = max(1, GRAIN // max(UNIT, dtype.itemsize)) if tile.vector > 1 else 1
        kind = f"{cpp}, {tile.across}, {tile.vector}, {grain}, {tile.lanes}"
        count = tile.across * tile.down
        self.top.add(f"using Tile_{key} = mdf::Tile<{kind}>;")
        self.top.add(f"MDF_DYNAMIC_SHARED_AT({cpp}, tile_{key}, {count}, {self.shared});")
        self.shared += count * dtype.itemsize

    def _pieces(self, staged: Staged) -> tuple[int, int]:
        """How many vectors a piece of a tile has side by side, and how many pieces a thread."""
        itemsize = self.plan.buffers[staged.access.buffer].dtype.itemsize
        side = max(1, min(UNIT // itemsize, self.launch.vector))
        count = self.tile.across * self.tile.down // (side * self.tile.vector)
        return side, count // self.launch.threads

    def _piece_loop(self, staged: Staged) -> Block:
        """The loop over a thread's pieces of a tile; sets where in the tile the piece begins."""
        side, count = self._pieces(staged)
        lanes = LANES if self.tile.vector > 1 else 32
        columns = self.tile.across // side
        loop = self.top.open(f"for (mdf::i32 t = 0; t < {count}; ++t)", "#pragma unroll")
        b = f"{self._part(1, lanes)} + {self._part(lanes * columns)} * {lanes}"
        loop.add(f"const mdf::i32 lb = ({b}) * {self.tile.vector};")
        loop.add(f"const mdf::i32 la = {self._part(lanes, columns)} * {side};")
        loop.add(f"const {self.index} {self.other.name} = from_b + lb;")
        return loop

    def _part(self, divisor: int, modulus: int = 0) -> str:
        """``u / divisor % modulus``, u being the number of a thread's piece ``t`` among all of the
        block: ``thread + t * threads``. All are powers of two, so it is a part of the thread's
        number beside one of ``t``, which is known when the loop is unrolled.
        """
        threads = self.launch.threads
        side_by_side = max(1, threads // divisor)  # pieces t of so many different parts
        turns = f"t / {divisor // threads}" if divisor > threads else "t"
        if modulus:
            turns = f"{turns} % {max(1, modulus // side_by_side)}"
        if side_by_side == 1:
            return f"({turns})"
        mine = f"thread / {divisor}" if divisor > 1 else "thread"
        if modulus and modulus <= side_by_side:
            return f"({mine} % {modulus})"
        return f"({mine} + {turns} * {side_by_side})"

    def _in_bounds(self) -> str:
        """Whether the element at hand is one of the tensor's."""
        extents = [
            (axis.name, self.arguments.name(axis.extent)) for axis in (self.other, self.fast)
        ]
        return f"MDF_IN_BOUNDS({' && '.join(f'{name} < {extent}' for name, extent in extents)})"

    def _stage(self, loads: list[Staged]) -> None:
        """Loads of several buffers are under way together, as many as registers hold."""
        elements = self.tile.across * self.tile.down // self.launch.threads
        groups: list[list[Staged]] = [[]]
        flight = 0
        for each in loads:
            nbytes = elements * self.plan.buffers[each.access.buffer].dtype.itemsize
            if groups[-1] and flight + nbytes > FLIGHT_BYTES:
                groups.append([])
                flight = 0
            groups[-1].append(each)
            flight += nbytes
        for group in groups:
            for each in group:
                self._fetch(each)
            if group is groups[-1]:
                self._fetch_ahead()
            for each in group:
                loop = self._piece_loop(each)
                call = f"Tile_{each.key}::set_columns(tile_{each.key}, lb, la, s{each.at}[t]);"
                loop.add(call)

    def _fetch(self, staged: Staged) -> None:
        """Statements that load a thread's pieces of a tile into registers."""
        load = staged.access
        assert isinstance(load, Load)
        side, count = self._pieces(staged)
        vector = f"mdf::Vec<{CPP_TYPES[self.plan.buffers[load.buffer].dtype]}, {self.tile.vector}>"
        self.top.add(f"{vector} s{staged.at}[{count}][{side}];")
        inner = self._side_loop(self._piece_loop(staged), side)
        offset = self.inner.at_vector(load.offset)
        value = f"mdf::load<{self.tile.vector}>(b{load.buffer}, {offset})"
        inside = self._in_bounds() + (f" && {self.inner.masked(load)}" if load.mask else "")
        inner.add(f"s{staged.at}[t][p] = {inside} ? {value} : {vector}{{}};")

    def _side_loop(self, block: Block, side: int) -> Block:
        """The loop over the vectors of a piece."""
        inner = block.open(f"for (mdf::i32 p = 0; p < {side}; ++p)", "#pragma unroll")
        inner.add(f"const {self.index} {self.fast.name} = from_a + la + p;")
        return inner

    def _fetch_ahead(self) -> None:
        if self.ahead:
            inner = self._item_loop()
            for at in self.ahead:
                self.inner.fetch(inner, at, f"h{at}[t]")

    def _item_loop(self) -> Block:
        """The loop over a thread's vectors along the fast axis, inside their bounds."""
        width, tile, items = self.launch.vector, self.tile, self.launch.items
        pragma = "#pragma unroll" if items <= MOST_UNROLLED else ""
        loop = self.top.open(f"for (mdf::i32 t = 0; t < {items}; ++t)", pragma)
        a = f"{self._part(1, tile.lanes)} + {self._part(tile.lanes * tile.down)} * {tile.lanes}"
        loop.add(f"const mdf::i32 lb = {self._part(tile.lanes, tile.down)};")
        loop.add(f"const mdf::i32 la = ({a}) * {width};")
        loop.add(f"const {self.index} {self.other.name} = from_b + lb;")
        loop.add(f"const {self.index} {self.fast.name} = from_a + la;")
        return loop.open(f"if ({self._in_bounds()})")

    def _compute(self) -> None:
        inner = self._item_loop()
        needed = sorted(needed_in(self.plan, 0, self.inner.whole))
        known = set(self.ahead) & set(needed)
        for at in sorted(known):
            inner.add(f"const {self.inner.vector_type(at)} x{at} = h{at}[t];")
        for each in tiled(self.plan):
            if each.at in needed:
                row = f"Tile_{each.key}::row<{self.launch.vector}>(tile_{each.key}, lb, la)"
                inner.add(f"const auto {each.key} = {row};")
                known.add(each.at)
        self.inner.element_statements(inner, needed, known, [], list(self.plan.stores), "")

    def _unstage(self, staged: Staged) -> None:
        """Statements that store a thread's pieces of a tile."""
        store, key = staged.access, staged.key
        side, _ = self._pieces(staged)
        cpp, vector = CPP_TYPES[self.plan.buffers[store.buffer].dtype], self.tile.vector
        loop = self._piece_loop(staged)
        first = f"{self.other.name} < {self.arguments.name(self.other.extent)}"
        inside = f"from_a + la < {self.arguments.name(self.fast.extent)}"
        loop = loop.open(f"if (MDF_IN_BOUNDS({first} && {inside}))")
        loop.add(f"mdf::Vec<{cpp}, {vector}> {key}[{side}];")
        loop.add(f"Tile_{key}::columns(tile_{key}, lb, la, {key});")
        inner = self._side_loop(loop, side)
        offset = self.inner.at_vector(store.offset)
        inner.add(f"mdf::store<{vector}>(b{store.buffer}, {offset}, {key}[p]);")
