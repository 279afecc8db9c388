"""Which instructions may use cheap functions: those whose every use ends in a 16- or 8-bit float.

A value that is compared, cast to an integer or stored in 32 bits is *strict*, and so is everything
that it is computed from: an error there could be seen whole. What remains is *loose*. The peers
that we measure against make no such difference; we do, so that f32 programs are as exact as eager
ones.
"""

import math
from collections import Counter
from dataclasses import replace

from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import Const, Instr, KernelPlan

# Ops through which an error passes in proportion: continuous, with no result that jumps.
CONTINUOUS = {
    *("abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"),
    *("reciprocal", "sin", "cos", "tanh", "erf", "erfc", "sinh", "cosh", "atan", "asinh"),
    *("add", "sub", "mul", "div", "fma", "minimum", "maximum", "lerp", "where", "cast"),
    *("reduce_sum", "reduce_prod", "reduce_amax", "reduce_amin"),
}

# Of f32: the least number whose reciprocal is a number too, and conversely.
SMALLEST_NORMAL = 2.0**-126
# What is below, times this, has a finite reciprocal; what is divided by it may become infinite then
# only where the quotient is.
NEAR_ZERO, LARGER = 2.0**-100, 2.0**24


def relaxed(plan: KernelPlan) -> KernelPlan:
    """``plan`` with its loose instructions marked."""
    strict = {s.value for s in plan.stores if not plan.buffers[s.buffer].dtype.is_low_precision}
    strict |= {a for s in plan.stores for a in s.operands if a != s.value}
    for at in range(len(plan.body) - 1, -1, -1):
        instr = plan.body[at]
        if at in strict or instr.op not in CONTINUOUS or instr.dtype.compute is not DType.F32:
            strict |= set(instr.args)
            strict.add(at)
    body = tuple(replace(i, loose=n not in strict) for n, i in enumerate(plan.body))
    return replace(plan, body=body)


def rounded_once(plan: KernelPlan) -> KernelPlan:
    """``plan`` without the roundings of values that are stored and no more: a store rounds them.

    To 8 bits and back is some thirty instructions. (H200, scaled f8 cast of bf16[16384, 8192]:
    1240 instructions with them, 792 without, most of those for what is out of range.)
    """
    needed = {a for i in plan.body for a in i.args}
    for s in plan.stores:
        needed |= {a for a in s.operands if a != s.value}
        if s.mode == "add" or plan.buffers[s.buffer].dtype is not plan.body[s.value].dtype:
            needed.add(s.value)
    body = tuple(replace(i, rounds=i.rounds and n in needed) for n, i in enumerate(plan.body))
    return replace(plan, body=body)


