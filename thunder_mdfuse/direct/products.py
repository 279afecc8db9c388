"""``fd.ops``: matrix products and attention.

Attention without dropout is one node. With dropout it is composed of products, a softmax and a mask
that is drawn from (philox_seed, philox_offset), so that the backward can draw it again.
"""

import math
from typing import Any

from thunder_mdfuse.direct.elementwise import common, where
from thunder_mdfuse.direct.indexing import random_state
from thunder_mdfuse.direct.reductions import kept
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.table import op
from thunder_mdfuse.direct.values import Scalar, TensorView
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.types import DType


def _one_dtype(*tensors: TensorView) -> None:
    if len({t.type.dtype for t in tensors}) > 1:
        listing = ", ".join(map(repr, tensors))
        raise DefinitionError(f"operands of one dtype are needed, found {listing}; cast them")


@op
def matmul(s: Scope, arg1: Any, arg2: Any) -> TensorView:
    """``torch.matmul``: dims before the last two broadcast; 1-dim operands are vectors."""
    a, b = s.tensor(arg1), s.tensor(arg2)
    _one_dtype(a, b)
    if not a.ndim or not b.ndim:
        raise DefinitionError(f"operands with at least one dim are needed, found {a!r}, {b!r}")
    s.equate(a.type.shape[-1], b.type.shape[-2 if b.ndim > 1 else 0])
    if a.ndim > 2 and b.ndim > 2:
        s.common_shape((a, b), before=2)
    found: TensorView = s.op("matmul", (a, b))
    return found


@op
def linear(s: Scope, arg1: Any, arg2: Any, bias: Any = None) -> TensorView:
    """``arg1 @ arg2.T + bias`` for ``arg1[..., in]``, ``arg2[out, in]`` and ``bias[out]``."""
    operands = [s.tensor(x) for x in (arg1, arg2, bias) if x is not None]
    _one_dtype(*operands)
    x, w = operands[:2]
    if not x.ndim or w.ndim != 2:
        raise DefinitionError(f"x[..., in] and w[out, in] are needed, found {x!r}, {w!r}")
    s.equate(x.type.shape[-1], w.type.shape[1])
    if len(operands) == 3:
        if operands[2].ndim != 1:
            raise DefinitionError(f"a bias of one dim is needed, found {operands[2]!r}")
        s.require(operands[2], 0, w.type.shape[0])
    found: TensorView = s.op("linear", operands)
    return found


@op
def grouped_mm(
    s: Scope,
    mat1: Any,
    mat2: Any,
    offsets: Any,
    scale1: Any = None,
    scale2: Any = None,
    alpha: Any = None,
    bias: Any = None,
    beta: Any = None,
) -> TensorView:
    """One product for each group: ``torch._grouped_mm``, in Float, Half or BFloat16.

    The Int32 ``offsets[groups]`` are where groups end along what an operand of two dims lacks:
    mat1[rows, k] by rows, mat2[k, columns] by columns, two of them by k. Scales are refused.
    """
    a, b, ends = s.tensor(mat1, "mat1"), s.tensor(mat2, "mat2"), s.tensor(offsets, "offsets")
    if any(x is not None for x in (scale1, scale2, alpha, bias, beta)):
        raise DefinitionError(
            "a grouped product with scales or a bias is not generated; scale the operands with "
            "fd.ops.mul, and add a bias to the product with fd.ops.add"
        )
    _one_dtype(a, b)
    if a.type.dtype not in (DType.F32, DType.F16, DType.BF16):
        raise DefinitionError(f"operands in Float, Half or BFloat16 are needed, found {a!r}")
    if not {a.ndim, b.ndim} <= {2, 3} or a.ndim == b.ndim == 3:
        raise DefinitionError(
            "mat1[rows, k] or [groups, rows, k] and mat2[k, columns] or [groups, k, columns] are "
            f"needed, one of them of two dims, found {a!r}, {b!r}"
        )
    if ends.ndim != 1 or ends.type.dtype is not DType.I32:
        raise DefinitionError(f"Int32 offsets of one dim are needed, found {ends!r}")
    s.equate(a.type.shape[-1], b.type.shape[-2])
    for x in (a, b):
        if x.ndim == 3:
            s.require(x, 0, ends.type.shape[0])
    found: TensorView = s.op("grouped_mm", (a, b, ends))
    return found


