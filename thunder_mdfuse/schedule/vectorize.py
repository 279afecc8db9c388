"""Vector accesses: which loads and stores can move several consecutive elements at once, and how
many.

An access is a *vector* when it steps by one element along the fastest axis and every other step,
its offset and its pointer are multiples of the vector; a *broadcast* when it does not move along
that axis; otherwise it goes *lane* by lane. The width is the widest that all candidates allow, else
the widest that any allows, the rest going lane by lane. What was decided from hints is recorded as
a guard.
"""

from collections.abc import Mapping
from dataclasses import replace

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.schedule.plan import Bound, Buffer, KernelPlan, Load

ACCESS_BYTES = 16
WIDEST = 8
FRESH_ALIGNMENT = 16


def vectorized(
    plan: KernelPlan, decide: Decider, alignments: Mapping[Use, int]
) -> tuple[KernelPlan, int]:
    """``plan`` with every access classified, and the width of its vectors (1: none).

    ``alignments``: for each input the largest power of two up to 16 that divides its pointer; other
    buffers are fresh and aligned to 16 bytes.
    """
    fast = plan.columns[-1].name if plan.columns else ""
    candidates = _candidates(plan, fast)
    width = _width(plan, decide, alignments, candidates)
    allowed = {
        key
        for key, (buffer, rest) in candidates.items()
        if width > 1 and _fits(buffer, rest, width, decide, alignments, plan)
    }
    body = tuple(
        replace(
            i,
            detail=replace(
                i.detail, access=_access(i.detail.offset, fast, ("load", n), allowed, i.detail.mask)
            ),
        )
        if isinstance(i.detail, Load)
        else i
        for n, i in enumerate(plan.body)
    )
    stores = tuple(
        replace(s, access=_access(s.offset, fast, ("store", n), allowed, ()))
        for n, s in enumerate(plan.stores)
    )
    return replace(plan, body=tuple(body), stores=stores), width


Key = tuple[str, int]


def _candidates(plan: KernelPlan, fast: str) -> dict[Key, tuple[Buffer, Size]]:
    """The accesses that step by one along ``fast``, each with its buffer and the rest of its
    offset.
    """
    found: dict[Key, tuple[Buffer, Size]] = {}
    accesses: list[tuple[Key, int, Size, tuple[Bound, ...]]] = [
        (("store", n), s.buffer, s.offset, ()) for n, s in enumerate(plan.stores)
    ]
    for n, instr in enumerate(plan.body):
        if isinstance(instr.detail, Load):
            load = instr.detail
            accesses.append((("load", n), load.buffer, load.offset, load.mask))
    for key, buffer, offset, mask in accesses:
        step = sizes.coefficient(offset, fast)
        if step is not None and step[0] == 1 and not _moves(mask, fast):
            found[key] = (plan.buffers[buffer], step[1])
    return found


def _moves(mask: tuple[Bound, ...], fast: str) -> bool:
    return any(fast in sizes.symbols(b.index) for b in mask)


def _access(offset: Size, fast: str, key: Key, allowed: set[Key], mask: tuple[Bound, ...]) -> str:
    if key in allowed:
        return "vector"
    still = fast not in sizes.symbols(offset) and not _moves(mask, fast)
    return "broadcast" if still else "lane"


def _width(
    plan: KernelPlan,
    decide: Decider,
    alignments: Mapping[Use, int],
    candidates: dict[Key, tuple[Buffer, Size]],
) -> int:
    if not candidates:
        return 1
    smallest = min(b.dtype.itemsize for b, _ in candidates.values())
    widths = []
    width = min(WIDEST, ACCESS_BYTES // smallest)
    while width > 1:
        if decide.divides(width, plan.columns[-1].extent):
            widths.append(width)
        width //= 2
    for every in (True, False):
        for width in widths:
            fit = [_fits(b, r, width, decide, alignments, plan) for b, r in candidates.values()]
            if all(fit) if every else any(fit):
                return width
    return 1


def _fits(
    buffer: Buffer,
    rest: Size,
    width: int,
    decide: Decider,
    alignments: Mapping[Use, int],
    plan: KernelPlan,
) -> bool:
    needed = min(ACCESS_BYTES, width * buffer.dtype.itemsize)
    if alignments.get(buffer.value, FRESH_ALIGNMENT) < needed:
        return False
    names = {a.name for a in (*plan.rows, *plan.columns)}
    return all(decide.divides(width, step) for step in steps(rest, names))


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
