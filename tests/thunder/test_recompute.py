"""What is kept between forward and backward: as few bytes as possible, and the right gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from against_eager import jit, regions
from thunder.core import dtypes

Function = Callable[..., torch.Tensor]


def _saved(function: Function, *inputs: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """Gradients, and the bytes that forward regions make for backward ones alone."""
    jitted = jit(function)
    output = jitted(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    found = torch.autograd.grad(output, wanted, torch.ones_like(output))
    forward, backward = regions(jitted)
    made = {p.name: p for p in forward.outputs}
    read = {p.name for p in backward.inputs} - _returned(jitted)
    sizes = (p.dtype.bytes * p.numel for name, p in made.items() if name in read)
    return list(found), sum(sizes)


def _returned(jitted: Any) -> set[str]:
    """The names that the user gets."""
    results = thunder.last_traces(jitted)[-1].bound_symbols[-1].args[0]
    return {p.name for p in results["flat_output"]}


def _check(function: Function, *inputs: torch.Tensor, most: int) -> None:
    found, saved = _saved(function, *inputs)
    wanted = [x for x in inputs if x.requires_grad]
    output = function(*inputs)
    expected = torch.autograd.grad(output, wanted, torch.ones_like(output))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-5)
    assert saved <= most, f"{saved} bytes are kept for the backward"


def _leaf(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).requires_grad_()


CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...], int]] = {
    # All from the inputs.
    "chain": (lambda x: torch.exp(torch.sin(x) * 2).tanh(), ((8, 64),), 0),
    "swiglu": (lambda g, u: F.silu(g) * u, ((8, 64), (8, 64)), 0),
    "gelu": (lambda x, b: F.gelu(x + b), ((8, 64), (64,)), 0),
    # A number or two a row.
    "rms_norm": (lambda x, w: F.rms_norm(x, (64,), w, 1e-5), ((8, 64), (64,)), 8 * 4),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        ((8, 64), (64,), (64,)),
        2 * 8 * 4,
    ),
    "log_softmax": (lambda x: F.log_softmax(x, -1).exp().sin(), ((8, 64),), 8 * 4),
    # The smaller side of a cast, the row and not what is broadcast from it.
    "cast": (lambda x: x.to(torch.bfloat16).float().sin(), ((8, 64),), 8 * 64 * 4),
    "broadcast": (lambda x: (x.sum(1).exp()[:, None] * x).sin(), ((8, 64),), 8 * 4),
}


@pytest.mark.parametrize("name", CASES)
def test_no_more_is_kept_than_needed(name: str) -> None:
    function, shapes, most = CASES[name]
    _check(function, *(_leaf(*s) for s in shapes), most=most)


def test_cross_entropy_keeps_a_number_a_row() -> None:
    target = torch.tensor([3, 0, 63, 5, 1, 1, 2, 9])
    # The logarithm of each row's sum, how many targets count, and the loss.
    _check(lambda x: F.cross_entropy(x, target), _leaf(8, 64), most=8 * 4 + 8 + 4)


def test_a_mask_is_drawn_again() -> None:
    x = torch.ones(64, 64, requires_grad=True)
    jitted = jit(lambda x: F.dropout(x, 0.5).exp())
    y = jitted(x)
    y.sum().backward()
    forward, backward = regions(jitted)
    between = {p.name for p in backward.inputs} - _returned(jitted)
    kept = [p for p in forward.outputs if p.name in between]
    assert [(p.dtype, p.shape) for p in kept] == 2 * [(dtypes.int64, ())]
    dropped = y == 1
    assert torch.equal(x.grad == 0, dropped) and 0.4 < dropped.float().mean() < 0.6


def test_what_the_user_gets_is_read_back() -> None:
    """An output is in memory anyway; reading it is cheaper than reading two inputs."""

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.exp(x + y + z)

    jitted = jit(function)
    inputs = [_leaf(8, 64) for _ in range(3)]
    jitted(*inputs).sum().backward()
    (backward,) = (r for r in regions(jitted) if r.name == regions(jitted)[-1].name)
    assert len([p for p in backward.inputs if p.ndim == 2]) == 2  # the output and its gradient
    torch.testing.assert_close(inputs[0].grad, function(*inputs).detach())


def test_nothing_is_recomputed_across_a_write() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.sin(x)
        y.copy_(z)
        return (z * z).exp()

    x, y = _leaf(8, 64), torch.zeros(8, 64)
    result = jit(function)(x, y)
    (found,) = torch.autograd.grad(result, [x], torch.ones_like(result))
    other = function(x, torch.zeros(8, 64))
    (expected,) = torch.autograd.grad(other, [x], torch.ones_like(other))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(y, x.detach().sin())
