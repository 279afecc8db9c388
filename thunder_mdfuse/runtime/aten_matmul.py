"""Rows of the torch-call table: matrix products and attention."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.aten_shape import Row, one

Args = Sequence[Any]
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
    return _attention(q, k, v, args[3] if len(args) > 3 else None, attrs)


def _sdpa_backward(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: Any = None
) -> tuple[torch.Tensor, ...]:
    """The gradients of q, k and v, by running the forward again under autograd."""
    if attrs.dropout_p:
        raise ProgramError(
            f"sdpa_backward: dropout_p is {attrs.dropout_p}, but the mask of the forward is not "
            "known here; leave attention with dropout to torch"
        )
    grad, mask = args[0], args[4] if len(args) > 4 else None
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in args[1:4])
        out = _attention(q, k, v, mask, attrs)
    return torch.autograd.grad(out, (q, k, v), grad)


def _grouped_mm(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    offsets = args[2] if len(args) > 2 else None
    return torch._grouped_mm(_aligned(args[0]), _aligned(args[1]), offs=offsets)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """``x`` with rows that begin at multiples of 16 bytes, which a shard's need not and torch's
    grouped product asks for.
    """
    step = 16 // x.element_size()
    steps = [stride for stride in x.stride() if stride != 1]
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s % step == 0 for s in steps):
        return x
    length = x.size(-1)
    rows = x.new_empty((*x.shape[:-1], -(-length // step) * step))[..., :length]
    return rows.copy_(x)


ROWS["matmul"] = one(lambda args, attrs, dtypes, device: torch.matmul(args[0], args[1]))
ROWS["linear"] = one(lambda args, attrs, dtypes, device: functional.linear(*args))
ROWS["grouped_mm"] = one(_grouped_mm)
ROWS["sdpa"] = one(_sdpa)
ROWS["sdpa_backward"] = _sdpa_backward
