"""Sizes against Python's own integer arithmetic."""

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size, symbol

RANGES = {"x": 7, "y": 4 * symbol("K"), "z": 32}
LEAVES = ["x", "y", "z", "K", 0, 1, 2, 3, 8]
OPERATORS = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "min": (sizes.minimum, min),
    "max": (sizes.maximum, max),
    "//": (lambda a, b: sizes.floordiv(a, b, RANGES), operator.floordiv),
    "%": (lambda a, b: sizes.mod(a, b, RANGES), operator.mod),
}
DIVISORS = [1, 2, 3, 4, 8, 32, "K", "4K"]


def trees(depth):
    leaf = st.sampled_from(LEAVES)
    if depth == 0:
        return leaf
    inner = trees(depth - 1)
    plain = st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner)
    divided = st.tuples(st.sampled_from(["//", "%"]), inner, st.sampled_from(DIVISORS))
    return leaf | plain | divided


def leaf_value(leaf, env):
    if leaf == "4K":
        return 4 * (symbol("K") if env is None else env["K"])
    if isinstance(leaf, str):
        return symbol(leaf) if env is None else env[leaf]
    return leaf


def run(tree, env):
    if not isinstance(tree, tuple):
        return leaf_value(tree, env)
    op, a, b = tree
    return OPERATORS[op][env is not None](run(a, env), run(b, env))


@settings(max_examples=1500, deadline=None)
@given(trees(4), st.integers(1, 5), st.data())
def test_simplified_sizes_equal_plain_integers(tree, k, data):
    env = {"K": k}
    for name, extent in (("x", 7), ("y", 4 * k), ("z", 32)):
        env[name] = data.draw(st.integers(0, extent - 1))
    size: Size = run(tree, None)
    assert sizes.evaluate(size, env) == run(tree, env)
    assert sizes.parse(str(size)) == size


def test_split_and_merge_cancel():
    i, n, j = symbol("i"), symbol("N"), symbol("j")
    ranges = {"i": symbol("M"), "j": n}
    flat = i * n + j
    assert sizes.floordiv(flat, n, ranges) == i
    assert sizes.mod(flat, n, ranges) == j
    assert sizes.floordiv(flat, 4) * 4 + sizes.mod(flat, 4) == flat


def test_a_common_factor_is_divided_out():
    i, j = symbol("i"), symbol("j")
    ranges = {"i": 128, "j": 32}
    assert str(sizes.floordiv(32 * i + j, 64, ranges)) == "floordiv(i, 2)"
    assert str(sizes.mod(32 * i + j, 64, ranges)) == "j + 32*mod(i, 2)"


def test_canonical_form_does_not_depend_on_the_order_of_building():
    a, b = symbol("a"), symbol("b")
    assert (a + b) * (a - b) == a * a - b * b
    assert hash(a * b + 1) == hash(1 + b * a)


def test_positions_may_be_zero():
    size = sizes.parse("max(0, min(3, 5 - 3*@tp))")
    assert [sizes.evaluate(size, {"@tp": p}) for p in range(3)] == [3, 2, 0]


def test_truth_of_a_symbolic_size_is_refused():
    with pytest.raises(IRError, match="truth"):
        bool(symbol("a"))


@pytest.mark.parametrize("text", ["", "a +", "min(a)", "(a", "a b", "$"])
def test_malformed_text_is_refused(text):
    with pytest.raises(IRError):
        sizes.parse(text)


def test_an_empty_extent_divides_to_nothing():
    size = sizes.floordiv(symbol("i"), symbol("n") - 1) + sizes.mod(symbol("i"), symbol("n") - 1)
    assert sizes.evaluate(size, {"i": 3, "n": 1}) == 0
