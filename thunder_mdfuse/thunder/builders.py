"""How each claimed prim becomes nodes of the IR, for those that are more than a name.

A builder gets the translation's ``Values`` and the prim's own arguments, as Thunder's meta
functions name them, and returns what the prim's outputs stand for, in order. Everything that it
cannot take has been refused by the check beside it in the table (``claims.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, ScalarType, TensorType
from thunder_mdfuse.thunder.values import Values, is_bool_with_int, known_dtype

Results = Use | Size | Sequence[Use | Size]
Build = Callable[..., Results]


def elementwise(name: str) -> Build:
    """An op on tensors and numbers of one shape, or on numbers alone."""

    def build(v: Values, *args: Any) -> Results:
        if not any(isinstance(v.type(u), TensorType) for u in _tensors(v, args)):
            return v.scalar_op(name, args)
        return v.result(name, v.aligned(args))

    return build


def _tensors(v: Values, args: Sequence[Any]) -> list[Use]:
    return [u for u in map(v.find, args) if isinstance(u, Use)]


def div(v: Values, a: Any, b: Any) -> Results:
    """``prims.div`` rounds towards zero on integers."""
    found = [v.type(v.value(x)) for x in (a, b)]
    exact = all(t.dtype.kind in ("bool", "int", "uint") for t in found)
    return elementwise("trunc_div" if exact else "div")(v, a, b)


def where(v: Values, pred: Any, a: Any, b: Any) -> Results:
    """A choice between two numbers needs the dtype that Thunder gave the result."""
    condition, x, y = v.aligned((pred, a, b))
    shape = v.type(condition)
    choices = (v.type(x), v.type(y))
    if isinstance(shape, TensorType) and all(isinstance(t, ScalarType) for t in choices):
        x = v.full(a, shape.shape, known_dtype(v.outs[0].true_dtype))
    return v.result("where", (condition, x, y))


def relu(v: Values, a: Any) -> Results:
    """Zero where ``a`` is below it; NaN and -0.0 stay."""
    value, zero = v.aligned((a, 0))
    (below,) = v.op("lt", (value, zero))
    return v.result("where", (below, zero, value))


def frexp(v: Values, a: Any) -> Results:
    """Two results of one operand, each by itself: a kernel may need one of them only."""
    return [v.output(i, name, (v.value(a),)) for i, name in enumerate(("mantissa", "exponent"))]


def cast(v: Values, a: Any, dtype: Any) -> Results:
    return _cast(v, a, dtype, user=False)


def user_cast(v: Values, a: Any, dtype: Any) -> Results:
    """A cast that the user wrote, which always rounds."""
    return _cast(v, a, dtype, user=True)


def _cast(v: Values, a: Any, dtype: Any, user: bool) -> Results:
    if isinstance(dtype, type):
        return _number_cast(v, a, dtype)
    use, to = v.value(a), known_dtype(dtype)
    if is_bool_with_int(dtype) and v.type(use).dtype is DType.I8:
        to = DType.I8  # a number's dtype, or a 0-dim tensor's: of i8 as well as of i64
    return v.result("cast", (use,), at.CastAttrs(to, user))


def _number_cast(v: Values, a: Any, dtype: type) -> Results:
    found = v.find(a)
    if not isinstance(found, Use) and dtype is int:
        return found
    known = v.known_number(found)
    if known is not None:
        return v.known(dtype(known))
    return v.op("cast", (v.value(a),), at.CastAttrs(known_dtype(dtype)))


def reduction(name: str) -> Build:
    """A reduction over some dims, which go. Torch sums integers and bools in i64, whatever Thunder
    says of the result's dtype."""

    def build(v: Values, a: Any, dims: Sequence[int]) -> Results:
        use = v.value(a)
        exact = v.type(use).dtype.kind in ("bool", "int", "uint")
        if name in ("sum", "prod") and exact and v.type(use).dtype is not DType.I64:
            (use,) = v.op("cast", (use,), at.CastAttrs(DType.I64))
        return v.result(name, (use,), at.DimsAttrs(_dims(v, use, dims)))

    return build


