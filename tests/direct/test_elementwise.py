"""``fd.ops``, element by element, against eager torch."""

from typing import Any

import pytest
import torch
from direct.checks import check, compare, defined

from thunder_mdfuse import DataType, FusionDefinition
from thunder_mdfuse.errors import DefinitionError

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I32, I64, U8, BOOL, C64 = torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


def numbers(dtype: torch.dtype, *shape: int, low: float = -3, high: float = 3) -> torch.Tensor:
    """Numbers in [low, high], zeros and ends among them."""
    if dtype is BOOL:
        return torch.randint(0, 2, shape).bool()
    if dtype.is_complex:
        return torch.complex(numbers(F32, *shape), numbers(F32, *shape)).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(
            max(int(low), 0) if dtype is U8 else int(low), int(high) + 1, shape
        ).to(dtype)
    found = torch.empty(shape).uniform_(low, high).to(dtype)
    if found.numel() > 3 and low < 0 < high:
        found.view(-1)[:2] = torch.tensor([0.0, -0.0])
    return found


def special(dtype: torch.dtype) -> torch.Tensor:
    inf, nan = float("inf"), float("nan")
    found = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.5, 0.5, inf, -inf, nan])
    return found.to(dtype) if dtype.is_floating_point else torch.tensor([0, 1, 2, 3]).to(dtype)


