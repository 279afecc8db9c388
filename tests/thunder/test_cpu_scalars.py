"""0-dim tensors on the CPU beside larger ones: tensors like all others, with gradients."""

from collections.abc import Callable

import pytest
import thunder
import torch

from thunder_mdfuse import mdfuse_executor

FUNCTIONS = {
    "mul": lambda a, s: a * s,
    "own sum": lambda a, s: (a * a.sum()) + a.mean(0) + a.var(1).sum(),
    "element": lambda a, s: torch.ones(2, 5) * a[0, 0] + s,
    "where": lambda a, s: torch.where(a > 0, s, a),
    "between": lambda a, s: a / (s + 3) - s.exp() * 2,
    "maximum": lambda a, s: torch.maximum(a, s) + torch.pow(a.abs(), s.abs()),
    "promoted": lambda a, s: (a.half() * s).float() + a.double().mul(s).float(),
    "addcmul": lambda a, s: torch.addcmul(a, a, s, value=2.0) + torch.lerp(a, s, 0.5),
}


@pytest.mark.parametrize("backend", ["emulate", "reference"])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_of_0_dim_tensors(
    function: Callable[..., torch.Tensor], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", backend)
    torch.manual_seed(0)
    a, s, found = torch.randn(5, 5), torch.randn(()), []
    for call in (function, thunder.jit(function, executors=[mdfuse_executor])):
        x, y = a.clone().requires_grad_(), s.clone().requires_grad_()
        result = call(x, y)
        result.square().sum().backward()
        found.append([result, x.grad] + ([] if y.grad is None else [y.grad]))
    assert len(found[0]) == len(found[1])
    for ours, wanted in zip(found[1], found[0], strict=True):
        assert ours.dtype is wanted.dtype and ours.shape == wanted.shape
        torch.testing.assert_close(ours, wanted, rtol=2e-3, atol=2e-3)
