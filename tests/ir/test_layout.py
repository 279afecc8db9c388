"""Layouts against eager torch: strides, offsets and sharing of storage, for drawn programs."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ir.drawn import elementwise, others, shapes
from ir.drawn.core import FAMILIES, Program, build, finish, named, programs, run_eager, sizes_of

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.layout import Decider, Layout, holds, layouts
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.text import render

# For a long run by hand: LAYOUT_EXAMPLES=20000 python -m pytest tests/ir/test_layout.py
MANY = int(os.environ.get("LAYOUT_EXAMPLES", "250"))
FILES = (elementwise, others, shapes)
ALL = sorted(FAMILIES)
# Those whose steps mean the same when the sizes of the inputs change.
SIZELESS = "binary cat copy flatten flip lerp masked number permute reduction to unary where"
drawn = settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))


def storage(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def check(
    fusion: Fusion,
    uses: Sequence[Use],
    eager: Sequence[torch.Tensor],
    found: Mapping[Use, Layout],
    values: Mapping[str, int],
) -> None:
    """Assert that every value lies where eager torch has it."""
    known: dict[Use, list[torch.Tensor]] = {}  # of equal nodes, which are one, eager has several
    for use, tensor in zip(uses, eager, strict=True):
        layout = found[use]
        says = f"{use} of\n{render(fusion)}with {[(t.shape, t.stride()) for t in eager]}"
        strides = tuple(sizes.evaluate(s, values) for s in layout.strides)
        assert strides == tensor.stride(), f"{strides} for {tensor.stride()}: {says}"
        if layout.base in known and layout.base != use:
            origins = [t for t in known[layout.base] if storage(t) == storage(tensor)]
            assert origins, f"should share storage with {layout.base}: {says}"
            origin = origins[0]
            offset = tensor.storage_offset() - origin.storage_offset()
            assert sizes.evaluate(layout.offset, values) == offset, says
        elif use.node not in fusion.inputs:
            elsewhere = [u for u in known if found[u].base != layout.base]
            older = [storage(t) for u in elsewhere for t in known[u]]
            assert storage(tensor) not in older, f"should not share storage: {says}"
        known.setdefault(use, []).append(tensor)


def compare(
    program: Program,
    device: str = "cpu",
    rules: str = "cpu",
    rename: Callable[[int], Size] = lambda n: n,
    hints: Mapping[str, int] | None = None,
) -> None:
    builder, uses = build(program, rename)
    fusion, uses = finish(builder, uses)
    decide = Decider(hints)
    found = layouts(fusion, [r.strides for r in program.recipes], decide, rules)
    check(fusion, uses, run_eager(program, device), found, hints or {})
    assert len(set(decide.guards)) == len(decide.guards)
    assert all(holds(guard, hints or {}) for guard in decide.guards)


@drawn
@given(programs(ALL))
def test_layouts_are_those_of_eager_torch(program):
    compare(program)


@pytest.mark.gpu
@drawn
@given(programs(ALL))
def test_layouts_are_those_of_eager_torch_on_cuda(program):
    compare(program, "cuda", "cuda")


@drawn
@given(programs(ALL))
def test_symbolic_layouts_are_those_of_eager_torch_at_the_hints(program):
    try:
        compare(program, rename=named, hints=sizes_of(program))
    except IRError:
        # The nodes of this program need sizes to be equal that only the numbers made equal.
        assume(False)


def _dense(shape: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    strides: list[Size] = [1] * len(shape)
    step: Size = 1
    for d in order:
        strides[d] = step
        step = step * shape[d]
    return tuple(strides)


@drawn
@given(programs(SIZELESS.split()), st.data())
def test_layouts_hold_wherever_their_guards_hold(program, data):
    """Specialised at some sizes, then compared with eager torch at others that the guards admit."""
    orders = [data.draw(st.permutations(range(len(r.shape)))) for r in program.recipes]
    assume(not any(0 in r.shape for r in program.recipes))
    hints = sizes_of(program)
    others = {name: data.draw(st.sampled_from((n, 1, 2, 4, 7))) for name, n in hints.items()}
    strides = [
        _dense([named(n) for n in r.shape], order)
        for r, order in zip(program.recipes, orders, strict=True)
    ]
    decide = Decider(hints)
    try:
        builder, uses = build(program, named)
        fusion, uses = finish(builder, uses)
        found = layouts(fusion, strides, decide, "cpu")
    except IRError:
        assume(False)
    assume(all(holds(guard, others) for guard in decide.guards))
    moved = [
        replace(
            r,
            shape=tuple(sizes.evaluate(named(n), others) for n in r.shape),
            strides=tuple(sizes.evaluate(s, others) for s in input_strides),
        )
        for r, input_strides in zip(program.recipes, strides, strict=True)
    ]
    check(fusion, uses, run_eager(Program(moved, program.steps)), found, others)
