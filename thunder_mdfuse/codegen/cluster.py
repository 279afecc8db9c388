"""Row kernels whose rows are shared by the blocks of a cluster, each holding its part.

A reduction ends when every block has told the others what its part gives, through distributed
shared memory; all threads combine what they read in the order of the blocks, so all have the same
bits. One word of shared memory for each reduction is written once: no barrier but the one before
it is read, and one at the end, before which no block may leave.
"""

from thunder_mdfuse.codegen.accumulators import Accumulator
from thunder_mdfuse.codegen.index import IndexPrinter
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.codegen.rows import RowsWriter
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.schedule.axes import positions
from thunder_mdfuse.schedule.plan import KernelPlan, Store


class ClusterWriter(RowsWriter):
    """Writes kernels of the family ``row`` whose launch has clusters."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__(plan)
        self.shares_rows = True
        self.cluster = plan.launch.cluster

    def write(self) -> KernelText:
        """The kernel's text."""
        self._open_rows()
        self._declare_scratch()
        for n, _ in self._reductions():
            self.top.add(f"MDF_SHARED({Accumulator(self.plan, n).cpp}, e{n}, 1);")
        self._declare_held()
        for phase in range(self.plan.phases):
            self._phase(phase)
        # The others may still be reading what this block told them.
        self.top.add("mdf::cluster_barrier();")
        return self.finish(self._blocks())

    def _open_rows(self) -> None:
        self.top.add(f"const {self.index} row = blockIdx.x / {self.cluster};")
        self.top.add(f"const {self.index} part = mdf::cluster_rank();")
        flat = IndexPrinter(self.arguments, {"row": "row"})
        for name, value in positions(self.plan.rows, "row").items():
            self.top.add(f"const {self.index} {name} = {flat(value)};")
        self.top.add("const mdf::i32 lane = threadIdx.x;")
        self.body.row_statements(self.top, 0)
        self._declare_shift()

    def _blocks(self) -> Size:
        return product(a.extent for a in self.plan.rows) * self.cluster

    def _combine_parts(self, reductions: list[int]) -> None:
        """Every block tells its result; every thread combines those of all blocks."""
        every = [Accumulator(self.plan, n) for n in reductions]
        first = self.top.open("if (lane == 0)")
        for n, mine in zip(reductions, every, strict=True):
            first.add(f"mdf::store1(e{n}, 0, {mine.name});")
        self.top.add("mdf::cluster_barrier();")
        for n, mine in zip(reductions, every, strict=True):
            self.top.add(f"{mine.name} = mdf::cluster_read(e{n}, 0, 0);")
        loop = self.top.open(f"for (mdf::u32 q = 1; q < {self.cluster}; ++q)", "#pragma unroll")
        for n, mine in zip(reductions, every, strict=True):
            other = f"mdf::cluster_read(e{n}, 0, q)"
            loop.add(f"{mine.name} = {mine.functor}::apply({mine.name}, {other});")
        for mine in every:
            self.top.add(*mine.declared(mine.name))

    def _store_once(self, stores: list[Store]) -> None:
        inner = self.top.open("if (lane == 0 && part == 0)")
        for store in stores:
            self.body.store_once(inner, store)
