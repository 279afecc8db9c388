"""Rows of the torch-call table: index, scatter and sort ops."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.aten_shape import Row, one

Args = Sequence[Any]
ROWS: dict[str, Row] = {}


def _take(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x, index = args
    flat = torch.index_select(x, attrs.dim, index.reshape(-1))
    return flat.view(*x.shape[: attrs.dim], *index.shape, *x.shape[attrs.dim + 1 :])


def _scatter(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x, index, source = args
    return torch.scatter(x, attrs.dim, index, source)


def _scatter_add(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x, index, source = args
    return torch.scatter_add(x, attrs.dim, index, source)


def _index_add(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x, index, source = args
    return torch.index_add(x, attrs.dim, index, source)


def _embedding_backward(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: Any
) -> torch.Tensor:
    grad, index = args
    padding = -1 if attrs.padding_idx is None else attrs.padding_idx
    result: torch.Tensor = torch.ops.aten.embedding_dense_backward(
        grad, index, attrs.rows, padding, attrs.scale_grad_by_freq
    )
    return result


def _sort(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.sort(
        args[0], dim=attrs.dim, descending=attrs.descending, stable=attrs.stable
    )
    return values, indices


def _topk(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.topk(args[0], attrs.k, attrs.dim, attrs.largest, attrs.sorted)
    return values, indices


ROWS["take"] = one(_take)
ROWS["take_along_axis"] = one(
    lambda args, attrs, dtypes, device: torch.take_along_dim(args[0], args[1], attrs.dim)
)
ROWS["gather"] = one(lambda args, attrs, dtypes, device: torch.gather(args[0], attrs.dim, args[1]))
ROWS["embedding"] = one(lambda args, attrs, dtypes, device: functional.embedding(args[0], args[1]))
ROWS["embedding_backward"] = one(_embedding_backward)
ROWS["scatter"] = one(_scatter)
ROWS["scatter_add"] = one(_scatter_add)
ROWS["index_add"] = one(_index_add)
ROWS["sort"] = _sort
ROWS["argsort"] = lambda args, attrs, dtypes, device=None: _sort(args, attrs, dtypes)[1:]
ROWS["topk"] = _topk
