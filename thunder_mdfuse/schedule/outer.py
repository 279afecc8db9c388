"""Outer reductions: those whose kept dims hold the axis along which memory runs.

Column sums are the plain case. The threads of a block are ``across`` by ``down``: side by side over
the kept elements, each with a vector of them, and one below the other over the reduced ones. Each
thread keeps a result for every element of its vector; the block combines those through shared
memory. Where the kept elements alone leave SMs idle, ``parts`` blocks share them, and the last of
those to finish combines what all of them left.

The thresholds are reasoned from figures of an H200 (132 SMs of 2048 threads, 45 KB of loads in
flight on each SM reach the speed of a copy); those that were measured say so.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size, ceildiv, product
from thunder_mdfuse.schedule import vectorize
from thunder_mdfuse.schedule.launch import MOST_UNROLLED, needed_in
from thunder_mdfuse.schedule.plan import Instr, KernelPlan, Launch, Load
from thunder_mdfuse.schedule.roles import runs_along
from thunder_mdfuse.schedule.target import Target


@dataclass(frozen=True)
class OuterRule:
    """``threads`` a block, and about ``flight`` bytes of loads in flight for each of them."""

    threads: int
    flight: int


# Several blocks an SM, which hide each other's barriers: 1536 threads x 64 bytes are 96 KB.
SHARED_RULE = OuterRule(256, 64)
# One block has all of its columns, so an SM may have no more than two: 64 KB of loads.
WHOLE_RULE = OuterRule(512, 64)
MOST_ITEMS = 8
# Threads side by side: a warp then reads two rows of 256 bytes at a time. (H200, sums of the
# columns of bf16[16384, 14336]: 111 us, 116 with 32 side by side, 127 with 64; a copy takes 112.)
ACROSS = 16
# Where blocks are few, fewer threads lie side by side, down to pieces of two sectors of memory.
LEAST_BYTES_ACROSS = 64
FEW_BLOCKS = 2
# Bytes of results that a thread may keep in registers: beyond these the compiler spills.
RESULT_BYTES = 256
# Bytes of its columns that a thread of 512 may keep beside those: a softmax of bf16 with 256 spills
# (136 bytes, sm_90), with 128 it takes 99 of the 128 registers.
HELD_BYTES = 128
# Shared columns: so many rounds of blocks on the whole device make the last round's gap small.
ROUNDS = 2
# Each thread of a part makes at least so many turns, or its share of the combining shows.
LEAST_TURNS = 4
# Columns of fewer bytes than so many, side by side, make less than two blocks an SM of those that
# have their columns for themselves; of longer columns than so many elements, that costs more than
# the launches of the kernels that do better.
FEW_COLUMN_BYTES = FEW_BLOCKS * 132 * LEAST_BYTES_ACROSS
LONG_COLUMN = 4096
# The block that combines reads so many results for each column, some at a time, and no more.
MOST_PARTS = 1024


def suits(plan: KernelPlan, decide: Decider) -> bool:
    """Whether most of what ``plan`` moves lies along its rows: then threads should, too."""
    if plan.family != "row" or not plan.rows or not plan.columns:
        return False
    if any(i.late for i in plan.body):
        return False
    row, column = plan.rows[-1].name, plan.columns[-1].name
    extents = {a.name: a.extent for a in (*plan.rows, *plan.columns)}
    moved = {row: 0, column: 0}
    for buffer, offset in accesses(plan):
        steps = {name: _step(offset, name, plan, decide) for name in (row, column)}
        along = [name for name, step in steps.items() if step]
        if along:
            over = [n for n in extents if plan.moving(n) & sizes.symbols(offset)]
            count = decide.value(product(extents[n] for n in over))
            fast = min(along, key=lambda name: steps[name])
            moved[fast] += count * plan.buffers[buffer].dtype.itemsize
    return moved[row] > moved[column]


def accesses(plan: KernelPlan) -> list[tuple[int, Size]]:
    """Every load and store of ``plan``, as its buffer's number and its offset."""
    found = [(i.detail.buffer, i.detail.offset) for i in plan.body if isinstance(i.detail, Load)]
    return found + [(s.buffer, s.offset) for s in plan.stores]


