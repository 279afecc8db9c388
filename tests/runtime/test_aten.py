"""Elementwise rows of the torch-call table against what a user writes in eager torch."""

import math
import operator
import re
from pathlib import Path

import pytest
import torch
from runtime.rows import FLOATS, INTEGERS, call, same, shares

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.aten import ATEN, IR_DTYPES, TORCH_DTYPES, NotCalled


def test_every_row_is_tested_here():
    """Each op is at least named in a file that calls rows; philox has ops of its own."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    words = {word for text in texts for word in re.findall(r"[a-z_0-9]+", text)}
    executed = {op for op, row in ATEN.items() if not isinstance(row, NotCalled)}
    assert executed - words == set()


def test_dtypes_go_both_ways():
    assert {IR_DTYPES[t] for t in TORCH_DTYPES.values()} == set(DType)
    assert all(
        torch.empty(0, dtype=t).element_size() == d.itemsize for d, t in TORCH_DTYPES.items()
    )


# Inputs in every range that some function treats apart.

SAMPLES = (0.0, -0.0, 0.3, -0.7, 1.0, 1.5, 2.5, -2.5, 40.0, math.inf, -math.inf, math.nan)
IN_TORCH = (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma floor ceil round trunc frac sign "
    "digamma isfinite isnan isinf signbit logical_not"
)
UNARY = {name: getattr(torch, name) for name in IN_TORCH.split()} | {"ndtri": torch.special.ndtri}
NOT_FOR_HALF = ("ndtri",)
FOR_INTEGERS = ("abs", "neg", "sign", "isnan", "logical_not", "signbit", "floor", "ceil", "trunc")


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_functions_of_floats(op, dtype):
    x = torch.tensor(SAMPLES, dtype=dtype)
    half = dtype in (torch.float16, torch.bfloat16) and op in NOT_FOR_HALF
    theirs = UNARY[op](x.float()).to(dtype) if half else UNARY[op](x)
    same(call(op, x), theirs)


@pytest.mark.parametrize("op", [*FOR_INTEGERS, "bitwise_not"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_unary_functions_of_integers(op, dtype):
    x = torch.tensor((0, 1, 2, 100, -3 if dtype.is_signed else 3), dtype=dtype)
    same(call(op, x), getattr(torch, op)(x))


def test_functions_of_bools():
    x = torch.tensor((True, False))
    same(call("logical_not", x), ~x)
    same(call("bitwise_not", x), ~x)


def test_the_inverse_of_erfc():
    """Also where 1 - x has lost everything."""
    x = torch.tensor((1e-30, 1e-10, 0.001, 0.5, 1.0, 1.5, 1.999), dtype=torch.float64)
    y = call("erfcinv", x)
    torch.testing.assert_close(torch.erfc(y), x, rtol=1e-12, atol=0)
    ends = call("erfcinv", torch.tensor((0.0, 2.0, 3.0, math.nan), dtype=torch.float64))
    assert ends[0] == math.inf
    assert ends[1] == -math.inf
    assert ends[2:].isnan().all()
    middle = torch.linspace(0.1, 1.9, 19)
    torch.testing.assert_close(call("erfcinv", middle), torch.erfinv(1 - middle))
    same(call("erfcinv", middle.half()), call("erfcinv", middle.half().float()).half())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype):
    x = torch.tensor((1 + 2j, -0.5j, 3.0), dtype=dtype)
    for op in ("abs", "real", "imag", "exp", "sqrt", "neg", "reciprocal"):
        same(call(op, x).clone(), getattr(torch, op)(x).clone())
    for op, function in (("mul", operator.mul), ("div", operator.truediv)):
        same(call(op, x, x + 1), function(x, x + 1))
        same(call(op, x, 2 - 1j), function(x, 2 - 1j))


# The op, what a user writes, and the dtypes for which torch has it.
BINARY = {
    "add": (lambda a, b: a + b, "fi"),
    "sub": (lambda a, b: a - b, "fi"),
    "mul": (lambda a, b: a * b, "fi"),
    "trunc_div": (lambda a, b: torch.div(a, b, rounding_mode="trunc"), "fi"),
    "floor_div": (lambda a, b: a // b, "fi"),
    "remainder": (lambda a, b: a % b, "fi"),
    "fmod": (torch.fmod, "fi"),
    "pow": (lambda a, b: a**b, "f"),
    "atan2": (torch.atan2, "f"),
    "nextafter": (torch.nextafter, "f"),
    "minimum": (torch.minimum, "fi"),
    "maximum": (torch.maximum, "fi"),
    "copysign": (torch.copysign, "f"),
    "eq": (lambda a, b: a == b, "fi"),
    "ne": (lambda a, b: a != b, "fi"),
    "lt": (lambda a, b: a < b, "fi"),
    "le": (lambda a, b: a <= b, "fi"),
    "gt": (lambda a, b: a > b, "fi"),
    "ge": (lambda a, b: a >= b, "fi"),
    "logical_and": (torch.logical_and, "fi"),
    "logical_or": (torch.logical_or, "fi"),
    "bitwise_and": (lambda a, b: a & b, "i"),
    "bitwise_or": (lambda a, b: a | b, "i"),
    "bitwise_xor": (lambda a, b: a ^ b, "i"),
    "shift_left": (lambda a, b: a << b, "i"),
    "shift_right": (lambda a, b: a >> b, "i"),
    "gcd": (torch.gcd, "i"),
    "div": (lambda a, b: a / b, "f"),
}
TENSORS_ONLY = ("atan2", "nextafter", "minimum", "maximum", "logical_and", "logical_or", "gcd")


def pairs(kind, dtype):
    """All pairs of samples, divisors of integers not 0."""
    if kind == "f":
        x = torch.tensor(SAMPLES, dtype=dtype)
        return torch.cartesian_prod(x, x).unbind(1)
    least = -3 if dtype.is_signed else 0
    x = torch.tensor((least, 0, 1, 2, 7, 100), dtype=dtype)
    y = torch.tensor((1, 2, 3, 5), dtype=dtype)
    return torch.cartesian_prod(x, y).unbind(1)


CASES = [
    (op, dtype)
    for op, (_, kinds) in BINARY.items()
    for kind, dtypes in (("f", FLOATS), ("i", INTEGERS))
    for dtype in dtypes
    if kind in kinds
    # Torch has no nextafter for f16.
    if not (op == "nextafter" and dtype is torch.float16)
]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_binary_functions_of_tensors(op, dtype):
    a, b = pairs("f" if dtype.is_floating_point else "i", dtype)
    same(call(op, a, b), BINARY[op][0](a, b))


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_a_number_beside_a_tensor_is_weak(op, dtype):
    """It never promotes, and it has the precision that eager torch gives a Python scalar."""
    floating = dtype.is_floating_point
    x, _ = pairs("f" if floating else "i", dtype)
    number = 0.1 if floating else 3
    other = torch.tensor(number, dtype=dtype) if op in TENSORS_ONLY else number
    same(call(op, x, number), BINARY[op][0](x, other))
    first = other if op not in ("fmod", "copysign") else torch.tensor(number, dtype=dtype)
    divisor = x if floating else x.clamp(min=1)
    theirs = BINARY[op][0](first, divisor)
    if op == "div":  # a user's ``0.1 / x`` rounds twice; the op is one division
        theirs = torch.true_divide(torch.tensor(number, dtype=dtype), divisor)
        torch.testing.assert_close(call(op, number, divisor), theirs, equal_nan=True)
    else:
        same(call(op, number, divisor), theirs)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_div_of_integers_rounds_towards_zero(dtype):
    a, b = pairs("i", dtype)
    same(call("div", a, b), torch.div(a, b, rounding_mode="trunc"))


def test_a_number_of_a_wider_kind_takes_the_tensors_dtype():
    x = torch.tensor((1, 2, 3))
    same(call("add", x, 2.75), x + 2)
    same(call("mul", torch.tensor((True, False)), 3), torch.tensor((True, False)))
    assert call("add", x.half(), 1e-3).dtype is torch.float16


def test_zeta():
    x = torch.tensor((1.5, 2.0, 7.0))
    same(call("zeta", x, x), torch.special.zeta(x, x))
    same(call("zeta", x, 2.0), torch.special.zeta(x, 2.0))
    same(call("zeta", x.half(), x.half()), torch.special.zeta(x, x).half())


def test_lerp():
    a, b = torch.randn(8), torch.randn(8)
    same(call("lerp", a, b, 0.3), torch.lerp(a, b, 0.3))
    same(call("lerp", a, b, b), torch.lerp(a, b, b))
    same(call("lerp", a.half(), b.half(), 0.3), torch.lerp(a.half(), b.half(), 0.3))
    same(call("lerp", a, 2, 0.5), torch.lerp(a, torch.full((8,), 2.0), 0.5))
    assert call("lerp", 2.0, 4.0, 0.25) == 2.5


def test_where():
    c, x, y = torch.tensor((True, False)), torch.randn(2), torch.randn(2)
    same(call("where", c, x, y), torch.where(c, x, y))
    same(call("where", c, x.half(), 0.1, dtypes=[DType.F16]), torch.where(c, x.half(), 0.1))
    same(call("where", c, 2, x, dtypes=[DType.F32]), torch.where(c, 2, x))
    both = call("where", c, 2.0, 3.0, dtypes=[DType.F64])
    same(both, torch.tensor((2.0, 3.0), dtype=torch.float64))
    same(call("where", False, x, y), y)
    same(call("where", True, x, 1.0), x)
    assert call("where", True, 2, 3) == 2
    assert call("where", False, 2.5, 3.5) == 3.5


@pytest.mark.parametrize("to", DType)
@pytest.mark.parametrize("source", [torch.bool, torch.int32, torch.float16, torch.float64], ids=str)
def test_casts(source, to):
    x = torch.tensor((0.0, 1.0, 2.6, 100.0)).to(source)
    found = call("cast", x, attrs=at.CastAttrs(to), dtypes=[to])
    same(found.view(torch.uint8), x.to(TORCH_DTYPES[to]).view(torch.uint8))
    assert not shares(found, x)


def test_casts_of_complex_numbers_drop_the_imaginary_part_quietly():
    x = torch.tensor((1 + 2j, 3.0))
    same(call("cast", x, attrs=at.CastAttrs(DType.F32), dtypes=[DType.F32]), torch.tensor((1.0, 3)))
    assert call("cast", 2 + 3j, attrs=at.CastAttrs(DType.F64)) == 2.0


# Numbers alone: the op, its operands, the dtype of the result, and what torch computes.
NUMBERS = [
    ("add", (2, 3), DType.I64, 5),
    ("div", (-7, 2), DType.I64, -3),
    ("div", (-7.0, 2.0), DType.F64, -3.5),
    ("floor_div", (-7, 2), DType.I64, -4),
    ("trunc_div", (-7, 2), DType.I64, -3),
    ("remainder", (-7, 3), DType.I64, 2),
    ("fmod", (-7, 3), DType.I64, -1),
    ("pow", (2, 10), DType.I64, 1024),
    ("pow", (2.0, -1), DType.F64, 0.5),
    ("maximum", (2.0, 0.0), DType.F64, 2.0),
    ("gt", (2, 1.5), DType.BOOL, True),
    ("logical_and", (True, False), DType.BOOL, False),
    ("sqrt", (2.0,), DType.F64, math.sqrt(2)),
    ("log", (0.0,), DType.F64, -math.inf),
    ("neg", (True + 1,), DType.I64, -2),
    ("mul", (2, 1j), DType.C128, 2j),
    ("ceil", (2.2,), DType.F64, 3.0),
]


@pytest.mark.parametrize(("op", "args", "dtype", "expected"), NUMBERS, ids=str)
def test_numbers_alone(op, args, dtype, expected):
    found = call(op, *args, dtypes=[dtype])
    assert found == pytest.approx(expected, rel=4e-16)  # on some CPUs a root's last bit is off
    assert type(found) is type(expected)


def test_constants_and_sizes():
    assert call("const", attrs=at.ConstAttrs("-0.0", DType.F64)).hex() == "-0x0.0p+0"
    assert call("const", attrs=at.ConstAttrs("1", DType.BOOL)) is True
    assert call("const", attrs=at.ConstAttrs("1.0 -2.0", DType.C128)) == 1 - 2j
    assert call("size", attrs=at.SizeAttrs(12)) == 12
    assert call("cast", 2.7, attrs=at.CastAttrs(DType.I64)) == 2


def test_an_op_without_a_torch_call_says_who_executes_it():
    for op, row in ATEN.items():
        if isinstance(row, NotCalled):
            with pytest.raises(ProgramError, match="this op has no torch call: "):
                call(op, torch.zeros(1))
