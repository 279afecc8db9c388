"""The gradients of norms through thunder.jit: one generated kernel, every input read once."""

from collections.abc import Callable

import pytest
import torch
from against_eager import jit, leaves, regions, run, same
from torch.nn.functional import layer_norm, rms_norm

from thunder_mdfuse.thunder.fusion_call import FusionCall


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, x.shape[-1:], w, 1e-5)


def _layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return layer_norm(x, x.shape[-1:], w, b, 1e-5)


def _by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As models spell it that compute norms in f32."""
    wide = x if x.dtype is torch.float64 else x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    return (wide * scale * w.to(wide.dtype)).to(x.dtype)


def _with_residual(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = x + y
    return rms_norm(total, x.shape[-1:], w, 1e-5) + total


CASES: dict[str, tuple[Callable[..., torch.Tensor], int, int]] = {
    "rms": (_rms, 1, 1),
    "by hand": (_by_hand, 1, 1),
    "residual": (_with_residual, 2, 1),
    "layer": (_layer, 1, 2),
}

SHAPES = [(37, 64), (3, 5, 96), (1, 40), (130, 100), (2, 2, 3, 33)]


def _inputs(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    _, matrices, vectors = CASES[name]
    generator = torch.Generator().manual_seed(len(shape))
    shapes = [shape] * matrices + [shape[-1:]] * vectors
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_(True) for s in shapes]


def _only_kernel(region: FusionCall) -> None:
    """The region is one kernel, and moves each of its inputs and outputs once."""
    assert region.last_used is not None
    (step,) = region.last_used.report()
    assert step.kind == "kernel"
    fusion = region.last_used.local
    entry = region.last_used.last
    assert entry is not None
    kernel = entry.plan.kernels[0]
    read = [b.value for b in kernel.buffers if b.space == "global" and not b.written]
    assert len(read) == len(set(read)) <= len(fusion.inputs)
    assert {u.node for u in read} <= set(fusion.inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "shape", [(37, 64), (3, 5, 96), (1, 40), (130, 100), (2, 2, 3, 33)], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_are_a_kernel_each(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    inputs = _inputs(name, shape, dtype)
    # Eager CPU sums LayerNorm's bf16 gradients over rows in bf16: what is right is known in f64.
    jitted = jit(CASES[name][0])
    found = run(jitted, leaves(inputs))
    right = run(CASES[name][0], leaves([x.detach().double().requires_grad_() for x in inputs]))
    for value, wanted, x in zip(found.gradients, right.gradients, inputs, strict=True):
        assert value is not None and wanted is not None
        assert (value.dtype, value.shape, value.stride()) == (x.dtype, x.shape, x.stride())
        error = (value.double() - wanted).abs().max() / wanted.abs().max()
        assert error < (1e-2 if dtype is torch.bfloat16 else 1e-5)
    same(found.outputs[0], right.outputs[0].to(dtype), "output")
    forward, backward = regions(jitted)
    _only_kernel(forward)
    _only_kernel(backward)
