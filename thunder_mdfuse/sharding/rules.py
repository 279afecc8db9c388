"""How each op may be sharded: one row an op, with the same keys as ``ir/ops.py``.

A row has a factor rule (which dims go together) and a flow rule (which pending reductions pass);
see ``factors``. What a row does not offer needs ``Replicate``. An ``Unsupported`` row is for an
op that has no placements of its own, and says why.
"""

from dataclasses import dataclass
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import TensorType
from thunder_mdfuse.sharding import factors as f
from thunder_mdfuse.sharding import rules_shape as shape
from thunder_mdfuse.sharding.factors import Factor, FactorRule, FlowRule, Label, Site, Traits


@dataclass(frozen=True)
class Rule:
    """The row of an op that may be sharded."""

    factors: FactorRule
    flows: FlowRule


@dataclass(frozen=True)
class Unsupported:
    """The row of an op to which placements do not apply, or not yet."""

    reason: str


def _attrs(site: Site) -> Any:
    return site.attrs


def elementwise(site: Site) -> tuple[Factor, ...]:
    """Tensor operands have the result's shape: every dim is a factor of all of them."""
    operands = [range(len(site.shape(i))) for i in range(len(site.operands))]
    result = site.results[0]
    assert isinstance(result, TensorType)
    return f.from_labels(site, operands, [range(result.ndim)])


def reduction(kind: str | None) -> FactorRule:
    """Reduced dims become pending reductions of ``kind``; None: they cannot be sharded."""

    def rule(site: Site) -> tuple[Factor, ...]:
        dims = _attrs(site).dims
        labels = range(len(site.shape(0)))
        kept = [d for d in labels if d not in dims]
        traits = {} if kind is None else dict.fromkeys(dims, Traits(reduces=kind))
        return f.from_labels(site, [labels], [kept] * len(site.results), traits)

    return rule


def arg_reduction(site: Site) -> tuple[Factor, ...]:
    """Indices along a sharded dim would need the positions' values beside them."""
    dim, ndim = _attrs(site).dim, len(site.shape(0))
    kept = [] if dim is None else [d for d in range(ndim) if d != dim]
    return f.from_labels(site, [range(ndim)], [kept])


def linear(site: Site) -> tuple[Factor, ...]:
    """x[..., in] w[out, in] bias[out]: a sharded ``in`` leaves a sum, with the bias in it once."""
    batch = list(range(len(site.shape(0)) - 1))
    bias = len(site.operands) == 3
    operands: list[list[Label | None]] = [[*batch, "in"], ["out", "in"], ["out"]]
    operands = operands[: len(site.operands)]
    traits: dict[Label, Traits] = {"in": Traits("sum", pending=(2,) if bias else ())}
    return f.from_labels(site, operands, [[*batch, "out"]], traits)


def matmul(site: Site) -> tuple[Factor, ...]:
    """Batch dims broadcast from the right, then [m, k] @ [k, n]; a vector lacks m or n."""
    a, b = site.shape(0), site.shape(1)
    n = max(len(a), len(b), 2) - 2

    def batch(own: tuple[Size, ...], other: tuple[Size, ...]) -> list[Label | None]:
        labels: list[Label | None] = []
        for i, size in enumerate(own):
            at = i - len(own)
            grows = size == 1 and len(other) >= -at and other[at] != 1
            labels.append(None if grows else ("batch", n + at))
        return labels

    rows = ["m"] if len(a) > 1 else []
    columns = ["n"] if len(b) > 1 else []
    left = [*batch(a[:-2], b[:-2]), *rows, "k"]
    right = [*batch(b[:-2], a[:-2]), "k", *columns]
    result = [*(("batch", i) for i in range(n)), *rows, *columns]
    return f.from_labels(site, [left, right], [result], {"k": Traits("sum")})


def grouped_mm(site: Site) -> tuple[Factor, ...]:
    """Every dim but those along which the offsets cut groups, and the groups then."""
    a, b = len(site.shape(0)), len(site.shape(1))
    flat = 2 in (a, b)
    group, k = None if flat else "group", None if a == b == 2 else "k"
    rows, columns = None if (a, b) == (2, 3) else "m", None if (a, b) == (3, 2) else "n"
    left, right, result = [rows, k], [k, columns], [rows, columns]
    operands = [[group, *left] if a == 3 else left, [group, *right] if b == 3 else right]
    if flat:
        operands.append([None])
    results = [[group, *result] if a == b else result]
    return f.from_labels(site, operands, results, {"k": Traits("sum")})


def convolution(site: Site) -> tuple[Factor, ...]:
    """x[n, in, ...] w[out, in, ...] bias[out], as ``linear``; groups keep their channels together.

    A window reaches over the edges of a shard, so the dims that it slides along stay whole.
    """
    bias = len(site.operands) == 3
    rest: list[Label | None] = [None] * (len(site.shape(0)) - 2)
    into, out = (None, None) if _attrs(site).groups > 1 else ("in", "out")
    operands: list[list[Label | None]] = [["n", into, *rest], [out, into, *rest], [out]]
    traits: dict[Label, Traits] = {"in": Traits("sum", pending=(2,) if bias else ())}
    return f.from_labels(site, operands[: len(site.operands)], [["n", out, *rest]], traits)


def sdpa(site: Site) -> tuple[Factor, ...]:
    """Heads and batch; the query's rows unless the mask is causal; the columns of v."""
    return _attention(site, first=0)


def sdpa_backward(site: Site) -> tuple[Factor, ...]:
    """(grad, q, k, v[, mask]) -> grads of q, k, v: heads and batch."""
    return _attention(site, first=1)


