"""Families of steps that compute: unary, binary, with numbers, comparisons, casts, reductions."""

import functools
import math
import random
from collections.abc import Callable, Sequence

import torch
from codegen.random_programs import known
from codegen.random_programs.known import Known
from codegen.random_programs.program import DTYPES, FAMILIES, Draft, Family, Step

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.types import DType

Function = Callable[..., torch.Tensor]


def _torch(names: str) -> dict[str, Function]:
    return {name: getattr(torch, name) for name in names.split()}


UNARY = _torch(
    "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma floor ceil round trunc frac "
    "sign"
)
INTEGER_UNARY = {name: UNARY[name] for name in ("neg", "abs", "sign")}
INTEGER_UNARY["bitwise_not"] = torch.bitwise_not
PREDICATES: dict[str, Function] = {
    name: getattr(torch, name) for name in ("isnan", "isinf", "isfinite", "signbit")
}
COMPARISONS: dict[str, Function] = {
    name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
LOGIC: dict[str, Function] = {
    name: getattr(torch, name)
    for name in ("logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor")
}
BINARY: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "pow": torch.pow,
    "copysign": torch.copysign,
    "floor_div": torch.floor_divide,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
INTEGER_BINARY: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "gcd": torch.gcd,
}
# Divided by |b| + 1, for torch raises where a divisor is 0.
INTEGER_DIVISIONS: dict[str, Function] = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_div": torch.floor_divide,
    "trunc_div": BINARY["trunc_div"],
    "div": BINARY["trunc_div"],
}
WITH_NUMBER = {name: BINARY[name] for name in ("add", "sub", "mul", "div", "pow")}
NUMBERS = (0.5, -1.5, 3.0, 0.1, -0.0, 2.0)


PERIODS = {"tan": math.pi, "sin": 2 * math.pi, "cos": 2 * math.pi}
QUOTIENTS = ("fmod", "remainder", "floor_div", "trunc_div")
# Of these the divisor is the last operand.
DIVISIONS = ("div", "reciprocal", *QUOTIENTS)


def _poles(name: str, args: Sequence[Known]) -> torch.Tensor:
    """Where an interval has a pole, a gap or a point of its own that its ends do not show."""
    first, last = args[0], args[-1]
    around_zero = (last.doubt > 0) & (last.value.abs() <= last.doubt)
    if name == "logical_not":
        return around_zero
    if name in ("eq", "ne"):
        doubt = first.doubt + last.doubt
        return (doubt > 0) & ((first.value - last.value).abs() <= doubt)
    if name in QUOTIENTS:
        ends = [
            ((first.value + i * first.doubt) / (last.value + j * last.doubt)).floor()
            for i in (-1, 1)
            for j in (-1, 1)
        ]
        jumps = functools.reduce(torch.logical_or, (e != ends[0] for e in ends))
        return around_zero | (jumps & (first.doubt + last.doubt > 0))
    if name in DIVISIONS:
        return around_zero
    if name in PERIODS:  # between two of these is a pole, or all that the function can be
        low, high = ((last.value + s * last.doubt) / PERIODS[name] for s in (-1, 1))
        return (last.doubt > 0) & ((low - 0.5).floor() != (high - 0.5).floor())
    if name == "lgamma":
        low, high = (last.value - last.doubt).ceil(), (last.value + last.doubt).floor()
        return (last.doubt > 0) & (low <= high) & (low <= 0)
    if name == "atan2":  # half turns either way, by the sign of a zero
        return (first.doubt > 0) & (first.value.abs() <= first.doubt) & (last.value <= last.doubt)
    if name == "pow":  # of a negative base only whole powers are numbers
        whole = (last.value - last.doubt).ceil() <= (last.value + last.doubt).floor()
        return (last.doubt > 0) & whole & (first.value - first.doubt <= 0)
    return torch.zeros((), dtype=torch.bool)


def _without_poles(result: Known, name: str, args: Sequence[Known]) -> Known:
    return known.doubted(result, torch.where(_poles(name, args), torch.inf, 0.0))