def _step(offset: Size, name: str, plan: KernelPlan, decide: Decider) -> int:
    """About how far apart neighbours along ``name`` are; 0: they are the same element, or no one
    knows. Positions that are looked up count as if they followed one another.
    """
    steps = [sizes.coefficient(offset, symbol) for symbol in plan.moving(name)]
    return (
        max(abs(decide.value(step[0])) for step in steps if step is not None) if all(steps) else 0
    )


def walks_few(
    body: Sequence[Instr],
    extents: Mapping[str, Size],
    reduced: Collection[str],
    measure: Callable[[Size], int],
) -> bool:
    """Whether a kernel with this ``body`` has few and long columns.

    To walk them again for their own results, each block would need its columns for itself, and a
    few blocks leave most SMs idle; a kernel of its own for each walk reads as much and has them all
    at work. ``extents``: of the domain's axes; ``measure``: about how large a size is.
    """
    columns = product(e for name, e in extents.items() if name not in reduced)
    if columns == 1 or measure(product(extents[n] for n in reduced)) <= LONG_COLUMN:
        return False
    widest = max((i.dtype.itemsize for i in body if isinstance(i.detail, Load)), default=0)
    if measure(columns) * widest >= FEW_COLUMN_BYTES:
        return False
    along = [name for name in extents if runs_along(body, name)]
    return bool(along) and not any(name in reduced for name in along)


def accumulator_bytes(reduction: Instr) -> int:
    """What a thread keeps for one element: a number, or one beside its place in 16 bytes."""
    return 16 if reduction.is_arg_reduction else reduction.dtype.compute.itemsize


def _vectorized(
    plan: KernelPlan, decide: Decider, alignments: Mapping[Use, int]
) -> tuple[KernelPlan, int]:
    """``plan`` with every access classified, and the width of its vectors along the rows.

    What moves along the columns decides the width, for the results are few beside it.
    """
    many = any(_moves_down(plan, offset) for _, offset in accesses(plan))
    leads = (lambda offset: _moves_down(plan, offset)) if many else (lambda offset: True)
    return vectorize.vectorized(plan, decide, alignments, _widest(plan), leads)


def _widest(plan: KernelPlan) -> int:
    """How many elements a thread may have side by side and keep their results in registers."""
    each = sum(accumulator_bytes(i) for i in plan.body if i.op.startswith("reduce_"))
    width = vectorize.WIDEST
    while width > 1 and width * each > RESULT_BYTES:
        width //= 2
    return width


def planned(
    plan: KernelPlan, decide: Decider, alignments: Mapping[Use, int], target: Target
) -> KernelPlan:
    """``plan``, which ``suits``, with every access classified and a launch."""
    plan, width = _vectorized(replace(plan, family="outer"), decide, alignments)
    return replace(plan, launch=_launch(plan, width, decide, target))


