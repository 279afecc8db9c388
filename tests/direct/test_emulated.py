"""The direct API on generated kernels, which the emulator runs: a sample of the ops."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from direct.checks import compare, defined, listed
from torch.nn import functional

from thunder_mdfuse import DataType, FusionDefinition


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


def elementwise(fd: FusionDefinition, x: Any, y: Any, n: Any) -> Any:
    return (
        fd.ops.silu(x),
        fd.ops.where(fd.ops.gt(x, y), fd.ops.sigmoid(y), n),
        fd.ops.addcmul(x, y, y, 0.5),
        fd.ops.clamp(fd.ops.cast(fd.ops.mul(x, 10), DataType.Int32), -9, 9),
        fd.ops.isposinf(fd.ops.reciprocal(x)),
        fd.ops.triu(x, 1),
    )


def eager_elementwise(x: torch.Tensor, y: torch.Tensor, n: float) -> Any:
    return (
        functional.silu(x),
        torch.where(x > y, torch.sigmoid(y), n),
        torch.addcmul(x, y, y, value=0.5),
        (x * 10).to(torch.int32).clamp(-9, 9),
        torch.isposinf(x.reciprocal()),
        x.triu(1),
    )


def norm(fd: FusionDefinition, x: Any, w: Any) -> Any:
    variance, mean = fd.ops.var_mean(x, [-1], correction=0, keepdim=True)
    scaled = fd.ops.mul(fd.ops.sub(x, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    return fd.ops.mul(scaled, w), mean, fd.ops.max(x, 0)


def eager_norm(x: torch.Tensor, w: torch.Tensor) -> Any:
    return functional.layer_norm(x, x.shape[-1:], w), x.mean(-1, keepdim=True), x.amax(0)


def shapes(fd: FusionDefinition, x: Any, y: Any, n: Any) -> Any:
    turned = fd.ops.permute(fd.ops.exp(x), [1, 0])
    return (
        fd.ops.cat([turned, fd.ops.permute(y, [1, 0])], 1),
        fd.ops.pad(fd.ops.neg(x), [1, 2, 0, 1], 0.5),
        fd.ops.reshape(fd.ops.mul(x, 2.0), [n, -1]),
        fd.ops.sub(
            fd.ops.slice(x, [0, 1], [x.size(0), x.size(1)]),
            fd.ops.slice(x, [0, 0], [x.size(0), x.size(1) - 1]),
        ),
    )


def eager_shapes(x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
    return (
        torch.cat([x.exp().t(), y.t()], 1),
        functional.pad(-x, [1, 2, 0, 1], value=0.5),
        (x * 2.0).reshape(n, -1),
        torch.diff(x, dim=1),
    )


def indices(fd: FusionDefinition, x: Any, i: Any, k: Any) -> Any:
    return (
        fd.ops.exp(fd.ops.index_select(x, i, 0)),
        fd.ops.select(fd.ops.exp(x), k, 1),
        fd.ops.cumsum(x, 1, 2.0),
        fd.ops.add(fd.ops.iota(x.size(1), dtype=DataType.Float), x),
        fd.ops.full([x.size(0)], k, DataType.Float),
    )


def eager_indices(x: torch.Tensor, i: torch.Tensor, k: int) -> Any:
    return (
        x[i].exp(),
        x.exp()[:, k].contiguous(),
        x.cumsum(1) + 2,
        torch.arange(x.shape[1]).float() + x,
        torch.full(x.shape[:1], float(k)),
    )


def mlp(fd: FusionDefinition, x: Any, w: Any, b: Any) -> Any:
    return fd.ops.relu(fd.ops.linear(x, w, b)), fd.ops.welford(fd.ops.matmul(x, x), [0])[1]


def eager_mlp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return functional.linear(x, w, b).relu(), (x @ x).var(0, correction=0) * x.shape[0]


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "elementwise": (
        elementwise,
        eager_elementwise,
        [torch.randn(6, 16), torch.randn(6, 16), 0.25],
    ),
    "elementwise_bf16": (
        elementwise,
        eager_elementwise,
        [torch.randn(6, 16).bfloat16(), torch.randn(6, 16).bfloat16(), 0.25],
    ),
    "transposed": (
        elementwise,
        eager_elementwise,
        [torch.randn(8, 6).t(), torch.randn(6, 8), -1.5],
    ),
    "norm": (norm, eager_norm, [torch.randn(5, 48), torch.randn(48)]),
    "shapes": (shapes, eager_shapes, [torch.randn(4, 6), torch.randn(3, 6), 8]),
    "indices": (indices, eager_indices, [torch.randn(5, 7), torch.tensor([4, 0, 4]), 3]),
    "mlp": (mlp, eager_mlp, [torch.randn(6, 6), torch.randn(5, 6), torch.randn(5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_generated_kernels(name: str) -> None:
    define, eager, inputs = CASES[name]
    fd = defined(define, inputs)
    near = 2e-2 if name.endswith("bf16") else 1e-5
    compare(fd.execute(inputs), listed(eager(*inputs)), near)
    assert fd.executable.kernel_sources()


def test_random_numbers_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = defined(lambda fd, s: fd.ops.uniform(-1, 1, [40], rng_seed=s, rng_offset=2), [7])
    found = fd.execute([7], device="cpu")
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    compare(found, fd.execute([7], device="cpu"), 0)


def test_written_inputs() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.add(fd.ops.exp(x), y), x)
        fd.add_output(fd.ops.sum(x, 1))
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    old = x.clone()
    (total,) = fd.execute([x, y])
    compare([total, x], [old.sum(1), old.exp() + y])
    fd.validate([x, y])
