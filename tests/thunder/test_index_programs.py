"""Programs that look up and scatter, through ``thunder.jit``: how many kernels, and no ATen step.

Kernels run in the emulator; values, dtypes and strides are those of eager torch.
"""

from typing import Any

import pytest
import torch
from against_eager import check, regions
from torch.nn import functional

from thunder_mdfuse.runtime.report import StepReport


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")


def _steps(jitted: Any) -> list[list[StepReport]]:
    """What each region did in the last call; every step has to be a kernel, so no ATen bytes."""
    found = [call.last_used.report() for call in regions(jitted) if call.last_used is not None]
    assert found
    assert all(step.kind == "kernel" for steps in found for step in steps), found
    return found


def _index(shape: tuple[int, ...], extent: int) -> torch.Tensor:
    return torch.randint(0, extent, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_embedding_is_one_kernel(dtype: torch.dtype) -> None:
    weight = torch.randn(50, 64).to(dtype)
    jitted = check(functional.embedding, [_index((3, 7), 50), weight])
    ((step,),) = _steps(jitted)
    size = 21 * 64 * dtype.itemsize
    assert (step.bytes_read, step.bytes_written) == (21 * 8 + min(size, weight.nbytes), size)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("classes", [11, 1000])
def test_a_cross_entropy_is_two_kernels(classes: int, reduction: str) -> None:
    """One that reduces each row of logits, which it reads once, and one over what the rows gave."""
    logits, target = torch.randn(13, classes) * 5, _index((13,), classes)
    target[3] = target[12] = -100

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x, t, reduction=reduction)

    jitted = check(loss, [logits, target])
    (steps,) = _steps(jitted)
    assert len(steps) == (1 if reduction == "none" else 2)
    assert steps[0].bytes_read <= logits.nbytes + 13 * (8 + 4) + 1000
    if reduction != "none":
        assert steps[1].bytes_read <= 13 * (8 + 3 * 4)


def test_a_cross_entropy_with_an_ignored_class() -> None:
    logits, target = torch.randn(9, 5), _index((9,), 5)

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x, t, ignore_index=2)

    assert [len(steps) for steps in _steps(check(loss, [logits, target]))] == [2]


def test_a_cross_entropy_and_its_gradient() -> None:
    logits, target = torch.randn(9, 33, requires_grad=True), _index((9,), 33)
    _steps(check(functional.cross_entropy, [logits, target]))


def test_an_embedding_and_its_gradient() -> None:
    weight = torch.randn(20, 16, requires_grad=True)

    def function(index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(functional.embedding(index, w, padding_idx=3))

    _steps(check(function, [_index((4, 6), 20), weight]))


def test_lookups_and_their_gradients() -> None:
    x = torch.randn(6, 10, requires_grad=True)
    along, rows = _index((6, 4), 10), _index((5,), 6)

    def function(a: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> Any:
        return a.gather(1, i).exp(), a.index_select(0, j) * 2, a.take_along_dim(i, 1).sum()

    _steps(check(function, [x, along, rows]))


def test_scatters() -> None:
    x, along, source = torch.randn(6, 10), _index((6, 4), 10), torch.randn(6, 4)
    rows, more = _index((5,), 6), torch.randn(5, 10)

    def function(a: torch.Tensor, i: torch.Tensor, s: torch.Tensor, j: Any, m: Any) -> Any:
        return a.scatter_add(1, i, s) + 1, a.index_add(0, j, m), a.argmax(1), a.argmin()

    _steps(check(function, [x, along, source, rows, more]))


def test_complex_numbers() -> None:
    a = torch.randn(6, 5, dtype=torch.complex64)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * y + x
        return z, z.real + 1, torch.abs(z), z.sum(0)

    _steps(check(function, [a, a.flip(0)]))
