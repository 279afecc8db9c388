"""Families of steps that move elements, show them otherwise, or make tensors from nothing."""

import math
import random
from typing import Any

import torch
from codegen.random_programs import known
from codegen.random_programs.known import Known
from codegen.random_programs.philox import uniform_numbers
from codegen.random_programs.program import DTYPES, FAMILIES, Draft, Family, Step

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType


def _draw_permute(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 1)
    if i is None:
        return None
    dims = list(range(draft.ndim(i)))
    rng.shuffle(dims)
    return Step("permute", (i,), (tuple(dims),))


FAMILIES["permute"] = Family(
    _draw_permute,
    lambda x, dims: x.moved(lambda t: t.permute(dims)),
    lambda b, x, dims: b.op("permute", (x,), at.DimsAttrs(dims))[0],
)


def _draw_reshape(rng: random.Random, draft: Draft) -> Step | None:
    """Dims of integer sizes factored anew, ones put anywhere."""
    i = draft.pick(rng, lambda k: all(isinstance(n, int) for n in draft.shape(k)))
    if i is None:
        return None
    left = math.prod(draft.eager(i)[0].shape)
    shape: list[int] = []
    for factor in (2, 3, 4, 5, 7, 8, 16):
        if left and left % factor == 0 and rng.random() < 0.3:
            shape.append(factor)
            left //= factor
    shape.insert(rng.randint(0, len(shape)), left)
    if rng.random() < 0.3:
        shape.insert(rng.randint(0, len(shape)), 1)
    return Step("reshape", (i,), (tuple(shape),))


FAMILIES["reshape"] = Family(
    _draw_reshape,
    lambda x, shape: x.moved(lambda t: t.reshape(shape)),
    lambda b, x, shape: b.op("reshape", (x,), at.ShapeAttrs(shape))[0],
)


def _draw_flatten(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 1)
    if i is None:
        return None
    first = rng.randrange(draft.ndim(i) - 1)
    return Step("flatten", (i,), (first, rng.randint(first + 1, draft.ndim(i) - 1)))


def _flat(shape: Any, first: int, last: int) -> tuple[Size, ...]:
    return (*shape[:first], sizes.product(shape[first : last + 1]), *shape[last + 1 :])


FAMILIES["flatten"] = Family(
    _draw_flatten,
    lambda x, first, last: x.moved(lambda t: t.flatten(first, last)),
    lambda b, x, first, last: b.op(
        "reshape", (x,), at.ShapeAttrs(_flat(b.tensor(x).shape, first, last))
    )[0],
)


def _draw_slice(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0)
    if i is None:
        return None
    spans = []
    for d in range(draft.ndim(i)):
        least = min(t.shape[d] for t in draft.eager(i))
        start = rng.randint(0, min(least, 3)) if rng.random() < 0.4 else 0
        cut = rng.randint(0, min(least - start, 3)) if rng.random() < 0.4 else 0
        spans.append((start, cut, rng.choice((2, 3)) if rng.random() < 0.2 else 1))
    return Step("slice", (i,), (tuple(spans),))


def _slice(x: Known, spans: tuple[tuple[int, int, int], ...]) -> Known:
    shape = x.eager.shape
    cuts = tuple(slice(a, n - c, k) for n, (a, c, k) in zip(shape, spans, strict=True))
    return x.moved(lambda t: t[cuts])


def _build_slice(b: Builder, x: Use, spans: tuple[tuple[int, int, int], ...]) -> Use:
    ends = tuple(n - c for n, (_, c, _) in zip(b.tensor(x).shape, spans, strict=True))
    starts, steps = tuple(a for a, _, _ in spans), tuple(k for _, _, k in spans)
    return b.op("slice", (x,), at.SliceAttrs(starts, ends, steps))[0]


FAMILIES["slice"] = Family(_draw_slice, _slice, _build_slice)


def _draw_squeeze(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: any(n == 1 for n in draft.shape(k)))
    if i is None:
        return None
    ones = [d for d, n in enumerate(draft.shape(i)) if n == 1]
    return Step("squeeze", (i,), (tuple(sorted(rng.sample(ones, rng.randint(1, len(ones))))),))


FAMILIES["squeeze"] = Family(
    _draw_squeeze,
    lambda x, dims: x.moved(lambda t: t.squeeze(dims)),
    lambda b, x, dims: b.op("squeeze", (x,), at.DimsAttrs(dims))[0],
)


def _draw_unsqueeze(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) < 4)
    return None if i is None else Step("unsqueeze", (i,), (rng.randint(0, draft.ndim(i)),))


def _build_unsqueeze(b: Builder, x: Use, dim: int) -> Use:
    shape = b.tensor(x).shape
    dims = tuple(d for d in range(len(shape) + 1) if d != dim)
    whole = (*shape[:dim], 1, *shape[dim:])
    return b.op("broadcast_in_dim", (x,), at.BroadcastAttrs(whole, dims, explicit=True))[0]


FAMILIES["unsqueeze"] = Family(
    _draw_unsqueeze, lambda x, dim: x.moved(lambda t: t.unsqueeze(dim)), _build_unsqueeze
)


