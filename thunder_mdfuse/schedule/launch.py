"""Launch rules: threads, vectors per thread and where a row is held, from tables with their
measurements.

The figures are from an H200 (132 SMs): about 45 KB of loads have to be in flight on each SM, one
block a row with plain 16-byte accesses wins over persistent grids and cache hints, and 2-4 vectors
a thread with 128-512 threads were fastest for rows of 4096-8192 elements (ratio to a copy
0.957-0.966).
"""

from collections.abc import Container
from dataclasses import dataclass

from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.sizes import Size, ceildiv, product, symbols
from thunder_mdfuse.schedule.plan import Draw, KernelPlan, Launch, Load
from thunder_mdfuse.schedule.target import Target


@dataclass(frozen=True)
class RowRule:
    """For rows of up to ``vectors`` vectors: ``group`` threads a row in blocks of ``threads``.

    ``blocks``: how many blocks an SM should hold, where the row needs few enough registers; 0: any.
    """

    vectors: int
    group: int
    threads: int
    blocks: int = 0


# Rows shorter than a warp's worth share a block, so that a block has enough loads in flight.
ROW_RULES = (
    RowRule(4, 4, 128),
    RowRule(8, 8, 128),
    RowRule(16, 16, 128),
    RowRule(64, 32, 128),
    RowRule(128, 32, 128),
    RowRule(256, 64, 128),
    # Three vectors a thread. (Reasoned: 256 threads with two each have a quarter of them idle.)
    RowRule(384, 128, 128),
    RowRule(512, 256, 256, 6),
    RowRule(768, 256, 256),
    RowRule(1024, 512, 512, 4),
    RowRule(4096, 512, 512),
    RowRule(1 << 62, 1024, 1024),
)
# The same where several tensors are held: one vector of each a thread. (H200, add and RMSNorm of
# [16383, 3001]: 117 us with 384 threads, 129 with 128; of [16384, 4096]: 131.4 with 512, 132.8 with
# 256. Where random numbers are made as well, 137 with 512 and 133 with 256.)
SEVERAL_RULES = (
    RowRule(384, 384, 384),
    RowRule(512, 512, 512, 3),
)
# A long row that only passes by takes no registers from one fetch to the next, and its blocks need
# not be large: while one combines its threads' results, others load. (H200, cross-entropy of bf16
# [16384, 32000]: 247 us with 128 threads and 8 blocks an SM, 259 with 256 and 4, 298 with 256 and
# 6; of [8192, 50257] 217, 229 and 329, and 284 with 512 threads and 2 blocks.)
STREAMED = RowRule(1 << 62, 128, 128, 8)
# (H200, RoPE of 2 x 8192: 87.7 us with 128, 88.8 with 256, 92.4 with 512, 104 with 64.)
POINTWISE_THREADS = 128
# Bytes of loads that a thread should have in flight: 45 KB over 2048 threads of an SM is 22.
BYTES_IN_FLIGHT = 32
MOST_ITEMS = 4
# Bytes of a row that one thread may keep in registers: beyond these the compiler spills.
HELD_BYTES = {512: 256, 1024: 128}
# Beyond these held bytes a thread, asking for RowRule.blocks makes the compiler spill.
BLOCKS_HELD_BYTES = 32
# A row shared by blocks: vectors a thread of each part. Fewer rows than two blocks an SM leave
# SMs idle. (Reasoned: a part of 256 x 8 vectors is 32 KB, a launch of 264 of them fills an H200.)
PART_THREADS = 256
PART_ITEMS = 8
FEW_ROWS = 2
# From so many times the vectors of a part on. (Reasoned; where elements are looked up, one after
# another, a block alone took 15 us for the 16384 of a cross-entropy.)
LONG, LONG_LOOKED_UP = 4, 2
# A loop of at most so many items is unrolled: only then are held items registers, and not memory
# that is indexed at run time.
MOST_UNROLLED = 16
# So many items are told apart, that a thread may have no more than its row needs; beyond them only
# powers of two are, for the sake of kernels that were compiled before.
ONE_BY_ONE = 16
INT32_LIMIT = 1 << 31


def pointwise(plan: KernelPlan, width: int, decide: Decider, target: Target) -> Launch:
    """The launch of a flat kernel: several vectors a thread only when that leaves the GPU full."""
    loaded = sum(
        width * plan.buffers[i.detail.buffer].dtype.itemsize
        for i in plan.body
        if isinstance(i.detail, Load) and i.detail.access in ("vector", "across")
    )
    items = 1
    total = product(a.extent for a in plan.columns)
    full = target.sm_count * target.max_threads_per_sm * width
    while items < MOST_ITEMS and loaded and loaded * items < BYTES_IN_FLIGHT:
        if not decide.less(2 * items * full, total):
            break
        items *= 2
    ragged = len(plan.columns) == 1 and not decide.divides(width, total)
    return Launch(
        POINTWISE_THREADS, width, items, POINTWISE_THREADS, hold="registers", ragged=ragged
    )


