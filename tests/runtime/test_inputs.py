"""Inputs whose memory does not hold their elements, or that have none."""

from collections.abc import Callable

import pytest
import thunder
import torch
from torch._subclasses import FakeTensorMode

from thunder_mdfuse import DataType, FusionDefinition, mdfuse_executor


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


LAZY = {
    "conjugate": lambda c: c.conj(),
    "negative": lambda c: c.conj().imag,
    "conjugate view": lambda c: c.conj()[1:],
    "neither": lambda c: c * 1,
}


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_lazy_inputs(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    c = torch.randn(5, dtype=torch.complex64)
    function = lambda x: x * 2 + 1
    jitted = thunder.jit(function, executors=[mdfuse_executor])
    for x in (make(c), make(c).clone().resolve_conj().resolve_neg(), make(c)):
        torch.testing.assert_close(jitted(x), function(x))


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_lazy_inputs_are_written(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What lies in memory is what the tensor's own operators would put there."""
    c = torch.randn(5, dtype=torch.complex64)
    wanted = c.clone()

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(y).add_(1)
        return x * y

    jitted = thunder.jit(function, executors=[mdfuse_executor])
    for _ in range(2):
        found = jitted(make(c), make(c).abs())
        torch.testing.assert_close(found, function(make(wanted), make(wanted).abs()))
        torch.testing.assert_close(c, wanted)


def test_a_lazy_cotangent() -> None:
    w, x = (torch.randn(4, dtype=torch.complex64) for _ in range(2))
    function = lambda x: x * 2 + 1
    found = []
    for call in (function, thunder.jit(function, executors=[mdfuse_executor])):
        y = x.clone().requires_grad_()
        (call(y).conj() * w).real.sum().backward()
        found.append(y.grad)
    torch.testing.assert_close(found[1], found[0])


def test_lazy_inputs_of_a_definition() -> None:
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], contiguity=True, dtype=DataType.ComplexFloat)
        fd.add_output(fd.ops.mul(t, t))
        fd.add_output(fd.ops.add(t, t), t)
    c = torch.randn(4, dtype=torch.complex64)
    for x in (c.clone(), c.clone().conj(), c.clone()):
        wanted = (x * x, x + x)
        (found,) = fd.execute([x])
        torch.testing.assert_close((found, x), wanted)


def test_fake_tensors_give_fake_results() -> None:
    function = lambda x, w: torch.nn.functional.linear(x * 2 + 1, w).sum(-1)
    jitted = thunder.jit(function, executors=[mdfuse_executor])
    x, w = torch.randn(4, 6), torch.randn(3, 6)
    for _ in range(2):
        torch.testing.assert_close(jitted(x, w), function(x, w))
        with FakeTensorMode() as mode:
            fakes = mode.from_tensor(x), mode.from_tensor(w)
            found, wanted = jitted(*fakes), function(*fakes)
            assert type(found) is type(wanted)
            assert (found.shape, found.dtype, found.device) == (
                wanted.shape,
                wanted.dtype,
                wanted.device,
            )