# name: the eager function, dtypes, and the range of its arguments where it is not [-3, 3]
ANY = (F32, BF16, F64, I64, C64)
REAL = (F32, BF16, F64, I64)
UNARY: dict[str, tuple[Any, ...]] = {
    "abs": (torch.abs, ANY),
    "acos": (torch.acos, ANY, -1, 1),
    "acosh": (torch.acosh, ANY, 1, 3),
    "asin": (torch.asin, ANY, -1, 1),
    "asinh": (torch.asinh, ANY),
    "atan": (torch.atan, ANY),
    "atanh": (torch.atanh, ANY, -0.9, 0.9),
    "ceil": (torch.ceil, REAL),
    "cos": (torch.cos, ANY),
    "cosh": (torch.cosh, ANY),
    "exp": (torch.exp, (*ANY, BOOL, I32, F16)),
    "exp2": (torch.exp2, ANY),
    "expm1": (torch.expm1, ANY),
    "erf": (torch.erf, REAL),
    "erfc": (torch.erfc, REAL),
    "erfinv": (torch.erfinv, REAL, -0.9, 0.9),
    "floor": (torch.floor, REAL),
    "frac": (torch.frac, (F32, BF16, F64)),
    "lgamma": (torch.lgamma, REAL, 0.1, 3),
    "log": (torch.log, ANY, 0.1, 3),
    "log10": (torch.log10, ANY, 0.1, 3),
    "log1p": (torch.log1p, ANY, -0.9, 3),
    "log2": (torch.log2, ANY, 0.1, 3),
    "neg": (torch.neg, (*ANY, U8)),
    "logical_not": (torch.logical_not, (*ANY, BOOL)),
    "bitwise_not": (torch.bitwise_not, (I64, I32, U8, BOOL)),
    "reciprocal": (torch.reciprocal, ANY, 0.5, 3),
    "round": (torch.round, REAL),
    "rsqrt": (torch.rsqrt, ANY, 0.5, 3),
    "sign": (torch.sign, REAL),
    "signbit": (torch.signbit, REAL),
    "sin": (torch.sin, ANY),
    "sinh": (torch.sinh, ANY),
    "sqrt": (torch.sqrt, ANY, 0, 3),
    "tan": (torch.tan, ANY, -1, 1),
    "tanh": (torch.tanh, ANY),
    "trunc": (torch.trunc, REAL),
    "isfinite": (torch.isfinite, ANY),
    "isinf": (torch.isinf, ANY),
    "isnan": (torch.isnan, ANY),
    "isneginf": (torch.isneginf, REAL),
    "isposinf": (torch.isposinf, REAL),
    "isreal": (torch.isreal, ANY),
    "relu": (torch.relu, REAL),
    "sigmoid": (torch.sigmoid, (*REAL, BOOL)),
    "silu": (torch.nn.functional.silu, (F32, BF16, F64)),
    "set": (torch.clone, ANY),
    "segment_set": (torch.clone, ANY),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    eager, dtypes, *span = UNARY[name]
    low, high = span or (-3, 3)

    def define(fd: FusionDefinition, x: Any) -> Any:
        return getattr(fd.ops, name)(x)

    for dtype in dtypes:
        x = numbers(dtype, 4, 6, low=low, high=high)
        check(define, eager, [x])
        check(define, eager, [x.t()])
        check(define, eager, [x[:, ::2]])
        check(define, eager, [x[0, 0]])
        if dtype in (F32, BF16):
            check(define, eager, [special(dtype)])


def test_erfcinv_undoes_erfc() -> None:
    x = torch.linspace(-2, 2, 9, dtype=F64)
    (found,) = defined(lambda fd, x: fd.ops.erfcinv(x), [x]).execute([torch.erfc(x)])
    compare([found], [x], near=1e-9)


def test_real_and_imag() -> None:
    z, x = numbers(C64, 4, 6), numbers(F32, 4, 6)
    check(lambda fd, z: (fd.ops.real(z), fd.ops.imag(z)), lambda z: (z.real, z.imag), [z], 0, False)
    check(lambda fd, x: fd.ops.real(x), lambda x: x, [x], 0)
    with pytest.raises(DefinitionError, match="a complex tensor is needed"):
        defined(lambda fd, x: fd.ops.imag(x), [x])


def test_complex_of_two_tensors() -> None:
    for dtype in (F32, F64):
        x, y = numbers(dtype, 4, 6), numbers(dtype, 4, 6)
        check(lambda fd, a, b: fd.ops.complex(a, b), torch.complex, [x, y])
    with pytest.raises(DefinitionError, match="Float or Double parts"):
        defined(lambda fd, x: fd.ops.complex(x, x), [numbers(F16, 3)])


def logical_shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    bits = 8 * a.dtype.itemsize
    pairs = zip(*(x.tolist() for x in torch.broadcast_tensors(a, b)), strict=True)
    moved = [(x % (1 << bits)) >> n for x, n in pairs]
    return torch.tensor([m - (1 << bits) if m >> (bits - 1) else m for m in moved], dtype=a.dtype)


INTS = ((I64, I64), (I32, I32), (I32, I64), (U8, U8))
PAIRS = (
    (F32, F32),
    (BF16, BF16),
    (F64, F64),
    (BF16, F32),
    (F16, BF16),
    (F32, I64),
    (I64, I64),
    (I32, I64),
)
BINARY: dict[str, tuple[Any, ...]] = {
    "add": (torch.add, (*PAIRS, (C64, F32), (C64, F64), (BOOL, I64))),
    "sub": (torch.sub, (*PAIRS, (C64, C64))),
    "mul": (torch.mul, (*PAIRS, (C64, C64), (BOOL, BOOL))),
    "truediv": (torch.true_divide, (*PAIRS, (C64, C64)), 1, 4),
    "atan2": (torch.atan2, PAIRS),
    "fmod": (torch.fmod, PAIRS, 1, 4),
    "mod": (torch.fmod, INTS, 1, 4),
    "remainder": (torch.remainder, PAIRS, 1, 4),
    "pow": (torch.pow, PAIRS, 1, 3),
    "nextafter": (torch.nextafter, ((F32, F32), (F64, F64))),
    "minimum": (torch.minimum, PAIRS),
    "maximum": (torch.maximum, PAIRS),
    "eq": (torch.eq, (*PAIRS, (C64, C64), (BOOL, BOOL))),
    "ne": (torch.ne, (*PAIRS, (C64, C64))),
    "lt": (torch.lt, PAIRS),
    "le": (torch.le, PAIRS),
    "gt": (torch.gt, PAIRS),
    "ge": (torch.ge, PAIRS),
    "logical_and": (torch.logical_and, (*PAIRS, (BOOL, BOOL))),
    "logical_or": (torch.logical_or, (*PAIRS, (BOOL, BOOL))),
    "bitwise_and": (torch.bitwise_and, (*INTS, (BOOL, BOOL))),
    "bitwise_or": (torch.bitwise_or, (*INTS, (BOOL, BOOL))),
    "bitwise_xor": (torch.bitwise_xor, (*INTS, (BOOL, BOOL))),
    "bitwise_left_shift": (torch.bitwise_left_shift, INTS, 0, 5),
    "bitwise_right_shift": (torch.bitwise_right_shift, INTS, 0, 5),
    "gcd": (torch.gcd, INTS),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    eager, pairs, *span = BINARY[name]
    low, high = span or (-3, 3)

    def define(fd: FusionDefinition, x: Any, y: Any) -> Any:
        return getattr(fd.ops, name)(x, y)

    for first, second in pairs:
        x, y = numbers(first, 4, 6), numbers(second, 4, 6, low=low, high=high)
        x = x.abs() + 1 if name == "pow" else x
        check(define, eager, [x, y])
        check(define, eager, [x.t(), y.t()])
        check(define, eager, [x, y[0]])
        check(define, eager, [x[:, :1], y[:1]])
        check(define, eager, [x, y[0, 0]])
    if F32 in pairs[0]:
        x, y = torch.meshgrid(special(F32), special(F32), indexing="ij")
        check(define, eager, [x.contiguous(), y.contiguous()])


def test_logical_right_shift() -> None:
    for dtype in (I32, I64, torch.int16, torch.int8, U8):
        bits = 8 * dtype.itemsize
        values = torch.tensor([-5, -1, 0, 1, 100, 7]).to(dtype)
        for n in (0, 1, bits - 1):
            amount = torch.full((6,), n, dtype=dtype)
            check(
                lambda fd, x, n: fd.ops.logical_right_shift(x, n), logical_shift, [values, amount]
            )


def test_division() -> None:
    """``div`` rounds towards zero on integers, alone."""
    for x, y, mode in (
        (torch.tensor([7, -7, 7]), torch.tensor([2, 2, -2]), "trunc"),
        (torch.tensor([7, -7, 7]), 2, "trunc"),
        (torch.tensor([7.0, -7.0]), torch.tensor([2, 4]), None),
        (torch.tensor([7, -7]), 2.0, None),
    ):
        check(
            lambda fd, x, y: fd.ops.div(x, y),
            lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode),
            [x, y],
        )


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64, I32, I64, U8, BOOL])
@pytest.mark.parametrize("number", [2, 0.5, True])
def test_numbers_beside_tensors(dtype: torch.dtype, number: Any) -> None:
    """Given at the call, known in the definition, and on either side."""
    x = numbers(dtype, 4, 6)
    for name, eager in (("add", torch.add), ("mul", torch.mul), ("lt", torch.lt)):
        if name == "lt" and dtype is BOOL:
            continue

        def define(fd: FusionDefinition, x: Any, n: Any, name: str = name) -> Any:
            op = getattr(fd.ops, name)
            return op(x, n), op(x, number), op(n, x), op(x, fd.define_scalar(number))

        def wanted(x: Any, n: Any, eager: Any = eager) -> Any:
            other = torch.gt if eager is torch.lt else eager
            first = other(x, n) if eager is torch.lt else eager(x, n)
            return eager(x, n), eager(x, n), first, eager(x, n)

        check(define, wanted, [x, number])


