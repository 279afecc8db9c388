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


class _Rewriter:
    """Builds a new body; ``moved`` maps old instruction numbers to new ones."""

    def __init__(self, plan: KernelPlan) -> None:
        self.plan = plan
        self.columns = {a.name for a in plan.columns}
        self.body: list[Instr] = []
        self.moved: dict[int, int] = {}
        self.uses = _uses(plan)
        self._reciprocals: dict[int, int] = {}

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
            inverse = 1.0 / float(divisor.detail.text) if float(divisor.detail.text) else math.inf
            if not math.isfinite(inverse):
                return instr
            other = self.append(replace(divisor, detail=Const(repr(inverse))))
            return replace(instr, op="mul", args=(instr.args[0], other))
        if divisor.depends & self.columns or not instr.depends & self.columns:
            return instr
        at = instr.args[1]
        if at not in self._reciprocals:
            made = replace(divisor, op="reciprocal", args=(at,), detail=None, loose=False)
            self._reciprocals[at] = self.append(made)
        return replace(instr, op="mul", args=(instr.args[0], self._reciprocals[at]))

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
