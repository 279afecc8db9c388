"""From a group of roots to the finished plan of one kernel: order axes, merge, vectorize, choose a
launch.
"""

from collections.abc import Mapping
from dataclasses import replace

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import SizeAttrs
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule import inner_outer, ladder, online, outer, scan, transpose
from thunder_mdfuse.schedule import launch as rules
from thunder_mdfuse.schedule.axes import expressions, merged, ordered
from thunder_mdfuse.schedule.group import Group
from thunder_mdfuse.schedule.lower import Lowering
from thunder_mdfuse.schedule.plan import (
    Axis,
    Buffer,
    Const,
    Instr,
    KernelPlan,
    Launch,
    Load,
    Position,
    Scalar,
)
from thunder_mdfuse.schedule.precision import cheapened, relaxed, rounded_once
from thunder_mdfuse.schedule.target import Target
from thunder_mdfuse.schedule.vectorize import WIDEST, shifted, vectorized

LAUNCHES = {
    "pointwise": rules.pointwise,
    "row": ladder.row,
    "inner_outer": inner_outer.launch,
    "scan": scan.launch,
}
_NO_LAUNCH = Launch(1, 1, 1)


def kernel_plan(
    group: Group, decide: Decider, alignments: Mapping[Use, int], target: Target
) -> KernelPlan:
    """The plan of the kernel that computes ``group``'s roots."""
    plan = _without_empty_tensors(_domain(group, decide), group.lowering.fusion, decide)
    plan = rounded_once(merged(plan))
    if not group.lowering.round_all:
        plan = cheapened(relaxed(plan))
    plan = _laid_out(plan, group, decide, alignments, target)
    wide = any(_needs_64_bits(e, plan, decide) for e in _reaches(plan))
    plan = replace(plan, launch=replace(plan.launch, wide_index=wide))
    if plan.family == "inner_outer":
        return inner_outer.with_workspaces(plan)
    return _with_workspaces(plan) if plan.launch.parts != 1 else plan


def _laid_out(
    plan: KernelPlan,
    group: Group,
    decide: Decider,
    alignments: Mapping[Use, int],
    target: Target,
) -> KernelPlan:
    """``plan`` of the first family that suits it, every access classified, with a launch."""
    if outer.suits(plan, decide):
        return outer.planned(plan, decide, alignments, target)
    turned = transpose.turned(plan, decide)
    if turned is not None:
        return transpose.planned(turned, decide, alignments)
    # Threads side by side store side by side, so that their atomics share a sector. (H200, sums of
    # f32[8192, 4096] into 32000 rows: 278 us; with vectors of 4, whose lanes lie apart, 336 us.)
    widest = WIDEST if all(s.mode == "set" for s in plan.stores) else 1

    def launched(plan: KernelPlan) -> KernelPlan:
        found = shifted(plan, decide, alignments) if widest == WIDEST else None
        across = plan.family == "pointwise"
        plan, width = found or vectorized(plan, decide, alignments, widest, across=across)
        launch = LAUNCHES[plan.family](plan, width, decide, target)
        shift, below = plan.launch.shift, plan.launch.shift_below
        plan = replace(plan, launch=replace(launch, shift=shift, shift_below=below))
        return _with_reaches(plan, group.lowering)

    if plan.family != "row":
        return launched(plan)
    single = online.in_one_pass(plan, _LengthOf(plan, group.lowering.fusion, decide))
    if single is plan:
        return launched(plan)
    once = launched(single)
    if once.launch.parts != 1:
        return once
    twice = launched(plan)
    # What is stored for each column needs the row again, and a cluster still has it.
    again = any(sizes.symbols(s.offset) & {a.name for a in plan.columns} for s in plan.stores)
    if again:
        return once if twice.launch.hold == "none" else twice
    # A mean square costs a division each element; exponentials cost less in one pass.
    alone = twice.launch.cluster == 1 and twice.launch.hold == "registers"
    squares = any(i.op == "reduce_squares" for i in once.body)
    return twice if alone and squares else once


class _LengthOf:
    """Tells which numbers of a body are the length of its rows."""

    def __init__(self, plan: KernelPlan, fusion: Fusion, decide: Decider) -> None:
        self.fusion, self.decide = fusion, decide
        self.length = sizes.product(a.extent for a in plan.columns)

    def __call__(self, instr: Instr, inverted: bool) -> bool:
        if isinstance(instr.detail, Const):
            number = float(instr.detail.text)
            number = 1 / number if inverted and number else number
            return 0 < number < online.EXACT and self.decide.equal(self.length, round(number))
        if inverted or not isinstance(instr.detail, Scalar):
            return False
        node = self.fusion.nodes[instr.detail.value.node]
        return isinstance(node.attrs, SizeAttrs) and self.decide.equal(node.attrs.size, self.length)


