"""One check for every op of the direct API: its values, dtypes, shapes and strides are eager's."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_mdfuse import DataType, FusionDefinition, ParallelType
from thunder_mdfuse.direct.mesh import DeviceMesh

NUMBERS = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double}
TOLERANCES = {
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
}


def defined(define: Callable[..., Any], inputs: Sequence[Any], **kwargs: Any) -> FusionDefinition:
    """The fusion of ``define(fd, *values)`` for inputs like ``inputs``."""
    with FusionDefinition() as fd:
        values = [
            fd.from_pytorch(x, **kwargs)
            if isinstance(x, torch.Tensor)
            else fd.define_scalar(NUMBERS[type(x)])
            for x in inputs
        ]
        for out in listed(define(fd, *values)):
            fd.add_output(out)
    return fd


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def rebuilt(fd: FusionDefinition) -> FusionDefinition:
    """The fusion that the text of ``fd`` defines."""
    scope: dict[str, Any] = {
        "DeviceMesh": DeviceMesh,
        "DataType": DataType,
        "FusionDefinition": FusionDefinition,
        "ParallelType": ParallelType,
    }
    exec(repr(fd), scope)
    with FusionDefinition() as again:
        scope["mdfuse_fusion"](again)
    return again


def check(
    define: Callable[..., Any],
    eager: Callable[..., Any],
    inputs: Sequence[Any],
    near: float | None = None,
    strides: bool = True,
) -> FusionDefinition:
    """Compare the fusion of ``define`` with ``eager``, for symbolic and for fixed sizes."""
    for static in (False, True):
        fd = defined(define, inputs, static_sizes=static)
        same = rebuilt(fd)
        assert repr(same) == repr(fd)
        assert str(same.fusion) == str(fd.fusion)
        compare(fd.execute(list(inputs)), listed(eager(*inputs)), near, strides)
    return fd


def compare(
    found: Sequence[Any], wanted: Sequence[Any], near: float | None = None, strides: bool = True
) -> None:
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert type(mine) is type(theirs)
            assert mine == theirs or abs(mine - theirs) < 1e-12
            continue
        by = TOLERANCES.get(theirs.dtype, 0.0) if near is None else near
        torch.testing.assert_close(mine, theirs, rtol=by, atol=by, equal_nan=True)
        if strides and theirs.numel():
            # The stride of a dim of one element says nothing.
            pairs = zip(theirs.shape, mine.stride(), theirs.stride(), strict=True)
            assert all(a == b for n, a, b in pairs if n > 1), (mine.stride(), theirs.stride())
