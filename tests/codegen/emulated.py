"""Runs small programs, written as text, in the emulator, for tests that compare with eager."""

from collections.abc import Sequence

import torch

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime.dtypes import IR_DTYPES


def typed(x: torch.Tensor) -> str:
    """The type of ``x`` as the IR's text has it."""
    return f"{IR_DTYPES[x.dtype]}[{', '.join(map(str, x.shape))}]"


def program(inputs: Sequence[torch.Tensor], body: str, outputs: str) -> Executable:
    """The program of ``body``, whose first value after the inputs is ``%len(inputs)``."""
    given = [f"%{i} = input(position={i}) : {typed(x)}" for i, x in enumerate(inputs)]
    return Executable(parse("\n".join(["global", *given, body, f"return {outputs}", ""])), "test")


def run(
    inputs: Sequence[torch.Tensor], body: str, outputs: str
) -> tuple[list[torch.Tensor], Executable]:
    """The outputs, and the executable; every step has to be a kernel, and no input may change."""
    executable = program(inputs, body, outputs)
    before = [x.clone() for x in inputs]
    found = executable.run(list(inputs))
    assert executable.last is not None
    plan = executable.last.plan
    assert all(step.kind == "kernel" for step in plan.steps), plan
    for old, new in zip(before, inputs, strict=True):
        assert torch.equal(_bytes(old), _bytes(new)), "an input was changed"
    tensors = [x for x in found if isinstance(x, torch.Tensor)]
    assert len(tensors) == len(found)
    return tensors, executable


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype).copy_(x).reshape(-1).view(torch.uint8)


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal dtype, strides and bits, but that any NaN is NaN."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.stride() == wanted.stride()
    if wanted.dtype.is_floating_point or wanted.dtype.is_complex:
        if not wanted.dtype.is_complex and wanted.itemsize == 1:
            found, wanted = found.float(), wanted.float()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        if not wanted.dtype.is_complex:
            numbers = ~wanted.isnan()
            assert torch.equal(found.signbit() & numbers, wanted.signbit() & numbers)
        return
    assert torch.equal(found, wanted)


def strided(x: torch.Tensor, kind: str) -> torch.Tensor:
    """``x`` in another layout: ``permuted``, ``cut`` out of something larger, ``stepped``."""
    if kind == "permuted" and x.ndim > 1:
        back = list(range(x.ndim))[::-1]
        return x.permute(back).contiguous().permute(back)
    if kind == "cut" and x.ndim:
        whole = torch.zeros([n + 1 for n in x.shape], dtype=x.dtype)
        view = whole[(slice(1, None),) * x.ndim]
        view.copy_(x)
        return view
    if kind == "stepped" and x.ndim:
        whole = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
        view = whole[..., ::2]
        view.copy_(x)
        return view
    return x


LAYOUTS = ("dense", "permuted", "cut", "stepped")