def _launch(plan: KernelPlan, width: int, decide: Decider, target: Target) -> Launch:
    """``width``: elements of a vector along the kept dims."""
    rows, length = (product(a.extent for a in axes) for axes in (plan.rows, plan.columns))
    vectors = ceildiv(rows, width)
    whole = _comes_back(plan)
    rule = WHOLE_RULE if whole else SHARED_RULE
    threads = min(rule.threads, target.max_threads_per_block)
    items = _items(plan, width, rule.flight)
    across = ACROSS
    while across < threads and not decide.less(items * threads // across // 2, length):
        across *= 2
    while across > 1 and not decide.less(across // 2, vectors):
        across //= 2
    if not whole:
        parts, chunk = _shared(vectors, length, across, threads, items, decide, target)
        return Launch(threads, width, items, across=across, chunk=chunk, parts=parts)
    across = _narrowed(plan, width, across, vectors, decide, target)
    # Fewer threads side by side are more of them for a column, which may hold it then.
    narrow, least = across, max(1, LEAST_BYTES_ACROSS // (width * _itemsize(plan)))
    held = _turns_held(plan, width, threads // narrow, length, decide)
    while not held and narrow > least:
        narrow //= 2
        held = _turns_held(plan, width, threads // narrow, length, decide)
    if held:
        return Launch(threads, width, held, hold="registers", across=narrow, chunk=length)
    return Launch(threads, width, items, across=across, chunk=length)


def shared_columns(plan: KernelPlan) -> Size:
    """How many groups of columns blocks share: each has a counter of the parts that are done."""
    rows = product(a.extent for a in plan.rows)
    return ceildiv(ceildiv(rows, plan.launch.vector), plan.launch.across)


def _comes_back(plan: KernelPlan) -> bool:
    """Whether a block needs its results for another walk along its columns."""
    columns = {a.name for a in plan.columns}
    for store in plan.stores:
        depends = (plan.body[a].depends for a in store.operands)
        moving = sizes.symbols(store.offset).union(*depends) & columns
        if moving and any(plan.body[a].phase for a in store.operands):
            return True
    return plan.phases > 2


def _loaded(plan: KernelPlan, width: int, phase: int) -> int:
    """Bytes that a thread loads for one vector in ``phase``."""
    loads = (plan.body[at].detail for at in needed_in(plan, phase))
    return sum(width * plan.buffers[x.buffer].dtype.itemsize for x in loads if isinstance(x, Load))


def _items(plan: KernelPlan, width: int, flight: int) -> int:
    """How many vectors one below the other a thread loads before it uses the first."""
    most = max(_loaded(plan, width, phase) for phase in range(plan.phases))
    items = 1
    while items < MOST_ITEMS and 2 * items * most <= flight:
        items *= 2
    return items


def _shared(
    vectors: Size,
    length: Size,
    across: int,
    threads: int,
    items: int,
    decide: Decider,
    target: Target,
) -> tuple[Size, Size]:
    """How many parts share a block's columns, and how many elements down each of them walks."""
    blocks = ceildiv(vectors, across)
    wanted = ROUNDS * target.sm_count * (target.max_threads_per_sm // threads)
    chunk = LEAST_TURNS * items * threads // across
    if not decide.less(chunk, length) or not decide.less(blocks, wanted):
        return 1, length
    while decide.less(2 * chunk, length):
        parts = ceildiv(length, 2 * chunk)
        enough = not decide.less(blocks * parts, wanted)
        if not enough and not decide.less(MOST_PARTS, ceildiv(length, chunk)):
            break
        chunk *= 2
    return ceildiv(length, chunk), chunk


def _narrowed(
    plan: KernelPlan, width: int, across: int, vectors: Size, decide: Decider, target: Target
) -> int:
    """``across``, or less where that makes blocks for more of the SMs."""
    few = FEW_BLOCKS * target.sm_count
    while across * width * _itemsize(plan) > LEAST_BYTES_ACROSS and across > 1:
        if not decide.less(ceildiv(vectors, across), few):
            break
        across //= 2
    return across


def _itemsize(plan: KernelPlan) -> int:
    """Bytes of the widest elements that are moved along the columns."""
    moving = (plan.buffers[b].dtype.itemsize for b, o in accesses(plan) if _moves_down(plan, o))
    return max(moving, default=vectorize.ACCESS_BYTES)


def _moves_down(plan: KernelPlan, offset: Size) -> bool:
    moving = set().union(*(plan.moving(a.name) for a in plan.columns))
    return bool(sizes.symbols(offset) & moving)


def _turns_held(plan: KernelPlan, width: int, down: int, length: Size, decide: Decider) -> int:
    """How many vectors a thread has in all, where registers hold them between phases; else 0."""
    loads = [plan.body[at].detail for at in held_instructions(plan, width)]
    held = sum(width * plan.buffers[x.buffer].dtype.itemsize for x in loads if isinstance(x, Load))
    if not held:
        return 0
    items = 1
    while items < MOST_UNROLLED and 2 * items * held <= HELD_BYTES:
        if not decide.less(items * down, length):
            break
        items *= 2
    return items if not decide.less(items * down, length) else 0


def held_instructions(plan: KernelPlan, width: int) -> list[int]:
    """The vector loads along the columns that more than one phase uses."""
    uses: dict[int, int] = {}
    for phase in range(plan.phases):
        for at in needed_in(plan, phase):
            uses[at] = uses.get(at, 0) + 1
    whole = vectorize.whole_loads(plan, width)
    return [at for at, n in sorted(uses.items()) if n > 1 and at in whole]