def _unary(x: Known, name: str) -> Known:
    function = {**UNARY, **INTEGER_UNARY, **PREDICATES, "logical_not": torch.logical_not}[name]
    result = known.elementwise(function, (x,), function(x.eager))
    if name == "signbit":
        return _without_signs_of_nan(result, x)
    if name == "frac":  # its ends say nothing of what lies between them
        jumps = (x.value - x.doubt).floor() != (x.value + x.doubt).floor()
        return known.doubted(result, torch.where(jumps, torch.inf, 0.0))
    if name == "lgamma" and x.is_float:  # near its zeros libraries are off by a part of 1
        more = torch.full_like(result.doubt, known.unit(x.eager.dtype))
        return _without_poles(known.doubted(result, more), name, (x,))
    return _without_poles(result, name, (x,)) if x.is_float else result


def _without_signs_of_nan(result: Known, sign: Known) -> Known:
    """What the sign of a computed NaN decides differs between libraries of math functions."""
    doubt = torch.where(sign.value.isnan(), torch.inf, result.doubt)
    return Known(result.eager, result.value, doubt)


def _draw_unary(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.computes(k))
    if i is None:
        return None
    kind = draft.dtype(i)
    if kind.is_float:
        names = list(UNARY) if rng.random() < 0.8 else [*PREDICATES, "logical_not"]
    elif kind is DType.BOOL:
        names = ["logical_not", "bitwise_not"]
    else:
        names = [n for n in INTEGER_UNARY if kind is not DType.U8 or n != "neg"]
    return Step("unary", (i,), (rng.choice(names),))


FAMILIES["unary"] = Family(_draw_unary, _unary, lambda b, x, name: b.op(name, (x,))[0])


def _binary(a: Known, b: Known, name: str, kind: str) -> Known:
    tables = {"float": BINARY, "integer": INTEGER_BINARY, "compare": COMPARISONS, "logic": LOGIC}
    function = tables[kind][name]
    result = known.elementwise(function, (a, b), function(a.eager, b.eager))
    if name == "copysign":
        return _without_signs_of_nan(result, b)
    return _without_poles(result, name, (a, b)) if a.is_float else result


def _draw_binary(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.computes(k))
    if i is None:
        return None
    j = draft.pick(rng, lambda k: draft.shape(k) == draft.shape(i) and draft.same_dtype(k, i))
    assert j is not None
    kind = "float" if draft.dtype(i).is_float else "integer"
    if draft.dtype(i) is DType.BOOL:
        kind = "logic"
    elif rng.random() < 0.2:
        kind = "compare"
    tables = {"float": BINARY, "integer": INTEGER_BINARY, "compare": COMPARISONS, "logic": LOGIC}
    return Step("binary", (i, j), (rng.choice(list(tables[kind])), kind))


FAMILIES["binary"] = Family(
    _draw_binary, _binary, lambda b, x, y, name, kind: b.op(name, (x, y))[0]
)


def _divided(a: Known, b: Known, name: str) -> Known:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return INTEGER_DIVISIONS[name](x, torch.where(y == 0, torch.ones_like(y), y))

    return known.elementwise(function, (a, b), function(a.eager, b.eager))


def _draw_divided(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.dtype(k).is_integer)
    if i is None:
        return None
    j = draft.pick(rng, lambda k: draft.shape(k) == draft.shape(i) and draft.same_dtype(k, i))
    assert j is not None
    return Step("divided", (i, j), (rng.choice(list(INTEGER_DIVISIONS)),))


def _build_divided(b: Builder, x: Use, y: Use, name: str) -> Use:
    (zero,) = b.op("eq", (y, b.const(0)))
    (safe,) = b.op("where", (zero, b.const(1), y))
    return b.op(name, (x, safe))[0]


FAMILIES["divided"] = Family(_draw_divided, _divided, _build_divided)


