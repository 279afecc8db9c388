"""Doors for torch functions whose result Thunder's decomposition gets wrong in a corner.

``nll_loss`` ignores the target -100 unless told otherwise; Thunder's ignores -1, and looks -100 up.
``relu`` has a symbol of its own, because ``where(x > 0, x, 0)`` loses NaN. Softmax and the norms
return contiguous tensors whatever the layout of their input, which their decomposition into
elementwise operations does not. ``logsumexp`` of integers is of floats; Thunder's subtracts the
maximum as an integer, which wraps. ``max_pool1d`` is ``max_pool2d`` of one row, whose gradient is
torch's; Thunder's own goes through a convolution that makes NaN of the padding.
"""

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
import torch.nn.functional as F
from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import Symbol
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import FusionExecutor
from thunder.torch.langctx import _method_name_to_fn_map as _methods
from thunder.torch.langctx import register_method
from torch.nn._reduction import legacy_get_string

RELU = "mdfuse_relu"
_MAX_POOL1D: Callable[..., Any] = ltorch.max_pool1d
_MAX_POOL2D: Callable[..., Any] = ltorch.max_pool2d


def register_composites(executor: FusionExecutor) -> None:
    """Give ``executor`` its symbols and doors for composites."""
    relu = executor.register_operator(RELU, meta=_relu_meta, fn=torch.relu)
    executor.register_supported(relu, None, grad_transform=_relu_grad(relu))
    for function in (F.relu, torch.relu, torch.Tensor.relu, _methods["relu"]):
        executor._lookasides[function] = _relu_door(relu)
    executor._lookasides[F.nll_loss] = _nll_loss
    # ``a % b``, which Thunder knows as a function but not as an operator.
    register_method("mod", ltorch.remainder)
    dense = {
        ltorch.softmax: (F.softmax, torch.softmax, torch.Tensor.softmax, _methods["softmax"]),
        ltorch.log_softmax: (F.log_softmax, torch.log_softmax, torch.Tensor.log_softmax),
        ltorch.layer_norm: (F.layer_norm, torch.layer_norm),
        ltorch.rms_norm: (F.rms_norm, torch.rms_norm),
    }
    for original, functions in dense.items():
        for function in functions:
            executor._lookasides[function] = _dense_door(original)
    for function in (torch.logsumexp, torch.Tensor.logsumexp, _methods["logsumexp"]):
        executor._lookasides[function] = _logsumexp
    pools: dict[Any, Callable[..., Any]] = {
        F.max_pool1d: _max_pool1d,
        torch.max_pool1d: _max_pool1d,
        F.max_pool2d: _pool_door(_MAX_POOL2D),
        torch.max_pool2d: _pool_door(_MAX_POOL2D),
        F.max_pool3d: _pool_door(ltorch.max_pool3d),
        torch.max_pool3d: _pool_door(ltorch.max_pool3d),
    }
    executor._lookasides.update(pools)


def _pool_door(original: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient needs the stride by number."""

    def door(a: Any, kernel_size: Any, stride: Any = None, *rest: Any, **more: Any) -> Any:
        return original(a, kernel_size, _stride(stride, kernel_size), *rest, **more)

    return door


def _stride(stride: Any, kernel_size: Any) -> Any:
    """Torch means the window's size by None and by an empty list."""
    empty = isinstance(stride, tuple | list) and not stride
    return kernel_size if stride is None or empty else stride


def _one(given: Any) -> Any:
    """A number, as it is or alone in a list."""
    return given[0] if isinstance(given, tuple | list) else given


def _max_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    more = {"ceil_mode": ceil_mode, "return_indices": return_indices}
    if type(x) is not TensorProxy or ceil_mode or return_indices:
        return _MAX_POOL1D(x, kernel_size, stride, padding, dilation, **more)
    window = _one(kernel_size)
    step = _one(_stride(stride, kernel_size))
    shape = (1, window), (1, step), (0, _one(padding)), (1, _one(dilation))
    return ltorch.squeeze(_MAX_POOL2D(ltorch.unsqueeze(x, -2), *shape, **more), -2)


def _relu_meta(a: TensorProxy) -> TensorProxy:
    return TensorProxy(like=a)


def _relu_grad(relu: Symbol) -> Callable[..., Any]:
    def rule(a: TensorProxy) -> TensorProxy:
        out = relu(a)
        # As torch: a NaN lets its gradient through.
        put_grad(a, ltorch.where(ltorch.le(out, 0), 0, get_grad(out)))
        return out

    return rule


def _relu_door(relu: Symbol) -> Callable[..., Any]:
    def door(a: Any, inplace: Any = False) -> Any:
        if inplace or type(a) is not TensorProxy:
            return ltorch.relu(a, inplace)
        return relu(a)

    return door


def _nll_loss(
    a: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce, emit_warning=False)
    return ltorch.nll_loss(a, target, weight, ignore_index, reduction)


def _logsumexp(a: Any, dim: Any, keepdim: bool = False) -> Any:
    if isinstance(a, TensorProxy) and dtypes.is_exact_dtype(a.dtype):
        a = ltorch.to(a, torch.get_default_dtype())
    return ltorch.logsumexp(a, dim, keepdim)


def _dense_door(original: Callable[..., Any]) -> Callable[..., Any]:
    def door(a: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(a, *args, **kwargs)
        return ltorch.contiguous(found) if isinstance(found, TensorProxy) else found

    return door