def _heads(s: Scope, *named: Any) -> list[TensorView]:
    """Query, key and value, with the sizes that must be equal made equal."""
    q, k, v = (s.tensor(x) for x in named)
    _one_dtype(q, k, v)
    if not q.ndim == k.ndim == v.ndim == 4:
        raise DefinitionError(
            f"query, key and value [batch, heads, length, width] are needed, found {q!r}, {k!r}, "
            f"{v!r}"
        )
    for d in (0, 1):
        s.require(k, d, q.type.shape[d])
        s.require(v, d, q.type.shape[d])
    s.require(k, 3, q.type.shape[3])
    s.require(v, 2, k.type.shape[2])
    return [q, k, v]


def _given(s: Scope, p: Any, causal: Any, scale: Any) -> tuple[float, bool, float | None]:
    """Dropout, causality and scale, which a program is specialised on."""
    chance = 0.0 if p is None else float(s.number(p, "dropout_p").real)
    if not 0 <= chance < 1:
        raise DefinitionError(f"dropout_p must be in [0, 1), found {chance}")
    by = None if scale is None else float(s.number(scale, "scale").real)
    return chance, bool(causal is not None and s.number(causal, "is_causal")), by


@op
def sdpfa_fwd(
    s: Scope,
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    dropout_p: Any = None,
    is_causal: Any = None,
    scale: Any = None,
) -> tuple[TensorView, TensorView, TensorView, TensorView]:
    """Attention: (output, logsumexp in Float, philox_seed, philox_offset).

    ``bias`` is added to the scores and where the Bool ``mask`` is False they count as minus
    infinity; both broadcast to [batch, heads, length, length of key].
    """
    q, k, v = _heads(s, query, key, value)
    p, causal, by = _given(s, dropout_p, is_causal, scale)
    added = _added(s, bias, mask, q.type.dtype)
    if added is not None and causal:
        raise DefinitionError("is_causal beside a bias or a mask is not taken; mask it yourself")
    scores = _scores(s, q, k, added, causal, by)
    logsumexp = _logsumexp(s, scores)
    if p:
        seed, offset = random_state(s, scores.type.shape, None, None)
        weights = s.op("mul", (_softmax(s, scores, logsumexp), _drops(s, scores, p, seed, offset)))
        product = s.op("matmul", (weights, s.widened(v)))
        return s.cast(product, q.type.dtype), logsumexp, seed, offset
    zero = s.full(0, (), DType.I64)
    operands = (q, k, v) if added is None else (q, k, v, added)
    out = s.op("sdpa", operands, at.SdpaAttrs(0.0, causal, by))
    return out, logsumexp, zero, zero


@op
def sdpfa_bwd(
    s: Scope,
    grad_output: Any,
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    logsumexp: Any,
    dropout_p: Any,
    is_causal: Any,
    philox_seed: Any,
    philox_offset: Any,
    scale: Any = None,
) -> tuple[TensorView, TensorView, TensorView]:
    """The gradients of query, key and value of an attention without bias and mask."""
    q, k, v = _heads(s, query, key, value)
    grad = s.tensor(grad_output, "grad_output")
    p, causal, by = _given(s, dropout_p, is_causal, scale)
    _one_dtype(grad, q)
    for d, size in enumerate((*q.type.shape[:3], v.type.shape[3])):
        s.require(grad, d, size)
    if not p:
        attrs = at.SdpaAttrs(0.0, causal, by)
        gq, gk, gv = s.op("sdpa_backward", (grad, q, k, v), attrs)
        return gq, gk, gv
    scores = _scores(s, q, k, None, causal, by)
    sums = s.tensor(logsumexp, "logsumexp")
    if sums.ndim != 3:
        raise DefinitionError(f"the logsumexp[batch, heads, length] is needed, found {sums!r}")
    for d in range(3):
        s.require(sums, d, scores.type.shape[d])
    weights = _softmax(s, scores, sums)
    seed, offset = s.tensor(philox_seed), s.tensor(philox_offset)
    drops = _drops(s, scores, p, seed, offset)
    wide = s.widened(grad)
    gv = s.op("matmul", (_turned(s, s.op("mul", (weights, drops))), wide))
    onto = s.op("mul", (s.op("matmul", (wide, _turned(s, s.widened(v)))), drops))
    along = s.op("sum", (s.op("mul", (onto, weights)),), at.DimsAttrs((3,)))
    below = s.broadcast(kept(s, along, scores, (3,)), scores.type.shape)
    inner = s.op("mul", (s.op("mul", (weights, s.op("sub", (onto, below)))), _scale(s, q, by)))
    gq = s.op("matmul", (inner, s.widened(k)))
    gk = s.op("matmul", (_turned(s, inner), s.widened(q)))
    dtype = q.type.dtype
    return s.cast(gq, dtype), s.cast(gk, dtype), s.cast(gv, dtype)


