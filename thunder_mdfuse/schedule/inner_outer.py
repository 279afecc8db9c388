"""Rows that are reduced each, and over all rows too: the gradient of a norm in one kernel.

A grid that fits the GPU at once walks the rows; each thread has the same columns in every row and
keeps what all rows so far give for them. At the end the blocks' results are combined in a tree of
two levels whose order depends on the numbers of rows and columns alone.
"""

import math
from dataclasses import dataclass, replace

from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size, ceildiv, maximum, minimum, product
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.launch import MOST_UNROLLED, needed_in
from thunder_mdfuse.schedule.plan import Buffer, Instr, KernelPlan, Launch, Load, Outer
from thunder_mdfuse.schedule.target import Target
from thunder_mdfuse.schedule.vectorize import WIDEST


@dataclass(frozen=True)
class OuterRule:
    """For rows of up to ``vectors`` vectors: ``group`` threads a row in blocks of ``threads``.

    ``blocks``: how many blocks an SM should hold, if their registers suffice.
    """

    vectors: int
    group: int
    threads: int
    blocks: int


# 1024 threads an SM, each with one vector of each tensor, hide each other's barriers. (H200,
# backward of RMSNorm of bf16[16384, 4096]: 109 us with 2 x 512 threads, 118 with 3 x 256, 132 with
# 2 x 256; of [16384, 8192] 210 us with 1024, 241 with rows of 512 threads waiting in shared memory,
# 280 with such rows in registers. Shorter rows by analogy.)
OUTER_RULES = (
    OuterRule(4, 4, 256, 4),
    OuterRule(8, 8, 256, 4),
    OuterRule(16, 16, 256, 4),
    OuterRule(32, 32, 256, 4),
    OuterRule(64, 64, 256, 4),
    OuterRule(128, 128, 256, 4),
    OuterRule(256, 256, 256, 4),
    OuterRule(512, 512, 512, 2),
    OuterRule(1024, 1024, 1024, 1),
    OuterRule(1 << 62, 512, 512, 1),
)
# Registers that a thread needs beside results and rows: one for each vector of a row, some for each
# result, and these for addresses and the values of one vector; found with the compiler, as the
# least that do not spill, for results in registers and in shared memory.
OTHER_REGISTERS = {"registers": 28, "shared": 40}
# The same for sm_100, whose code has more addresses at a time.
OTHER_REGISTERS_SM_100 = {"registers": 60, "shared": 62}
# The same where rows wait in shared memory.
OTHER_REGISTERS_STAGED, OTHER_REGISTERS_STAGED_SM_100 = 44, 56
RESULT_REGISTERS = 2
MOST_REGISTERS = 255
# Rows of blocks of so many threads, with several vectors each, wait in shared memory: one is
# computed, others are on their way. (H200, backward of RMSNorm of bf16[16384, 8192] that way: 258
# us with one block an SM, 261 with two, 276 with six stages, 284 with rows ahead in registers.)
STAGED_THREADS = 512
MOST_STAGES, LEAST_STAGES = 4, 3
COPIED_BYTES = (4, 8)  # or a multiple of 16, at once
WAITING_BYTES = 12  # what the loads of a row that was not loaded ahead need beside it
REGISTER_STEP = 8  # registers are given to threads in so large pieces
# Shared memory that is not for results: the scratch of reductions, what the system takes.
OTHER_SHARED = 4096
# Results are kept for whole steps of a block, which is less than so many columns more: rows of up
# to 1024 vectors have one step, at most twice as long as they are, longer ones steps of 512.
LARGEST_STEP = 512 * WIDEST


def has_room(columns: Size, nbytes: int, decide: Decider, target: Target) -> bool:
    """Whether a block can keep ``nbytes`` of results for each column until all rows have been
    walked.
    """
    needed = (columns + LARGEST_STEP) * nbytes
    return decide.at_most(needed, target.shared_per_block - OTHER_SHARED)


def late_reductions(plan: KernelPlan) -> list[tuple[int, Instr]]:
    """The reductions over all rows, with their numbers."""
    return [(n, i) for n, i in enumerate(plan.body) if i.late and i.op.startswith("reduce_")]


def launch(plan: KernelPlan, width: int, decide: Decider, target: Target) -> Launch:
    """The launch of a kernel of the family ``inner_outer``."""
    length = product(a.extent for a in plan.columns)
    rows = product(a.extent for a in plan.rows)
    vectors = ceildiv(length, width)
    rule = next(r for r in OUTER_RULES if not decide.less(r.vectors, vectors))
    items = 1
    while decide.less(rule.group * items, vectors):
        items += 1
    exact = rule.group == rule.threads and decide.divides(width, length)
    exact = exact and decide.equal(vectors, rule.group * items)
    outer, hold, blocks = _places(plan, width, items, rule, target)
    per_block, most = rule.threads // rule.group, blocks * target.sm_count
    # At least one block, which leaves the result of no rows.
    parts = maximum(1, minimum(ceildiv(rows, per_block), most))
    fan = math.isqrt(most - 1) + 1
    return Launch(
        rule.threads,
        width,
        items,
        rule.group,
        exact,
        hold,
        blocks=blocks,
        parts=parts,
        outer=replace(outer, fan=fan),
    )