def _with_reaches(plan: KernelPlan, lowering: Lowering) -> KernelPlan:
    """``plan`` with what is known of the memory beside the elements that vectors are read for."""
    body = list(plan.body)
    for at, instr in enumerate(body):
        load = instr.detail
        if not isinstance(load, Load) or not plan.is_vector(at):
            continue
        if load.access == "across" or plan.launch.shift is not None:
            base = plan.buffers[load.buffer].value
            shape, strides = lowering.fusion.tensor(base).shape, lowering.layouts[base].strides
            reach: Size = 1
            for extent, stride in zip(shape, strides, strict=True):
                reach = sizes.add(reach, sizes.multiply(sizes.add(extent, -1), stride))
            body[at] = replace(instr, detail=replace(load, reach=reach))
    return replace(plan, body=tuple(body))


def _with_workspaces(plan: KernelPlan) -> KernelPlan:
    """``plan`` with memory for the results of the parts, and counters of arrived parts."""
    rows = sizes.product(a.extent for a in plan.rows)
    scratch = [
        Buffer(Use(n, part), dtype, False, "workspace", rows * plan.launch.parts)
        for n, i in enumerate(plan.body)
        if i.op.startswith("reduce_")
        for part, dtype in enumerate(_accumulated(plan, i))
    ]
    shared = outer.shared_columns(plan) if plan.family == "outer" else rows
    counters = Buffer(Use(0), DType.I32, False, "counters", shared)
    return replace(plan, buffers=(*plan.buffers, *scratch, counters))


def _accumulated(plan: KernelPlan, instr: Instr) -> tuple[DType, ...]:
    """What a block has of a reduction: its result, several numbers that it comes from or, of
    argmax, the element and where it is.
    """
    if instr.is_arg_reduction:
        return plan.body[instr.args[0]].dtype.compute, DType.I64
    return (instr.dtype.compute,) * online.NUMBERS.get(instr.op, 1)


def _domain(group: Group, decide: Decider) -> KernelPlan:
    lowering = group.lowering
    axes = [Axis(n, e) for n, e in zip(group.names, group.shape, strict=True)]
    family = "row" if lowering.reductions else "pointwise"
    if group.scanned is not None:
        family = "scan"
    elif any(i.late for i in lowering.body):
        family = "inner_outer"
    reduced = group.reduced if lowering.reductions else range(len(axes))
    rows = [a for d, a in enumerate(axes) if d not in reduced]
    columns = [a for d, a in enumerate(axes) if d in reduced]
    plan = KernelPlan(
        family,
        tuple(rows),
        tuple(columns),
        tuple(lowering.buffers),
        tuple(lowering.body),
        tuple(lowering.stores),
        _NO_LAUNCH,
    )
    strides = _main_strides(plan, decide)
    return replace(
        plan, rows=tuple(ordered(rows, strides)), columns=tuple(ordered(columns, strides))
    )


def _without_empty_tensors(plan: KernelPlan, fusion: Fusion, decide: Decider) -> KernelPlan:
    """``plan`` without loads and stores of tensors that have no element.

    One that does not vary along a row is made once for the row, even for a row of length 0.
    """
    if plan.family == "pointwise":
        return plan
    columns = {a.name for a in plan.columns}

    def is_empty(buffer: int) -> bool:
        shape = fusion.tensor(plan.buffers[buffer].value).shape
        return any(decide.equal(size, 0) for size in shape)

    body = list(plan.body)
    for at, instr in enumerate(body):
        once = isinstance(instr.detail, Load) and not instr.depends & columns
        if once and is_empty(instr.detail.buffer):  # type: ignore[union-attr]
            body[at] = Instr("const", (), instr.dtype.compute, Const("0"))
    stores = tuple(
        s for s in plan.stores if sizes.symbols(s.offset) & columns or not is_empty(s.buffer)
    )
    return replace(plan, body=tuple(body), stores=stores)


def _main_strides(plan: KernelPlan, decide: Decider) -> dict[str, int]:
    """The steps along each axis of the access that moves along most axes, stores first."""
    offsets: list[Size] = [s.offset for s in plan.stores]
    offsets += [i.detail.offset for i in plan.body if isinstance(i.detail, Load)]
    names = {a.name for a in (*plan.rows, *plan.columns)}
    if not offsets:
        return {}
    main = max(offsets, key=lambda o: len(sizes.symbols(o) & names))
    found = {}
    for name in names:
        step = sizes.coefficient(main, name)
        found[name] = decide.value(step[0]) if step is not None else 0
    return found


def _reaches(plan: KernelPlan) -> list[Size]:
    total = sizes.product(a.extent for a in (*plan.rows, *plan.columns))
    walked = [inner_outer.reach(plan)] if plan.family == "inner_outer" else []
    memory = [i.detail.reach for i in plan.body if isinstance(i.detail, Load)]
    return [*expressions(plan.body, plan.stores), total, *walked, *memory]


def _needs_64_bits(expr: Size, plan: KernelPlan, decide: Decider) -> bool:
    ranges = {a.name: a.extent for a in (*plan.rows, *plan.columns)}
    details = [plan.body[at].detail for at in plan.positions.values()]
    ranges |= {d.name: d.extent for d in details if isinstance(d, Position)}
    bound = sizes.upper_bound(expr, ranges)
    # Threads past the end compute an index before they compare it, so leave them room.
    margin = plan.launch.threads * plan.launch.items * plan.launch.vector
    return bound is None or rules.wide_index(plan, decide, bound + 1 + margin)
