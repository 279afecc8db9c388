"""The op table: for each op its operands, attributes, type rule, stride rule and view rule.

This is the whole surface of the IR. Other layers keep tables of their own with the same keys
(``sharding/rules.py``, ``codegen/exprs.py``, ``runtime/aten.py``); a test compares the key sets.

``strides`` says what memory layout eager torch gives a result (``ir/layout.py`` has a rule for
each): ``iterator`` is TensorIterator's over the operands' strides, ``contiguous`` the row-major
one, ``padded rows`` that with rows of whole 16 bytes, ``preserve`` that of
``torch.preserve_format``, ``format`` channels last where all operands are, ``window`` where any is,
``copy`` what ``CopyAttrs`` says, ``view`` none because the result shares the operand's storage
(``reshape``: where torch would share it), ``chunk`` a clone of a slice, ``global`` the operand's
order of dims.
"""

from dataclasses import dataclass

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import chunks, infer


@dataclass(frozen=True)
class Op:
    """One row. ``operands``: (least, most); ``level``: where it may stand (any, global, local)."""

    name: str
    kind: str
    operands: tuple[int, int]
    attrs: type
    rule: infer.Rule
    strides: str
    results: int = 1
    level: str = "any"

    @property
    def is_view(self) -> bool:
        return self.strides == "view"


_MANY = 1 << 30
OPS: dict[str, Op] = {}


def _rows(
    names: str,
    kind: str,
    operands: int | tuple[int, int],
    rule: infer.Rule,
    strides: str,
    attrs: type = at.NoAttrs,
    results: int = 1,
    level: str = "any",
) -> None:
    span = (operands, operands) if isinstance(operands, int) else operands
    for name in names.split():
        OPS[name] = Op(name, kind, span, attrs, rule, strides, results, level)


_rows("input", "input", 0, infer.constant, "input", at.InputAttrs)
_rows("const", "scalar", 0, infer.constant, "none", at.ConstAttrs)
_rows("size", "scalar", 0, infer.size, "none", at.SizeAttrs)

_rows(
    "neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc erfinv erfcinv lgamma floor ceil round trunc frac "
    "sign bitwise_not digamma ndtri",
    "elementwise",
    1,
    infer.elementwise,
    "iterator",
)
_rows("abs", "elementwise", 1, infer.magnitude, "iterator")
_rows("isfinite isnan isinf signbit logical_not", "elementwise", 1, infer.predicate, "iterator")
_rows("real imag", "elementwise", 1, infer.real_part, "iterator")
_rows("mantissa", "elementwise", 1, infer.elementwise, "iterator")
_rows("exponent", "elementwise", 1, infer.exponent, "iterator")
_rows(
    "add sub mul div trunc_div floor_div fmod remainder pow atan2 nextafter minimum maximum "
    "copysign "
    "bitwise_and bitwise_or bitwise_xor shift_left shift_right gcd zeta",
    "elementwise",
    2,
    infer.elementwise,
    "iterator",
)
_rows("eq ne lt le gt ge logical_and logical_or", "elementwise", 2, infer.predicate, "iterator")
_rows("lerp", "elementwise", 3, infer.elementwise, "iterator")
_rows("where", "elementwise", 3, infer.where, "iterator")
_rows("cast", "elementwise", 1, infer.cast, "preserve", at.CastAttrs)

_rows("sum prod amax amin", "reduction", 1, infer.reduction, "contiguous", at.DimsAttrs)
_rows("var", "reduction", 1, infer.variance, "contiguous", at.VarAttrs)
_rows("var_mean", "reduction", 1, infer.variance_and_mean, "contiguous", at.VarAttrs, results=2)
_rows("argmax argmin", "arg_reduction", 1, infer.arg_reduction, "contiguous", at.DimAttrs)
_rows("cumsum cumprod cummax cummin", "scan", 1, infer.same, "contiguous", at.DimAttrs)

_rows("broadcast_in_dim", "view", 1, infer.broadcast_in_dim, "view", at.BroadcastAttrs)
_rows("permute", "view", 1, infer.permute, "view", at.DimsAttrs)
_rows("squeeze", "view", 1, infer.squeeze, "view", at.DimsAttrs)
_rows("slice", "view", 1, infer.slicing, "view", at.SliceAttrs)
_rows("unfold", "view", 1, infer.unfold, "view", at.UnfoldAttrs)
_rows("reshape", "view", 1, infer.reshape, "reshape", at.ShapeAttrs)
_rows("copy", "copy", 1, infer.same, "copy", at.CopyAttrs)
_rows("flip", "rearrange", 1, infer.same, "preserve", at.DimsAttrs)
_rows("pad", "rearrange", 2, infer.pad, "format", at.PadAttrs)
_rows("cat", "rearrange", (1, _MANY), infer.cat, "format", at.DimAttrs)

