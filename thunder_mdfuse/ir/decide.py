"""Answers to yes-or-no questions about sizes, and the guards that the answers rest on.

What is certain is answered from the structure of the sizes. What is not is answered by the *hints*
(the values of the symbols at the call that a program is specialised for), and the answer is written
down as a ``Guard``, once, in one normal form, so that a program can check that it still holds.

A position in a team (``@tp``) differs between the ranks that run one program. With ``positions``
given, a question is put at every position: where all agree, what is written down are facts without
positions, so that all ranks keep or lose them together. Where positions disagree (a trailing chunk
is shorter, or empty) the answer is that of position 0, which holds the largest chunk, and nothing
is written down.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Guard
from thunder_mdfuse.ir.sizes import Expr, Size


class Decider:
    """``guards``: what ``equal``, ``less`` and ``at_most`` had to assume, in order of asking."""

    def __init__(
        self,
        hints: Mapping[str, int] | None = None,
        known: Iterable[Guard] = (),
        positions: Mapping[str, int] | None = None,
    ) -> None:
        """``known``: guards that hold already; ``positions``: team name -> number of ranks."""
        self.hints = dict(hints or {})
        self.positions = dict(positions or {})
        self.guards: list[Guard] = []
        self._answers: dict[Guard, bool] = {}
        self._least: dict[str, int] = {}
        for guard in known:
            self._learn(_normal(guard))

    def equal(self, a: Size, b: Size) -> bool:
        """Whether ``a == b``."""
        certain = self.surely_equal(a, b)
        return self._ask(Guard(a, "==", b)) if certain is None else certain

    def less(self, a: Size, b: Size) -> bool:
        """Whether ``a < b``."""
        certain = self.surely_less(a, b)
        return self._ask(Guard(a, "<", b)) if certain is None else certain

    def at_most(self, a: Size, b: Size) -> bool:
        """Whether ``a <= b``."""
        return not self.less(b, a)

    def divides(self, divisor: int, size: Size) -> bool:
        """Whether ``divisor`` divides ``size``, at every position where positions are given.

        A no is not written down: what was planned without the division stays right with it.
        """
        if isinstance(size, int):
            return size % divisor == 0
        if all(c % divisor == 0 for _, c in size.terms):
            return True
        names = sizes.symbols(size)
        teams = {f"@{name.removeprefix('@')}" for name in self.positions} & names
        facts = set()
        for place in self.places():
            fact = _at(Guard(divisor, "divides", size), {n: place[n] for n in teams})
            if not holds(fact, self._values(names - teams)):
                return False
            facts.add(fact)
        for fact in sorted(facts, key=str):
            self._note(fact, True)
        return True

    def value(self, size: Size) -> int:
        """``size`` at the hints and at position 0 of every team: what a rule of thumb goes by."""
        return sizes.evaluate(size, next(self.places()))

    def surely_equal(self, a: Size, b: Size) -> bool | None:
        """True or False where that needs no new guard, else None."""
        difference = sizes.add(a, sizes.multiply(-1, b))
        if isinstance(difference, int):
            return difference == 0
        known = self._answer(Guard(a, "==", b))
        if known is not None:
            return known
        apart = self._positive(difference) or self._positive(sizes.multiply(-1, difference))
        return False if apart else None

    def surely_less(self, a: Size, b: Size) -> bool | None:
        """True or False where that needs no new guard, else None."""
        difference = sizes.add(b, sizes.multiply(-1, a))
        if isinstance(difference, int):
            return difference > 0
        if self._positive(difference) or sizes.less(a, b):
            return True
        if self._positive(sizes.add(sizes.multiply(-1, difference), 1)):
            return False
        return self._answer(Guard(a, "<", b))

    def places(self) -> Iterator[dict[str, int]]:
        """The hints at every combination of positions; the hints themselves when there are none."""
        teams = [name if name.startswith("@") else f"@{name}" for name in self.positions]
        for where in itertools.product(*(range(n) for n in self.positions.values())):
            yield {**self.hints, **dict(zip(teams, where, strict=True))}

    def _ask(self, guard: Guard) -> bool:
        """The answer at the hints, noted for the program to check."""
        names = sizes.symbols(guard.left) | sizes.symbols(guard.right)
        unplaced = {f"@{name.removeprefix('@')}" for name in self.positions} & names
        if not unplaced:
            return self._note(guard, holds(guard, self._values(names)))
        facts: dict[Guard, bool] = {}
        for place in self.places():
            here = _at(guard, {name: place[name] for name in unplaced})
            facts[here] = holds(here, self._values(names - unplaced))
        answers = list(facts.values())
        if len(set(answers)) == 1:
            for fact, answer in facts.items():
                self._note(fact, answer)
        return answers[0]

    def _values(self, names: set[str]) -> dict[str, int]:
        missing = sorted(names - self.hints.keys())
        if missing:
            raise IRError(
                f"a layout depends on {', '.join(missing)}, for which no hint is given; "
                f"hints are given for {', '.join(sorted(self.hints)) or 'nothing'}"
            )
        return {name: self.hints[name] for name in names}

    def _note(self, guard: Guard, answer: bool) -> bool:
        fact = _normal(guard if answer else _negated(guard))
        trivial = isinstance(fact.left, int) and isinstance(fact.right, int)
        if not trivial and fact not in self._answers:
            self.guards.append(fact)
            self._learn(fact)
        return answer

    def _learn(self, fact: Guard) -> None:
        for implied in (fact, *_consequences(fact)):
            self._answers[_normal(implied)] = True
            if implied.relation in _NEGATIONS:
                self._answers[_normal(_negated(implied))] = False
        for name in sizes.symbols(fact.left) | sizes.symbols(fact.right):
            least = _least_value(fact, name, self._least.get(name, 0))
            if least is not None:
                self._least[name] = max(self._least.get(name, 0), least)

    def _answer(self, guard: Guard) -> bool | None:
        return self._answers.get(_normal(guard))

    def _positive(self, size: Size) -> bool:
        """Whether ``size >= 1`` is certain, each symbol at its least known value or above."""
        shift = {n: sizes.symbol(n) + k for n, k in self._least.items() if n in sizes.symbols(size)}
        return sizes.nonnegative(sizes.add(sizes.substitute(size, shift), -1))


def holds(guard: Guard, values: Mapping[str, int]) -> bool:
    """Whether ``guard`` is true at ``values``. Raises ``IRError`` for a symbol without a value."""
    left, right = sizes.evaluate(guard.left, values), sizes.evaluate(guard.right, values)
    if guard.relation == "divides":
        return right == 0 if left == 0 else right % left == 0
    if guard.relation not in _COMPARISONS:
        raise IRError(f"unknown relation in the guard {guard}")
    return _COMPARISONS[guard.relation](left, right)


_COMPARISONS = {
    "==": int.__eq__,
    "!=": int.__ne__,
    "<": int.__lt__,
    "<=": int.__le__,
}
_NEGATIONS = {"==": "!=", "!=": "==", "<": "<=", "<=": "<"}


def _negated(guard: Guard) -> Guard:
    if guard.relation in ("==", "!="):
        return Guard(guard.left, _NEGATIONS[guard.relation], guard.right)
    return Guard(guard.right, _NEGATIONS[guard.relation], guard.left)


def _consequences(fact: Guard) -> list[Guard]:
    """Weaker facts that ``fact`` settles."""
    left, right = fact.left, fact.right
    if fact.relation == "==":
        return [Guard(left, "<=", right), Guard(right, "<=", left)]
    if fact.relation == "<":
        return [Guard(left, "<=", right), Guard(left, "!=", right)]
    return []


def _at(guard: Guard, place: Mapping[str, int]) -> Guard:
    left, right = sizes.substitute(guard.left, place), sizes.substitute(guard.right, place)
    return Guard(left, guard.relation, right)


def _normal(guard: Guard) -> Guard:
    """One form for equal facts: positive terms only, no common factor, a fixed side for each."""
    if guard.relation == "divides":
        return guard
    difference = sizes.add(guard.left, sizes.multiply(-1, guard.right))
    if not isinstance(difference, Expr):
        return Guard(difference, guard.relation, 0)
    shared = math.gcd(*(c for _, c in difference.terms))
    left: Size = 0
    right: Size = 0
    for monomial, c in difference.terms:
        part: Size = Expr(((monomial, abs(c) // shared),)) if monomial else abs(c) // shared
        left, right = (sizes.add(left, part), right) if c > 0 else (left, sizes.add(right, part))
    symmetric = guard.relation in ("==", "!=")
    if symmetric and (isinstance(left, int), str(left)) > (isinstance(right, int), str(right)):
        left, right = right, left
    return Guard(left, guard.relation, right)


def _least_value(fact: Guard, name: str, known: int) -> int | None:
    """What ``fact`` says of the least value of the bare symbol ``name``."""
    if fact.right == sizes.symbol(name) and isinstance(fact.left, int):
        if fact.relation == "<":
            return fact.left + 1
        return fact.left if fact.relation in ("<=", "==") else None
    if fact.left == sizes.symbol(name) and isinstance(fact.right, int):
        if fact.relation == "==":
            return fact.right
        if fact.relation == "!=" and fact.right == known:
            return known + 1
    return None
