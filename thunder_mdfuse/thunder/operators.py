"""Thunder symbols of our own, and the doors through which a user's call becomes one of them.

A *door* is a lookaside: Thunder's interpreter calls it in place of a torch function, in functions
that are jitted with our executor. Calls that Thunder's own composites make do not pass through it,
which is what tells a cast that the user wrote from a promotion. Each symbol can also run by itself,
for when the fuel is out.
"""

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.prims import OpTags
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import FusionExecutor
from thunder.torch.langctx import _method_name_to_fn_map as _methods

CAST, SDPA, SDPA_BACKWARD = "mdfuse_cast", "mdfuse_sdpa", "mdfuse_sdpa_backward"

# Methods of a tensor that are a cast to one dtype. ``to``, ``type`` and ``type_as`` name theirs.
CASTS: dict[str, dtypes.dtype] = {
    "float": dtypes.float32,
    "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16,
    "double": dtypes.float64,
    "long": dtypes.int64,
    "int": dtypes.int32,
    "short": dtypes.int16,
    "char": dtypes.int8,
    "byte": dtypes.uint8,
    "bool": dtypes.bool8,
    "cfloat": dtypes.complex64,
    "cdouble": dtypes.complex128,
}


def register_operators(executor: FusionExecutor) -> None:
    """Give ``executor`` its symbols, their gradients and their doors."""
    cast = executor.register_operator(CAST, meta=_cast_meta, fn=_run_cast)
    executor.register_supported(cast, None, grad_transform=_cast_grad(cast))
    tags = [OpTags.MATMUL_OP, OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD]
    sdpa = executor.register_operator(SDPA, meta=_sdpa_meta, fn=_run_sdpa, tags=tags)
    backward = executor.register_operator(
        SDPA_BACKWARD, meta=_sdpa_backward_meta, fn=_run_sdpa_backward, tags=tags
    )
    executor.register_supported(sdpa, None, grad_transform=_sdpa_grad(sdpa, backward))
    executor.register_supported(backward, None)
    _open_doors(executor, cast, sdpa)


def _open_doors(executor: FusionExecutor, cast: Symbol, sdpa: Symbol) -> None:
    doors = {name: _cast_door(cast, name, dtype) for name, dtype in CASTS.items()}
    doors |= {"to": _to_door(cast), "type_as": _type_as_door(cast)}
    for name, door in doors.items():
        # A method of a proxy is looked up under Thunder's function, an unbound one under torch's.
        executor._lookasides[_methods[name]] = door
        executor._lookasides[getattr(torch.Tensor, name)] = door
    # The one cast that a proxy has as a method of its own.
    executor._lookasides[TensorProxy.float] = doors["float"]
    executor._lookasides[F.scaled_dot_product_attention] = _sdpa_door(sdpa)


def _cast_meta(a: TensorProxy, dtype: dtypes.dtype) -> TensorProxy:
    return TensorProxy(like=a, dtype=dtype)


def _run_cast(a: torch.Tensor, dtype: dtypes.dtype) -> torch.Tensor:
    return a.to(dtypes.to_torch_dtype(dtype), copy=True)


def _cast_grad(cast: Symbol) -> Callable[..., Any]:
    """The gradient of a user's cast is a user's cast: it rounds as well."""

    def rule(a: TensorProxy, dtype: dtypes.dtype) -> TensorProxy:
        out = cast(a, dtype)
        if dtypes.is_inexact_dtype(a.dtype) and dtypes.is_inexact_dtype(dtype):
            put_grad(a, cast(get_grad(out), a.dtype))
        return out

    return rule


def _cast_to(cast: Symbol, a: Any, dtype: dtypes.dtype) -> Any:
    """``a`` as ``dtype``; a tensor that has it already is returned as it is, as torch does."""
    if not isinstance(a, TensorProxy) or a.true_dtype == dtype:
        return ltorch.to(a, dtype)
    return cast(a, dtype)


def _cast_door(cast: Symbol, name: str, dtype: dtypes.dtype) -> Callable[..., Any]:
    original = _methods[name]

    def door(a: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return original(a, *args, **kwargs)
        return _cast_to(cast, a, dtype)

    return door


def _to_door(cast: Symbol) -> Callable[..., Any]:
    def door(a: Any, *args: Any, **kwargs: Any) -> Any:
        named = {k: v for k, v in kwargs.items() if k in ("device", "dtype")}
        positional = (*args[:2], *(None,) * (2 - len(args)))
        device, dtype = ltorch._parse_to_device_and_dtype(
            *positional, device=named.get("device"), dtype=named.get("dtype")
        )
        plain = len(args) <= 2 and set(kwargs) <= {"device", "dtype"}
        if not plain or dtype is None:
            return ltorch.to(a, *args, **kwargs)
        if device is not None and device != a.device:
            a = ltorch.to(a, device=device)
        return _cast_to(cast, a, dtypes.to_dtype(dtype))

    return door


def _type_as_door(cast: Symbol) -> Callable[..., Any]:
    def door(a: TensorProxy, b: TensorProxy) -> Any:
        if a.device != b.device:
            return ltorch.type_as(a, b)
        return _cast_to(cast, a, b.true_dtype)

    return door


def _sdpa_meta(
    q: TensorProxy, k: TensorProxy, v: TensorProxy, mask: Any, causal: bool, scale: Any, gqa: bool
) -> TensorProxy:
    return TensorProxy(like=q, shape=(*q.shape[:-1], v.shape[-1]))


def _sdpa_backward_meta(
    g: TensorProxy,
    q: TensorProxy,
    k: TensorProxy,
    v: TensorProxy,
    mask: Any,
    causal: bool,
    scale: Any,
    gqa: bool,
) -> tuple[TensorProxy, TensorProxy, TensorProxy]:
    return TensorProxy(like=q), TensorProxy(like=k), TensorProxy(like=v)


def _run_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Any,
    causal: bool,
    scale: Any,
    gqa: bool,
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=gqa
    )


def _run_sdpa_backward(
    g: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = _run_sdpa(leaves[0], leaves[1], leaves[2], *rest)
        return torch.autograd.grad(out, leaves, g)


def _sdpa_grad(sdpa: Symbol, backward: Symbol) -> Callable[..., Any]:
    def rule(q: Any, k: Any, v: Any, *rest: Any) -> TensorProxy:
        out = sdpa(q, k, v, *rest)
        grads = backward(get_grad(out), q, k, v, *rest)
        for x, grad in zip((q, k, v), grads, strict=True):
            put_grad(x, grad)
        return out

    return rule


def _sdpa_door(sdpa: Symbol) -> Callable[..., Any]:
    """One step for attention; Thunder's own symbols for dropout and for masks with a gradient."""

    def door(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: Any = 0.0,
        is_causal: Any = False,
        *,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
        known = isinstance(dropout_p, float | int) and isinstance(scale, float | int | None)
        whole = known and dropout_p == 0 and all(type(x) is TensorProxy for x in tensors)
        floating = all(dtypes.is_float_dtype(x.dtype) and x.ndim >= 3 for x in tensors[:3])
        if not whole or not floating or (attn_mask is not None and attn_mask.requires_grad):
            extra = {"enable_gqa": True} if enable_gqa else {}
            return ltorch.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **extra
            )
        by = None if scale is None else float(scale)
        return sdpa(query, key, value, attn_mask, bool(is_causal), by, enable_gqa)

    return door
