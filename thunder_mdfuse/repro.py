"""Scripts that define a fusion again and call it, for a bug report.

In: the text of a definition (a function ``mdfuse_fusion(fd)``) and inputs. Of these the script has
shapes, strides, dtypes and the ranges of integers, and the values of small integer tensors only. It
prints what came out, shape by shape.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from thunder_mdfuse import __version__

WRITTEN_OUT = 64  # elements of an integer tensor whose values are in the script
_HEAD = '''"""thunder_mdfuse {version}, torch {torch}, {device}"""

import torch

from thunder_mdfuse import DataType, FusionDefinition, ParallelType  # noqa: F401
from thunder_mdfuse.direct.mesh import DeviceMesh  # noqa: F401

torch.manual_seed({seed})


{definition}

with FusionDefinition() as fd:
    mdfuse_fusion(fd)
'''
_CALL = """
inputs = [
{inputs}
]
for output in fd.execute(inputs):
    if isinstance(output, torch.Tensor):
        print(output.dtype, tuple(output.shape), output.stride(), output.device)
    else:
        print(output)
"""


def repro_script(definition: str, inputs: Sequence[Any] | None, seed: int = 0) -> str:
    """A script that runs as it is under ``python``.

    ``definition``: what ``repr`` of a ``FusionDefinition`` gives. ``inputs``: flat tensors and
    numbers; None for a script that defines and does not call.
    """
    devices = {str(x.device) for x in inputs or () if isinstance(x, torch.Tensor)}
    head = _HEAD.format(
        version=__version__,
        torch=torch.__version__,
        device=", ".join(sorted(devices)) or "no tensors",
        seed=seed,
        definition=definition.rstrip(),
    )
    if inputs is None:
        return head
    return head + _CALL.format(inputs="\n".join(f"    {_input_text(x)}," for x in inputs))


def _input_text(value: Any) -> str:
    """An expression that gives an input like ``value``."""
    if not isinstance(value, torch.Tensor):
        special = isinstance(value, float) and not math.isfinite(value)
        return f'float("{value}")' if special else repr(value)
    if value.ndim == 0 or (_is_exact(value) and value.numel() <= WRITTEN_OUT):
        made = f"torch.tensor({_literal(value.tolist())}, dtype={value.dtype}"
        made += f", device={str(value.device)!r})"
        return made if value.is_contiguous() else _strided(value, made)
    return _strided(value, _random(value))


def _is_exact(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, complex):
        return f"complex({_literal(value.real)}, {_literal(value.imag)})"
    special = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if special else repr(value)


def _random(value: torch.Tensor) -> str:
    """Random numbers of the shape and dtype; integers in the range of those that are there."""
    shape, device = tuple(value.shape), repr(str(value.device))
    if value.dtype == torch.bool:
        return f"torch.randint(0, 2, {shape}, device={device}).bool()"
    if _is_exact(value):
        low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
        return f"torch.randint({low}, {high + 1}, {shape}, dtype={value.dtype}, device={device})"
    if value.dtype.itemsize == 1:
        return f"torch.randn({shape}, device={device}).to({value.dtype})"
    return f"torch.randn({shape}, dtype={value.dtype}, device={device})"


def _strided(value: torch.Tensor, made: str) -> str:
    """``made``, which is contiguous, with the strides of ``value``."""
    if value.is_contiguous():
        return made
    shape, strides = tuple(value.shape), value.stride()
    last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    span = last + 1 if value.numel() else 0
    base = f"torch.zeros({span}, dtype={value.dtype}, device={str(value.device)!r})"
    if 0 in strides or not value.numel():
        kept = tuple(1 if st == 0 else n for n, st in zip(shape, strides, strict=True))
        index = ", ".join(":1" if st == 0 else ":" for st in strides)
        return (
            f"{base}.as_strided({kept}, {strides}).copy_({made}[{index}]).as_strided({shape}, "
            f"{strides})"
        )
    return f"{base}.as_strided({shape}, {strides}).copy_({made})"
