"""``fd.ops``: unary, binary and ternary ops, and casts.

Operands are tensors, numbers of the fusion or Python numbers, in any mix. Tensors broadcast as in
torch, and dtypes promote as in torch: a number beside a tensor only changes its kind (an integer
tensor plus 0.5 is Float). Between numbers alone an op gives a number.
"""

import math
from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.direct.dtypes import AnyDType, data_type, ir_dtype, is_exact
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.table import entered, op
from thunder_mdfuse.direct.values import Scalar, TensorView
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.types import DType

Value = TensorView | Scalar

# domain: which dtypes torch takes, as kinds. exact: bool and integers; real: no complex numbers.
_DOMAINS = {
    "any": ("bool", "uint", "int", "float", "complex"),
    "real": ("bool", "uint", "int", "float"),
    "exact": ("bool", "uint", "int"),
    "integer": ("uint", "int"),
}
# What becomes of the operands' dtype before the op: "float" makes floats of bools and integers.
_UNARY = """
abs same any            | acos float any           | acosh float any       | asin float any
asinh float any         | atan float any           | atanh float any       | ceil same real
cos float any           | cosh float any           | exp float any         | exp2 float any
expm1 float any         | erf float real           | erfc float real       | erfcinv float real
erfinv float real       | floor same real          | frac float real       | lgamma float real
log float any           | log10 float any          | log1p float any       | log2 float any
neg same any            | logical_not same any     | bitwise_not same exact | reciprocal float any
round same real         | rsqrt float any          | sign same real        | signbit same real
sin float any           | sinh float any           | sqrt float any        | tan float any
tanh float any          | trunc same real          | isfinite same any     | isinf same any
isnan same any
"""
# ours, the IR's, dtype, domain
_BINARY = """
add add same any                      | sub sub same any
mul mul same any                      | truediv div float any
atan2 atan2 float real                | fmod fmod same real
mod fmod same real                    | remainder remainder same real
pow pow same any                      | nextafter nextafter float real
minimum minimum same real             | maximum maximum same real
eq eq same any                        | ne ne same any
lt lt same real                       | le le same real
gt gt same real                       | ge ge same real
logical_and logical_and same any      | logical_or logical_or same any
bitwise_and bitwise_and same exact    | bitwise_or bitwise_or same exact
bitwise_xor bitwise_xor same exact    | gcd gcd same integer
bitwise_left_shift shift_left same integer | bitwise_right_shift shift_right same integer
"""


def _rows(table: str) -> list[list[str]]:
    return [cell.split() for line in table.strip().splitlines() for cell in line.split("|")]


def common(s: Scope, args: Sequence[Any], dtype: str = "same", domain: str = "any") -> list[Value]:
    """``args`` with one shape and one dtype, which must be of ``domain``."""
    values = [s.operand(a) for a in args]
    if not any(isinstance(v, TensorView) for v in values):
        return _numbers(s, values, dtype)
    wanted = s.common_dtype(values)
    if wanted.kind not in _DOMAINS[domain]:
        raise DefinitionError(
            f"{data_type(wanted).name} operands found, the op takes {', '.join(_DOMAINS[domain])}; "
            "cast them, with fd.ops.cast"
        )
    if dtype == "float" and is_exact(wanted):
        wanted = DType.F32
    values = [s.cast(v, wanted) if isinstance(v, TensorView) else v for v in values]
    return s.together(values)


def _numbers(s: Scope, values: Sequence[Value], dtype: str) -> list[Value]:
    numbers = [v for v in values if isinstance(v, Scalar)]
    if dtype == "float":
        to = at.CastAttrs(DType.F64)
        numbers = [s.number_op("cast", (n,), to) if is_exact(n.ir_dtype) else n for n in numbers]
    return list(numbers)


def apply(s: Scope, name: str, values: Sequence[Value]) -> Value:
    """An op of the IR on operands that have been made to fit."""
    numbers = [v for v in values if isinstance(v, Scalar)]
    if len(numbers) == len(values):
        return s.number_op(name, numbers)
    found: TensorView = s.op(name, values)
    return found


def _enter_unary(name: str, dtype: str, domain: str) -> None:
    def build(s: Scope, arg: Any) -> Value:
        return apply(s, name, common(s, (arg,), dtype, domain))

    entered(name, f"Elementwise ``{name}`` of a tensor or number.", build)


def _enter_binary(ours: str, name: str, dtype: str, domain: str) -> None:
    def build(s: Scope, lhs: Any, rhs: Any) -> Value:
        return apply(s, name, common(s, (lhs, rhs), dtype, domain))

    entered(ours, f"Elementwise ``{ours}`` of tensors and numbers.", build)


for _row in _rows(_UNARY):
    _enter_unary(*_row)
for _row in _rows(_BINARY):
    _enter_binary(*_row)