def _number(x: Known, name: str, number: float, first: bool) -> Known:
    base = {**WITH_NUMBER, **COMPARISONS}[name]
    # A number is rounded as the tensor's dtype would be only where torch makes a tensor of it.
    narrow = torch.tensor(number, dtype=x.eager.dtype).item() if name in COMPARISONS else number
    eager = base(number, x.eager) if first else base(x.eager, number)
    function = (lambda v: base(narrow, v)) if first else (lambda v: base(v, narrow))
    result = known.elementwise(function, (x,), eager)
    if first and name == "pow":
        result = _without_poles(result, name, (known.exactly(torch.tensor(number)), x))
    if name in COMPARISONS:
        return _without_poles(result, name, (x, known.exactly(torch.tensor(narrow))))
    if x.eager.dtype is torch.float64:
        return result
    # Kernels compute in f32, and so with the number's f32.
    single = torch.tensor(number, dtype=torch.float32).double().item()
    other = base(single, x.value) if first else base(x.value, single)
    return known.doubted(result, known.distance(other.double(), result.value.double()))


def _draw_number(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.computes(k) and draft.dtype(k).is_float)
    if i is None:
        return None
    if rng.random() < 0.2:
        return Step("number", (i,), (rng.choice(list(COMPARISONS)), rng.choice(NUMBERS), False))
    name = rng.choice(list(WITH_NUMBER))
    first = name in ("pow",) and rng.random() < 0.5
    return Step("number", (i,), (name, rng.choice(NUMBERS), first))


def _build_number(b: Builder, x: Use, name: str, number: float, first: bool) -> Use:
    args = (b.const(number), x) if first else (x, b.const(number))
    return b.op(name, args)[0]


FAMILIES["number"] = Family(_draw_number, _number, _build_number)


def _given_number(x: Known, name: str, use: Use, number: float | int) -> Known:
    function = lambda v: BINARY[name](v, number)
    return known.elementwise(function, (x,), BINARY[name](x.eager, number))


def _draw_given_number(rng: random.Random, draft: Draft) -> Step | None:
    """An op with a number that is an input, of the kind of the tensor."""
    i = draft.pick(rng, lambda k: draft.computes(k) and draft.dtype(k) is not DType.BOOL)
    if i is None or not draft.numbers:
        return None
    numbers = draft.numbers if draft.dtype(i).is_float else draft.numbers[1:]
    use, number = rng.choice(numbers)
    names = ("add", "sub", "mul", "div") if draft.dtype(i).is_float else ("add", "mul")
    return Step("given number", (i,), (rng.choice(names), use, number))


FAMILIES["given number"] = Family(
    _draw_given_number, _given_number, lambda b, x, name, use, number: b.op(name, (x, use))[0]
)


def _integer_number(x: Known, name: str, number: int) -> Known:
    def function(v: torch.Tensor) -> torch.Tensor:
        plain = name in ("add", "mul")
        return INTEGER_BINARY[name](v, number if plain else torch.tensor(number, dtype=v.dtype))

    return known.elementwise(function, (x,), function(x.eager))


def _draw_integer_number(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.dtype(k).is_integer)
    if i is None:
        return None
    return Step(
        "integer number", (i,), (rng.choice(("add", "mul", "bitwise_xor")), rng.choice((1, 3, 7)))
    )


FAMILIES["integer number"] = Family(
    _draw_integer_number,
    _integer_number,
    lambda b, x, name, number: b.op(name, (x, b.const(number)))[0],
)


def _where(condition: Known, a: Known, b: Known) -> Known:
    eager = torch.where(condition.eager, a.eager, b.eager)
    return known.where(condition, a, b, eager)


def _draw_where(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.dtype(k) is DType.BOOL)
    if i is None:
        return None
    j = draft.pick(rng, lambda k: draft.shape(k) == draft.shape(i) and draft.computes(k))
    assert j is not None
    k = draft.pick(rng, lambda n: draft.shape(n) == draft.shape(i) and draft.same_dtype(n, j))
    assert k is not None
    return Step("where", (i, j, k))


FAMILIES["where"] = Family(_draw_where, _where, lambda b, c, x, y: b.op("where", (c, x, y))[0])


def _draw_select(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.dtype(k) is DType.BOOL)
    if i is None:
        return None
    return Step("select", (i,), tuple(rng.sample((0.25, -2.5, 7.0, 0.0), 2)))


