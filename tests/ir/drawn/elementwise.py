"""Families of elementwise steps, broadcast, promoted and with numbers, as a user writes them."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from ir.drawn.core import (
    FAMILIES,
    Family,
    Step,
    broadcast,
    cast,
    common_shape,
    is_float,
    not_bool,
    one_of,
    promoted,
    result_dtype,
)

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.types import DType

UNARY = ("neg", "exp", "abs", "sqrt", "isnan", "isinf", "isfinite", "logical_not", "floor")
BINARY = ("add", "sub", "mul", "maximum", "eq", "lt", "pow")


def _draw_unary(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, not_bool)
    if i is None:
        return None
    name = draw(st.sampled_from(UNARY))
    wide = tensors[i].dtype is torch.int64 and name in ("exp", "sqrt")
    return Step("unary", (i,), (name, DType.F32 if wide else None))


FAMILIES["unary"] = Family(
    _draw_unary,
    lambda x, name, wide: getattr(torch, name)(x),
    lambda b, x, name, wide: b.op(name, (cast(b, x, wide) if wide else x,))[0],
)


def _fitting(draw: Any, tensors: list[torch.Tensor], i: int, fits: Any = not_bool) -> int | None:
    """A tensor that broadcasts with tensor ``i``."""

    def both(t: torch.Tensor) -> bool:
        try:
            torch.broadcast_shapes(t.shape, tensors[i].shape)
        except RuntimeError:
            return False
        return bool(fits(t))

    return one_of(draw, tensors, both)


def _draw_binary(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, not_bool)
    j = None if i is None else _fitting(draw, tensors, i)
    if i is None or j is None:
        return None
    if draw(st.booleans()):
        i, j = j, i
    dtype = result_dtype(tensors[i], tensors[j])
    return Step("binary", (i, j), (draw(st.sampled_from(BINARY)), dtype))


FAMILIES["binary"] = Family(
    _draw_binary,
    lambda x, y, name, dtype: getattr(torch, name)(x, y),
    lambda b, x, y, name, dtype: promoted(b, name, (x, y), dtype),
)

# How a user writes each with a number, and the op and order of operands that it is.
WITH_NUMBER: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str, Any, bool]] = {
    "x + 2": (lambda x: x + 2, "add", 2, False),
    "x * 2.5": (lambda x: x * 2.5, "mul", 2.5, False),
    "2 - x": (lambda x: 2 - x, "sub", 2, True),
    "x > 0": (lambda x: x > 0, "gt", 0, False),
    "x ** 2": (lambda x: x**2, "pow", 2, False),
    "2.0 ** x": (lambda x: 2.0**x, "pow", 2.0, True),
}


def _draw_number(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, not_bool)
    name = draw(st.sampled_from(sorted(WITH_NUMBER)))
    if i is None:
        return None
    return Step("number", (i,), (name, result_dtype(tensors[i], WITH_NUMBER[name][2])))


def _build_number(b: Builder, x: Use, name: str, dtype: DType) -> Use:
    _, op, value, first = WITH_NUMBER[name]
    number, x = b.const(value), cast(b, x, dtype)
    return b.op(op, (number, x) if first else (x, number))[0]


FAMILIES["number"] = Family(
    _draw_number, lambda x, name, dtype: WITH_NUMBER[name][0](x), _build_number
)


def _draw_where(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: t.dtype is torch.bool)
    j = None if i is None else _fitting(draw, tensors, i)
    k = None if j is None else _fitting(draw, tensors, j)
    if i is None or j is None or k is None:
        return None
    return Step("where", (i, j, k), (result_dtype(tensors[j], tensors[k]),))


def _build_where(b: Builder, c: Use, x: Use, y: Use, dtype: DType) -> Use:
    shape = common_shape([b.tensor(u).shape for u in (c, x, y)])
    c, x, y = (broadcast(b, u, shape) for u in (c, x, y))
    return b.op("where", (c, cast(b, x, dtype), cast(b, y, dtype)))[0]


FAMILIES["where"] = Family(_draw_where, lambda c, x, y, dtype: torch.where(c, x, y), _build_where)


def _draw_masked(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: t.dtype is torch.bool)
    j = None if i is None else _fitting(draw, tensors, i, is_float)
    return None if i is None or j is None else Step("masked", (i, j))


def _build_masked(b: Builder, c: Use, x: Use) -> Use:
    shape = common_shape([b.tensor(u).shape for u in (c, x)])
    return b.op("where", (broadcast(b, c, shape), broadcast(b, x, shape), b.const(0.5)))[0]


FAMILIES["masked"] = Family(_draw_masked, lambda c, x: torch.where(c, x, 0.5), _build_masked)


def _draw_lerp(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, is_float)
    same = lambda t: t.dtype is tensors[i or 0].dtype
    j = None if i is None else _fitting(draw, tensors, i, same)
    return None if i is None or j is None else Step("lerp", (i, j))


def _build_lerp(b: Builder, x: Use, y: Use) -> Use:
    shape = common_shape([b.tensor(u).shape for u in (x, y)])
    return b.op("lerp", (broadcast(b, x, shape), broadcast(b, y, shape), b.const(0.25)))[0]


FAMILIES["lerp"] = Family(_draw_lerp, lambda x, y: torch.lerp(x, y, 0.25), _build_lerp)

TO = {DType.F32: torch.float32, DType.F16: torch.float16, DType.I64: torch.int64}


def _draw_to(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = draw(st.integers(0, len(tensors) - 1))
    dtype = draw(st.sampled_from(list(TO)))
    return None if tensors[i].dtype is TO[dtype] else Step("to", (i,), (dtype,))


FAMILIES["to"] = Family(
    _draw_to,
    lambda x, dtype: x.to(TO[dtype]),
    lambda b, x, dtype: b.op("cast", (x,), at.CastAttrs(dtype, user=True))[0],
)