def _dims(v: Values, use: Use, dims: Sequence[int]) -> tuple[int, ...]:
    """Ascending, as the IR wants them. Torch lets a 0-dim tensor have a dim 0."""
    return tuple(sorted(dims)) if ndim(v, use) else ()


def variance(name: str) -> Build:
    """``var`` and ``var_mean``."""

    def build(v: Values, a: Any, dims: Sequence[int], *, correction: Any) -> Results:
        use, by = v.value(a), float(v.number(correction).real)
        return v.result(name, (use,), at.VarAttrs(_dims(v, use, dims), by))

    return build


def std(v: Values, a: Any, dims: Sequence[int], *, correction: Any) -> Results:
    use, by = v.value(a), float(v.number(correction).real)
    squared = v.op("var", (use,), at.VarAttrs(_dims(v, use, dims), by))
    return v.result("sqrt", squared)


def with_dim(name: str) -> Build:
    """An op on one tensor with one dim (or None) as attribute."""

    def build(v: Values, a: Any, dim: int | None) -> Results:
        use = v.value(a)
        return v.result(name, (use,), at.DimAttrs(dim if ndim(v, use) else None))

    return build


def scan(name: str) -> Build:
    """``cumsum``, which torch computes in i64 for integers unless told a dtype."""

    def build(v: Values, a: Any, dim: int, *, dtype: Any = None) -> Results:
        use, want = v.value(a), known_dtype(v.outs[0].true_dtype)
        found = v.type(use)
        assert isinstance(found, TensorType)
        if found.dtype is not want:
            (use,) = v.op("cast", (use,), at.CastAttrs(want))
        return v.result(name, (use,), at.DimAttrs(dim % max(found.ndim, 1)))

    return build


def broadcast_in_dim(v: Values, a: Any, shape: Sequence[Any], dims: Sequence[int]) -> Results:
    attrs = at.BroadcastAttrs(v.sizes(shape), tuple(dims))
    return v.result("broadcast_in_dim", (v.value(a),), attrs)


def expand(v: Values, a: Any, *_: Any) -> Results:
    """The user's own ``expand``: an eager kernel after it is given the expanded view."""
    use, shape = v.value(a), v.sizes(v.outs[0]._shape)
    dims = tuple(range(len(shape) - ndim(v, use), len(shape)))
    return v.result("broadcast_in_dim", (use,), at.BroadcastAttrs(shape, dims, explicit=True))


def unsqueeze(v: Values, a: Any, dim: int) -> Results:
    use, shape = v.value(a), v.sizes(v.outs[0]._shape)
    new = dim % len(shape)
    dims = tuple(d for d in range(len(shape)) if d != new)
    return v.result("broadcast_in_dim", (use,), at.BroadcastAttrs(shape, dims, explicit=True))


def dtensor_broadcast(v: Values, a: Any, shape: Sequence[Any], dims: Sequence[int]) -> Results:
    """Thunder's DTensor prim broadcasts as torch does, aligned at the last dim."""
    use = v.value(a)
    found = v.type(use)
    assert isinstance(found, TensorType)
    return broadcast_in_dim(v, a, shape, tuple(range(len(shape) - found.ndim, len(shape))))


def reshape(v: Values, a: Any, shape: Sequence[Any]) -> Results:
    """The output's own shape says what a ``-1`` stands for."""
    found = v.sizes(shape)
    if any(s == -1 for s in found):
        found = v.sizes(v.outs[0]._shape)
    use = v.value(a)
    have = v.type(use)
    assert isinstance(have, TensorType)
    v.require_equal(sizes.product(have.shape), sizes.product(found))
    return v.result("reshape", (use,), at.ShapeAttrs(found))


def permute(v: Values, a: Any, permutation: Sequence[int]) -> Results:
    return v.result("permute", (v.value(a),), at.DimsAttrs(tuple(permutation)))


