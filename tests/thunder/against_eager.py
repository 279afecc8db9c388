"""Runs a program through thunder.jit with our executor and compares it with eager torch.

Values, dtypes and strides of every output and every gradient, in the order that both return them.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import thunder
import torch
from torch import nn

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.thunder.fusion_call import FusionCall

# Half types keep f32 between the ops of a region where eager rounds after each.
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (2e-5, 2e-6),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (2e-5, 2e-6),
}


@dataclass(frozen=True)
class Run:
    """What a call returned, and the gradients of its leaves."""

    outputs: list[Any]
    gradients: list[torch.Tensor | None]


def jit(function: Any, **options: Any) -> Any:
    return thunder.jit(function, executors=[mdfuse_executor], **options)


def regions(jitted: Any) -> list[FusionCall]:
    """The fusion callables of a jitted function's newest traces, forward before backward."""
    traces = [thunder.last_traces(jitted), thunder.compile_stats(jitted).last_backward_traces]
    found = []
    for trace in (t[-1] for t in traces if t):
        found += [c for c in trace.python_ctx().values() if isinstance(c, FusionCall)]
    return found


def leaves(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs with the same strides, for a run of their own."""
    return [
        x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]


def run(function: Callable[..., Any], inputs: Sequence[Any]) -> Run:
    """Call, then differentiate with cotangents that are the same for equal shapes."""
    found = function(*inputs)
    outputs = list(found) if isinstance(found, tuple | list) else [found]
    roots = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if not roots:
        return Run(outputs, [])
    made = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(x.shape, generator=made).to(x.dtype) for x in roots]
    torch.autograd.backward(roots, cotangents)
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if isinstance(function, nn.Module):
        wanted += list(function.parameters())
    return Run(outputs, [x.grad for x in wanted])


def same(found: Any, wanted: Any, what: str) -> None:
    """Assert equal kind, dtype, strides and, to the dtype's tolerance, values."""
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted, f"{what}: {found}, wanted {wanted}"
        return
    rtol, atol = TOLERANCES.get(wanted.dtype, (0, 0))
    torch.testing.assert_close(
        found, wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
    assert found.stride() == wanted.stride(), (
        f"{what}: strides {found.stride()}, wanted {wanted.stride()} for {list(wanted.shape)}"
    )


def check(function: Any, inputs: Sequence[Any], **options: Any) -> Any:
    """The jitted ``function``, compared with eager on ``inputs`` in two calls."""
    mine = copy.deepcopy(function) if isinstance(function, nn.Module) else function
    wanted = run(function, leaves(inputs))
    jitted = jit(mine, **options)
    for _ in range(2):
        if isinstance(mine, nn.Module):
            mine.zero_grad()
        found = run(jitted, leaves(inputs))
        assert len(found.outputs) == len(wanted.outputs)
        for i, (x, y) in enumerate(zip(found.outputs, wanted.outputs, strict=True)):
            same(x, y, f"output {i}")
        assert len(found.gradients) == len(wanted.gradients)
        for i, (x, y) in enumerate(zip(found.gradients, wanted.gradients, strict=True)):
            same(x, y, f"gradient {i}")
    return jitted