def row(plan: KernelPlan, width: int, decide: Decider, target: Target) -> Launch:
    """The launch of a row kernel: the first rule that the row fits, and where to hold the row."""
    length, vectors = product(a.extent for a in plan.columns), covering(plan, width)
    if _worth_sharing(plan, vectors, decide, target):
        items = _part_items(plan)
        parts = ceildiv(vectors, PART_THREADS * items)
        return Launch(PART_THREADS, width, items, PART_THREADS, False, "registers", parts=parts)
    rule = next(r for r in _row_rules(plan) if not decide.less(r.vectors, vectors))
    if rule.threads > STREAMED.threads and not held_loads(plan):
        rule = STREAMED
    items = 1
    while decide.less(rule.group * items, vectors):
        items += 1 if items < ONE_BY_ONE else items
    # Asked last, because a yes is a guard: the plan is for rows of this length only.
    exact = rule.group == rule.threads and plan.launch.shift is None
    exact = exact and decide.divides(width, length)
    exact = exact and decide.equal(vectors, rule.group * items)
    held = sum(width * plan.buffers[x.buffer].dtype.itemsize for x in held_loads(plan)) * items
    # Vectors across pieces of memory take more registers than that many blocks leave.
    few = rule is STREAMED or (held <= BLOCKS_HELD_BYTES and plan.launch.shift is None)
    return Launch(
        rule.threads,
        width,
        items,
        rule.group,
        exact,
        _hold(held, items, rule, target),
        blocks=rule.blocks if few else 0,
    )


def _row_rules(plan: KernelPlan) -> tuple[RowRule, ...]:
    several = len(held_loads(plan)) > 1 and not any(isinstance(i.detail, Draw) for i in plan.body)
    if not several:
        return ROW_RULES
    instead = {r.vectors: r for r in SEVERAL_RULES}
    return tuple(instead.get(r.vectors, r) for r in ROW_RULES)


def covering(plan: KernelPlan, width: int) -> Size:
    """How many vectors cover a row, wherever it begins."""
    length = product(a.extent for a in plan.columns)
    return ceildiv(length + (plan.launch.shift_below - 1), width)


def _worth_sharing(plan: KernelPlan, vectors: Size, decide: Decider, target: Target) -> bool:
    """Whether several blocks should reduce one row: rows too few to fill the GPU, and long.

    Only where nothing is stored for each column, so that no block has to come back to its part.
    """
    columns = {a.name for a in plan.columns}
    moving = any(symbols(s.offset) & columns for s in plan.stores)
    if moving or plan.phases != 2:
        return False
    rows = product(a.extent for a in plan.rows)
    least = PART_THREADS * _part_items(plan) * (LONG_LOOKED_UP if plan.positions else LONG)
    return decide.less(least, vectors) and decide.less(rows, FEW_ROWS * target.sm_count)


def _part_items(plan: KernelPlan) -> int:
    """How many vectors a thread has of a part: one where it has to look elements up."""
    return 1 if plan.positions else PART_ITEMS


def _hold(held: int, items: int, rule: RowRule, target: Target) -> str:
    """Where ``held`` bytes a thread fit, in ``items`` pieces."""
    fits = held <= HELD_BYTES[1024 if rule.threads == 1024 else 512]
    if fits and (items <= MOST_UNROLLED or not held):
        return "registers"
    shared = held * rule.threads
    return "shared" if shared <= target.shared_per_block - 1024 else "none"


def held_loads(plan: KernelPlan) -> list[Load]:
    """The vector loads that more than one phase uses, so that they are worth holding."""
    return [plan.body[i].detail for i in held_instructions(plan)]  # type: ignore[misc]


def held_instructions(plan: KernelPlan) -> list[int]:
    """The instructions of ``held_loads``; of a flat kernel with many items all vector loads."""
    if plan.family == "pointwise":
        many = plan.launch.items > 1
        return [n for n in sorted(needed_in(plan, 0)) if many and plan.is_vector(n)]
    columns = {a.name for a in plan.columns}
    uses: dict[int, set[int]] = {}
    for phase in range(plan.phases):
        for at in needed_in(plan, phase):
            instr = plan.body[at]
            if isinstance(instr.detail, Load) and instr.depends & columns:
                uses.setdefault(at, set()).add(phase)
    return [at for at, phases in sorted(uses.items()) if len(phases) > 1 and plan.is_vector(at)]


def needed_in(plan: KernelPlan, phase: int, known: Container[int] = ()) -> set[int]:
    """The column-dependent instructions that phase ``phase`` computes, ascending by number.

    Those that its reductions or, in the last phase, the stores of whole rows go back to; what the
    ``known`` ones are computed from is not needed for them.
    """
    columns = {a.name for a in plan.columns}
    roots: list[int] = []
    for instr in plan.body:
        if instr.op.startswith("reduce_") and instr.phase == (phase if instr.late else phase + 1):
            roots += instr.args
    roots += [a for s in plan.stores if store_phase(plan, s.value) == phase for a in s.operands]
    found: set[int] = set()
    stack = [r for r in roots if plan.body[r].depends & columns]
    while stack:
        at = stack.pop()
        if at not in found:
            found.add(at)
            operands = () if at in known else plan.body[at].args
            stack += [a for a in operands if plan.body[a].depends & columns]
    return found


def store_phase(plan: KernelPlan, value: int) -> int:
    """The phase in which a store of instruction ``value`` can be made first; -1: after all rows."""
    return -1 if plan.body[value].late else plan.body[value].phase


def wide_index(plan: KernelPlan, decide: Decider, reach: Size) -> bool:
    """Whether offsets need 64 bits; ``reach``: the largest offset plus one, in elements."""
    return not decide.less(reach, INT32_LIMIT)
