"""How each op is written in C++: one row per op of the IR, either a template or a reason why not.

Operands are in their compute type (f32 for 16-bit and 8-bit floats); torch's semantics are those of
the functions in ``csrc/device``.
"""

from dataclasses import dataclass

from thunder_mdfuse.ir.types import DType

CPP_TYPES = {
    DType.BOOL: "bool",
    DType.U8: "mdf::u8",
    DType.I8: "mdf::i8",
    DType.I16: "mdf::i16",
    DType.I32: "mdf::i32",
    DType.I64: "mdf::i64",
    DType.F16: "mdf::f16",
    DType.BF16: "mdf::bf16",
    DType.F32: "float",
    DType.F64: "double",
    DType.F8E4M3: "mdf::f8e4m3",
    DType.F8E5M2: "mdf::f8e5m2",
    DType.C64: "mdf::c64",
    DType.C128: "mdf::c128",
}


@dataclass(frozen=True)
class NotGenerated:
    """The op is no kernel instruction; ``reason`` says what runs it instead."""

    reason: str


@dataclass(frozen=True)
class Template:
    """``{0}``, ``{1}``: the operands. ``for_bool``, ``for_integer``, ``for_complex``: where they
    differ.

    ``loose``: the cheap form for an f32 value that leaves the kernel rounded to 16 or 8 bits.
    """

    text: str
    for_bool: str = ""
    for_integer: str = ""
    for_complex: str = ""
    loose: str = ""


@dataclass(frozen=True)
class Reduction:
    """``op``: the functor of ``csrc/device/reduce.cuh``."""

    op: str
    for_bool: str = ""


@dataclass(frozen=True)
class Scan:
    """``op``: the functor whose running combination it is."""

    op: str
    for_bool: str = ""


Row = Template | Reduction | Scan | NotGenerated


def _calls(names: str, operands: int) -> dict[str, Row]:
    args = ", ".join(f"{{{i}}}" for i in range(operands))
    return {name: Template(f"mdf::{name}({args})") for name in names.split()}


_INDEX = NotGenerated("becomes index arithmetic of the kernel that reads it")
_HOST = NotGenerated("a number that the host computes and passes")
_ATEN = NotGenerated("an ATen step: on the closed list of library kernels")
_LOOKUP = NotGenerated("a load at a position that another value gives")
_SCATTER = NotGenerated("a kernel of its own, whose stores go where another value says")
_COMM = NotGenerated("a collective")
_EARLIER = NotGenerated("rewritten by an earlier stage")

