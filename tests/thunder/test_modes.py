"""Modes of torch around a call: autocast, no_grad, and modules that are switched to eval."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from against_eager import jit
from torch import nn

# Thunder asks torch in words that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:torch.:DeprecationWarning")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.up(self.norm(x)))
        return (x + F.dropout(self.down(y), 0.5, self.training)).softmax(-1)


def small() -> tuple[Small, torch.Tensor]:
    torch.manual_seed(0)
    return Small(), torch.randn(4, 16)


@pytest.mark.parametrize(
    "function", [lambda m, x: m(x), lambda m, x: (m(x) @ m.up.weight.t()).sum()]
)
def test_autocast(function: Callable[..., torch.Tensor]) -> None:
    model, x = small()
    model.eval()
    jitted = jit(lambda x: function(model, x))
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = jitted(x), function(model, x)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_gradients_under_autocast_are_in_the_parameters_dtype() -> None:
    model, x = small()
    model.eval()
    jitted = jit(model)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = jitted(x), model(x)
    ours = torch.autograd.grad(found[:, 0].sum(), list(model.parameters()))
    theirs = torch.autograd.grad(expected[:, 0].sum(), list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-3)


def test_no_grad_and_back() -> None:
    model, x = small()
    model.eval()
    jitted = jit(model)
    with torch.no_grad():
        assert not jitted(x).requires_grad
    assert jitted(x).requires_grad
    with torch.inference_mode():
        assert not jitted(x).requires_grad
    assert jitted(x).requires_grad


def test_eval_after_training() -> None:
    model, x = small()
    jitted = jit(model)
    torch.manual_seed(0)
    dropped = jitted(x)
    jitted.eval()
    torch.testing.assert_close(jitted(x), model.eval()(x))
    jitted.train()
    torch.manual_seed(0)
    assert torch.equal(jitted(x), dropped)


@pytest.mark.parametrize("device", ["cuda", torch.device("cuda"), "cuda:0"])
def test_the_device_is_the_current_one(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    """As on the second of two ranks: each has made another GPU its own."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.full((2,), 3.0, device=device)

    jitted = jit(function)
    if not torch.cuda.device_count() > 1:
        with pytest.raises((RuntimeError, AssertionError)):
            jitted(torch.ones(2))
    else:
        jitted(torch.ones(2))
    wanted = "cuda:0" if device == "cuda:0" else "cuda:1"
    assert wanted in str(thunder.last_traces(jitted)[0])