def squeeze(v: Values, a: Any, dims: Sequence[int]) -> Results:
    return v.result("squeeze", (v.value(a),), at.DimsAttrs(tuple(sorted(dims))))


def slicing(
    v: Values, a: Any, starts: Sequence[Any], ends: Sequence[Any], strides: Any = None
) -> Results:
    steps = tuple(int(v.number(s).real) for s in strides) if strides else (1,) * len(starts)
    attrs = at.SliceAttrs(v.sizes(starts), v.sizes(ends), steps)
    return v.result("slice", (v.value(a),), attrs)


def unfold(v: Values, a: Any, dim: Any, size: Any, step: Any) -> Results:
    use = v.value(a)
    along, apart = int(v.number(dim).real) % ndim(v, use), int(v.number(step).real)
    return v.result("unfold", (use,), at.UnfoldAttrs(along, v.size(size), apart))


def flip(v: Values, a: Any, dims: Sequence[int]) -> Results:
    use = v.value(a)
    return v.result("flip", (use,), at.DimsAttrs(_dims(v, use, dims)))


def cat(v: Values, tensors: Sequence[Any], dim: int) -> Results:
    parts = tuple(map(v.value, tensors))
    return v.result("cat", parts, at.DimAttrs(dim % max(1, ndim(v, parts[0]))))


def ndim(v: Values, use: Use) -> int:
    return v.tensor(use).ndim


def pad(v: Values, a: Any, value: Any, config: Sequence[tuple[Any, Any, Any]]) -> Results:
    low, high = v.sizes([c[0] for c in config]), v.sizes([c[1] for c in config])
    gaps = [int(v.number(c[2]).real) for c in config]
    use, filling = v.value(a), v.value(value)
    if any(gaps):
        use = _with_gaps(v, use, filling, gaps)
        sizes_now = v.tensor(use).shape
        # A gap follows every element, the last one too, which has none: cut that one.
        high = tuple(
            h - (g if n != 0 else 0) for h, g, n in zip(high, gaps, sizes_now, strict=True)
        )
    return v.result("pad", (use, filling), at.PadAttrs(low, high))


def _with_gaps(v: Values, use: Use, filling: Use, gaps: Sequence[int]) -> Use:
    """``use`` with ``gaps[d]`` fillings after every element along dim ``d``."""
    shape = v.tensor(use).shape
    apart = tuple(s for n in shape for s in (n, 1))
    attrs = at.BroadcastAttrs(apart, tuple(range(0, len(apart), 2)))
    (use,) = v.op("broadcast_in_dim", (use,), attrs)
    after = tuple(g for gap in gaps for g in (0, gap))
    (use,) = v.op("pad", (use, filling), at.PadAttrs((0,) * len(apart), after))
    joined = tuple(n * (g + 1) for n, g in zip(shape, gaps, strict=True))
    return v.op("reshape", (use,), at.ShapeAttrs(joined))[0]


def shape(v: Values, a: Any) -> Results:
    return v.tensor(v.value(a)).shape


def same(v: Values, a: Any) -> Results:
    """``shallow_copy`` is the value itself."""
    return v.value(a)


def clone(v: Values, a: Any, **_: Any) -> Results:
    return v.result("copy", (v.value(a),), at.CopyAttrs())


def stride_order(v: Values, a: Any, order: Sequence[int]) -> Results:
    """Thunder counts a dim's place from the fastest; the IR lists dims from the slowest.

    It stands for ``contiguous`` only, which is the tensor itself where the order is right already.
    """
    dims = tuple(sorted(range(len(order)), key=lambda d: -order[d]))
    return v.result("copy", (v.value(a),), at.CopyAttrs(dims, reuse=True))


def full(v: Values, shape: Sequence[Any], fill: Any, *, device: Any, dtype: Any) -> Results:
    attrs = at.FactoryAttrs(v.sizes(shape), known_dtype(dtype))
    return v.result("full", (v.value(fill),), attrs)