def _select(condition: Known, yes: float, no: float) -> Known:
    """``where`` of two numbers, which are f64 to the IR."""
    a, b = (torch.tensor(v, dtype=torch.float64) for v in (yes, no))
    eager = torch.where(condition.eager, a, b)
    shape = condition.eager.shape
    return known.where(condition, exactly_filled(shape, yes), exactly_filled(shape, no), eager)


def exactly_filled(shape: torch.Size, number: float) -> Known:
    return known.exactly(torch.full(shape, number, dtype=torch.float64))


FAMILIES["select"] = Family(
    _draw_select,
    _select,
    lambda b, c, yes, no: b.op("where", (c, b.const(yes), b.const(no)))[0],
)


def _draw_lerp(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.computes(k) and draft.dtype(k).is_float)
    if i is None:
        return None
    j = draft.pick(rng, lambda k: draft.shape(k) == draft.shape(i) and draft.same_dtype(k, i))
    assert j is not None
    return Step("lerp", (i, j), (rng.choice((0.25, 0.75)),))


def _lerp(a: Known, b: Known, weight: float) -> Known:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.lerp(x, y, weight)

    # It rounds the distance of the two, which may be much larger than the result.
    rough = [Known(x.eager, x.value, x.doubt + x.value.nan_to_num().abs() * 2**-22) for x in (a, b)]
    if a.eager.dtype is torch.float64:
        rough = [a, b]
    return known.elementwise(function, rough, function(a.eager, b.eager))


FAMILIES["lerp"] = Family(
    _draw_lerp, _lerp, lambda b, x, y, weight: b.op("lerp", (x, y, b.const(weight)))[0]
)


def _cast(x: Known, dtype: DType, user: bool) -> Known:
    return known.cast(x, x.eager.to(DTYPES[dtype], copy=True))


def _draw_cast(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: True)
    assert i is not None
    dtype = rng.choice([d for d in DTYPES if d is not draft.dtype(i)])
    if rng.random() < 0.6:
        dtype = rng.choice(
            [d for d in (DType.F32, DType.BF16, DType.F16) if d is not draft.dtype(i)]
        )
    return Step("cast", (i,), (dtype, rng.random() < 0.5))


FAMILIES["cast"] = Family(
    _draw_cast,
    _cast,
    lambda b, x, dtype, user: b.op("cast", (x,), at.CastAttrs(dtype, user))[0],
)


def _reduction(x: Known, name: str, dims: tuple[int, ...]) -> Known:
    return known.reduction(name, x, dims, _eager_reduction(x.eager, name, dims))


def _eager_reduction(x: torch.Tensor, name: str, dims: tuple[int, ...]) -> torch.Tensor:
    if name != "prod":
        return x.sum(dims) if name == "sum" else getattr(torch, name)(x, dims)
    # Torch's prod takes one dim at a time.
    kept = [d for d in range(x.ndim) if d not in dims]
    moved = x.permute(*kept, *dims).flatten(len(kept)) if len(dims) > 1 else x
    return torch.prod(moved, len(kept) if len(dims) > 1 else dims[0])


def _draw_reduction(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.computes(k) and draft.ndim(k) > 0)
    if i is None:
        return None
    ndim = draft.ndim(i)
    dims = tuple(sorted(rng.sample(range(ndim), rng.randint(1, ndim))))
    if rng.random() < 0.4:
        dims = (ndim - 1,)
    names = ["sum", "sum", "amax", "amin", "prod"]
    if draft.dtype(i) is DType.BOOL:
        names = ["sum", "amax", "amin"]
    name = rng.choice(names)
    empty = any(t.shape[d] == 0 for t in draft.eager(i) for d in dims)
    return None if empty and name in ("amax", "amin") else Step("reduction", (i,), (name, dims))


def _build_reduction(b: Builder, x: Use, name: str, dims: tuple[int, ...]) -> Use:
    dtype = b.tensor(x).dtype
    if name in ("sum", "prod") and not dtype.is_float and dtype is not DType.I64:
        (x,) = b.op("cast", (x,), at.CastAttrs(DType.I64))  # torch sums integers in i64
    return b.op(name, (x,), at.DimsAttrs(dims))[0]


FAMILIES["reduction"] = Family(_draw_reduction, _reduction, _build_reduction)