EXPRS: dict[str, Row] = {
    **_calls(
        "abs neg exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos "
        "atan sinh cosh tanh asinh acosh atanh erfc erfinv erfcinv lgamma floor ceil round "
        "trunc frac sign isfinite isnan isinf signbit mantissa exponent",
        1,
    ),
    **_calls("fmod remainder pow atan2 nextafter copysign gcd", 2),
    **_calls("bitwise_and bitwise_or bitwise_xor", 2),
    **_calls("lerp where", 3),
    "bitwise_not": Template("mdf::bitwise_not({0})", for_bool="!({0})"),
    "logical_not": Template("!mdf::cast<bool>({0})"),
    "add": Template("mdf::add({0}, {1})", for_bool="({0} || {1})"),
    "sub": Template("mdf::sub({0}, {1})"),
    "mul": Template("mdf::mul({0}, {1})", for_bool="({0} && {1})"),
    "div": Template(
        "mdf::div({0}, {1})",
        for_integer="mdf::div_trunc({0}, {1})",
        loose="mdf::loose_div({0}, {1})",
    ),
    "exp": Template("mdf::exp({0})", loose="mdf::loose_exp({0})"),
    "erf": Template("mdf::erf({0})", loose="mdf::loose_erf({0})"),
    "real": Template("{0}", for_complex="mdf::real({0})"),
    "imag": Template("mdf::imag({0})"),
    "reciprocal": Template("mdf::reciprocal({0})", loose="mdf::loose_div(1.0f, {0})"),
    "trunc_div": Template("mdf::trunc(mdf::div({0}, {1}))", for_integer="mdf::div_trunc({0}, {1})"),
    "floor_div": Template("mdf::div_floor({0}, {1})"),
    "minimum": Template("mdf::minimum({0}, {1})", for_bool="({0} && {1})"),
    "maximum": Template("mdf::maximum({0}, {1})", for_bool="({0} || {1})"),
    "shift_left": Template("mdf::shl({0}, {1})"),
    "shift_right": Template("mdf::shr({0}, {1})"),
    "eq": Template("({0} == {1})", for_complex="mdf::equal({0}, {1})"),
    "ne": Template("({0} != {1})", for_complex="!mdf::equal({0}, {1})"),
    "lt": Template("({0} < {1})"),
    "le": Template("({0} <= {1})"),
    "gt": Template("({0} > {1})"),
    "ge": Template("({0} >= {1})"),
    "logical_and": Template("(mdf::cast<bool>({0}) && mdf::cast<bool>({1}))"),
    "logical_or": Template("(mdf::cast<bool>({0}) || mdf::cast<bool>({1}))"),
    "cast": Template("{0}"),
    "uniform": Template("{0}"),
    "normal": Template("{0}"),
    "sum": Reduction("Sum", for_bool="Any"),
    "prod": Reduction("Prod", for_bool="All"),
    "amax": Reduction("Max", for_bool="Any"),
    "amin": Reduction("Min", for_bool="All"),
    "argmax": Reduction("ArgMax"),
    "argmin": Reduction("ArgMin"),
    "cumsum": Scan("Sum"),
    "cumprod": Scan("Prod"),
    "cummax": Scan("Max", for_bool="Any"),
    "cummin": Scan("Min", for_bool="All"),
    **dict.fromkeys(
        ("broadcast_in_dim", "permute", "squeeze", "slice", "unfold", "reshape", "copy", "flip"),
        _INDEX,
    ),
    **dict.fromkeys(("chunk", "pad", "cat", "full", "iota", "keep_first"), _INDEX),
    **dict.fromkeys(("input", "const", "size"), _HOST),
    **dict.fromkeys(
        ("matmul", "linear", "grouped_mm", "sdpa", "sdpa_backward", "sort", "argsort", "topk"),
        _ATEN,
    ),
    **dict.fromkeys(("digamma", "ndtri", "zeta", "convolution", "randint", "multinomial"), _ATEN),
    **dict.fromkeys(("take", "take_along_axis", "gather", "embedding"), _LOOKUP),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "embedding_backward"), _SCATTER),
    "rng_state": NotGenerated("read from torch's generator by the program"),
    **dict.fromkeys(("all_gather", "all_reduce", "reduce_scatter", "all_to_all"), _COMM),
    **dict.fromkeys(("broadcast", "permute_ranks", "wait"), _COMM),
    **dict.fromkeys(("from_local", "to_local", "reshard", "var", "var_mean"), _EARLIER),
}


# Instructions that only schedules make.
FUSED = {
    "fma": Template("mdf::fma({0}, {1}, {2})"),
    "complex": Template("mdf::complex_of({0}, {1})"),
}


def write(op: str, dtype: DType, args: list[str], loose: bool = False) -> str:
    """C++ for elementwise ``op`` on operands of ``dtype``; ``loose``: see ``Template``."""
    row = FUSED.get(op) or EXPRS[op]
    assert isinstance(row, Template), f"{op} is no elementwise op"
    text = row.text
    if loose and row.loose and dtype is DType.F32:
        text = row.loose
    elif dtype is DType.BOOL and row.for_bool:
        text = row.for_bool
    elif dtype.is_integer and row.for_integer:
        text = row.for_integer
    elif dtype.is_complex and row.for_complex:
        text = row.for_complex
    return text.format(*args)


def functor(op: str, dtype: DType) -> str:
    """The device functor of instruction ``reduce_<op>`` or ``scan_<op>`` on ``dtype``."""
    row = EXPRS[op.removeprefix("reduce_").removeprefix("scan_")]
    assert isinstance(row, Reduction | Scan), f"{op} is no reduction"
    return f"mdf::{row.for_bool if dtype is DType.BOOL else row.op}"


def literal(text: str, dtype: DType) -> str:
    """C++ for the number whose ``repr`` is ``text``, in compute type ``dtype``."""
    cpp = CPP_TYPES[dtype]
    if dtype.is_complex:
        part = DType.F32 if dtype is DType.C64 else DType.F64
        real, _, imaginary = text.partition(" ")
        return f"{cpp}{{{literal(real, part)}, {literal(imaginary or '0', part)}}}"
    if text in ("lowest", "highest"):
        sign = "-" if text == "lowest" else ""
        return f"{sign}mdf::infinity<{cpp}>()" if dtype.is_float else f"mdf::Limits<{cpp}>::{text}"
    if dtype.is_float:
        value = float(text)
        if value != value:
            return f"mdf::nan<{cpp}>()"
        if value in (float("inf"), float("-inf")):
            return f"{'-' if value < 0 else ''}mdf::infinity<{cpp}>()"
        return f"static_cast<{cpp}>({value!r})"
    value = int(float(text)) if not text.lstrip("-").isdigit() else int(text)
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if value == -(1 << 63):
        return "(-9223372036854775807ll - 1)"
    return f"static_cast<{cpp}>({value}ll)"