def _draw_expand(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) < 4)
    if i is None:
        return None
    front = (rng.choice((2, 3)),) if rng.random() < 0.6 else ()
    grown = tuple(
        rng.choice((2, 3, 8)) if n == 1 and rng.random() < 0.7 else -1 for n in draft.shape(i)
    )
    return Step("expand", (i,), ((*front, *grown),))


def _build_expand(b: Builder, x: Use, target: tuple[int, ...]) -> Use:
    shape = b.tensor(x).shape
    front = len(target) - len(shape)
    whole: tuple[Size, ...] = target[:front]
    for n, size in zip(target[front:], shape, strict=True):
        whole = (*whole, size if n == -1 else n)
    dims = tuple(range(front, len(target)))
    return b.op("broadcast_in_dim", (x,), at.BroadcastAttrs(whole, dims, explicit=True))[0]


FAMILIES["expand"] = Family(
    _draw_expand, lambda x, shape: x.moved(lambda t: t.expand(shape)), _build_expand
)


def _draw_copy(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: True)
    assert i is not None
    return Step("copy", (i,), (rng.choice(("clone", "contiguous")),))


def _build_copy(b: Builder, x: Use, name: str) -> Use:
    if name == "clone":
        return b.op("copy", (x,), at.CopyAttrs())[0]
    order = tuple(range(b.tensor(x).ndim))
    return b.op("copy", (x,), at.CopyAttrs(order, reuse=True))[0]


FAMILIES["copy"] = Family(
    _draw_copy, lambda x, name: x.moved(lambda t: getattr(t, name)()), _build_copy
)


def _draw_flip(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0 and draft.computes(k))
    if i is None:
        return None
    ndim = draft.ndim(i)
    return Step("flip", (i,), (tuple(sorted(rng.sample(range(ndim), rng.randint(1, ndim)))),))


FAMILIES["flip"] = Family(
    _draw_flip,
    lambda x, dims: x.moved(lambda t: t.flip(dims)),
    lambda b, x, dims: b.op("flip", (x,), at.DimsAttrs(dims))[0],
)


def _draw_pad(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0 and draft.computes(k))
    if i is None:
        return None
    pairs = []
    for d in range(draft.ndim(i)):
        least = min(t.shape[d] for t in draft.eager(i))
        amounts = (0, 0, 1, 2, 5) if least < 3 or rng.random() < 0.5 else (0, 0, -1, 1, 3)
        pairs.append((rng.choice(amounts), rng.choice(amounts)))
    value = 1 if not draft.dtype(i).is_float else rng.choice((0.0, 1.5, -2.0))
    return Step("pad", (i,), (tuple(pairs), value))


def _pad(x: Known, pairs: tuple[tuple[int, int], ...], value: float) -> Known:
    flat = [n for pair in reversed(pairs) for n in pair]
    filled = ((x.eager, value), (x.value, value), (x.doubt, 0.0))
    return Known(*(torch.nn.functional.pad(t, flat, value=v) for t, v in filled))


def _build_pad(b: Builder, x: Use, pairs: tuple[tuple[int, int], ...], value: float) -> Use:
    low, high = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    return b.op("pad", (x, b.const(value)), at.PadAttrs(low, high))[0]


FAMILIES["pad"] = Family(_draw_pad, _pad, _build_pad)


def _draw_cat(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0 and draft.computes(k))
    if i is None:
        return None
    dim = rng.randrange(draft.ndim(i))

    # Torch skips 1-dim empty tensors in a cat whatever the others' shapes; here all have one rank.
    def rest(k: int) -> tuple[Any, ...]:
        return draft.dtype(k), draft.ndim(k), *draft.shape(k)[:dim], *draft.shape(k)[dim + 1 :]

    fits = lambda k: rest(k) == rest(i)
    others = [j for j in (draft.pick(rng, fits) for _ in range(rng.randint(1, 2))) if j is not None]
    return Step("cat", (i, *others), (dim,))


def _cat(*args: Any) -> Known:
    *parts, dim = args
    eager = torch.cat([p.eager for p in parts], dim)
    value = torch.cat([p.value for p in parts], dim)
    return Known(eager, value, torch.cat([p.doubt for p in parts], dim))


FAMILIES["cat"] = Family(
    _draw_cat, _cat, lambda b, *args: b.op("cat", args[:-1], at.DimAttrs(args[-1]))[0]
)


def _draw_bias(rng: random.Random, draft: Draft) -> Step | None:
    """A sum with a tensor of fewer dims, which torch broadcasts by itself."""
    i = draft.pick(rng, lambda k: draft.computes(k) and draft.dtype(k) is not DType.BOOL)
    if i is None:
        return None
    fits = lambda k: (
        draft.same_dtype(k, i)
        and draft.ndim(k) < draft.ndim(i)
        and draft.shape(k) == draft.shape(i)[draft.ndim(i) - draft.ndim(k) :]
    )
    j = draft.pick(rng, fits)
    return None if j is None else Step("bias", (i, j))


