"""Scans: how threads share the rows along which a running combination goes.

A group of threads walks its row chunk by chunk, each thread with one vector of a chunk, and carries
the total over. Where the scanned dim is not the one along which memory runs, each thread walks a
row of its own, and neighbouring threads read neighbouring elements.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.sizes import Size, ceildiv, product
from thunder_mdfuse.schedule.plan import Instr, KernelPlan, Launch, Load
from thunder_mdfuse.schedule.target import Target


@dataclass(frozen=True)
class ScanRule:
    """For rows of up to ``vectors`` vectors: ``group`` threads a row in blocks of ``threads``."""

    vectors: int
    group: int
    threads: int


# Reasoned, not measured: a chunk of a whole block costs two barriers, a warp's costs none.
SCAN_RULES = (
    ScanRule(4, 4, 128),
    ScanRule(8, 8, 128),
    ScanRule(16, 16, 128),
    ScanRule(128, 32, 128),
    ScanRule(1024, 256, 256),
    ScanRule(1 << 62, 512, 512),
)
# A thread a row needs rows for at least so many threads on each SM to read at a fair speed.
ROWS_OF_THREADS = 256


def launch(plan: KernelPlan, width: int, decide: Decider, target: Target) -> Launch:
    """The launch of a scan kernel. ``width``: elements of a vector along the scanned dim."""
    rows = product(a.extent for a in plan.rows)
    many = not decide.less(rows, ROWS_OF_THREADS * target.sm_count)
    if many and not _runs_along_columns(plan):
        return Launch(128, 1, 1, 1)
    vectors = ceildiv(product(a.extent for a in plan.columns), width)
    rule = next(r for r in SCAN_RULES if not decide.less(r.vectors, vectors))
    return Launch(rule.threads, width, 1, rule.group)


def _runs_along_columns(plan: KernelPlan) -> bool:
    """Whether some access steps by one element along the scanned dim."""
    (column,) = plan.columns
    offsets: list[Size] = [s.offset for s in plan.stores]
    offsets += [i.detail.offset for i in plan.body if isinstance(i.detail, Load)]
    steps = [sizes.coefficient(o, column.name) for o in offsets]
    return any(step is not None and step[0] == 1 for step in steps)


def needed_in(plan: KernelPlan, phase: int) -> set[int]:
    """The column-dependent instructions that phase ``phase`` of a chunk computes.

    Those that the operands of its scans and its stores go back to, up to the results of scans.
    """
    columns = {a.name for a in plan.columns}
    roots: list[int] = []
    for instr in plan.body:
        if is_scan(instr) and instr.phase == phase + 1:
            roots += instr.args
    roots += [s.value for s in plan.stores if plan.body[s.value].phase == phase]
    return _closure(plan, roots, columns)


def _closure(plan: KernelPlan, roots: Iterable[int], columns: set[str]) -> set[int]:
    found: set[int] = set()
    stack = [r for r in roots if plan.body[r].depends & columns]
    while stack:
        at = stack.pop()
        if at in found:
            continue
        found.add(at)
        if not is_scan(plan.body[at]):
            stack += [a for a in plan.body[at].args if plan.body[a].depends & columns]
    return found


def is_scan(instr: Instr) -> bool:
    """Whether the instruction is a running combination."""
    return instr.op.startswith("scan_")
