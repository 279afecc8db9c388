"""The Decider: what is certain, what is assumed, and that each assumption is noted once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider, holds
from thunder_mdfuse.ir.graph import Guard
from thunder_mdfuse.ir.sizes import parse, symbol

A, B = symbol("a"), symbol("b")


def guards(decide):
    return [str(g) for g in decide.guards]


def test_numbers_need_no_guard():
    decide = Decider()
    assert decide.equal(3, 3)
    assert not decide.equal(3, 4)
    assert decide.less(3, 4)
    assert not decide.less(4, 4)
    assert decide.at_most(4, 4)
    assert guards(decide) == []


def test_what_the_structure_tells_needs_no_guard():
    decide = Decider()
    assert decide.equal(2 * A + B, B + A + A)
    assert not decide.equal(A + 1, 0)
    assert not decide.equal(A * B + B + 2, B)
    assert decide.less(A, A + B + 1)
    assert not decide.less(A + B, A)
    assert guards(decide) == []


def test_answers_are_noted_once_in_one_form():
    decide = Decider({"a": 4, "b": 2})
    assert decide.equal(A, 2 * B)
    assert decide.equal(2 * B, A)
    assert decide.equal(3 * A, 6 * B)
    assert not decide.less(A, 2 * B + 1 - 1)
    assert decide.less(B, A)
    assert not decide.less(A, B)
    assert guards(decide) == ["2*b == a", "b < a"]


def test_what_is_known_is_used():
    decide = Decider({"a": 4, "b": 3}, known=(Guard(1, "<", A), Guard(B, "!=", 0)))
    assert not decide.equal(A, 1)
    assert not decide.equal(A * B, 0)
    assert decide.less(0, A * B + B - 1)
    assert guards(decide) == []
    assert not decide.equal(B, 1)
    assert guards(decide) == ["b != 1"]
    assert decide.less(1, B)
    assert guards(decide) == ["b != 1"]


def test_surely_never_asks():
    decide = Decider()
    assert decide.surely_equal(A, B) is None
    assert decide.surely_less(A, B) is None
    assert decide.surely_equal(A, A) is True
    assert decide.surely_equal(A, A + 1) is False
    assert decide.surely_less(A + 1, A) is False
    assert guards(decide) == []


def test_a_symbol_without_a_hint_is_named():
    with pytest.raises(IRError, match=r"depends on b, for which no hint is given.*for a"):
        Decider({"a": 1}).equal(A, B)


def test_all_positions_are_asked():
    decide = Decider({"a": 8}, positions={"@tp": 4})
    chunk = sizes.maximum(0, sizes.minimum(2, A - 2 * symbol("@tp")))
    assert decide.equal(chunk, 2)
    values = {"a": 8}
    assert all(holds(g, values) for g in decide.guards)
    assert not all(holds(g, {"a": 7}) for g in decide.guards)
    assert not any("@" in g for g in guards(decide))


def test_places_are_all_combinations_of_positions():
    decide = Decider({"a": 8}, positions={"dp": 2, "tp": 2})
    assert list(decide.places()) == [
        {"a": 8, "@dp": dp, "@tp": tp} for dp in range(2) for tp in range(2)
    ]


@pytest.mark.parametrize(
    ("guard", "values", "answer"),
    [
        (Guard(A, "==", 3), {"a": 3}, True),
        (Guard(A, "!=", 3), {"a": 3}, False),
        (Guard(A, "<", B), {"a": 3, "b": 3}, False),
        (Guard(A, "<=", B), {"a": 3, "b": 3}, True),
        (Guard(4, "divides", A), {"a": 12}, True),
        (Guard(4, "divides", A), {"a": 13}, False),
        (Guard(B, "divides", A), {"a": 13, "b": 0}, False),
        (Guard(B, "divides", A), {"a": 0, "b": 0}, True),
    ],
)
def test_holds(guard, values, answer):
    assert holds(guard, values) is answer


def test_an_unknown_relation_is_refused():
    with pytest.raises(IRError, match="unknown relation"):
        holds(Guard(A, "~", 3), {"a": 3})


TEXTS = st.sampled_from(
    ("a", "b", "a + b", "2*a", "a*b", "a + 1", "1", "0", "2", "3*b", "min(a, b)", "max(0, a - 2)")
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("equal", "less", "at_most")), TEXTS, TEXTS), max_size=8),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_answers_stay_right_where_the_guards_hold(questions, hints, others):
    """At the hints, and at any sizes for which every guard noted so far holds."""
    compare = {"equal": int.__eq__, "less": int.__lt__, "at_most": int.__le__}
    decide = Decider(dict(zip("ab", hints, strict=True)))
    answers = [getattr(decide, ask)(parse(a), parse(b)) for ask, a, b in questions]
    assert len(set(decide.guards)) == len(decide.guards)
    for values in (dict(zip("ab", hints, strict=True)), dict(zip("ab", others, strict=True))):
        if not all(holds(g, values) for g in decide.guards):
            continue
        for (ask, a, b), answer in zip(questions, answers, strict=True):
            numbers = (sizes.evaluate(parse(text), values) for text in (a, b))
            assert compare[ask](*numbers) is answer