def _build_bias(b: Builder, x: Use, y: Use) -> Use:
    shape = b.tensor(x).shape
    dims = tuple(range(len(shape) - b.tensor(y).ndim, len(shape)))
    (spread,) = b.op("broadcast_in_dim", (y,), at.BroadcastAttrs(shape, dims))
    return b.op("add", (x, spread))[0]


FAMILIES["bias"] = Family(
    _draw_bias,
    lambda x, y: known.elementwise(torch.add, (x, y), x.eager + y.eager),
    _build_bias,
)


def _draw_back(rng: random.Random, draft: Draft) -> Step | None:
    """A row's reduction subtracted from the row again: what norms and softmax are made of."""
    i = draft.pick(
        rng, lambda k: draft.computes(k) and draft.dtype(k).is_float and draft.ndim(k) > 0
    )
    if i is None:
        return None
    dim = draft.ndim(i) - 1 if rng.random() < 0.7 else rng.randrange(draft.ndim(i))
    name = rng.choice(("sum", "amax"))
    empty = any(t.shape[dim] == 0 for t in draft.eager(i))
    return None if empty else Step("back", (i,), (name, rng.choice(("sub", "mul")), dim))


def _back(x: Known, name: str, op: str, dim: int) -> Known:
    eager_total = x.eager.sum(dim) if name == "sum" else x.eager.amax(dim)
    total = known.reduction(name, x, (dim,), eager_total)
    spread = total.moved(lambda t: t.unsqueeze(dim).expand(x.eager.shape))
    function = getattr(torch, op)
    eager = function(x.eager, total.eager.unsqueeze(dim))
    return known.elementwise(function, (x, spread), eager)


def _build_back(b: Builder, x: Use, name: str, op: str, dim: int) -> Use:
    (total,) = b.op(name, (x,), at.DimsAttrs((dim,)))
    shape = b.tensor(x).shape
    kept = tuple(d for d in range(len(shape)) if d != dim)
    whole = (*shape[:dim], 1, *shape[dim + 1 :])
    (column,) = b.op("broadcast_in_dim", (total,), at.BroadcastAttrs(whole, kept, explicit=True))
    dims = tuple(range(len(shape)))
    (spread,) = b.op("broadcast_in_dim", (column,), at.BroadcastAttrs(shape, dims))
    return b.op(op, (x, spread))[0]


FAMILIES["back"] = Family(_draw_back, _back, _build_back)


def _draw_full(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0)
    if i is None:
        return None
    dtype = rng.choice((DType.F32, DType.BF16, DType.I64))
    return Step("full", (i,), (dtype, 0.1 if dtype.is_float else 3))


def _full(like: Known, dtype: DType, value: float) -> Known:
    shape = like.eager.shape
    eager = torch.full(shape, value, dtype=DTYPES[dtype])
    exact = known.exactly(eager)
    if not dtype.is_float:
        return exact
    # It may stand for the number itself as well as for what the dtype makes of it.
    return Known(eager, exact.value, known.rounding(exact.value, exact.doubt, eager.dtype))


FAMILIES["full"] = Family(
    _draw_full,
    _full,
    lambda b, like, dtype, value: b.op(
        "full", (b.const(value),), at.FactoryAttrs(b.tensor(like).shape, dtype)
    )[0],
)


def _draw_iota(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0)
    if i is None:
        return None
    dtype = rng.choice((DType.F32, DType.I64, DType.I32))
    start, step = (0.5, 0.25) if dtype.is_float else (rng.choice((0, -3)), rng.choice((1, 2)))
    return Step("iota", (i,), (dtype, start, step))


def _iota(like: Known, dtype: DType, start: float, step: float) -> Known:
    count = like.eager.shape[-1]
    exact = start + step * torch.arange(
        count, dtype=torch.float64 if dtype.is_float else torch.int64
    )
    return known.exactly(exact.to(DTYPES[dtype]))


FAMILIES["iota"] = Family(
    _draw_iota,
    _iota,
    lambda b, like, dtype, start, step: b.op(
        "iota",
        (b.const(start), b.const(step)),
        at.FactoryAttrs(b.tensor(like).shape[-1:], dtype),
    )[0],
)


def _draw_uniform(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(rng, lambda k: draft.ndim(k) > 0)
    if i is None:
        return None
    dtype = rng.choice((DType.F32, DType.F64, DType.BF16, DType.F16))
    low, high = rng.choice(((0.0, 1.0), (-2.0, 3.0)))
    seed, offset = rng.randrange(-(1 << 63), 1 << 63), rng.randrange(1 << 40)
    return Step("uniform", (i,), (dtype, low, high, seed, offset))


def _uniform(like: Known, dtype: DType, low: float, high: float, seed: int, offset: int) -> Known:
    shape = tuple(like.eager.shape)
    return known.exactly(uniform_numbers(shape, DTYPES[dtype], low, high, seed, offset))


def _build_uniform(
    b: Builder, like: Use, dtype: DType, low: float, high: float, seed: int, offset: int
) -> Use:
    attrs = at.PhiloxAttrs(b.tensor(like).shape, dtype, low, high)
    return b.op("uniform", (b.const(seed), b.const(offset)), attrs)[0]


FAMILIES["uniform"] = Family(_draw_uniform, _uniform, _build_uniform)