@op
def div(s: Scope, lhs: Any, rhs: Any) -> Value:
    """``lhs / rhs``, which rounds towards zero on integers. ``truediv`` makes floats of them."""
    values = common(s, (lhs, rhs))
    exact = all(is_exact(_dtype(v)) for v in values)
    return apply(s, "trunc_div" if exact else "div", values)


def _dtype(value: Value) -> DType:
    return value.type.dtype if isinstance(value, TensorView) else value.ir_dtype


@op
def logical_right_shift(s: Scope, lhs: Any, rhs: Any) -> TensorView:
    """``lhs >> rhs`` that fills with zeros, of signed integers too."""
    x, n = common(s, (lhs, rhs), domain="integer")
    dtype = _dtype(x) if isinstance(x, TensorView) else _dtype(n)
    if not isinstance(x, TensorView):
        x = s.full(x, s.tensor(n).type.shape, dtype)
    bits = 8 * dtype.itemsize
    shifted = s.op("shift_right", (x, n))
    if dtype.kind == "uint":
        return s.tensor(shifted)
    # -1 shifted left by the bits that stay has ones where the sign was copied to.
    ones = s.full(-1, x.type.shape, dtype)
    stay = s.op("sub", (s.full(bits, x.type.shape, dtype), n))
    copied = s.op("bitwise_not", (s.op("shift_left", (ones, stay)),))
    masked = s.op("bitwise_and", (shifted, copied))
    moved = s.op("where", (s.op("gt", (s.full(bits, x.type.shape, dtype), n)), masked, 0))
    nothing = s.op("eq", (s.full(0, x.type.shape, dtype), n))
    return s.tensor(s.op("where", (nothing, x, moved)))


@op
def isneginf(s: Scope, arg: Any) -> Value:
    """Whether each element is minus infinity."""
    return _is_number(s, arg, -math.inf)


@op
def isposinf(s: Scope, arg: Any) -> Value:
    """Whether each element is plus infinity."""
    return _is_number(s, arg, math.inf)


def _is_number(s: Scope, arg: Any, number: float) -> Value:
    (x,) = common(s, (arg,), domain="real")
    if is_exact(_dtype(x)):
        return apply(s, "ne", (x, x))
    return apply(s, "eq", (x, s.scalar(number)))


@op
def isreal(s: Scope, arg: Any) -> Value:
    """Whether each element has no imaginary part."""
    (x,) = common(s, (arg,))
    if not _dtype(x).is_complex:
        return apply(s, "logical_or", (apply(s, "eq", (x, x)), apply(s, "ne", (x, x))))
    return apply(s, "eq", (apply(s, "imag", (x,)), s.scalar(0.0)))


@op
def real(s: Scope, arg: Any) -> Value:
    """The real part, which of a real tensor is the tensor itself."""
    (x,) = common(s, (arg,))
    return apply(s, "real", (x,)) if _dtype(x).is_complex else x


@op
def imag(s: Scope, arg: Any) -> Value:
    """The imaginary part of a complex tensor."""
    (x,) = common(s, (arg,))
    if not _dtype(x).is_complex:
        raise DefinitionError(f"a complex tensor is needed, found {x!r}")
    return apply(s, "imag", (x,))


@op
def _complex(s: Scope, real: Any, imag: Any) -> Value:
    """The complex numbers of two real tensors of one dtype, Float or Double.

    It is ``real + 1j * imag``: where a part is infinite the other may come out as NaN.
    """
    re, im = common(s, (real, imag), "float", "real")
    to = DType.C128 if _dtype(re) is DType.F64 else DType.C64
    if not isinstance(re, TensorView) or not isinstance(im, TensorView):
        raise DefinitionError("two tensors are needed; fill one with fd.ops.full")
    if re.type.dtype.is_low_precision:
        raise DefinitionError(f"Float or Double parts are needed, found {re!r}; cast them")
    turned = s.op("mul", (s.cast(im, to), 1j))
    return s.tensor(s.op("add", (s.cast(re, to), turned)))


@op
def relu(s: Scope, arg: Any) -> Value:
    """``max(arg, 0)``; NaN stays NaN."""
    (x,) = common(s, (arg,), domain="real")
    return apply(s, "maximum", (x, s.scalar(0)))


@op
def sigmoid(s: Scope, arg: Any) -> Value:
    """``1 / (1 + exp(-arg))``, of half types computed in Float."""
    (x,) = common(s, (arg,), "float", "real")
    if isinstance(x, TensorView):
        return s.cast(s.tensor(_sigmoid(s, s.widened(x))), x.type.dtype)
    return _sigmoid(s, x)


def _sigmoid(s: Scope, x: Value) -> Value:
    grown = apply(s, "add", (apply(s, "exp", (apply(s, "neg", (x,)),)), s.scalar(1.0)))
    return apply(s, "reciprocal", (grown,))