def _turned(s: Scope, x: TensorView) -> TensorView:
    found: TensorView = s.op("permute", (x,), at.DimsAttrs((0, 1, 3, 2)))
    return found


def _scale(s: Scope, q: TensorView, scale: float | None) -> Scalar:
    """What scores are multiplied by; 1 over the root of the width unless given."""
    if scale is not None:
        return s.scalar(scale)
    width = s.number_op("cast", (s.size_value(q.type.shape[3]),), at.CastAttrs(DType.F64))
    return s.number_op("rsqrt", (width,))


def _added(s: Scope, bias: Any, mask: Any, dtype: DType) -> TensorView | None:
    """``bias`` and ``mask`` as what is added to the scores."""
    if mask is None:
        return None if bias is None else s.cast(s.tensor(bias, "the bias"), dtype)
    allowed = s.tensor(mask, "the mask")
    shown = s.scalar(0.0) if bias is None else s.tensor(bias, "the bias")
    found = where(s, allowed, shown, s.scalar(-math.inf))
    return s.cast(s.tensor(found), dtype)


def _scores(
    s: Scope,
    q: TensorView,
    k: TensorView,
    added: TensorView | None,
    causal: bool,
    scale: float | None,
) -> TensorView:
    """The scores in Float, masked ones minus infinity."""
    product = s.op("matmul", (s.widened(q), _turned(s, s.widened(k))))
    scores: TensorView = s.op("mul", (product, _scale(s, q, scale)))
    shape = scores.type.shape
    if added is not None:
        x, y = common(s, (scores, s.widened(added)))
        scores = s.tensor(s.op("add", (x, y)))
        shape = tuple(map(s.renamed, shape))
        if scores.type.shape != shape:
            raise DefinitionError(f"bias and mask must broadcast to {shape}, found {added!r}")
    if causal:
        rows, columns = (
            s.broadcast(s.op("iota", (0, 1), at.FactoryAttrs((shape[d],), DType.I64)), shape, (d,))
            for d in (2, 3)
        )
        scores = s.op("where", (s.op("ge", (rows, columns)), scores, -math.inf))
    return scores


def _logsumexp(s: Scope, scores: TensorView) -> TensorView:
    most = s.op("amax", (scores,), at.DimsAttrs((3,)))
    spread = s.broadcast(kept(s, most, scores, (3,)), scores.type.shape)
    total = s.op("sum", (s.op("exp", (s.op("sub", (scores, spread)),)),), at.DimsAttrs((3,)))
    found: TensorView = s.op("add", (s.op("log", (total,)), most))
    return found


def _softmax(s: Scope, scores: TensorView, logsumexp: TensorView) -> TensorView:
    spread = s.broadcast(kept(s, logsumexp, scores, (3,)), scores.type.shape)
    found: TensorView = s.op("exp", (s.op("sub", (scores, spread)),))
    return found


def _drops(
    s: Scope, scores: TensorView, p: float, seed: TensorView, offset: TensorView
) -> TensorView:
    """What weights are multiplied by: 0 with chance ``p``, else 1 / (1 - p)."""
    drawn = s.op("uniform", (seed, offset), at.PhiloxAttrs(scores.type.shape, DType.F32))
    stays = s.op("ge", (drawn, p))
    wide = s.cast(stays, scores.type.dtype)
    found: TensorView = s.op("mul", (wide, 1 / (1 - p)))
    return found
