"""Vector accesses: which loads and stores can move several consecutive elements at once, and how
many.

An access is a *vector* when it steps by one element along the fastest axis and every other step,
its offset and its pointer are multiples of the vector; a *broadcast* when it does not move along
that axis; otherwise it goes *lane* by lane. A load under a condition is a vector where the
condition is one for all of a vector, as where the parts of a ``cat`` end between two vectors. Where
memory is aligned otherwise than the rest, loads may go *across* its 16-byte pieces. The width is
the widest that all candidates allow, else the widest that any allows, the rest going lane by lane.
What was decided from hints is recorded as a guard.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import Bound, Buffer, Draw, InRange, Instr, KernelPlan, Load

ACCESS_BYTES = 16
WIDEST = 8
FRESH_ALIGNMENT = 16
# Rows of fewer vectors are loaded element by element where they begin anywhere. (Reasoned: two of
# them are cut.)
SHORT_ROW = 16
# Longer rows begin at a line of memory, which has so many vectors: no two warps then share a
# sector, which costs most where both store.
LINE_VECTORS, LINED_ROW = 8, 128
WORDS = 4  # of a block of the random number generator


def vectorized(
    plan: KernelPlan,
    decide: Decider,
    alignments: Mapping[Use, int],
    widest: int = WIDEST,
    leads: Callable[[Size], bool] = lambda offset: True,
    across: bool = False,
) -> tuple[KernelPlan, int]:
    """``plan`` with every access classified, and the width of its vectors (1: none).

    ``alignments``: for each input the largest power of two up to 16 that divides its pointer; other
    buffers are fresh and aligned to 16 bytes. ``leads``: whether an access of that offset has a say
    in the width; the others follow where they can. ``across``: whether loads may go across pieces.
    """
    fast = plan.fast.name if plan.fast is not None else ""
    moving = plan.moving(fast)
    candidates = _candidates(plan, fast, moving)
    leading = {key: found for key, found in candidates.items() if leads(found.rest)}
    certain = {key: found for key, found in leading.items() if not found.bounds}
    width = _width(plan, decide, alignments, certain or leading, widest, across)
    allowed = {
        key
        for key, found in candidates.items()
        if width > 1 and _fits(found, width, decide, alignments, plan)
    }
    spanning = {k for k, found in candidates.items() if across and _spans(k, found, width)}
    body = _loads(plan, moving, allowed, spanning - allowed)
    if width % WORDS == 0:
        body = tuple(_drawn_at_once(i, plan, fast, moving, decide) for i in body)
    body = tuple(_told_at_once(i, plan, moving, width, decide) for i in body)
    stores = tuple(
        replace(s, access=_access(s.offset, moving, ("store", n), allowed, ()))
        for n, s in enumerate(plan.stores)
    )
    return replace(plan, body=tuple(body), stores=stores), width


def shifted(
    plan: KernelPlan, decide: Decider, alignments: Mapping[Use, int]
) -> tuple[KernelPlan, int] | None:
    """``plan`` with vectors that begin where memory's pieces do and not where rows do, and their
    width; None where ``vectorized`` does as well, or a row is short.

    One access leads, a store if there is one: its vectors are aligned, and those of all that is in
    step with it. Other loads go across the pieces, other stores element by element.
    """
    fast = plan.fast
    if plan.family != "row" or len(plan.columns) != 1 or fast is None:
        return None
    if any(b.space != "global" for b in plan.buffers):
        return None
    moving = plan.moving(fast.name)
    every = _candidates(plan, fast.name, moving).items()
    candidates = {key: found for key, found in every if not found.bounds}
    aligned = {
        key: found
        for key, found in candidates.items()
        if alignments.get(found.buffer.value, FRESH_ALIGNMENT) == ACCESS_BYTES
    }
    if not aligned:
        return None
    width = min(WIDEST, ACCESS_BYTES // min(c.buffer.dtype.itemsize for c in candidates.values()))
    fit = (_fits(c, width, decide, alignments, plan) for c in candidates.values())
    if width == 1 or (all(fit) and decide.divides(width, fast.extent)):
        return None
    if not decide.less(SHORT_ROW * width, fast.extent):
        return None

    def importance(key: Key) -> tuple[bool, bool, int]:
        buffer, rest, _ = aligned[key]
        return key[0] == "store", bool(sizes.symbols(rest)), buffer.dtype.itemsize

    lead = max(aligned, key=importance)
    begin = aligned[lead].rest

    def in_step(key: Key) -> bool:
        apart = sizes.add(aligned[key].rest, sizes.multiply(-1, begin))
        return all(decide.divides(width, s) for s in steps(apart, _varying(plan)))

    together = {key for key in aligned if key == lead or in_step(key)}
    across = {key for key, found in candidates.items() if _spans(key, found, width)}
    body = _loads(plan, moving, together, across - together)
    stores = tuple(
        replace(s, access=_access(s.offset, moving, ("store", n), together, ()))
        for n, s in enumerate(plan.stores)
    )
    lined = decide.less(LINED_ROW * width, fast.extent)
    below = width * LINE_VECTORS if lined else width
    launch = replace(plan.launch, shift=sizes.mod(begin, below), shift_below=below)
    return replace(plan, body=body, stores=stores, launch=launch), width


def _drawn_at_once(
    instr: Instr, plan: KernelPlan, fast: str, moving: set[str], decide: Decider
) -> Instr:
    """A draw whose vectors are whole blocks of random words is made block by block."""
    draw = instr.detail
    if not isinstance(draw, Draw) or instr.op != "uniform" or instr.dtype is DType.F64:
        return instr
    step = sizes.coefficient(draw.counter, fast)
    if step is None or step[0] != 1 or sizes.symbols(step[1]) & moving:
        return instr
    if not all(decide.divides(WORDS, s) for s in steps(step[1], _varying(plan))):
        return instr
    return replace(instr, detail=replace(draw, access="vector"))


def _told_at_once(
    instr: Instr, plan: KernelPlan, moving: set[str], width: int, decide: Decider
) -> Instr:
    """A condition that is one for all of a vector is told once."""
    told = instr.detail
    if width == 1 or not isinstance(told, InRange) or not _moves(told.bounds, moving):
        return instr
    if not _uniform(told.bounds, plan, width, decide):
        return instr
    return replace(instr, detail=replace(told, access="vector"))


def whole_loads(plan: KernelPlan, width: int) -> set[int]:
    """The loads that are fetched as whole vectors of ``width`` elements.

    Of one element every load may be, but for those at positions that are looked up, and those that
    look them up.
    """
    looked_up = set(plan.positions.values())
    for at in range(len(plan.body) - 1, -1, -1):
        if at in looked_up:
            looked_up |= set(plan.body[at].args)
    found = set()
    for at, instr in enumerate(plan.body):
        if isinstance(instr.detail, Load):
            single = width == 1 and not instr.args and at not in looked_up
            if single or plan.is_vector(at) or instr.detail.access == "staged":
                found.add(at)
    return found


Key = tuple[str, int]


class _Candidate(NamedTuple):
    """What an access that steps by one along the fastest axis goes to, the ``rest`` of its offset,
    and those of its conditions that are not the same all along that axis.
    """

    buffer: Buffer
    rest: Size
    bounds: tuple[Bound, ...]


def _candidates(plan: KernelPlan, fast: str, moving: set[str]) -> dict[Key, _Candidate]:
    """The accesses that step by one along ``fast``."""
    found: dict[Key, _Candidate] = {}
    accesses: list[tuple[Key, int, Size, tuple[Bound, ...]]] = [
        (("store", n), s.buffer, s.offset, ()) for n, s in enumerate(plan.stores) if s.mode == "set"
    ]
    for n, instr in enumerate(plan.body):
        if isinstance(instr.detail, Load):
            load = instr.detail
            accesses.append((("load", n), load.buffer, load.offset, load.mask))
    for key, buffer, offset, mask in accesses:
        step = sizes.coefficient(offset, fast)
        if step is None or sizes.symbols(step[1]) & moving:
            continue  # an element wherever a position says
        bounds = tuple(b for b in mask if _moves((b,), moving))
        if step[0] == 1:
            found[key] = _Candidate(plan.buffers[buffer], step[1], bounds)
    return found


def _uniform(bounds: tuple[Bound, ...], plan: KernelPlan, width: int, decide: Decider) -> bool:
    """Whether each bound holds for all of a vector or for none of it, wherever a vector begins."""
    if plan.fast is None or not decide.divides(width, plan.fast.extent):
        return False
    fast, varying = plan.fast.name, _varying(plan)
    moving = plan.moving(fast)
    for bound in bounds:
        step = sizes.coefficient(bound.index, fast)
        if step is None or step[0] != 1 or sizes.symbols(step[1]) & moving:
            return False
        ends = (*steps(step[1], varying), *steps(bound.extent, varying))
        if not all(decide.divides(width, s) for s in ends):
            return False
    return True


def _spans(key: Key, found: _Candidate, width: int) -> bool:
    """Whether the access is a load of whole pieces of memory, which may lie across them."""
    whole = width * found.buffer.dtype.itemsize >= ACCESS_BYTES
    return key[0] == "load" and whole and not found.bounds


def _loads(
    plan: KernelPlan, moving: set[str], allowed: set[Key], across: set[Key]
) -> tuple[Instr, ...]:
    """The body with every load classified."""
    body = list(plan.body)
    for n, instr in enumerate(body):
        load = instr.detail
        if isinstance(load, Load):
            access = _access(load.offset, moving, ("load", n), allowed, load.mask)
            access = "across" if ("load", n) in across else access
            body[n] = replace(instr, detail=replace(load, access=access))
    return tuple(body)


def _moves(mask: tuple[Bound, ...], moving: set[str]) -> bool:
    return any(moving & sizes.symbols(b.index) for b in mask)


def _access(
    offset: Size, moving: set[str], key: Key, allowed: set[Key], mask: tuple[Bound, ...]
) -> str:
    if key in allowed:
        return "vector"
    still = not moving & sizes.symbols(offset) and not _moves(mask, moving)
    return "broadcast" if still else "lane"


def _width(
    plan: KernelPlan,
    decide: Decider,
    alignments: Mapping[Use, int],
    candidates: dict[Key, _Candidate],
    widest: int,
    across: bool,
) -> int:
    if not candidates or plan.fast is None:
        return 1
    smallest = min(c.buffer.dtype.itemsize for c in candidates.values())
    # Of a flat kernel some elements may be left over; along a row every vector has to be whole.
    flat = plan.family == "pointwise" and len(plan.columns) == 1
    widths = []
    width = min(widest, ACCESS_BYTES // smallest)
    while width > 1:
        if flat or decide.divides(width, plan.fast.extent):
            widths.append(width)
        width //= 2
    for every in (True, False):
        for width in widths:
            fit = [
                _fits(found, width, decide, alignments, plan)
                or (every and across and _spans(key, found, width))
                for key, found in candidates.items()
            ]
            if all(fit) if every else any(fit):
                return width
    return 1


def _fits(
    found: _Candidate, width: int, decide: Decider, alignments: Mapping[Use, int], plan: KernelPlan
) -> bool:
    needed = min(ACCESS_BYTES, width * found.buffer.dtype.itemsize)
    if alignments.get(found.buffer.value, FRESH_ALIGNMENT) < needed:
        return False
    if not all(decide.divides(width, step) for step in steps(found.rest, _varying(plan))):
        return False
    return not found.bounds or _uniform(found.bounds, plan, width, decide)


def _varying(plan: KernelPlan) -> set[str]:
    """What differs within a kernel: its axes and the positions that are looked up."""
    return {a.name for a in (*plan.rows, *plan.columns)} | plan.positions.keys()


def steps(offset: Size, names: set[str]) -> list[Size]:
    """The factors of ``offset`` beside each product of things that vary over ``names``, and its
    rest.
    """
    if isinstance(offset, int):
        return [offset]
    by_moving: dict[tuple[str, ...], Size] = {}
    for monomial, c in offset.terms:
        moving, factor = [], c * sizes.product(())
        for atom in monomial:
            single: Size = sizes.Expr((((atom,), 1),))
            if sizes.symbols(single) & names:
                moving.append(atom.key)
            else:
                factor = sizes.multiply(factor, single)
        key = tuple(moving)
        by_moving[key] = sizes.add(by_moving.get(key, 0), factor)
    return list(by_moving.values())