class _Rewriter:
    """Builds a new body; ``moved`` maps old instruction numbers to new ones."""

    def __init__(self, plan: KernelPlan) -> None:
        self.plan = plan
        self.columns = {a.name for a in plan.columns}
        self.body: list[Instr] = []
        self.moved: dict[int, int] = {}
        self.uses = _uses(plan)
        self._reciprocals: dict[int, tuple[int | None, int]] = {}

    def append(self, instr: Instr) -> int:
        self.body.append(instr)
        return len(self.body) - 1

    def run(self) -> KernelPlan:
        for at, old in enumerate(self.plan.body):
            instr = replace(old, args=tuple(self.moved[a] for a in old.args))
            if instr.loose and instr.op == "cast" and not instr.rounds:
                source = self.body[instr.args[0]]
                if source.dtype.compute is instr.dtype.compute:
                    self.moved[at] = instr.args[0]
                    continue
            if instr.loose and instr.op == "div":
                instr = self._division(instr)
            elif instr.loose and instr.op == "add":
                instr = self._fused_add(old, instr)
            self.moved[at] = self.append(instr)
        stores = tuple(s.moved(self.moved) for s in self.plan.stores)
        return replace(self.plan, body=tuple(self.body), stores=stores)

    def _division(self, instr: Instr) -> Instr:
        """Dividing a row by one number is multiplying it by the number's reciprocal."""
        divisor = self.body[instr.args[1]]
        if isinstance(divisor.detail, Const):
            number = float(divisor.detail.text)
            inverse = 1.0 / number if number else math.inf
            if not SMALLEST_NORMAL <= abs(inverse) <= 1 / SMALLEST_NORMAL:
                return instr
            other = self.append(replace(divisor, detail=Const(repr(inverse))))
            return replace(instr, op="mul", args=(instr.args[0], other))
        if divisor.depends & self.columns or not instr.depends & self.columns:
            return instr
        at = instr.args[1]
        if at not in self._reciprocals:
            self._reciprocals[at] = self._reciprocal(at)
        factor, inverse = self._reciprocals[at]
        x = instr.args[0]
        if factor is not None:
            x = self.append(replace(instr, op="mul", args=(x, factor)))
        return replace(instr, op="mul", args=(x, inverse))

    def _reciprocal(self, at: int) -> tuple[int | None, int]:
        """A factor for what is divided by ``at``, where one is needed, and what to multiply with.

        The reciprocal of a number near 0 is infinite, though the quotient may be small: both sides
        are made larger first.
        """
        divisor = self.body[at]
        plain = replace(divisor, loose=False, rounds=False, detail=None)

        def row(op: str, *args: int) -> int:
            return self.append(replace(plain, op=op, args=args))

        if self._is_far_from_zero(at):
            return None, row("reciprocal", at)

        def number(value: float) -> int:
            made = replace(plain, op="const", args=(), detail=Const(repr(value)))
            return self.append(replace(made, depends=frozenset(), phase=0))

        near = replace(plain, op="lt", args=(row("abs", at), number(NEAR_ZERO)), dtype=DType.BOOL)
        factor = row("where", self.append(near), number(LARGER), number(1.0))
        return factor, row("reciprocal", row("mul", at, factor))

    def _is_far_from_zero(self, at: int) -> bool:
        """Whether it is 0, or no closer to it than a number whose reciprocal is finite.

        So are roots, and a row's sum of exponentials of distances from its maximum: one of them is
        1.
        """
        instr = self.body[at]
        if instr.op == "cast" and self.body[instr.args[0]].dtype.compute is DType.F32:
            return self._is_far_from_zero(instr.args[0])
        if instr.op == "sqrt":
            return True
        if instr.op != "reduce_sum":
            return False
        term = self.body[instr.args[0]]
        if term.op != "exp" or self.body[term.args[0]].op != "sub":
            return False
        x, most = self.body[term.args[0]].args
        largest = self.body[most]
        return largest.op == "reduce_amax" and largest.args[0] == x

    def _fused_add(self, old: Instr, instr: Instr) -> Instr:
        """``a*b + c`` in one rounding, where nothing else needs ``a*b``."""
        for side in (0, 1):
            product = self.body[instr.args[side]]
            plain = product.op == "mul" and product.loose and not product.rounds
            if plain and self.uses[self._through_casts(old.args[side])] == 1:
                args = (*product.args, instr.args[1 - side])
                return replace(instr, op="fma", args=args)
        return instr

    def _through_casts(self, at: int) -> int:
        """The instruction that ``at`` stands for, seen through casts that change nothing."""
        while self.plan.body[at].op == "cast" and self.uses[at] == 1:
            at = self.plan.body[at].args[0]
        return at


def _uses(plan: KernelPlan) -> Counter[int]:
    """How many operands and stores each instruction is."""
    found = Counter(a for i in plan.body for a in i.args)
    found.update(a for s in plan.stores for a in s.operands)
    return found


def cheapened(plan: KernelPlan) -> KernelPlan:
    """``plan`` with loose divisions and sums in their cheap forms."""
    return _pruned(_Rewriter(plan).run())


def _pruned(plan: KernelPlan) -> KernelPlan:
    """``plan`` without the instructions that nothing uses any more."""
    needed = {a for s in plan.stores for a in s.operands}
    for at in range(len(plan.body) - 1, -1, -1):
        if at in needed:
            needed |= set(plan.body[at].args)
    kept = sorted(needed)
    place = {old: new for new, old in enumerate(kept)}
    body = tuple(
        replace(plan.body[at], args=tuple(place[a] for a in plan.body[at].args)) for at in kept
    )
    stores = tuple(s.moved(place) for s in plan.stores)
    return replace(plan, body=body, stores=stores)
