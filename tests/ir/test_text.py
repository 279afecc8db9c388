"""Programs as text and back."""

import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir.drawn import elementwise, others, shapes
from ir.drawn.core import FAMILIES, build, named, programs

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import Attrs
from thunder_mdfuse.ir.graph import Builder, Fusion, Guard, Node, Output, Use
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.text import parse, parse_placement, parse_type, render
from thunder_mdfuse.ir.types import (
    DTYPES,
    REPLICATE,
    DType,
    Mesh,
    MeshAxis,
    Partial,
    Placement,
    Shard,
    StridedShard,
    TensorType,
)
from thunder_mdfuse.ir.verify import verify

FILES = (elementwise, others, shapes)
drawn = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def round_trip(fusion):
    text = render(fusion)
    again = parse(text)
    assert again == fusion
    assert render(again) == text
    assert again.key == fusion.key


@drawn
@given(programs(sorted(FAMILIES)), st.booleans(), st.data())
def test_drawn_programs_print_and_parse(program, symbolic, data):
    try:
        builder, uses = build(program, named if symbolic else lambda n: n)
    except IRError:
        return
    outputs = [Output(use) for use in uses]
    if data.draw(st.booleans()):
        outputs.append(Output(uses[-1], writes=0))
    guard = Guard(sizes.symbol("s2"), data.draw(st.sampled_from(("==", "<", "divides"))), 6)
    round_trip(builder.finish(tuple(outputs), (guard,) if symbolic else ()))


PLACEMENTS = st.sampled_from(
    (REPLICATE, Shard(0), Shard(1), StridedShard(1, 2), *map(Partial, ("sum", "avg", "max")))
)


@drawn
@given(st.lists(st.tuples(PLACEMENTS, PLACEMENTS), min_size=1, max_size=4), st.sampled_from(DType))
def test_placements_print_and_parse(placements, dtype):
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 4)), "1a2b")
    builder = Builder(mesh)
    uses = [builder.input(TensorType(dtype, (4, sizes.symbol("s0")), p)) for p in placements]
    fusion = builder.finish(tuple(uses))
    round_trip(fusion)
    verify(fusion, "build")


NUMBERS = (0, -1, True, 2.5, -0.0, float("inf"), float("nan"), 1e-300, 1 + 2j, 1 << 62)


@pytest.mark.parametrize("value", NUMBERS, ids=str)
def test_numbers_survive(value):
    builder = Builder()
    fusion = builder.finish(builder.op("neg", (builder.const(value),)))
    round_trip(fusion)


def test_numbers_that_compare_equal_are_not_one_node():
    builder = Builder()
    assert builder.const(0.0) != builder.const(-0.0)
    assert builder.const(1.0) != builder.const(1)
    assert builder.const(float("nan")) == builder.const(float("nan"))


SIZES = st.sampled_from((0, 7, sizes.symbol("s0"), 2 * sizes.symbol("s1") - 3))


def values(hint):
    """Values of an attribute's type, as its annotation says."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(options[0]), max_size=3).map(tuple)
    if hint in (int, bool, float, str):
        known = {int: st.integers(-2, 9), bool: st.booleans(), str: st.sampled_from(("tp", "sum"))}
        return known.get(hint, st.floats(allow_nan=False))
    if hint == Size or hint is DType:
        return SIZES if hint == Size else st.sampled_from(DType)
    if hint == Placement:
        return PLACEMENTS
    return st.one_of([st.none() if o is type(None) else values(o) for o in options])


@pytest.mark.parametrize("op", sorted(OPS))
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_attributes_of_every_op_print_and_parse(op, data):
    record = OPS[op].attrs
    hints = typing.get_type_hints(record)
    attrs = record(**{name: data.draw(values(hint)) for name, hint in hints.items()})
    node = Node(op, (), attrs, (TensorType(DType.F32, ()),))
    round_trip(Fusion((node,), (Output(Use(0)),)))


def test_records_and_ops_name_each_other():
    assert {op.attrs for op in OPS.values()} == set(typing.get_args(Attrs))


@pytest.mark.parametrize("text", ["f32", "f32[]", "bf16[4, s0 + 1]", "bool[2] @ [Shard(0)]"])
def test_types_print_and_parse(text):
    assert str(parse_type(text)) == text


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_has_a_text(name):
    assert str(parse_type(f"{name}[1]")) == f"{name}[1]"


def test_comments_and_indentation_are_skipped():
    text = """
        # what comes in
        global
            %0 = input(position=0) : f32[2]
        # and out
        return %0
    """
    assert render(parse(text)) == "global\n%0 = input(position=0) : f32[2]\nreturn %0\n"


BROKEN = {
    "": "an empty text",
    "global": "no return line",
    "globe\nreturn": "the first line must be",
    "global mesh[]x\nreturn": "the first line must be",
    "global mesh[tp]\nreturn": "must be 'axis=size'",
    "global mesh[tp=two]\nreturn": "must be 'axis=size'",
    "global\n%0 = input(position=0) : f31[2]\nreturn %0": "'f31",
    "global\n%1 = input(position=0) : f32[2]\nreturn %0": "expected '%0",
    "global\n%0 = neg : f32[2]\nreturn %0": "expected '%0",
    "global\n%0 = foo() : f32[2]\nreturn %0": "unknown op 'foo'",
    "global\n%0 = input(position=0) : f32[2]\n%1 = neg(0) : f32[2]\nreturn %1": "cannot read",
    "global\n%0 = input(position=0) : f32[2]\nreturn 0": "is not a value such as",
    "global\n%0 = input(position=0) : f32[2]\nreturn %0\nwhere 1 > 0": "cannot read",
    "global\n%0 = input(position=0) : f32[2] @ [Shared(0)]\nreturn %0": "not a placement",
    "global\n%0 = input(position=0) : f32[2] @ [Partial(mean)]\nreturn %0": "mean",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_text_that_cannot_be_read_names_its_line(text):
    with pytest.raises(IRError, match=BROKEN[text]):
        parse(text)


def test_placement_texts():
    for placement in (REPLICATE, Shard(2), StridedShard(0, 3), Partial("product")):
        assert parse_placement(str(placement)) == placement


def test_an_empty_program():
    assert parse("local\nreturn") == Fusion((), (), None, "local", ())
