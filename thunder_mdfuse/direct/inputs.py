"""What a definition says of its inputs, and what a call gives for them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from thunder_mdfuse.direct.dtypes import AnyDType, DataType, ir_dtype
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.values import Number
from thunder_mdfuse.errors import DefinitionError, ProgramError
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, TensorType
from thunder_mdfuse.runtime.binding import described, python_number

Arguments = dict[str, Any]
_NUMBERS = {"bool": DType.BOOL, "uint": DType.I64, "int": DType.I64, "float": DType.F64}


def by_shape(
    shape: Sequence[int],
    contiguity: Sequence[bool | None] | bool = False,
    dtype: AnyDType = DataType.Float,
    is_cpu: bool = False,
    stride_order: Sequence[int] = (),
) -> Arguments:
    """The arguments of the first form of ``define_tensor``, all written out."""
    rank = len(shape)
    flags = [contiguity] * rank if isinstance(contiguity, bool) else list(contiguity)
    if len(flags) != rank or any(f not in (True, False, None) for f in flags):
        raise DefinitionError(
            f"contiguity must be True, False or None for each of {rank} dims, found {flags}"
        )
    order = list(stride_order)
    if order and sorted(order) != list(range(rank)):
        raise DefinitionError(f"stride_order {order} is no permutation of {rank} places")
    return {
        "shape": list(shape),
        "contiguity": flags,
        "dtype": dtype,
        "is_cpu": is_cpu,
        "stride_order": order,
    }


def by_sizes(
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: AnyDType = DataType.Float,
    static_sizes: bool = False,
    is_cpu: bool = False,
) -> Arguments:
    """The arguments of the first form for a tensor of these ``sizes`` and ``strides``.

    Sizes become symbols unless ``static_sizes``; a size of 1 stays 1.
    """
    if len(sizes) != len(strides):
        raise DefinitionError(f"a stride for each of {len(sizes)} sizes is needed, found {strides}")
    shape = [n if static_sizes or n == 1 else -1 for n in sizes]
    slowest_first = sorted(range(len(sizes)), key=lambda d: (-strides[d], d))
    order, flags, dense = [0] * len(sizes), [False] * len(sizes), 1
    for place, d in enumerate(reversed(slowest_first)):
        order[d] = place
        flags[d] = sizes[d] == 1 or strides[d] == dense
        dense = strides[d] * sizes[d] if sizes[d] != 1 else dense
    return by_shape(shape, flags, dtype, is_cpu, order)


def tensor_type(s: Scope, arguments: Arguments) -> TensorType:
    """The type of an input; -1 becomes a symbol."""
    shape: list[Size] = []
    for n in arguments["shape"]:
        if type(n) is not int or n < -1:
            raise DefinitionError(
                f"shape {arguments['shape']}: a size is -1 (any), 1 (broadcasts) or a fixed one"
            )
        shape.append(s.new_symbol() if n == -1 else n)
    if arguments["is_cpu"] and shape:
        raise DefinitionError("is_cpu is for 0-dim tensors: a fusion computes on one device")
    return TensorType(ir_dtype(arguments["dtype"]), tuple(shape))


def number_dtype(dtype: AnyDType) -> DType:
    """How the program keeps a number of ``dtype``: as Python's bool, int, float or complex."""
    return _NUMBERS.get(ir_dtype(dtype).kind, DType.C128)


def constant(value: Any, dtype: AnyDType | None) -> Number:
    """The Python number ``value`` as one of ``dtype``; None keeps its own kind."""
    if type(value) not in (bool, int, float, complex):
        raise DefinitionError(f"a Python number is needed, found {value!r}")
    number: Number = value
    return number if dtype is None else python_number(number, number_dtype(dtype))


def flattened(inputs: Any) -> Iterator[Any]:
    """``inputs`` with the lists and tuples in it taken apart.

    Raises ``ProgramError`` for one tensor or number in place of a list.
    """
    if isinstance(inputs, torch.Tensor | int | float | complex):
        raise ProgramError(
            f"inputs are given as one list, found {described(inputs)}; call it with [...]"
        )
    for value in inputs:
        if isinstance(value, list | tuple):
            yield from flattened(value)
        else:
            yield value


def device_of(values: Sequence[Any], asked: Any) -> torch.device:
    """The device that a fusion runs on: that of its tensors, else the one that is asked for.

    Raises ``ProgramError`` when tensors are on several devices, or not on ``asked``.
    """
    wanted = (
        None
        if asked is None
        else torch.device("cuda", asked)
        if type(asked) is int
        else (torch.device(asked))
    )
    if wanted is not None and wanted.type == "cuda" and wanted.index is None:
        wanted = torch.device("cuda", torch.cuda.current_device())
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    found = {v.device for v in tensors if v.ndim or v.device.type != "cpu"}
    found = found or {v.device for v in tensors}
    if len(found) > 1 or (wanted is not None and tensors and found != {wanted}):
        raise ProgramError(
            f"{_by_device(values)} found, all must be on one device"
            + (f", {wanted}" if wanted is not None else "")
            + " (0-dim CPU tensors may go with any); move them"
        )
    if found:
        return found.pop()
    if wanted is not None:
        return wanted
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _by_device(values: Sequence[Any]) -> str:
    """Which inputs are where, as ``input 0 on cpu, inputs 1 and 2 on cuda:0``."""
    places: dict[torch.device, list[str]] = {}
    for i, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            places.setdefault(value.device, []).append(str(i))
    return ", ".join(
        f"input{'s' if len(on) > 1 else ''} {' and '.join(on)} on {device}"
        for device, on in places.items()
    )


def carried(numbers: Sequence[Any], device: torch.device) -> torch.Tensor:
    """A tensor without memory of its own whose shape is ``numbers``."""
    wrong = [n for n in numbers if type(n) is not int or n < 0]
    if wrong:
        raise ProgramError(
            f"{wrong[0]!r} was given for a number that the fusion uses as a size; a size is a "
            "non-negative int"
        )
    return torch.empty((), dtype=torch.bool, device=device).expand(tuple(numbers))
