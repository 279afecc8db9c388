"""How symbols that draw random numbers become nodes of the IR.

Uniform and normal numbers follow from a state and an element's place in its tensor, in whatever
kernel needs them. Integers and classes are torch's own draws: the same numbers as in eager torch
after the same seed, in the order in which the function draws them.
"""

from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.thunder.builders import Results
from thunder_mdfuse.thunder.values import Values, known_dtype


def rng_state(v: Values, shape: Sequence[Any], *, device: Any) -> Results:
    """Seed and offset of one draw from the device's generator, for a tensor of ``shape``."""
    return v.result("rng_state", (), at.RngAttrs(v.next_draw(), sizes.product(v.sizes(shape))))


def philox(
    v: Values,
    shape: Sequence[Any],
    low: Any,
    high: Any,
    seed: Any,
    offset: Any,
    *,
    device: Any,
    dtype: Any,
) -> Results:
    """Counter-based numbers: the same for the same seed and offset, whoever computes them."""
    least, most = (float(v.number(x).real) for x in (low, high))
    attrs = at.PhiloxAttrs(v.sizes(shape), known_dtype(dtype), least, most)
    return v.result("uniform", (v.value(seed), v.value(offset)), attrs)


def normal(
    v: Values, shape: Sequence[Any], seed: Any, offset: Any, *, device: Any, dtype: Any
) -> Results:
    """The same, standard normal."""
    attrs = at.PhiloxAttrs(v.sizes(shape), known_dtype(dtype))
    return v.result("normal", (v.value(seed), v.value(offset)), attrs)


def randint(
    v: Values, low: Any, high: Any, shape: Sequence[Any], *, device: Any, dtype: Any
) -> Results:
    """Integers in [low, high)."""
    least, most = (int(v.number(x).real) for x in (low, high))
    number = v.next_draw()
    attrs = at.RandintAttrs(number, v.sizes(shape), known_dtype(dtype), least, most)
    return _after_the_last(v, "randint", (), attrs)


def multinomial(v: Values, a: Any, samples: Any, replacement: bool, seed: Any = None) -> Results:
    """Classes by their weights; with a ``seed``, out of a generator of its own."""
    number = v.next_draw()
    attrs = at.MultinomialAttrs(number, v.size(samples), bool(replacement), seed)
    if seed is not None:
        return v.result("multinomial", (v.value(a),), attrs)
    return _after_the_last(v, "multinomial", (v.value(a),), attrs)


def _after_the_last(v: Values, name: str, args: tuple[Use, ...], attrs: at.Attrs) -> Results:
    """A draw from torch's generator, which gives it what was drawn before as one more operand."""
    last = () if v.drawn is None else (v.drawn,)
    found = v.result(name, (*args, *last), attrs)
    v.drawn = found[0]
    return found
