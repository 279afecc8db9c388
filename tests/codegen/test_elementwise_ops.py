"""Every elementwise op in every dtype on special and ordinary numbers, against torch in f64.

All ops of a dtype are outputs of one program, so that one kernel holds them all.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from codegen.random_programs import known
from codegen.random_programs.known import Known
from codegen.random_programs.program import DTYPES

from thunder_mdfuse.codegen.exprs import EXPRS, Template
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.attrs import CastAttrs
from thunder_mdfuse.ir.graph import Builder, Output, Use
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.types import DType, TensorType

Function = Callable[..., torch.Tensor]
INF, NAN = float("inf"), float("nan")
FLOATS = [d for d in DTYPES if d.is_float]
SIGNED = [DType.I8, DType.I16, DType.I32, DType.I64]
INTEGERS = [*SIGNED, DType.U8]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 2.5, -3.5, INF, -INF, NAN, 1e-6, 1e4, -240.0]


def _torch(names: str) -> dict[str, Function]:
    return {name: getattr(torch, name) for name in names.split()}


def _erfcinv(x: torch.Tensor) -> Any:
    return torch.special.ndtri(x * 0.5) * -(0.5**0.5)


def _exact(function: Callable[..., Any]) -> Function:
    """``function`` of numpy, which is C's: torch's own gives NaN where quotients are large."""

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with np.errstate(all="ignore"):
            return torch.from_numpy(function(a.numpy(), b.numpy()))

    return call


def _remainder(a: Any, b: Any) -> Any:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _python(function: Callable[[int, int], int]) -> Function:
    """``function`` of Python's integers, wrapped: torch traps on lowest / -1 and raises on / 0.

    Elements that are to be divided by 0 get the divisor 1.
    """

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        bits = 8 * a.element_size()
        numbers = [function(x, y or 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        low = 0 if a.dtype is torch.uint8 else -(1 << (bits - 1))
        return torch.tensor([(n - low) % (1 << bits) + low for n in numbers], dtype=a.dtype)

    return call


def _nonnegative(function: Function, bits: int) -> Function:
    """Shifts by what is no number of bits mean nothing in C++ and differ between devices."""
    return lambda a, b: function(a, b % bits)


FLOAT_UNARY = _torch(
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma floor ceil round trunc frac sign "
    "isfinite isnan isinf signbit logical_not"
) | {
    "erfcinv": _erfcinv,
    "mantissa": lambda x: torch.frexp(x).mantissa,
    "exponent": lambda x: torch.frexp(x).exponent,
}
FLOAT_BINARY = _torch(
    "add sub mul div pow atan2 minimum maximum copysign eq ne lt le gt ge logical_and logical_or"
) | {
    "fmod": _exact(np.fmod),
    "remainder": _exact(_remainder),
    "floor_div": torch.floor_divide,
    "trunc_div": _trunc_div,
}
# Torch gives the first of two zeros; or our formula for the oracle has its zero's sign from -0.5.
UNSIGNED_ZEROS = ("minimum", "maximum", "erfcinv")
INTEGER_UNARY = _torch(
    "abs sign bitwise_not logical_not floor ceil round trunc signbit isfinite isnan isinf"
)
INTEGER_BINARY = _torch(
    "add sub mul minimum maximum bitwise_and bitwise_or bitwise_xor gcd eq ne lt le gt ge "
    "logical_and logical_or"
)
INTEGER_DIVISIONS = {
    "fmod": _python(lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1)),
    "remainder": _python(lambda a, b: a % b),
    "floor_div": _python(lambda a, b: a // b),
    "trunc_div": _python(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "div": _python(lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
}
BOOL_UNARY = _torch("logical_not bitwise_not sign signbit isfinite isnan isinf")
BOOL_BINARY = _torch(
    "bitwise_and bitwise_or bitwise_xor logical_and logical_or eq ne lt le gt ge add mul"
) | {"minimum": torch.logical_and, "maximum": torch.logical_or}


def _values(dtype: DType) -> torch.Tensor:
    if dtype is DType.BOOL:
        return torch.tensor([False, True, True])
    if dtype.is_integer:
        ends = torch.iinfo(DTYPES[dtype])
        numbers = [0, 1, 2, 3, 7, 8, 100, ends.max, ends.max - 1, ends.min, ends.min + 1]
        numbers += [] if dtype is DType.U8 else [-1, -2, -3, -7, -100]
        return torch.tensor(numbers, dtype=DTYPES[dtype])
    random = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3
    limits = torch.finfo(DTYPES[dtype])
    extremes = [limits.max, limits.min, limits.smallest_normal]
    given = torch.tensor([*SPECIAL, *extremes], dtype=torch.float64)
    return torch.cat([given, random]).to(DTYPES[dtype])


def _eager(function: Function, args: Sequence[torch.Tensor]) -> torch.Tensor:
    """Eager torch, which has no arithmetic on 8-bit floats and little on 16 bits: f32, rounded."""
    dtype = args[0].dtype
    if not dtype.is_floating_point or dtype.itemsize > 2:
        return function(*args)
    result = function(*(a.float() for a in args))
    return result.to(dtype) if result.is_floating_point() else result


class _Table:
    """A program with one output for each op, and what each has to be."""

    def __init__(self, dtype: DType) -> None:
        x = _values(dtype)
        pairs = torch.tensor(list(itertools.product(range(len(x)), repeat=2)))
        self.inputs = [x[pairs[:, 0]].contiguous(), x[pairs[:, 1]].contiguous()]
        self.dtype = dtype
        self.builder = Builder()
        shape = TensorType(dtype, tuple(self.inputs[0].shape))
        self.operands = tuple(self.builder.input(shape) for _ in self.inputs)
        self.names: list[str] = []
        self.outputs: list[Use] = []
        self.known: list[Known] = []

    def row(self, name: str, function: Function, operands: int) -> None:
        """Add op ``name``; ``function`` is what it means."""
        self.computed(name, self.operands[:operands], function, operands)

    def computed(self, name: str, args: tuple[Use, ...], function: Function, operands: int) -> None:
        """The same with operands that are computed from the inputs, as ``function`` does too."""
        tensors = self.inputs[:operands]
        eager = _eager(function, tensors)
        exact = [known.exactly(t) for t in tensors]
        self.names.append(name)
        self.outputs.append(self.builder.op(name, args)[0])
        self.known.append(known.elementwise(function, exact, eager))

    def check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
        executable = Executable(
            self.builder.finish(tuple(Output(o) for o in self.outputs)), "table"
        )
        found = executable.run(self.inputs)
        assert [s.kind for s in executable.last.plan.steps] == ["kernel"]  # type: ignore[union-attr]
        faults = []
        for name, value, expected in zip(self.names, found, self.known, strict=True):
            assert isinstance(value, torch.Tensor)
            fault = known.faults(value, expected)
            fault = fault or (None if name in UNSIGNED_ZEROS else _signs(value, expected))
            if fault:
                faults.append(f"{name} of {self.dtype}: {fault}")
        assert not faults, "\n".join(faults)


def _signs(found: torch.Tensor, expected: Known) -> str | None:
    """Zeros have the sign that they have in torch."""
    if not expected.is_float or found.element_size() == 1:
        return None
    zero = (expected.value == 0) & (found == 0)
    wrong = zero & (found.signbit() != expected.value.signbit())
    if not bool(wrong.any()):
        return None
    at = int(wrong.nonzero()[0])
    return f"the sign of zero differs {int(wrong.sum())} times, first at {at}"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _Table(dtype)
    for name, function in FLOAT_UNARY.items():
        table.row(name, function, 1)
    for name, function in FLOAT_BINARY.items():
        table.row(name, function, 2)
    table.check(monkeypatch)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _Table(dtype)
    b, (x, y) = table.builder, table.operands
    for name, function in INTEGER_UNARY.items():
        table.row(name, function, 1)
    if dtype in SIGNED:
        table.row("neg", torch.neg, 1)
    for name, function in INTEGER_BINARY.items():
        table.row(name, function, 2)
    (zero,) = b.op("eq", (y, b.const(0)))
    (divisor,) = b.op("where", (zero, b.const(1), y))
    for name, function in INTEGER_DIVISIONS.items():
        table.computed(name, (x, divisor), function, 2)
    bits = 8 * dtype.itemsize
    (amount,) = b.op("remainder", (y, b.const(bits)))
    shifts = {"shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift}
    for name, function in shifts.items():
        table.computed(name, (x, amount), _nonnegative(function, bits), 2)
    (exponent,) = b.op("remainder", (y, b.const(5)))
    table.computed("pow", (x, exponent), lambda a, e: torch.pow(a, e % 5), 2)
    table.check(monkeypatch)


def test_bools(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _Table(DType.BOOL)
    for name, function in BOOL_UNARY.items():
        table.row(name, function, 1)
    for name, function in BOOL_BINARY.items():
        table.row(name, function, 2)
    table.check(monkeypatch)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_nextafter(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no meaning in another precision, so it is compared with torch's own to the bit."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    table = _Table(dtype)
    table.row("nextafter", torch.nextafter, 2)
    fusion = table.builder.finish((Output(table.outputs[0]),))
    (found,) = Executable(fusion, "nextafter").run(table.inputs)
    assert isinstance(found, torch.Tensor)
    expected = torch.nextafter(*table.inputs)
    same = (found == expected) & (found.signbit() == expected.signbit())
    assert bool((same | (found.isnan() & expected.isnan())).all())


def test_nextafter_of_half_types_is_the_next_half() -> None:
    builder = Builder()
    x, y = (builder.input(TensorType(DType.BF16, (4,))) for _ in "xy")
    fusion = builder.finish((Output(builder.op("nextafter", (x, y))[0]),))
    a = torch.tensor([1.0, -1.0, 0.0, 3.0]).bfloat16()
    b = torch.tensor([2.0, -2.0, 1.0, 3.0]).bfloat16()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MDFUSE_BACKEND", "emulate")
        (found,) = Executable(fusion, "next half").run([a, b])
    assert torch.equal(found, torch.nextafter(a, b))  # type: ignore[arg-type]


@pytest.mark.parametrize("source", list(DTYPES), ids=str)
def test_casts(source: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """From every dtype to every other, where torch's own result is defined."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    x = _values(source)
    builder = Builder()
    operand = builder.input(TensorType(source, tuple(x.shape)))
    targets = [d for d in DTYPES if d is not source]
    outputs = [Output(builder.op("cast", (operand,), CastAttrs(d))[0]) for d in targets]
    found = Executable(builder.finish(tuple(outputs)), "casts").run([x])
    for target, value in zip(targets, found, strict=True):
        assert isinstance(value, torch.Tensor)
        eager = x.to(DTYPES[target])
        expected = known.cast(known.exactly(x), eager)
        if target.is_float:
            # A conversion is rounded once, so that it is right to the bit.
            same = (value.double() == eager.double()) | (value.isnan() & eager.isnan())
            assert bool(same.all()), (source, target, x[~same], value[~same], eager[~same])
        else:
            fault = known.faults(value, expected)
            assert fault is None, f"{source} to {target}: {fault}"


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32, DType.F64, DType.I32], ids=str)
def test_powers_by_numbers(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has its own way for some, which shows at -inf and -0.0."""
    table = _Table(dtype)
    floats = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, 2.5, 0.0)
    for number in floats if dtype.is_float else (0, 1, 2, 3, 5):
        args = (table.operands[0], table.builder.const(number))
        table.computed("pow", args, lambda x, y=number: torch.pow(x, y), 1)
    table.check(monkeypatch)


def test_every_generated_elementwise_op_is_in_a_table() -> None:
    generated = {
        name
        for name, row in EXPRS.items()
        if isinstance(row, Template) and OPS[name].kind == "elementwise"
    }
    tested = {*FLOAT_UNARY, *FLOAT_BINARY, *INTEGER_UNARY, *INTEGER_BINARY, *INTEGER_DIVISIONS}
    tested |= {"shift_left", "shift_right", "nextafter", "cast"}
    others = {"where", "lerp"}  # three operands: tests/codegen/test_random_programs.py
    parts = {"real", "imag"}  # of complex numbers: tests/codegen/test_complex.py
    assert generated == tested | others | parts
