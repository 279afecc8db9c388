"""Equal layers of a model are equal kernels, compiled once, however many layers there are."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from thunder_mdfuse import DataType, FusionDefinition

WIDTH, HIDDEN = 32, 48
SHAPES = ((WIDTH,), (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))


def layer(fd: FusionDefinition, x: Any, norm: Any, gate: Any, up: Any, down: Any) -> Any:
    ops = fd.ops
    mean = ops.div(ops.sum(ops.mul(x, x), -1, keepdim=True), float(WIDTH))
    normed = ops.mul(ops.mul(x, ops.rsqrt(ops.add(mean, 1e-5))), norm)
    a, b = ops.linear(normed, gate), ops.linear(normed, up)
    return ops.add(x, ops.linear(ops.mul(ops.mul(a, ops.sigmoid(a)), b), down))


def eager(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for i in range(0, len(weights), 4):
        norm, gate, up, down = weights[i : i + 4]
        normed = F.rms_norm(x, (WIDTH,), norm, 1e-5)
        x = x + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down)
    return x


def test_many_layers_compile_as_many_kernels_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    kernels, steps = {}, {}
    for layers in (3, 32):
        with FusionDefinition() as fd:
            first = fd.define_tensor([4, WIDTH], dtype=DataType.Float)
            weights = [fd.define_tensor(list(s), dtype=DataType.Float) for s in SHAPES * layers]
            x = first
            for i in range(layers):
                x = layer(fd, x, *weights[4 * i : 4 * i + 4])
            fd.add_output(x)
        numbers = torch.Generator().manual_seed(0)
        given = [torch.randn(s, generator=numbers) * 0.2 for s in ((4, WIDTH), *SHAPES * layers)]
        (found,) = fd.execute(given)
        torch.testing.assert_close(found, eager(*given), rtol=1e-4, atol=1e-4)
        kernels[layers] = set(fd.executable.kernel_sources())
        steps[layers] = sum(s.kind == "kernel" for s in fd.executable.report())
    assert kernels[3] == kernels[32]
    assert steps == {3: 7, 32: 65}  # two a layer, and what is left of the last one
