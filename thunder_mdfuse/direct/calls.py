"""What the author of a definition called, in order, and that as executable Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_mdfuse.direct.dtypes import DataType, ParallelType, data_type
from thunder_mdfuse.direct.values import Axis, Scalar, TensorView


@dataclass(frozen=True)
class Call:
    """One call of the definition: ``function`` as written after ``fd.``, and what it gave.

    ``of``: the tensor whose method it was, in place of ``fd``.
    """

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[TensorView | Scalar, ...]
    listed: bool = False  # whether the results came as a list or tuple, even a single one
    of: TensorView | None = None


def flat(found: Any) -> tuple[TensorView | Scalar, ...]:
    """The values in what a call gave."""
    return tuple(found) if isinstance(found, list | tuple) else (found,)


def text_of(calls: Sequence[Call], name: str) -> str:
    """A function ``name(fd)`` that makes ``calls`` again."""
    names: dict[int, str] = {}
    lines = [f"def {name}(fd: FusionDefinition) -> None:"]
    for call in calls:
        operands = [_text(a, names) for a in call.args]
        operands += [f"{key}={_text(value, names)}" for key, value in call.kwargs.items()]
        receiver = "fd" if call.of is None else names[id(call.of)]
        line = f"{receiver}.{call.function}({', '.join(operands)})"
        for value in call.results:
            kind = "tv" if isinstance(value, TensorView) else "c"
            names.setdefault(id(value), f"{kind}{len(names)}")
        targets = ", ".join(names[id(v)] for v in call.results)
        if call.listed and len(call.results) == 1:
            targets = f"({targets},)"
        lines.append(f"    {targets} = {line}" if targets else f"    {line}")
    return "\n".join([*lines, "    pass"] if len(lines) == 1 else lines) + "\n"


def _text(value: Any, names: Mapping[int, str]) -> str:
    if isinstance(value, TensorView | Scalar):
        return names[id(value)]
    if isinstance(value, Axis):
        return f"{names[id(value.tensor)]}.axis({value.index})"
    if isinstance(value, torch.Size | list):
        return f"[{', '.join(_text(v, names) for v in value)}]"
    if isinstance(value, tuple):
        inner = ", ".join(_text(v, names) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, torch.dtype):
        value = data_type(value)
    if isinstance(value, DataType | ParallelType):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({_text(value.real, names)}, {_text(value.imag, names)})"
    return repr(value)


def copied(value: Any) -> Any:
    """``value`` with its own lists and dicts, so that the author may change theirs."""
    if isinstance(value, dict):
        return {key: copied(v) for key, v in value.items()}
    if isinstance(value, list):
        return [copied(v) for v in value]
    return tuple(map(copied, value)) if type(value) is tuple else value
