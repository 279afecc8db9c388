"""Flat kernels over a number of elements that no vector divides: whole vectors, then what is left.

The first block computes the last elements too, one a thread.
"""

from dataclasses import replace

from thunder_mdfuse.codegen.body import BodyWriter
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.codegen.rows import RowsWriter
from thunder_mdfuse.ir.sizes import Size, floordiv, multiply
from thunder_mdfuse.schedule.launch import needed_in
from thunder_mdfuse.schedule.plan import KernelPlan


class RaggedWriter(RowsWriter):
    """Writes kernels of the family ``pointwise`` whose launch is ragged."""

    def __init__(self, plan: KernelPlan) -> None:
        super().__init__(plan)
        vector = plan.launch.vector
        self.whole = self.length
        # Loops over vectors end where the last whole one does.
        self.length: Size = multiply(floordiv(self.whole, vector), vector)

    def write(self) -> KernelText:
        """The kernel's text."""
        self.body.row_statements(self.top, 0)
        self._phase(0)
        self._rest()
        chunk = self.launch.threads * self.launch.items * self.launch.vector
        return self.finish((self.whole + chunk - 1) // chunk)

    def _phase(self, phase: int) -> None:
        self._declare_held()
        self._loops(phase, [], list(self.plan.stores))

    def _rest(self) -> None:
        single = replace(self.plan, launch=replace(self.launch, vector=1, items=1))
        body = BodyWriter(single, self.arguments, self.scalars, self.index)
        end, length = self.arguments.name(self.length), self.arguments.name(self.whole)
        block = self.top.open("if (blockIdx.x == 0)")
        block.add(f"const {self.index} c = {end} + threadIdx.x;")
        inner = block.open(f"if (MDF_IN_BOUNDS(c < {length}))")
        inner.add(f"const {self.index} {self.plan.columns[0].name} = c;")
        needed = sorted(needed_in(self.plan, 0))
        body.element_statements(inner, needed, set(), [], list(self.plan.stores), "")
