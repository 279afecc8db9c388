"""Families of steps that move elements or show them otherwise: views, copies, rearrangements."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from ir.drawn.core import FAMILIES, Family, Step, broadcast, one_of

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.sizes import Size


def _any(draw: Any, tensors: list[torch.Tensor], least: int = 0) -> int | None:
    return one_of(draw, tensors, lambda t: t.ndim >= least)


def _draw_permute(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = _any(draw, tensors, 2)
    if i is None:
        return None
    return Step("permute", (i,), (tuple(draw(st.permutations(range(tensors[i].ndim)))),))


FAMILIES["permute"] = Family(
    _draw_permute,
    lambda x, dims: x.permute(dims),
    lambda b, x, dims: b.op("permute", (x,), at.DimsAttrs(dims))[0],
)


def _draw_squeeze(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: 1 in t.shape)
    if i is None:
        return None
    ones = [d for d, n in enumerate(tensors[i].shape) if n == 1]
    return Step("squeeze", (i,), (tuple(d for d in ones if draw(st.booleans())) or (ones[0],),))


FAMILIES["squeeze"] = Family(
    _draw_squeeze,
    lambda x, dims: x.squeeze(dims),
    lambda b, x, dims: b.op("squeeze", (x,), at.DimsAttrs(dims))[0],
)


def _draw_unsqueeze(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: t.ndim < 5)
    return None if i is None else Step("unsqueeze", (i,), (draw(st.integers(0, tensors[i].ndim)),))


def _build_unsqueeze(b: Builder, x: Use, dim: int) -> Use:
    shape = b.tensor(x).shape
    dims = tuple(d for d in range(len(shape) + 1) if d != dim)
    whole = (*shape[:dim], 1, *shape[dim:])
    return b.op("broadcast_in_dim", (x,), at.BroadcastAttrs(whole, dims, explicit=True))[0]


FAMILIES["unsqueeze"] = Family(_draw_unsqueeze, lambda x, dim: x.unsqueeze(dim), _build_unsqueeze)


def _draw_expand(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = _any(draw, tensors)
    if i is None:
        return None
    grown = tuple(draw(st.sampled_from((1, 2, 4))) if n == 1 else -1 for n in tensors[i].shape)
    front = draw(st.lists(st.sampled_from((1, 2)), max_size=2))
    if not grown and all(n == 1 for n in front):
        return None  # as a node this is an unsqueeze, whose strides are others
    return Step("expand", (i,), ((*front, *grown),))


def _build_expand(b: Builder, x: Use, target: tuple[int, ...]) -> Use:
    shape = b.tensor(x).shape
    front = len(target) - len(shape)
    whole: tuple[Size, ...] = target[:front]
    for n, size in zip(target[front:], shape, strict=True):
        whole = (*whole, size if n == -1 else n)
    return broadcast(b, x, whole, explicit=True)


FAMILIES["expand"] = Family(_draw_expand, lambda x, shape: x.expand(shape), _build_expand)


def _draw_slice(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = _any(draw, tensors, 1)
    if i is None:
        return None
    spans = []
    for n in tensors[i].shape:
        start = draw(st.integers(0, n)) if draw(st.booleans()) else 0
        end = draw(st.integers(start, n)) if draw(st.integers(0, 3)) == 0 else None
        spans.append((start, end, draw(st.integers(1, 3)) if draw(st.booleans()) else 1))
    return Step("slice", (i,), (tuple(spans),))


def _build_slice(b: Builder, x: Use, spans: Sequence[tuple[int, int | None, int]]) -> Use:
    shape = b.tensor(x).shape
    ends = tuple(n if end is None else end for n, (_, end, _) in zip(shape, spans, strict=True))
    starts, steps = tuple(s for s, _, _ in spans), tuple(k for _, _, k in spans)
    return b.op("slice", (x,), at.SliceAttrs(starts, ends, steps))[0]


FAMILIES["slice"] = Family(
    _draw_slice,
    lambda x, spans: x[tuple(slice(start, end, step) for start, end, step in spans)],
    _build_slice,
)


def _draw_unfold(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = _any(draw, tensors, 1)
    if i is None:
        return None
    dim = draw(st.integers(0, tensors[i].ndim - 1))
    size = draw(st.integers(0, min(3, tensors[i].size(dim))))
    return Step("unfold", (i,), (dim, size, draw(st.integers(1, 3))))


FAMILIES["unfold"] = Family(
    _draw_unfold,
    lambda x, dim, size, step: x.unfold(dim, size, step),
    lambda b, x, dim, size, step: b.op("unfold", (x,), at.UnfoldAttrs(dim, size, step))[0],
)


def _draw_reshape(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    """Regroup neighbouring dims, or factor the number of elements anew; ones anywhere."""
    i = _any(draw, tensors)
    if i is None:
        return None
    shape = list(tensors[i].shape)
    if draw(st.booleans()):
        return Step("flatten", (i,), tuple(sorted(draw(st.integers(0, len(shape))) for _ in "ab")))
    left, new = prod(shape), []
    for factor in (2, 3, 5, 4, 6):
        if left and left % factor == 0 and draw(st.booleans()):
            new.append(factor)
            left //= factor
    new.insert(draw(st.integers(0, len(new))), left)
    for _ in range(draw(st.integers(0, 2))):
        new.insert(draw(st.integers(0, len(new))), 1)
    return Step("reshape", (i,), (tuple(new),))


FAMILIES["reshape"] = Family(
    _draw_reshape,
    lambda x, shape: x.reshape(shape),
    lambda b, x, shape: b.op("reshape", (x,), at.ShapeAttrs(shape))[0],
)


def _flat(shape: Sequence[Any], first: int, last: int) -> tuple[Any, ...]:
    return (*shape[:first], sizes.product(shape[first:last]), *shape[last:])


FAMILIES["flatten"] = Family(
    _draw_reshape,
    lambda x, first, last: x.reshape(_flat(tuple(x.shape), first, last)),
    lambda b, x, first, last: b.op(
        "reshape", (x,), at.ShapeAttrs(_flat(b.tensor(x).shape, first, last))
    )[0],
)

FORMATS = {
    "clone": (lambda x: x.clone(), None),
    "contiguous": (lambda x: x.contiguous(), "rows"),
    "clone rows": (lambda x: x.clone(memory_format=torch.contiguous_format), "rows"),
    "clone channels": (lambda x: x.clone(memory_format=torch.channels_last), (0, 2, 3, 1)),
    "channels": (lambda x: x.contiguous(memory_format=torch.channels_last), (0, 2, 3, 1)),
    "channels 3d": (
        lambda x: x.contiguous(memory_format=torch.channels_last_3d),
        (0, 2, 3, 4, 1),
    ),
}


def _draw_copy(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    name = draw(st.sampled_from(sorted(FORMATS)))
    order = FORMATS[name][1]
    i = one_of(draw, tensors, lambda t: not isinstance(order, tuple) or t.ndim == len(order))
    return None if i is None else Step("copy", (i,), (name,))


def _build_copy(b: Builder, x: Use, name: str) -> Use:
    order = FORMATS[name][1]
    dims = tuple(range(b.tensor(x).ndim)) if order == "rows" else order
    reuse = name in ("contiguous", "channels", "channels 3d")
    return b.op("copy", (x,), at.CopyAttrs(dims, reuse))[0]


FAMILIES["copy"] = Family(_draw_copy, lambda x, name: FORMATS[name][0](x), _build_copy)


def _draw_flip(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = _any(draw, tensors, 1)
    if i is None:
        return None
    dims = tuple(d for d in range(tensors[i].ndim) if draw(st.booleans()))
    return Step("flip", (i,), (dims or (0,),))


FAMILIES["flip"] = Family(
    _draw_flip,
    lambda x, dims: x.flip(dims),
    lambda b, x, dims: b.op("flip", (x,), at.DimsAttrs(dims))[0],
)


def _draw_pad(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: t.ndim >= 1 and t.is_floating_point())
    if i is None:
        return None
    amount = st.integers(-1, 2) if draw(st.booleans()) else st.integers(-1, 0)
    pairs = tuple((draw(amount), draw(amount)) for _ in tensors[i].shape)
    return Step("pad", (i,), (pairs,))


def _eager_pad(x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    flat = [n for pair in reversed(pairs) for n in pair]
    return torch.nn.functional.pad(x, flat, value=1.5)


def _build_pad(b: Builder, x: Use, pairs: Sequence[tuple[int, int]]) -> Use:
    low, high = (tuple(pair[end] for pair in pairs) for end in (0, 1))
    return b.op("pad", (x, b.const(1.5)), at.PadAttrs(low, high))[0]


FAMILIES["pad"] = Family(_draw_pad, _eager_pad, _build_pad)


def _draw_cat(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = _any(draw, tensors, 1)
    if i is None:
        return None
    dim, x = draw(st.integers(0, tensors[i].ndim - 1)), tensors[i]
    rest = lambda t: (t.dtype, *t.shape[:dim], *t.shape[dim + 1 :])
    j = one_of(draw, tensors, lambda t: t.ndim == x.ndim and rest(t) == rest(x))
    assert j is not None
    return Step("cat", (i, j), (dim,))


FAMILIES["cat"] = Family(
    _draw_cat,
    lambda x, y, dim: torch.cat((x, y), dim),
    lambda b, x, y, dim: b.op("cat", (x, y), at.DimAttrs(dim))[0],
)
