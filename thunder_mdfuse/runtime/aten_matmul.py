"""Rows of the torch-call table: matrix products and attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.aten_shape import Row, one

Args = Sequence[Any]
# Ops of which torch always gives a new tensor.
PRODUCTS = frozenset({"matmul", "linear", "grouped_mm"})
ROWS: dict[str, Row] = {}


def _attention(q: Any, k: Any, v: Any, mask: Any, attrs: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=attrs.dropout_p,
        is_causal=attrs.is_causal,
        scale=attrs.scale,
        enable_gqa=attrs.enable_gqa,
    )


def _sdpa(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    q, k, v = args[:3]
    assert isinstance(q, torch.Tensor)
    if _has_no_heads(q):
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    return _attention(q, k, v, args[3] if len(args) > 3 else None, attrs)


def _has_no_heads(q: torch.Tensor) -> bool:
    """As an empty shard: torch's CPU kernel divides by the number of heads and ends the process."""
    return 0 in q.shape[:-2]


def _sdpa_backward(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: Any = None
) -> tuple[torch.Tensor, ...]:
    """The gradients of q, k and v, by running the forward again under autograd."""
    if attrs.dropout_p:
        raise ProgramError(
            f"sdpa_backward: dropout_p is {attrs.dropout_p}, but the mask of the forward is not "
            "known here; leave attention with dropout to torch"
        )
    if _has_no_heads(args[1]):
        return tuple(map(torch.zeros_like, args[1:4]))
    grad, mask = args[0], args[4] if len(args) > 4 else None
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in args[1:4])
        out = _attention(q, k, v, mask, attrs)
    return torch.autograd.grad(out, (q, k, v), grad)


def _grouped_mm(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    a: torch.Tensor = args[0]
    b: torch.Tensor = args[1]
    offsets: torch.Tensor | None = args[2] if len(args) > 2 else None
    if not a.numel() or not b.numel():  # whose strides torch's own call refuses
        groups = (a.size(0) if offsets is None else offsets.numel(),) if a.ndim == b.ndim else ()
        return a.new_zeros((*groups, a.size(-2), b.size(-1)))
    return torch._grouped_mm(_aligned(a), _aligned(b), offs=offsets)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """``x`` with rows, or columns, that begin at multiples of 16 bytes, which a shard's need not
    and torch's grouped product asks for.
    """
    step = 16 // x.element_size()
    *outer, rows_apart, columns_apart = x.stride()
    apart, inner = sorted((rows_apart, columns_apart), reverse=True)
    if inner == 1 and x.data_ptr() % 16 == 0 and not any(s % step for s in (*outer, apart)):
        return x
    length = x.size(-1)
    rows = x.new_empty((*x.shape[:-1], -(-length // step) * step))[..., :length]
    return rows.copy_(x)


ROWS["matmul"] = one(lambda args, attrs, dtypes, device: torch.matmul(args[0], args[1]))
ROWS["linear"] = one(lambda args, attrs, dtypes, device: functional.linear(*args))


def _convolution(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x, w = args[:2]
    bias = args[2] if len(args) > 2 else None
    window = (attrs.stride, attrs.padding, attrs.dilation)
    return torch.convolution(x, w, bias, *window, False, (0,) * len(attrs.stride), attrs.groups)


ROWS["convolution"] = one(_convolution)
ROWS["grouped_mm"] = one(_grouped_mm)
ROWS["sdpa"] = one(_sdpa)
ROWS["sdpa_backward"] = _sdpa_backward