def _attention(site: Site, first: int) -> tuple[Factor, ...]:
    attrs = _attrs(site)
    if attrs.dropout_p > 0:
        return ()  # each rank would draw the numbers of its own shard, not those of the whole
    q, k = site.shape(first), site.shape(first + 1)
    lead = len(q) - 2
    labels: list[Label | None] = list(range(lead))
    traits: dict[Label, Traits] = {}
    for d in range(lead):
        if q[d] != k[d] and attrs.enable_gqa and sizes.exact_quotient(q[d], k[d]) is not None:
            traits[d] = Traits(exact=True, size=k[d])  # whole groups of query heads
        elif q[d] != k[d]:
            labels[d] = None
    rows = None if attrs.is_causal or first else "rows"
    columns = None if first else "columns"
    query, key, value = [*labels, rows, None], [*labels, None, None], [*labels, None, columns]
    mask = _mask_labels(site, first + 3, q, [*labels, rows, None])
    # A label that the mask denies (another size than 1) cannot be sharded anywhere.
    denied = {a for a, b in zip(query, mask, strict=True) if b == "denied"}
    operands = [query, key, value]
    results = [[*labels, rows, columns]]
    if first:
        operands, results = [query, *operands], operands
    if len(site.operands) > first + 3:
        n = len(site.shape(first + 3))
        operands = [*operands, [None if m == "denied" else m for m in mask][len(mask) - n :]]

    def hide(row: f.Labels) -> list[Label | None]:
        return [None if label in denied else label for label in row]

    return f.from_labels(site, [hide(o) for o in operands], [hide(r) for r in results], traits)


def _mask_labels(
    site: Site, i: int, q: tuple[Any, ...], labels: list[Label | None]
) -> list[Label | None]:
    """The labels of the mask's dims, aligned with the query's: None where it broadcasts."""
    if len(site.operands) <= i:
        return [None] * len(labels)
    shape = site.shape(i)
    found: list[Label | None] = [None] * len(labels)
    for back in range(2, len(shape) + 1):
        n, at = shape[-back], len(labels) - back
        found[at] = labels[at] if n == q[at] else None if n == 1 else "denied"
    return found


RULES: dict[str, Rule | Unsupported] = {}


def _rows(names: str, factors: FactorRule, flows: FlowRule = f.no_flow) -> None:
    for name in names.split():
        RULES[name] = Rule(factors, flows)


def _no_rows(names: str, reason: str) -> None:
    for name in names.split():
        RULES[name] = Unsupported(reason)


_no_rows("input", "its placements are given")
_no_rows("const size", "a scalar has no placements")
_no_rows("from_local to_local reshard", "its attributes say what its placements are")
_no_rows(
    "chunk keep_first all_gather all_reduce reduce_scatter all_to_all broadcast permute_ranks wait",
    "it stands in local programs, which have no placements",
)

_rows(
    "abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh erf erfc erfinv erfcinv lgamma floor ceil round trunc frac "
    "sign bitwise_not digamma ndtri isfinite isnan isinf signbit logical_not trunc_div floor_div "
    "fmod remainder pow atan2 nextafter copysign bitwise_and bitwise_or bitwise_xor shift_left "
    "shift_right gcd zeta eq ne lt le gt ge logical_and logical_or lerp where",
    elementwise,
)
_rows("mantissa exponent", elementwise)
_rows("neg real imag", elementwise, f.first_linear)
_rows("add sub", elementwise, f.additive)
_rows("mul", elementwise, f.multiplicative)
_rows("div", elementwise, f.dividing)
_rows("maximum", elementwise, f.extreme("max"))
_rows("minimum", elementwise, f.extreme("min"))
_rows("cast", elementwise, f.casting)
_rows("copy", elementwise, f.moving())

_rows("sum", reduction("sum"), f.reducing(*f.LINEAR_KINDS))
_rows("prod", reduction("product"), f.reducing("product"))
_rows("amax", reduction("max"), f.reducing("max"))
_rows("amin", reduction("min"), f.reducing("min"))
_rows("var var_mean", reduction(None))  # decomposed into sums before, where that is wanted
_rows("argmax argmin", arg_reduction)
_rows("cumsum", shape.along_dim, f.reducing(*f.LINEAR_KINDS))
_rows("cumprod cummax cummin", shape.along_dim)

_rows("broadcast_in_dim", shape.broadcast_in_dim, f.growing)
_rows("permute", shape.permute, f.moving())
_rows("squeeze", shape.squeeze, f.moving())
_rows("slice", shape.slicing, f.moving())
_rows("unfold", shape.unfold, f.moving())
_rows("reshape", shape.reshape, f.moving())
_rows("flip", shape.flip, f.moving())
_rows("cat", shape.along_dim, f.moving())
_rows("pad", shape.pad, f.padding)

_rows("take", shape.take, f.moving(0))
_rows("take_along_axis gather", shape.gather, f.moving(0))
_rows("embedding", shape.embedding, f.moving(1))
_rows("embedding_backward", shape.embedding_backward, f.first_linear)
_rows("scatter", shape.scatter)
_rows("scatter_add", shape.scatter_add)
_rows("index_add", shape.index_add)

_rows("full", shape.factory)
_rows("iota uniform normal", shape.numbered)
_rows("rng_state", lambda site: ())  # two 0-dim words, the same everywhere
_rows("randint multinomial", lambda site: ())  # all ranks draw alike, and each draws all

_rows("matmul", matmul, f.multiplicative)
_rows("linear", linear, f.affine)
_rows("convolution", convolution, f.affine)
_rows("grouped_mm", grouped_mm, f.grouped)
_rows("sdpa", sdpa)
_rows("sdpa_backward", sdpa_backward)
_rows("sort argsort topk", shape.along_dim)