def test_complex_numbers_beside_tensors() -> None:
    for dtype in (F32, F64, C64):
        check(lambda fd, x: fd.ops.mul(x, 1 + 2j), lambda x: x * (1 + 2j), [numbers(dtype, 5)])
    with pytest.raises(DefinitionError, match="complex of half precision"):
        defined(lambda fd, x: fd.ops.mul(x, 1j), [numbers(F16, 5)])


def test_zero_dim_tensors_promote_by_kind_only() -> None:
    check(
        lambda fd, x, y: (fd.ops.add(x, y), fd.ops.where(fd.ops.gt(x, 0), x, y)),
        lambda x, y: (x + y, torch.where(x > 0, x, y)),
        [numbers(BF16, 4), torch.tensor(0.5, dtype=F64)],
    )
    check(lambda fd, x, y: fd.ops.add(x, y), torch.add, [numbers(I32, 4), torch.tensor(3)])
    check(lambda fd, x, y: fd.ops.add(x, y), torch.add, [numbers(I32, 4), torch.tensor(0.5)])


def test_numbers_alone() -> None:
    with FusionDefinition() as fd:
        a, b = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Double)
        c = fd.define_scalar(7)
        for value in (
            fd.ops.add(a, b),
            fd.ops.div(a, c),
            fd.ops.truediv(a, c),
            fd.ops.mul(c, c),
            fd.ops.exp(a),
            fd.ops.maximum(b, 2.5),
            fd.ops.where(fd.ops.lt(a, 0), a, c),
            fd.ops.cast(b, DataType.Int),
            -a,
        ):
            fd.add_output(value)
    found = fd.execute([3, 1.75])
    compare(found, [4.75, 0, 3 / 7, 49, 20.085536923187668, 2.5, 7, 1, -3])
    compare(fd.execute([-8, 9.0])[:3], [1.0, -1, -8 / 7])


