"""What a program is given: a key of its inputs, their device and strides, and what lacks memory."""

from collections.abc import Sequence

import torch

from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.runtime.likeness import alignment, is_fake

Value = torch.Tensor | bool | int | float | complex


def input_key(value: Value) -> object:
    """What a program depends on of an input. Raises ``RuntimeError`` for one without memory."""
    if not isinstance(value, torch.Tensor):
        return type(value)
    if is_fake(value):  # without an address
        return type(value), value.shape, value.stride(), value.dtype, value.device
    return value.shape, value.stride(), value.dtype, value.device, alignment(value)


def lazy(inputs: Sequence[Value]) -> list[int]:
    """The places of inputs whose memory does not hold their elements: those are the conjugates of
    what is there, or the negatives.
    """
    return [
        i
        for i, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())
    ]


def without_memory(inputs: Sequence[Value]) -> str:
    """What is to be said of ``inputs``, of which one has no memory."""
    kinds = [v.layout for v in inputs if isinstance(v, torch.Tensor)]
    found = next((kind for kind in kinds if kind is not torch.strided), "without memory")
    return (
        f"an input is {str(found).removeprefix('torch.')}, and regions are for tensors with "
        "strides and memory; make it dense (to_dense) before the jitted function"
    )


def device_of(inputs: Sequence[Value]) -> torch.device:
    """Where a program runs: on the GPU of an input, else where its first tensor is."""
    devices = [v.device for v in inputs if isinstance(v, torch.Tensor)]
    for device in devices:
        if device.type == "cuda":
            return device
    if devices:
        return devices[0]
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def dense_strides(shape: tuple[Size, ...], value: torch.Tensor) -> tuple[Size, ...] | None:
    """The strides of a tensor without gaps, as products of its sizes; None for one with gaps."""
    steps = value.stride()
    order = sorted(range(value.ndim), key=lambda d: (-steps[d], -value.shape[d]))
    actual = 1
    result: list[Size] = [0] * value.ndim
    step: Size = 1
    for d in reversed(order):
        if steps[d] != actual:
            return None
        result[d] = step
        step = step * shape[d]
        actual *= value.shape[d]
    return tuple(result)
