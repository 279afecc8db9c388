"""Whether the inputs of a call are like those of an earlier one, asked in a microsecond.

A program is bound to what its inputs were: their shapes, strides, dtypes, devices and alignments.
torch compares all of these but the last in C++, for the guards of torch.compile, and in 0.3 us for
two tensors where a key of them takes 2. It compares more (whether gradients are required, the
modes of the thread), so what it calls unlike may be the same to a program.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch._subclasses import FakeTensor

from thunder_mdfuse.runtime.straight import Straight

MOST_ALIGNED = 16


def is_fake(value: object) -> bool:
    """Whether ``value`` has metadata and no elements, which torch's own operators work with."""
    return isinstance(value, FakeTensor)


def alignment(tensor: torch.Tensor) -> int:
    """The largest power of two up to 16 that divides the address, in bytes, where there is one."""
    if is_fake(tensor):
        return MOST_ALIGNED
    low = tensor.data_ptr() & (MOST_ALIGNED - 1)
    return MOST_ALIGNED if low == 0 else low & -low


def likeness(inputs: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """A function that tells whether other inputs are like ``inputs``, all of which have memory.

    It keeps no tensor alive. A False may be wrong, a True is not.
    """
    tensors = [v for v in inputs if isinstance(v, torch.Tensor)]
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(t.shape) for t in tensors],  # type: ignore[misc]
        dynamic_dims_strides=[list(t.stride()) for t in tensors],  # type: ignore[misc]
    )
    kinds = (alignment(v) if isinstance(v, torch.Tensor) else type(v) for v in inputs)
    return partial(_fitting(tuple(kinds)), guards.check)


@lru_cache(maxsize=1024)
def _fitting(kinds: tuple[int | type, ...]) -> Callable[..., bool]:
    """Of torch's check of tensors and inputs: whether these are of ``kinds``, an alignment for a
    tensor and the type of a number.
    """
    code = Straight("fits", "check, inputs")
    tensors = [f"t{i}" for i, kind in enumerate(kinds) if isinstance(kind, int)]
    numbers = {f"n{i}": kind for i, kind in enumerate(kinds) if not isinstance(kind, int)}
    names = [f"t{i}" if isinstance(kind, int) else f"n{i}" for i, kind in enumerate(kinds)]
    code.add(f"if len(inputs) != {len(kinds)}: return False")
    code.add(f"({''.join(f'{name}, ' for name in names)}) = inputs")
    asked = [f"type({name}) is {code.new('kind', kind)}" for name, kind in numbers.items()]
    if tensors:
        asked.append(f"check({', '.join(tensors)})")
    aligned = []
    for name, kind in zip(names, kinds, strict=True):
        if kind == MOST_ALIGNED:
            aligned.append(f"{name}.data_ptr()")
        elif isinstance(kind, int):
            asked.append(f"{name}.data_ptr() & {2 * kind - 1} == {kind}")
    if aligned:
        asked.append(f"not ({' | '.join(aligned)}) & {MOST_ALIGNED - 1}")
    code.add(f"return {' and '.join(asked) or True}")
    return code.function()
