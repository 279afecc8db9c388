"""Whether values are what a region was traced for: kinds, dtypes, and sizes that are no symbols."""

from collections.abc import Sequence
from typing import Any

import torch
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.tensor import DTensor

from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.runtime.binding import described as described_value
from thunder_mdfuse.thunder.dtensor import described


def check_fitting(name: str, inputs: Sequence[Proxy], values: Sequence[Any]) -> None:
    """Raises ``ExecutorError`` that names the first of ``values`` that is no input of region
    ``name``, or says that there are more or fewer.
    """
    if len(values) != len(inputs):
        names = ", ".join(p.name for p in inputs)
        raise ExecutorError(f"{name} takes the inputs {names}, found {len(values)} values")
    for proxy, value in zip(inputs, values, strict=True):
        if not _fits(proxy, value):
            found = f"a DTensor {described_value(value)}" if isinstance(value, DTensor) else ""
            raise ExecutorError(
                f"{name}: the input {proxy.name} was {described(proxy)} when it was traced, found "
                f"{found or described_value(value)}; give inputs like those the region is called "
                "with, as thunder.jit(..., mdfuse_keep_inputs=True) keeps them in last_inputs"
            )


def _fits(proxy: Proxy, value: Any) -> bool:
    if isinstance(proxy, NumberProxy):
        return type(value) is proxy.python_type
    if not isinstance(proxy, TensorProxy):
        return True
    if not isinstance(value, torch.Tensor):
        return False
    if isinstance(value, DTensor) is not isinstance(proxy, DTensorProxy):
        return False
    known, given = (to_torch_dtype(proxy.dtype), proxy.ndim), (value.dtype, value.ndim)
    pairs = zip(proxy._shape, value.shape, strict=False)
    return known == given and all(isinstance(n, NumberProxy) or n == size for n, size in pairs)
