"""Scan kernels: a group of threads walks its row in chunks and carries the running total over.

    for each chunk of the row:
      for each phase:
        for each lane: the body up to the operands of the phase's scans; store
        scan the chunk with the group, starting from the carry

All threads of a group scan together, so threads past the end of a row bring the identity.
"""

from thunder_mdfuse.codegen.exprs import CPP_TYPES, functor
from thunder_mdfuse.codegen.index import IndexPrinter
from thunder_mdfuse.codegen.kernel import KernelText, KernelWriter
from thunder_mdfuse.codegen.statements import Block
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.schedule.axes import positions
from thunder_mdfuse.schedule.plan import Instr, Store
from thunder_mdfuse.schedule.scan import is_scan, needed_in


class ScanWriter(KernelWriter):
    """Writes kernels of the family ``scan``."""

    def write(self) -> KernelText:
        """The kernel's text."""
        per_block = self.launch.threads // self.launch.group
        self.take_row()
        self.enter_row()
        scans = [(n, i) for n, i in enumerate(self.plan.body) if is_scan(i)]
        self._declare(scans)
        self._store_once()
        chunk = self._open_chunks()
        for phase in range(self.plan.phases):
            self._phase(chunk, phase)
        blocks: Size = self.rows if per_block == 1 else (self.rows + per_block - 1) // per_block
        return self.finish(blocks)

    def _declare(self, scans: list[tuple[int, Instr]]) -> None:
        """The carries, and memory to exchange the warps' totals."""
        dtypes = dict.fromkeys(i.dtype.compute for _, i in scans)
        if self.launch.group > 32:
            for dtype in dtypes:
                count = self.launch.threads // 32
                self.top.add(f"MDF_SHARED({CPP_TYPES[dtype]}, scratch_{dtype}, {count});")
        for n, instr in scans:
            cpp = CPP_TYPES[instr.dtype.compute]
            self.top.add(f"{cpp} carry{n} = {functor(instr.op, instr.dtype)}::identity<{cpp}>();")

    def _open_chunks(self) -> Block:
        """The loop over the row's chunks; sets the columns' symbols and ``inside``."""
        group, vector = self.launch.group, self.launch.vector
        length = self.arguments.name(self.length)
        step = group * vector
        loop = self.top.open(f"for ({self.index} first = 0; first < {length}; first += {step})")
        loop.add(f"const {self.index} c = first + lane * {vector};")
        loop.add(f"const bool inside = MDF_IN_BOUNDS(c < {length});")
        flat = IndexPrinter(self.arguments, {"c": "c"})
        for name, value in positions(self.plan.columns, "c").items():
            loop.add(f"const {self.index} {name} = {flat(value)};")
        return loop

    def _phase(self, chunk: Block, phase: int) -> None:
        scans = [
            (n, i) for n, i in enumerate(self.plan.body) if is_scan(i) and i.phase == phase + 1
        ]
        for n, instr in scans:
            cpp, vector = CPP_TYPES[instr.dtype.compute], self.launch.vector
            identity = f"{functor(instr.op, instr.dtype)}::identity<{cpp}>()"
            chunk.add(f"mdf::Vec<{cpp}, {vector}> r{n};")
            lanes = chunk.open(f"for (mdf::i32 j = 0; j < {vector}; ++j)", "#pragma unroll")
            lanes.add(f"r{n}.v[j] = {identity};")
        stores = [s for s in self.plan.stores if self._moves(s) and self._phase_of(s) == phase]
        if scans or stores:
            needed = sorted(needed_in(self.plan, phase))
            inner = chunk.open("if (inside)")
            guard = "live" if self.launch.threads != self.launch.group else ""
            self.body.element_statements(inner, needed, set(), [n for n, _ in scans], stores, guard)
        for n, instr in scans:
            chunk.add(f"r{n} = {self._scan(n, instr)};")

    def _phase_of(self, store: Store) -> int:
        return self.plan.body[store.value].phase

    def _scan(self, n: int, instr: Instr) -> str:
        group, operation = self.launch.group, functor(instr.op, instr.dtype)
        if group <= 32:
            return f"mdf::group_scan<{operation}, {group}>(r{n}, carry{n})"
        shape = f"{operation}, {group}, {self.launch.threads}"
        return f"mdf::group_scan<{shape}>(r{n}, carry{n}, scratch_{instr.dtype.compute})"

    def _store_once(self) -> None:
        """Stores of what does not move along the row."""
        once = [s for s in self.plan.stores if not self._moves(s)]
        if once:
            live = " && live" if self.launch.threads != self.launch.group else ""
            first = self.top.open(f"if (lane == 0{live})")
            for store in once:
                self.body.store_once(first, store)