def empty(v: Values, shape: Sequence[Any], *, device: Any, dtype: Any) -> Results:
    """Nobody may rely on what is in it, so it need not be memory: zeros."""
    return full(v, shape, 0, device=device, dtype=dtype)


def tensor_from_sequence(v: Values, items: Any, *, device: Any, dtype: Any) -> Results:
    """A few numbers, nested as Thunder's own shape of the result says."""
    shape, want = v.sizes(v.outs[0]._shape), known_dtype(v.outs[0].true_dtype)
    numbers = list(flattened(items))
    if not numbers:
        return full(v, shape, 0, device=device, dtype=v.outs[0].true_dtype)
    parts = [v.full(n, (1,), want) for n in numbers]
    flat = v.op("cat", parts, at.DimAttrs(0)) if len(parts) > 1 else (parts[0],)
    return v.result("reshape", flat, at.ShapeAttrs(shape))


def flattened(items: Any) -> Iterator[Any]:
    """The numbers of a sequence of sequences, in order."""
    for item in items:
        yield from flattened(item) if isinstance(item, Sequence) else (item,)


def iota(v: Values, length: Any, *, start: Any, step: Any, device: Any, dtype: Any) -> Results:
    attrs = at.FactoryAttrs((v.size(length),), known_dtype(dtype))
    return v.result("iota", (v.value(start), v.value(step)), attrs)


def matmul(v: Values, a: Any, b: Any) -> Results:
    return v.result("matmul", (v.value(a), v.value(b)))


def linear(v: Values, a: Any, w: Any, bias: Any = None) -> Results:
    return v.result("linear", [v.value(x) for x in (a, w, bias) if x is not None])


def grouped_mm(v: Values, a: Any, b: Any, offsets: Any) -> Results:
    return v.result("grouped_mm", [v.value(x) for x in (a, b, offsets)])


def convolution(
    v: Values,
    a: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> Results:
    operands = [v.value(x) for x in (a, weight, bias) if x is not None]
    dims = ndim(v, operands[0]) - 2

    def each(numbers: Sequence[Any]) -> tuple[int, ...]:
        known = tuple(int(v.number(n).real) for n in numbers)
        return known * dims if len(known) == 1 else known

    together = int(v.number(groups).real)
    attrs = at.ConvolutionAttrs(each(stride), each(padding), each(dilation), together)
    return v.result("convolution", operands, attrs)


def topk(v: Values, a: Any, k: Any, dim: int, largest: Any, sorted: Any) -> Results:
    attrs = at.TopkAttrs(v.size(k), dim, bool(largest), bool(sorted))
    return v.result("topk", (v.value(a),), attrs)


def sort(v: Values, a: Any, dim: int, descending: Any, stable: Any) -> Results:
    attrs = at.SortAttrs(dim, bool(descending), bool(stable))
    return v.result("sort", (v.value(a),), attrs)


def copy_(v: Values, source: Any, target: Any, *, grad_enabled: bool) -> Results:
    """The source takes the target's name, and leaves the program through the target's storage."""
    value, storage = v.value(source), v.value(target)
    v.writes.append((v.outs[0].name, value, storage))
    v.bind(target, value)
    return value


def sdpa(
    v: Values, q: Any, k: Any, w: Any, mask: Any, causal: bool, scale: Any, gqa: bool
) -> Results:
    operands = [v.value(x) for x in (q, k, w, mask) if x is not None]
    return v.result("sdpa", operands, at.SdpaAttrs(0.0, causal, scale, gqa))


def sdpa_backward(v: Values, g: Any, q: Any, k: Any, w: Any, mask: Any, *rest: Any) -> Results:
    operands = [v.value(x) for x in (g, q, k, w, mask) if x is not None]
    return v.result("sdpa_backward", operands, at.SdpaAttrs(0.0, *rest))


def argsort(v: Values, a: Any, dim: int | None, descending: Any, stable: Any) -> Results:
    use = v.value(a)
    along = (-1 if dim is None else dim) % max(1, ndim(v, use))
    return v.result("argsort", (use,), at.SortAttrs(along, bool(descending), bool(stable)))
