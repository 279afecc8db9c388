"""Families of reductions, scans, index, sort and matrix steps."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from ir.drawn.core import FAMILIES, Family, Step, is_float, one_of

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.types import DType


def _quiet(function: Callable[..., Any], x: torch.Tensor, dims: tuple[int, ...]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few elements
        return function(x, dims, correction=0)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, dims: x.sum(dims),
    "amax": lambda x, dims: x.amax(dims),
    "var": lambda x, dims: _quiet(torch.var, x, dims),
    "mean and var": lambda x, dims: _quiet(torch.var_mean, x, dims),
    "argmax": lambda x, dims: x.argmax(dims[0]),
    "cumsum": lambda x, dims: x.cumsum(dims[0]),
    "cumprod": lambda x, dims: x.cumprod(dims[0]),
    "sort": lambda x, dims: tuple(x.sort(dim=dims[0], stable=True)),
    "argsort": lambda x, dims: x.argsort(dim=dims[0], stable=True),
    "topk": lambda x, dims: tuple(x.topk(min(2, x.size(dims[0])), dims[0])),
}


def _draw_reduction(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: is_float(t) and t.ndim > 0)
    if i is None:
        return None
    dims = tuple(d for d in range(tensors[i].ndim) if draw(st.booleans()))
    return Step("reduction", (i,), (draw(st.sampled_from(sorted(REDUCTIONS))), dims or (0,)))


def _build_reduction(b: Builder, x: Use, name: str, dims: tuple[int, ...]) -> Any:
    if name in ("sum", "amax"):
        return b.op(name, (x,), at.DimsAttrs(dims))[0]
    if name in ("var", "mean and var"):
        return b.op("var" if name == "var" else "var_mean", (x,), at.VarAttrs(dims, 0.0))
    if name in ("sort", "argsort"):
        return b.op(name, (x,), at.SortAttrs(dims[0], stable=True))
    if name == "topk":
        k = sizes.minimum(2, b.tensor(x).shape[dims[0]])
        return b.op(name, (x,), at.TopkAttrs(k, dims[0]))
    return b.op(name, (x,), at.DimAttrs(dims[0]))[0]


FAMILIES["reduction"] = Family(
    _draw_reduction, lambda x, name, dims: REDUCTIONS[name](x, dims), _build_reduction
)


def _zeros(b: Builder, shape: tuple[Any, ...]) -> Use:
    return b.op("full", (b.const(0),), at.FactoryAttrs(shape, DType.I64))[0]


def _index(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """An index into ``x``, where ``x`` is."""
    return torch.zeros(shape, dtype=torch.int64, device=x.device)


INDEXED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "take": (
        lambda x, dim: x.index_select(dim, _index(x, 3)),
        lambda b, x, dim: b.op("take", (x, _zeros(b, (3,))), at.DimAttrs(dim))[0],
    ),
    "gather": (
        lambda x, dim: x.gather(dim, _index(x, *x.shape)),
        lambda b, x, dim: b.op("gather", (x, _zeros(b, b.tensor(x).shape)), at.DimAttrs(dim))[0],
    ),
    "take_along_dim": (
        lambda x, dim: x.take_along_dim(_index(x, *x.shape), dim),
        lambda b, x, dim: b.op(
            "take_along_axis", (x, _zeros(b, b.tensor(x).shape)), at.DimAttrs(dim)
        )[0],
    ),
    "scatter": (
        lambda x, dim: x.scatter(dim, _index(x, *x.shape), x),
        lambda b, x, dim: b.op("scatter", (x, _zeros(b, b.tensor(x).shape), x), at.DimAttrs(dim))[
            0
        ],
    ),
    "scatter_add": (
        lambda x, dim: x.scatter_add(dim, _index(x, *x.shape), x),
        lambda b, x, dim: b.op(
            "scatter_add", (x, _zeros(b, b.tensor(x).shape), x), at.DimAttrs(dim)
        )[0],
    ),
    "index_add": (
        lambda x, dim: x.index_add(dim, _index(x, x.size(dim)), x),
        lambda b, x, dim: b.op(
            "index_add", (x, _zeros(b, (b.tensor(x).shape[dim],)), x), at.DimAttrs(dim)
        )[0],
    ),
}


def _draw_indexed(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: is_float(t) and t.ndim > 0)
    if i is None:
        return None
    dim = draw(st.integers(0, tensors[i].ndim - 1))
    return Step("indexed", (i,), (draw(st.sampled_from(sorted(INDEXED))), dim))


FAMILIES["indexed"] = Family(
    _draw_indexed,
    lambda x, name, dim: INDEXED[name][0](x, dim),
    lambda b, x, name, dim: INDEXED[name][1](b, x, dim),
)


def _draw_matmul(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    """A product with a transposed tensor, so that inner sizes fit."""
    i = one_of(draw, tensors, lambda t: is_float(t) and t.ndim > 0)
    if i is None:
        return None
    x = tensors[i]
    fits = lambda t: t.dtype is x.dtype and t.ndim > 0 and t.shape[-1] == x.shape[-1]
    j = one_of(draw, tensors, fits)
    assert j is not None
    return Step("matmul", (i, j))


def _build_matmul(b: Builder, x: Use, y: Use) -> Use:
    n = b.tensor(y).ndim
    if n > 1:
        (y,) = b.op("permute", (y,), at.DimsAttrs((*range(n - 2), n - 1, n - 2)))
    return b.op("matmul", (x, y))[0]


FAMILIES["matmul"] = Family(
    _draw_matmul, lambda x, y: torch.matmul(x, y.mT if y.ndim > 1 else y), _build_matmul
)


def _draw_linear(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: is_float(t) and t.ndim == 2)
    if i is None:
        return None
    w = tensors[i]
    fits = lambda t: t.dtype is w.dtype and t.ndim > 0 and t.shape[-1] == w.shape[-1]
    j = one_of(draw, tensors, fits)
    assert j is not None
    bias = one_of(draw, tensors, lambda t: t.dtype is w.dtype and t.shape == w.shape[:1])
    return Step("linear", (j, i) if bias is None else (j, i, bias))


FAMILIES["linear"] = Family(
    _draw_linear,
    lambda *args: torch.nn.functional.linear(*args),
    lambda b, *args: b.op("linear", args)[0],
)


def _draw_embedding(draw: Any, tensors: list[torch.Tensor]) -> Step | None:
    i = one_of(draw, tensors, lambda t: is_float(t) and t.ndim == 2)
    j = one_of(draw, tensors, lambda t: t.dtype is torch.int64)
    return None if i is None or j is None else Step("embedding", (j, i))


def _build_embedding(b: Builder, index: Use, weight: Use) -> Use:
    (index,) = b.op("mul", (index, b.const(0)))
    return b.op("embedding", (index, weight), at.EmbeddingAttrs())[0]


FAMILIES["embedding"] = Family(
    _draw_embedding,
    lambda index, weight: torch.nn.functional.embedding(index * 0, weight),
    _build_embedding,
)