_rows("take", "index", 2, infer.take, "contiguous", at.DimAttrs)
_rows("take_along_axis gather", "index", 2, infer.gather, "contiguous", at.DimAttrs)
_rows("embedding", "index", 2, infer.embedding, "contiguous", at.EmbeddingAttrs)
_rows("scatter scatter_add index_add", "scatter", 3, infer.same, "contiguous", at.DimAttrs)
_rows(
    "embedding_backward",
    "scatter",
    2,
    infer.embedding_backward,
    "contiguous",
    at.EmbeddingBackwardAttrs,
)

_rows("full", "factory", 1, infer.factory, "contiguous", at.FactoryAttrs)
_rows("iota", "factory", 2, infer.factory, "contiguous", at.FactoryAttrs)
_rows("rng_state", "rng_state", 0, infer.rng_state, "contiguous", at.RngAttrs, results=2)
_rows("uniform normal", "random", 2, infer.factory, "contiguous", at.PhiloxAttrs)
# One more operand at the end is what was drawn before, since torch's generator has a state.
_rows("randint", "draw", (0, 1), infer.factory, "contiguous", at.RandintAttrs)
_rows("multinomial", "draw", (1, 2), infer.multinomial, "contiguous", at.MultinomialAttrs)

_rows("matmul", "matmul", 2, infer.matmul, "contiguous")
_rows("linear", "matmul", (2, 3), infer.linear, "contiguous")
_rows("grouped_mm", "matmul", (2, 3), infer.grouped_mm, "padded rows")
_rows("convolution", "matmul", (2, 3), infer.convolution, "window", at.ConvolutionAttrs)
_rows("sdpa", "sdpa", (3, 4), infer.sdpa, "sdpa", at.SdpaAttrs)
_rows(
    "sdpa_backward",
    "sdpa",
    (4, 5),
    infer.sdpa_backward,
    "sdpa",
    at.SdpaAttrs,
    results=3,
)
_rows("sort", "sort", 1, infer.sort, "preserve", at.SortAttrs, results=2)
_rows("argsort", "sort", 1, infer.argsort, "preserve", at.SortAttrs)
_rows("topk", "sort", 1, infer.topk, "contiguous", at.TopkAttrs, results=2)

_rows("from_local", "placement", 1, chunks.from_local, "global", at.LocalAttrs, level="global")
_rows("to_local", "placement", 1, chunks.to_local, "global", at.ShapeAttrs, level="global")
_rows("reshard", "placement", 1, chunks.unchanged, "global", at.ReshardAttrs, level="global")
_rows("chunk", "chunk", 1, chunks.chunk, "chunk", at.ChunkAttrs, level="local")
_rows("keep_first", "chunk", 1, chunks.unchanged, "contiguous", at.ReduceCommAttrs, level="local")
_rows("all_gather", "start", 1, chunks.all_gather, "contiguous", at.GatherCommAttrs, level="local")
_rows("all_reduce", "start", 1, chunks.unchanged, "contiguous", at.ReduceCommAttrs, level="local")
_rows(
    "reduce_scatter",
    "start",
    1,
    chunks.reduce_scatter,
    "contiguous",
    at.ScatterCommAttrs,
    level="local",
)
_rows(
    "all_to_all",
    "start",
    1,
    chunks.all_to_all,
    "contiguous",
    at.ExchangeCommAttrs,
    level="local",
)
_rows("broadcast", "start", 1, chunks.broadcast, "contiguous", at.SourceCommAttrs, level="local")
_rows("permute_ranks", "start", 1, chunks.unchanged, "contiguous", at.TurnCommAttrs, level="local")
_rows("wait", "wait", 1, chunks.unchanged, "contiguous", level="local")


def row(name: str) -> Op:
    """The row of op ``name``. Raises ``IRError`` for an unknown op."""
    found = OPS.get(name)
    if found is None:
        raise IRError(f"unknown op {name!r}")
    return found
