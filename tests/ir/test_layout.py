"""Layouts against eager torch: strides, offsets and sharing of storage, for drawn programs."""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir.drawn import elementwise, others, shapes
from ir.drawn.core import FAMILIES, Program, build, finish, named, programs, run_eager, sizes_of

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.layout import Decider, Layout, holds, layouts
from thunder_mdfuse.ir.text import render

# More examples for a run by hand: LAYOUT_EXAMPLES=20000 pytest tests/ir/test_layout.py
MANY = int(os.environ.get("LAYOUT_EXAMPLES", "250"))
LISTED = (elementwise, others, shapes)
ALL = sorted(FAMILIES)
drawn = settings(
    max_examples=MANY,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def concrete(layout: Layout, values: dict[str, int]) -> tuple[int, tuple[int, ...]]:
    strides = tuple(sizes.evaluate(s, values) for s in layout.strides)
    return sizes.evaluate(layout.offset, values), strides


def compare(
    program: Program,
    device: str = "cpu",
    rules: str = "cpu",
    rename=lambda n: n,
    hints: dict[str, int] | None = None,
) -> Decider:
    """Assert that every value lies where eager torch has it."""
    eager = run_eager(program, device)
    builder, uses = build(program, rename)
    fusion, uses = finish(builder, uses)
    decide = Decider(hints)
    strides = [r.strides for r in program.recipes]
    found = layouts(fusion, strides, decide, rules)
    by_use: dict[Use, torch.Tensor] = {}
    values = hints or {}
    for use, tensor in zip(uses, eager, strict=True):
        if use in by_use:
            continue  # equal nodes are one
        by_use[use] = tensor
        offset, ours = concrete(found[use], values)
        says = f"{use} of\n{render(fusion)}with inputs {program.recipes}"
        assert ours == tensor.stride(), f"{ours} != {tensor.stride()} for {says}"
        base = found[use].base
        if base in by_use:
            origin = by_use[base]
            assert storage(origin) == storage(tensor), f"shares no storage: {says}"
            assert origin.storage_offset() + offset == tensor.storage_offset(), says
        if base == use and use.node not in fusion.inputs:
            mine = storage(tensor)
            older = [storage(t) for u, t in by_use.items() if u < use]
            assert mine not in older, f"shares storage, but should not: {says}"
    assert all(holds(guard, values) for guard in decide.guards)
    return decide


@drawn
@given(programs(ALL))
def test_layouts_are_those_of_eager_torch(program):
    compare(program)