def _places(
    plan: KernelPlan, width: int, items: int, rule: OuterRule, target: Target
) -> tuple[Outer, str, int]:
    """Where results and rows live, and how many blocks an SM then holds.

    Many blocks come first, then rows that are loaded ahead. (H200, backward of dropout, add and
    LayerNorm of bf16[16384, 4096]: 216 us with 2 x 512 threads and no row ahead, 243 with rows
    ahead that spill, 319 with 1 x 512 and rows ahead.) A row that is not held is read once more in
    each phase.
    """
    own = sum(width * items * i.dtype.compute.itemsize for _, i in late_reductions(plan))
    row = sum(width * items * _itemsize(plan, at) for at in row_loads(plan))
    unrolled = items <= MOST_UNROLLED
    staged = _staged(plan, width, items, own, row, rule, target) if unrolled else None
    if staged is not None:
        return staged
    # With results elsewhere the compiler keeps a row as what it computes with.
    wide = sum(width * items * plan.body[at].dtype.compute.itemsize for at in row_loads(plan))
    ahead_of_all = ("registers", True, own + 2 * row)
    waiting, elsewhere = (
        ("registers", False, own + row + WAITING_BYTES),
        ("shared", True, row + wide),
    )
    other = OTHER_REGISTERS_SM_100 if target.capability >= 100 else OTHER_REGISTERS
    beside = items + RESULT_REGISTERS * len(late_reductions(plan))
    for blocks in range(rule.blocks, 0, -1) if unrolled else []:
        registers = min(MOST_REGISTERS, target.registers_per_sm // (rule.threads * blocks))
        registers -= registers % REGISTER_STEP
        # Of one block nothing else hides how long a load takes.
        others = (waiting, elsewhere) if blocks > 1 else (elsewhere, waiting)
        for sums, ahead, held in (ahead_of_all, *others):
            if held <= 4 * (registers - other[sums] - beside):
                return Outer(sums, ahead, 1), "registers", blocks
    return Outer("shared", False, 1), "none", 1


def _staged(
    plan: KernelPlan, width: int, items: int, own: int, row: int, rule: OuterRule, target: Target
) -> tuple[Outer, str, int] | None:
    """Results in registers and rows in shared memory, if rows can be copied there and have room."""
    loads = row_loads(plan)
    each = [width * _itemsize(plan, at) for at in loads]
    copied = all(n in COPIED_BYTES or n % 16 == 0 for n in each)
    plain = all(not plan.body[at].detail.mask for at in loads)  # type: ignore[union-attr]
    if not loads or not copied or not plain or rule.group < STAGED_THREADS or items == 1:
        return None
    other = OTHER_REGISTERS_STAGED_SM_100 if target.capability >= 100 else OTHER_REGISTERS_STAGED
    registers = min(MOST_REGISTERS, target.registers_per_sm // rule.threads)
    room = target.shared_per_block - OTHER_SHARED
    stages = min(MOST_STAGES, room // (row * rule.threads))
    if stages < LEAST_STAGES or own > 4 * (registers - other):
        return None
    return Outer("registers", True, 1, stages), "staged", 1


def _itemsize(plan: KernelPlan, at: int) -> int:
    load = plan.body[at].detail
    assert isinstance(load, Load)
    return plan.buffers[load.buffer].dtype.itemsize


def row_loads(plan: KernelPlan) -> list[int]:
    """The vector loads that differ from row to row: a thread has those of its row in registers."""
    rows, columns = {a.name for a in plan.rows}, {a.name for a in plan.columns}
    needed = sorted(set().union(*(needed_in(plan, phase) for phase in range(plan.phases))))
    found = []
    for at in needed:
        instr = plan.body[at]
        moves = instr.depends & rows and instr.depends & columns
        # What is looked up at an index from memory waits for that index anyway.
        if isinstance(instr.detail, Load) and not instr.args and moves:
            found += [at] if instr.detail.access == "vector" else []
    return found


def row_numbers(plan: KernelPlan) -> list[int]:
    """The loads of one number for each row."""
    rows, columns = {a.name for a in plan.rows}, {a.name for a in plan.columns}
    loads = [at for at, i in enumerate(plan.body) if isinstance(i.detail, Load) and not i.args]
    depends = {at: plan.body[at].depends for at in loads}
    return [at for at in loads if depends[at] & rows and not depends[at] & columns]


def with_workspaces(plan: KernelPlan) -> KernelPlan:
    """``plan`` with memory for the results of blocks and of groups of blocks, and counters."""
    assert plan.launch.outer is not None
    groups = ceildiv(plan.launch.parts, plan.launch.outer.fan)
    length = product(a.extent for a in plan.columns)
    extent = (plan.launch.parts + groups) * length
    scratch = [
        Buffer(Use(n), i.dtype.compute, False, "workspace", extent)
        for n, i in late_reductions(plan)
    ]
    counters = Buffer(Use(0), DType.I32, False, "counters", 1 + groups)
    return replace(plan, buffers=(*plan.buffers, *scratch, counters))


def reach(plan: KernelPlan) -> Size:
    """The largest number beside offsets that the kernel computes."""
    assert plan.launch.outer is not None
    rows = product(a.extent for a in plan.rows)
    length = product(a.extent for a in plan.columns)
    per_block = plan.launch.threads // plan.launch.group
    ahead = max(2, plan.launch.outer.stages + 1)
    walked = rows + ahead * plan.launch.parts * per_block
    return maximum(walked, 2 * plan.launch.parts * length)


def late_needed(plan: KernelPlan) -> list[int]:
    """What is computed when all rows have been walked: for late stores, down to the results."""
    found: set[int] = set()
    stack = [a for s in plan.stores if plan.body[s.value].late for a in s.operands]
    while stack:
        at = stack.pop()
        if at not in found:
            found.add(at)
            reduction = plan.body[at].op.startswith("reduce_")
            stack += [] if reduction else plan.body[at].args
    return sorted(found)


def moves(plan: KernelPlan, instr: Instr) -> bool:
    """Whether a late instruction is computed for each column; a result is, whatever it names."""
    names = {a.name for a in plan.columns}
    return instr.late or bool(instr.depends & names)
