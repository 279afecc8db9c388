"""Gradients of prims for which Thunder has no rule, or a wrong one.

Thunder asks the executors for a symbol's rule before its own tables. A rule calls the symbol and
gives each operand its part of the result's gradient.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder import clang
from thunder.core import dtypes, prims
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import FusionExecutor

Rule = Callable[..., Any]


def _none(prim: Any) -> Rule:
    """What is drawn, or where something is, has no gradient."""
    return lambda *args, **kwargs: prim(*args, **kwargs)


def _flat(prim: Any) -> Rule:
    """A step function's is zero everywhere, as in eager torch."""

    def rule(a: Any) -> Any:
        out = prim(a)
        if _has_gradient(a):
            put_grad(a, ltorch.zeros_like(a))
        return out

    return rule


def _has_gradient(a: Any) -> bool:
    return isinstance(a, TensorProxy) and dtypes.is_inexact_dtype(a.dtype)


def _minimum(a: Any, b: Any) -> Any:
    """Torch gives each of two equal operands one half."""
    out = prims.minimum(a, b)
    g = get_grad(out)
    half = ltorch.where(ltorch.eq(a, b), g / 2, g)
    _put(a, ltorch.where(ltorch.gt(a, b), 0, half))
    _put(b, ltorch.where(ltorch.lt(a, b), 0, half))
    return out


def _remainder(a: Any, b: Any) -> Any:
    out = prims.remainder(a, b)
    g = get_grad(out)
    _put(a, g)
    if _has_gradient(b):
        put_grad(b, -g * ltorch.floor(ltorch.true_divide(a, b)))
    return out


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    out = prims.lerp(a, b, weight)
    g = get_grad(out)
    _put(a, g * (1 - weight))
    _put(b, g * weight)
    if _has_gradient(weight):
        put_grad(weight, g * (b - a))
    return out


def _put(a: Any, gradient: Any) -> None:
    if _has_gradient(a):
        put_grad(a, gradient)


def _flip(a: TensorProxy, dims: Sequence[int]) -> Any:
    out = prims.flip(a, dims)
    _put(a, prims.flip(get_grad(out), dims))
    return out


def _index_add(a: TensorProxy, index: TensorProxy, source: TensorProxy, dim: int) -> Any:
    out = prims.index_add(a, index, source, dim)
    g = get_grad(out)
    _put(a, g)
    _put(source, ltorch.reshape(prims.take(g, index, dim), source.shape))
    return out


def _index_put(
    a: TensorProxy, indices: Sequence[TensorProxy], values: TensorProxy, accumulate: bool = False
) -> Any:
    """Where values replace, a position that was written more than once gives each its gradient."""
    out = clang.index_put(a, indices, values, accumulate)
    g = get_grad(out)
    _put(a, g if accumulate else clang.index_put(g, indices, ltorch.zeros_like(values), False))
    if _has_gradient(values):
        put_grad(values, _sum_to(ltorch.getitem(g, tuple(indices)), values.shape))
    return out


def _sum_to(g: TensorProxy, shape: Sequence[int]) -> TensorProxy:
    """The gradient of a tensor of ``shape`` that was broadcast to that of ``g``."""
    extra = g.ndim - len(shape)
    grown = [d + extra for d, n in enumerate(shape) if n == 1 and g.shape[d + extra] != 1]
    dims = (*range(extra), *grown)
    return ltorch.reshape(ltorch.sum(g, dims) if dims else g, tuple(shape))


def _unfold(a: TensorProxy, dim: int, size: int, step: int) -> Any:
    """Each element gets what all windows over it got."""
    out = prims.unfold(a, dim, size, step)
    g = get_grad(out)
    along = dim % a.ndim
    windows = out.shape[along]
    starts = ltorch.arange(0, windows * step, step, device=a.device) if windows else None
    if starts is None or not size:
        put_grad(a, ltorch.zeros_like(a))
        return out
    within = ltorch.arange(0, size, device=a.device)
    index = ltorch.reshape(ltorch.unsqueeze(starts, 1) + within, (windows * size,))
    order = [d for d in range(a.ndim) if d != along]
    moved = ltorch.permute(g, (*order[:along], along, a.ndim, *order[along:]))
    shape = (*a.shape[:along], windows * size, *a.shape[along + 1 :])
    put_grad(a, prims.index_add(ltorch.zeros_like(a), index, ltorch.reshape(moved, shape), along))
    return out


RULES: dict[Hashable, Rule] = {
    PrimIDs.ARGMIN: _none(prims.argmin),
    PrimIDs.ISFINITE: _none(prims.isfinite),
    PrimIDs.PY_FLOORDIV: _none(prims.py_floordiv),
    PrimIDs.MULTINOMIAL: _none(prims.multinomial),
    PrimIDs.ROUND: _flat(prims.round),
    PrimIDs.TRUNC: _flat(prims.trunc),
    PrimIDs.MINIMUM: _minimum,
    PrimIDs.REMAINDER: _remainder,
    PrimIDs.LERP: _lerp,
    PrimIDs.FLIP: _flip,
    PrimIDs.INDEX_ADD: _index_add,
    PrimIDs.INDEX_PUT: _index_put,
    ltorch.index_put.id: _index_put,  # whose values get none by Thunder's
    PrimIDs.UNFOLD: _unfold,
    ltorch.detach.id: _none(ltorch.detach),
    # Thunder gives the method the id of ``torch.nn.functional.unfold``, and so its gradient.
    ltorch.unfold.id: _unfold,
}


def register_gradients(executor: FusionExecutor) -> None:
    """Give ``executor`` the rules."""
    for id, rule in RULES.items():
        executor.register_supported(id, None, grad_transform=rule)