@op
def silu(s: Scope, arg: Any) -> Value:
    """``arg * sigmoid(arg)``, of half types computed in Float."""
    (x,) = common(s, (arg,), "float", "real")
    if not isinstance(x, TensorView):
        return apply(s, "mul", (x, _sigmoid(s, x)))
    wide = s.widened(x)
    return s.cast(s.tensor(apply(s, "mul", (wide, _sigmoid(s, wide)))), x.type.dtype)


@op
def set(s: Scope, arg: Any) -> Value:
    """A copy, with the order of dims in memory that ``arg`` has."""
    value = s.operand(arg)
    if isinstance(value, Scalar):
        return value
    return s.tensor(s.op("copy", (value,), at.CopyAttrs()))


@op
def segment_set(s: Scope, arg: Any) -> Value:
    """A copy, as ``set``. Where a fusion is cut into kernels is decided by the bytes moved."""
    return set(s, arg)


@op
def cast(s: Scope, arg: Any, dtype: AnyDType) -> Value:
    """``arg`` in another dtype. It always rounds, also where a later cast would widen again."""
    value, to = s.operand(arg), ir_dtype(dtype)
    if isinstance(value, TensorView):
        return s.cast(value, to, user=True)
    return s.number_op("cast", (value,), at.CastAttrs(to, True))


@op
def lerp(s: Scope, start: Any, end: Any, weight: Any) -> Value:
    """``start + weight * (end - start)``."""
    values = common(s, (start, end, weight), "float")
    if isinstance(values[2], TensorView):
        first, last = (_filled(s, v, values[2]) for v in values[:2])
        return s.tensor(s.op("lerp", (first, last, values[2])))
    return apply(s, "lerp", values)


def _filled(s: Scope, value: Value, like: TensorView) -> TensorView:
    if isinstance(value, TensorView):
        return value
    return s.full(value, like.type.shape, like.type.dtype)


@op
def where(s: Scope, condition: Any, x: Any, y: Any) -> Value:
    """``x`` where the Bool ``condition`` is true, else ``y``."""
    test = s.operand(condition)
    if _dtype(test) is not DType.BOOL:
        raise DefinitionError(f"the condition must be Bool, found {test!r}; compare it with 0")
    choices = [s.operand(x), s.operand(y)]
    if not any(isinstance(v, TensorView) for v in (test, *choices)):
        return apply(s, "where", (test, *choices))
    dtype = s.common_dtype(choices)
    cast_choices = [s.cast(v, dtype) if isinstance(v, TensorView) else v for v in choices]
    test, a, b = s.together((test, *cast_choices))
    if isinstance(test, TensorView) and isinstance(a, Scalar) and isinstance(b, Scalar):
        a = s.full(a, test.type.shape, dtype)
    return s.tensor(s.op("where", (test, a, b)))


@op
def clamp(s: Scope, arg: Any, min: Any = None, max: Any = None) -> Value:
    """``arg`` with what is below ``min`` or above ``max`` replaced by it; None is no bound."""
    bounds = {"maximum": min, "minimum": max}
    given = {name: s.operand(b) for name, b in bounds.items() if b is not None}
    x, *limits = common(s, (arg, *given.values()), domain="real")
    for name, limit in zip(given, limits, strict=True):
        x = apply(s, name, (x, limit))
    return x


@op
def threshold(s: Scope, arg: Any, threshold: Any, value: Any) -> Value:
    """``value`` where ``arg <= threshold``, else ``arg``."""
    x = s.tensor(arg)
    (left, right) = common(s, (x, threshold), domain="real")
    return where(s, apply(s, "le", (left, right)), value, x)


@op
def addcmul(s: Scope, a: Any, b: Any, c: Any, value: Any) -> Value:
    """``a + value * b * c``, of half types computed in Float."""
    values = common(s, (a, b, c))
    tensors = [v for v in values if isinstance(v, TensorView)]
    if not tensors:
        raise DefinitionError("a tensor is needed among the first three operands")
    dtype = tensors[0].type.dtype
    x, y, z = (s.widened(v) if isinstance(v, TensorView) else v for v in values)
    product = apply(s, "mul", (apply(s, "mul", (s.scalar(value), y)), z))
    return s.cast(s.tensor(apply(s, "add", (x, product))), dtype)


@op
def triu(s: Scope, arg: Any, diagonal: Any = 0) -> TensorView:
    """``arg`` with zeros below the ``diagonal``-th diagonal of its last two dims."""
    x = s.tensor(arg)
    if x.ndim < 2:
        raise DefinitionError(f"a tensor of at least 2 dims is needed, found {x!r}")
    shape = x.type.shape
    rows, columns = (
        s.broadcast(s.op("iota", (0, 1), at.FactoryAttrs((shape[d],), DType.I64)), shape, (d,))
        for d in (x.ndim - 2, x.ndim - 1)
    )
    kept = s.op("ge", (s.op("sub", (columns, rows)), s.scalar(diagonal)))
    return s.tensor(s.op("where", (kept, x, 0)))
