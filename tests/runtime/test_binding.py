"""Symbols from the shapes of inputs, and attributes with numbers for sizes."""

import pytest
import torch

from thunder_mdfuse.errors import IRError, ProgramError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.sizes import parse as size
from thunder_mdfuse.ir.sizes import symbol
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime.binding import bind, evaluate_attrs


def program(*types):
    lines = [f"%{i} = input(position={i}) : {t}" for i, t in enumerate(types)]
    return parse("\n".join(["local", *lines, "return"]))


def test_symbols_are_the_sizes_of_dims():
    fusion = program("f32[s0, s1]", "f32[s1, 3]", "i64")
    assert bind(fusion, (torch.zeros(2, 5), torch.zeros(5, 3), 4)) == {"s0": 2, "s1": 5}


def test_multiples_and_sums_are_solved():
    fusion = program("f32[2*s0, s1 + 3]", "f32[s0*s1]")
    assert bind(fusion, (torch.zeros(8, 5), torch.zeros(8))) == {"s0": 4, "s1": 2}


def test_given_symbols_stay_and_are_checked():
    fusion = program("f32[max(0, min(3, s0 - 3*@tp))]")
    given = {"s0": 5, "@tp": 1}
    assert bind(fusion, (torch.zeros(2),), given) == given
    with pytest.raises(ProgramError, match=r"must have shape \[2\].*found \[3\]"):
        bind(fusion, (torch.zeros(3),), given)


REFUSED = [
    (("f32[2]",), (), "takes 1 inputs, found 0"),
    (
        ("f32[2]",),
        (torch.zeros(2, dtype=torch.float64),),
        r"f32\[2\], found f64\[2\]; cast it to torch.float32",
    ),
    (("f32[2]",), (torch.zeros(2, 1),), r"a tensor f32\[2\], found f32\[2, 1\]; reshape it"),
    (("f32[2]",), (torch.zeros(2, dtype=torch.uint16),), r"found torch.uint16\[2\]; cast"),
    (("f32[2]",), (2.0,), "found 2.0 of type float"),
    (("f32[2]",), (torch.zeros(3),), r"must have shape \[2\] \(f32\[2\]\), found \[3\]"),
    (("f32[s0, s0]",), (torch.zeros(3, 4),), r"must have shape \[3, 3\].*s0=3.*found \[3, 4\]"),
    (("f32[2*s0]",), (torch.zeros(3),), "does not tell s0"),
    (("f32[s0*s1]",), (torch.zeros(6),), "does not tell s0, s1"),
    (("i64",), (2.5,), "must be a number of dtype i64, found 2.5"),
    (("i64",), (True,), "must be a number of dtype i64, found True"),
    (("f64",), (torch.zeros(()),), "must be a number of dtype f64"),
]


@pytest.mark.parametrize(("types", "inputs", "says"), REFUSED)
def test_inputs_that_do_not_fit_are_named(types, inputs, says):
    with pytest.raises(ProgramError, match=says):
        bind(program(*types), inputs)


def test_numbers_of_a_narrower_type_fit():
    assert bind(program("f64", "c128", "bool"), (1, 2.0, True)) == {}


def test_attributes_get_numbers():
    values = {"s0": 6, "s1": 4}
    attrs = at.SliceAttrs((0, symbol("s1")), (symbol("s0"), size("s0 + s1")), (1, 2))
    assert evaluate_attrs(attrs, values) == at.SliceAttrs((0, 4), (6, 10), (1, 2))
    assert evaluate_attrs(at.SizeAttrs(size("ceildiv(s0, 4)")), values) == at.SizeAttrs(2)
    assert evaluate_attrs(at.TopkAttrs(symbol("s1"), 0), values) == at.TopkAttrs(4, 0)


def test_attributes_without_sizes_come_back_as_they_are():
    attrs = at.PadAttrs((1, 2), (0, 0))
    assert evaluate_attrs(attrs, {}) is attrs


def test_a_position_is_filled_in_where_the_record_has_one():
    chunk = at.ChunkAttrs("tp", 4, 0)
    assert evaluate_attrs(chunk, {"@tp": 3}) == at.ChunkAttrs("tp", 4, 0, position=3)
    assert evaluate_attrs(chunk, {"@dp": 3}) == chunk
    gather = at.GatherCommAttrs("tp", 4, 0, symbol("s0"))
    assert evaluate_attrs(gather, {"@tp": 3, "s0": 9}) == at.GatherCommAttrs("tp", 4, 0, 9)


def test_a_size_without_a_value_is_named():
    with pytest.raises(IRError, match="needs values for s9"):
        evaluate_attrs(at.SizeAttrs(symbol("s9")), {"s0": 1})
