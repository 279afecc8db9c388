"""What ``FusionDefinition.validate`` compares with, and how closely.

Inside a kernel values of half types may be kept in Float, where torch rounds each, so the coarsest
dtype of the program counts. A float sum of n terms is as good as n roundings in the worst case and
as their root in the usual one: the tolerance is that root, for the largest number of elements that
the program reduces, times the dtype's own.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.types import DType, TensorType
from thunder_mdfuse.reference import run_reference

# About ten roundings of each dtype, for programs without a reduction.
_TOLERANCES = {
    DType.F16: 1e-2,
    DType.BF16: 8e-2,
    DType.F32: 1e-5,
    DType.F64: 1e-14,
    DType.C64: 1e-5,
    DType.C128: 1e-14,
    DType.F8E4M3: 0.3,
    DType.F8E5M2: 0.6,
}


def copied_tensor(value: Any) -> Any:
    """A copy with the same strides, of a tensor; a number as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() == 0 or 0 in value.stride():
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def evaluated(executable: Executable, inputs: Sequence[Any]) -> list[Any]:
    """The outputs for ``inputs``, each op in torch; the fusion has been called with such inputs."""
    assert executable.last is not None
    with torch.no_grad():
        return run_reference(executable.local, list(inputs), executable.last.symbols)


def assert_outputs(
    executable: Executable, found: Sequence[Any], wanted: Sequence[Any], numbers: Iterable[int]
) -> None:
    """Raise ``AssertionError`` unless each of ``found`` is as close to ``wanted`` as it can be."""
    assert executable.last is not None
    grown = math.sqrt(_most_reduced(executable.local, executable.last.symbols))
    types = [t for node in executable.local.nodes for t in node.types]
    tensors = [t.dtype for t in types if isinstance(t, TensorType)]
    coarsest = max((_TOLERANCES.get(dtype, 0.0) for dtype in tensors), default=0.0)
    places = list(numbers)
    if len(found) != len(wanted):
        raise AssertionError(f"{len(found)} outputs found, {len(wanted)} references given")
    for number, mine, theirs in zip(places, found, wanted, strict=True):
        if not isinstance(mine, torch.Tensor):
            assert mine == theirs, f"output {number}: {mine} found, {theirs} needed"
            continue
        exact = not (mine.is_floating_point() or mine.is_complex())
        near = 0.0 if exact else grown * coarsest
        torch.testing.assert_close(
            mine,
            theirs,
            rtol=near,
            atol=near,
            equal_nan=True,
            msg=partial("output {}: {}".format, number),
        )


def _most_reduced(fusion: Fusion, symbols: Any) -> int:
    """The largest number of elements that one element of a reduction or product is made of."""
    most = 1
    for node in fusion.nodes:
        if row(node.op).kind not in ("reduction", "matmul", "sdpa", "scan"):
            continue
        shape = fusion.tensor(node.args[0]).shape
        dims = getattr(node.attrs, "dims", None)
        reduced = shape[-1:] if dims is None else tuple(shape[d] for d in dims)
        most = max(most, sizes.evaluate(sizes.product(reduced), symbols))
    return most
