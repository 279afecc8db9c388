"""Doors for DTensor arithmetic with Python numbers, which Thunder 0.2.6 takes in one form only.

Its DTensor add and mul need the tensor first and a number of the tensor's own kind: ``x * 2`` and
``2.0 + x`` fail while they are traced. Here the number is put into that form before Thunder sees
it.
"""

from collections.abc import Callable
from typing import Any

from thunder.core import dtypes
from thunder.core.proxies import TensorProxy
from thunder.extend import FusionExecutor
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

# Both operand orders of each operator are one function: the operators commute.
OPERATORS = {"__mul__": ("__mul__", "__rmul__"), "__add__": ("__add__", "__radd__")}


def open_doors(executor: FusionExecutor) -> None:
    """Give ``executor`` a door for each operator."""
    for forward, names in OPERATORS.items():
        for name in names:
            original = getattr(TensorProxy, name)
            executor._lookasides[original] = _door(getattr(TensorProxy, forward), original)


def _door(forward: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def door(a: TensorProxy, b: Any) -> Any:
        if isinstance(a, DTensorProxy) and isinstance(b, bool | int | float):
            return forward(a, _of_its_kind(a, b))
        return original(a, b)

    return door


def _of_its_kind(a: TensorProxy, number: bool | int | float) -> bool | int | float:
    """An integer beside a tensor of floats is a float to torch."""
    return float(number) if dtypes.is_float_dtype(a.dtype) else number