def test_ternary() -> None:
    for dtype in (F32, BF16, F64):
        a, b, c = (numbers(dtype, 4, 6) for _ in range(3))
        check(lambda fd, a, b, c: fd.ops.lerp(a, b, c), torch.lerp, [a, b, c])
        check(lambda fd, a, b: fd.ops.lerp(a, b, 0.25), lambda a, b: torch.lerp(a, b, 0.25), [a, b])
        check(
            lambda fd, a, b, c: fd.ops.addcmul(a, b, c, 0.5),
            lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
            [a, b, c[0]],
        )
        check(
            lambda fd, x: (
                fd.ops.clamp(x, -1.0, 0.5),
                fd.ops.clamp(x, None, 0.5),
                fd.ops.clamp(x, min=0),
                fd.ops.threshold(x, 0.5, -7.0),
            ),
            lambda x: (
                x.clamp(-1.0, 0.5),
                x.clamp(max=0.5),
                x.clamp(min=0),
                torch.nn.functional.threshold(x, 0.5, -7.0),
            ),
            [a],
        )
    check(lambda fd, x: fd.ops.clamp(x, -1, 2), lambda x: x.clamp(-1, 2), [numbers(I64, 9)])
    check(lambda fd, x: fd.ops.clamp(x, -0.5, 2), lambda x: x.clamp(-0.5, 2), [numbers(I64, 9)])
    check(lambda fd, x: fd.ops.clamp(x, -1, 2), lambda x: x.clamp(-1, 2), [special(F32)])


def test_where() -> None:
    c = numbers(BOOL, 4, 6)
    for x, y in (
        (numbers(F32, 4, 6), numbers(BF16, 6)),
        (numbers(I64, 4, 1), 2.5),
        (3, numbers(F16, 6)),
        (1, 2),
        (1.5, 2),
        (True, False),
    ):
        check(lambda fd, c, x, y: fd.ops.where(c, x, y), torch.where, [c, x, y])
    with pytest.raises(DefinitionError, match="condition must be Bool"):
        defined(lambda fd, x: fd.ops.where(x, x, x), [numbers(F32, 3)])


def test_triu() -> None:
    for diagonal in (-2, 0, 1):
        for shape in ((4, 6), (2, 5, 3)):
            check(
                lambda fd, x, d=diagonal: fd.ops.triu(x, d),
                lambda x, d=diagonal: torch.triu(x, d),
                [numbers(F32, *shape)],
            )
    check(lambda fd, x, d: fd.ops.triu(x, d), torch.triu, [numbers(I64, 4, 6), -1])


DTYPES = (F32, F64, F16, BF16, I32, I64, torch.int16, torch.int8, U8, BOOL)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2, C64])
def test_cast(dtype: torch.dtype) -> None:
    for source in DTYPES:
        x = numbers(source, 4, 6, low=0)
        check(lambda fd, x: fd.ops.cast(x, dtype), lambda x: x.to(dtype, copy=True), [x], 0)


def test_a_users_cast_rounds() -> None:
    x = torch.linspace(1, 2, 50)
    check(
        lambda fd, x: fd.ops.cast(fd.ops.cast(x, DataType.Half), DataType.Float),
        lambda x: x.half().float(),
        [x],
        0,
    )


def test_operators() -> None:
    check(
        lambda fd, x, y: (
            1 + x * y - 2 / (x + 5),
            -(abs(x) ** 2),
            (x < y) & ~(x >= 0.5) | (y > 1) ^ (x <= 0),
            x @ y,
            x % 2,
            0.5 - x,
        ),
        lambda x, y: (
            1 + x * y - 2 / (x + 5),
            -(abs(x) ** 2),
            (x < y) & ~(x >= 0.5) | (y > 1) ^ (x <= 0),
            x @ y,
            x % 2,
            0.5 - x,
        ),
        [numbers(F32, 5, 5), numbers(F32, 5, 5)],
        1e-5,
    )


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd, x, i: fd.ops.bitwise_and(x, x), "fd.ops.bitwise_and: Float operands found"),
        (lambda fd, x, i: fd.ops.gcd(x, i), "cast them, with fd.ops.cast"),
        (lambda fd, x, i: fd.ops.add(x), "missing a required argument: 'rhs'"),
        (lambda fd, x, i: fd.ops.add(x, "one"), "found 'one'"),
        (lambda fd, x, i: fd.ops.cast(x, DataType.UInt64), "UInt64 is not supported"),
        (lambda fd, x, i: fd.ops.triu(fd.ops.sum(x)), "at least 2 dims"),
        (lambda fd, x, i: 1 if fd.ops.lt(x, 0) else 2, "choose with fd.ops.where"),
    ],
)
def test_what_is_refused(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as e:
        defined(define, [numbers(F32, 4, 6), numbers(I64, 4, 6)])
    assert message in str(e.value)
