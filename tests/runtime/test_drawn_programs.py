"""Drawn programs, executed by the reference backend: bits and strides are those of eager torch."""

import os

import torch
from hypothesis import HealthCheck, assume, given, settings
from ir.drawn import elementwise, others, shapes
from ir.drawn.core import FAMILIES, Program, build, named, programs, run_eager

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.graph import Output
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.reference import bind, run_reference

FILES = (elementwise, others, shapes)
MANY = int(os.environ.get("REFERENCE_EXAMPLES", "200"))
drawn = settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert ours.stride() == theirs.stride()
    negative = theirs.is_floating_point()
    assert not negative or torch.equal(ours.signbit()[ours == 0], theirs.signbit()[theirs == 0])


def run_both(program: Program, rename) -> None:
    eager = run_eager(program)
    builder, uses = build(program, rename)
    fusion = verify(builder.finish(tuple(map(Output, uses))), "build")
    inputs = [r.make() for r in program.recipes]
    ours = run_reference(fusion, inputs, bind(fusion, inputs))
    for value, expected in zip(ours, eager, strict=True):
        same(value, expected)


@drawn
@given(programs(sorted(FAMILIES)))
def test_values_and_strides_are_those_of_eager_torch(program):
    run_both(program, lambda n: n)


@drawn
@given(programs(sorted(FAMILIES)))
def test_symbolic_programs_run_at_their_sizes(program):
    try:
        run_both(program, named)
    except IRError:
        # The nodes of this program need sizes to be equal that only the numbers made equal.
        assume(False)
