"""Reductions that need an earlier one of the same row, in the same pass as that one.

A row that fits nowhere is read in every phase, so two phases in one are a whole read less; and
where nothing is stored for each column, a kernel of one pass can share a row among many blocks.

    sum(exp(x - amax(x)))      reduce_sum_exp      Milakov, Gimelshein: Online normalizer
                                                   calculation for softmax, 2018
    amax(x), beside it         amax_of             what that sum has seen
    sum((x - sum(x) / n)**2)   reduce_squares      Welford: Note on a method for calculating
                                                   corrected sums of squares and products, 1962
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import Const, Instr, KernelPlan

REAL = (DType.F32, DType.F64)
# How many numbers the accumulator of each has.
NUMBERS = {
    "reduce_sum_exp": 2,
    "reduce_sum_exp_finite": 2,
    "reduce_sum_exp_floored": 2,
    "reduce_squares": 3,
}
# Lengths beyond this are no f32 numbers.
EXACT = 1 << 24


def in_one_pass(plan: KernelPlan, is_length: Callable[[Instr, bool], bool]) -> KernelPlan:
    """``plan`` with such reductions in one phase with what they need; itself where there are none.

    ``is_length(instr, inverted)``: whether a number is the length of a row, or one part of it.
    """
    found = _Found(plan, is_length)
    body = list(plan.body)
    seen: dict[int, int] = {}
    for at, instr in enumerate(plan.body):
        if instr.op == "reduce_sum" and instr.dtype.compute in REAL:
            single = found.of(instr)
            if single is not None:
                op, operand = single
                body[at] = replace(instr, op=op, args=(operand,))
                if op != "reduce_squares":
                    seen |= {n: at for n in range(at) if found.is_largest(n, operand)}
    if tuple(body) == plan.body:
        return plan
    for largest, total in seen.items():
        body[largest] = replace(body[largest], op="amax_of", args=(total,))
    plan = _sorted(replace(plan, body=tuple(body)))
    return replace(plan, body=_phased(plan.body))


class _Found:
    def __init__(self, plan: KernelPlan, is_length: Callable[[Instr, bool], bool]) -> None:
        self.body, self.is_length = plan.body, is_length
        self.columns = {a.name for a in plan.columns}

    def of(self, total: Instr) -> tuple[str, int] | None:
        """What the sum is of which instruction, if it is one of those that need no own pass."""
        term = self._through_casts(total.args[0])
        return self._exponentials(self.body[term]) or self._squares(self.body[term])

    def _exponentials(self, term: Instr) -> tuple[str, int] | None:
        if term.op != "exp":
            return None
        difference = self.body[self._through_casts(term.args[0])]
        if difference.op != "sub":
            return None
        x, subtracted = (self._through_casts(a) for a in difference.args)
        if self.is_largest(subtracted, x):
            return "reduce_sum_exp", x
        return self._largest_or_zero(subtracted, x)

    def _squares(self, term: Instr) -> tuple[str, int] | None:
        if term.op != "mul" or term.args[0] != term.args[1]:
            return None
        difference = self.body[self._through_casts(term.args[0])]
        if difference.op != "sub":
            return None
        x, subtracted = (self._through_casts(a) for a in difference.args)
        mean = self.body[subtracted]
        if mean.op not in ("div", "mul"):
            return None
        total = self.body[self._through_casts(mean.args[0])]
        if total.op != "reduce_sum" or self._through_casts(total.args[0]) != x:
            return None
        return ("reduce_squares", x) if self._divides_by_length(mean) else None

    def _divides_by_length(self, mean: Instr) -> bool:
        number = self.body[self._through_casts(mean.args[1])]
        if mean.op == "div":
            return self.is_length(number, False)
        if number.op == "reciprocal":
            return self.is_length(self.body[self._through_casts(number.args[0])], False)
        return self.is_length(number, True)

    def is_largest(self, at: int, x: int) -> bool:
        """Whether ``at`` is the largest ``x`` of the row."""
        instr = self.body[at]
        return instr.op == "reduce_amax" and self._through_casts(instr.args[0]) == x

    def _largest_or_zero(self, at: int, x: int) -> tuple[str, int] | None:
        """The sum's op if ``at`` is that, but 0 where it is infinite, or where it is -inf."""
        choice = self.body[at]
        if choice.op != "where":
            return None
        condition, zero, largest = (self._through_casts(a) for a in choice.args)
        equal = self.body[condition]
        if equal.op != "eq" or not self._is_const(zero, 0.0) or not self.is_largest(largest, x):
            return None
        size, infinity = (self._through_casts(a) for a in equal.args)
        seen = self.body[size]
        op = {"abs": "reduce_sum_exp_finite", "neg": "reduce_sum_exp_floored"}.get(seen.op)
        if op is None or self._through_casts(seen.args[0]) != largest:
            return None
        return (op, x) if self._is_const(infinity, float("inf")) else None

    def _is_const(self, at: int, value: float) -> bool:
        detail = self.body[at].detail
        return isinstance(detail, Const) and float(detail.text) == value

    def _through_casts(self, at: int) -> int:
        """The instruction that ``at`` has the value of, in the same compute type."""
        while self.body[at].op == "cast" and not self.body[at].rounds:
            source = self.body[at].args[0]
            if self.body[source].dtype.compute is not self.body[at].dtype.compute:
                break
            at = source
        return at


def _sorted(plan: KernelPlan) -> KernelPlan:
    """``plan`` with every instruction behind its operands, otherwise in the same order."""
    order: dict[int, int] = {}

    def place(at: int) -> None:
        if at not in order:
            for operand in plan.body[at].args:
                place(operand)
            order[at] = len(order)

    for at in range(len(plan.body)):
        place(at)
    body = tuple(
        replace(plan.body[at], args=tuple(order[a] for a in plan.body[at].args)) for at in order
    )
    return replace(plan, body=body, stores=tuple(s.moved(order) for s in plan.stores))


def _phased(body: Sequence[Instr]) -> tuple[Instr, ...]:
    """``body`` with the phase of each instruction found anew."""
    found: list[Instr] = []
    for instr in body:
        phase = max((found[a].phase for a in instr.args), default=0)
        found.append(replace(instr, phase=phase + instr.op.startswith("reduce_")))
    return tuple(found)
