"""What the writers of all families share: a kernel's arguments, its head and its finished text.

Names depend on the plan alone, so equal plans give equal text and an unrelated change moves
nothing.
"""

import hashlib
from dataclasses import dataclass

from thunder_mdfuse.codegen import mailbox
from thunder_mdfuse.codegen.body import BodyWriter
from thunder_mdfuse.codegen.exprs import CPP_TYPES
from thunder_mdfuse.codegen.index import Arguments, IndexPrinter
from thunder_mdfuse.codegen.statements import Block, render
from thunder_mdfuse.errors import CodegenError
from thunder_mdfuse.ir.sizes import Size, product, symbols
from thunder_mdfuse.schedule.axes import positions
from thunder_mdfuse.schedule.plan import KernelPlan, Load, Scalar, Store


@dataclass(frozen=True)
class KernelText:
    """A kernel's source and what to pass: buffers in the plan's order, then ``sizes``, then the
    ``reciprocal`` of each of ``divisors``, then ``scalars``.

    ``blocks``: grid size; ``shared``: bytes of dynamic shared memory. Sizes are i64 when
    ``plan.launch.wide_index``, else i32.
    """

    plan: KernelPlan
    entry: str
    source: str
    sizes: tuple[Size, ...]
    divisors: tuple[Size, ...]
    scalars: tuple[Scalar, ...]
    blocks: Size
    shared: int


class KernelWriter:
    """One kernel in the making; each family has a subclass that fills ``top`` and ``finish``es."""

    def __init__(self, plan: KernelPlan) -> None:
        self.plan, self.launch = plan, plan.launch
        self.index = "mdf::i64" if plan.launch.wide_index else "mdf::i32"
        self.arguments = Arguments(plan.launch.wide_index)
        self.scalars: list[Scalar] = []
        self.column_names = {a.name for a in plan.columns}
        self.top = Block()
        self.body = BodyWriter(plan, self.arguments, self.scalars, self.index)
        self.rows = product(a.extent for a in plan.rows)
        self.length = product(a.extent for a in plan.columns)
        self.shared = 0
        self._check()

    def write(self) -> KernelText:
        """The kernel's text."""
        raise NotImplementedError

    def finish(self, blocks: Size) -> KernelText:
        """The text of what ``top`` holds, for a grid of ``blocks`` blocks."""
        source, entry = self._source()
        return KernelText(
            self.plan,
            entry,
            source,
            tuple(self.arguments.sizes),
            tuple(self.arguments.divisors),
            tuple(self.scalars),
            blocks,
            self.shared,
        )

    def take_row(self) -> None:
        """Set ``row``: which row this group of threads has."""
        group, per_block = self.launch.group, self.launch.threads // self.launch.group
        if per_block == 1:
            self.top.add(f"const {self.index} row = blockIdx.x;")
            return
        mine = f"{self._wide('blockIdx.x')} * {per_block} + threadIdx.x / {group}"
        self.top.add(f"const {self.index} mine = {mine};")
        self.top.add(f"const bool live = MDF_IN_BOUNDS(mine < {self.arguments.name(self.rows)});")
        # A group past the end works on row 0 again, since all threads have to meet.
        self.top.add(f"const {self.index} row = live ? mine : 0;")

    def enter_row(self) -> None:
        """Set the rows' symbols and ``lane``, and compute what is known of the row at once."""
        flat = IndexPrinter(self.arguments, {"row": "row"})
        for name, value in positions(self.plan.rows, "row").items():
            self.top.add(f"const {self.index} {name} = {flat(value)};")
        within = "" if self.launch.group == self.launch.threads else f" % {self.launch.group}"
        self.top.add(f"const mdf::i32 lane = threadIdx.x{within};")
        self.body.row_statements(self.top, 0)

    def _check(self) -> None:
        loads = [i.detail for i in self.plan.body if isinstance(i.detail, Load)]
        for n, buffer in enumerate(self.plan.buffers):
            if mailbox.is_mailbox(buffer):
                mine = [load for load in loads if load.buffer == n]
                mailbox.check(buffer, mine, self.launch.vector)
            elif buffer.space not in ("global", "workspace", "counters"):
                raise CodegenError(f"buffer {buffer.value} lives in unknown space {buffer.space!r}")

    def _wide(self, number: str) -> str:
        """A 32-bit number in the type of offsets, so that products with it have all their bits."""
        return f"static_cast<{self.index}>({number})" if self.launch.wide_index else number

    def _moves(self, store: Store) -> bool:
        """Whether the store is made for each column; an empty tensor may have no stride there."""
        depends = (self.plan.body[a].depends for a in store.operands)
        return bool(symbols(store.offset).union(*depends) & self.column_names)

    def _source(self) -> tuple[str, str]:
        written = {b.value for b in self.plan.buffers if b.written}
        parameters = []
        for n, buffer in enumerate(self.plan.buffers):
            cpp = CPP_TYPES[buffer.dtype]
            if mailbox.is_mailbox(buffer):
                parameters.append(f"MDF_IN(mdf::u64) b{n}")
            elif buffer.space in ("workspace", "counters") or buffer.updated:
                parameters.append(f"MDF_INOUT({cpp}) b{n}")
            elif buffer.written:
                parameters.append(f"MDF_OUT({cpp}) b{n}")
            elif buffer.value in written:
                parameters.append(f"const {cpp}* b{n}")
            else:
                parameters.append(f"MDF_IN({cpp}) b{n}")
        parameters += [f"const {self.index} {p}" for p in self.arguments.sizes.values()]
        parameters += [f"const mdf::u64 {q}" for q in self.arguments.divisors.values()]
        parameters += [f"const {CPP_TYPES[s.dtype]} s{n}" for n, s in enumerate(self.scalars)]
        text = render(self.top.body, 1)
        digest = hashlib.sha256("\n".join((*parameters, text)).encode()).hexdigest()[:10]
        entry = f"mdf_{self.plan.family}_{digest}"
        bounds = f"{self.launch.threads}"
        if self.launch.blocks:
            bounds += f", {self.launch.blocks}"
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {entry}('
        listing = ",\n    ".join(parameters)
        return f'#include "mdfuse.cuh"\n\n{head}\n    {listing}) {{\n{text}\n}}\n', entry
