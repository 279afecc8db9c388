"""Numbers, strings and sizes under ``cache="symbolic values"``: what was traced for one is not run
for another, and what may stay open does.
"""

import enum
import math
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from against_eager import jit, leaves, run, same

pytestmark = pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option:UserWarning")


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Doublings(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, n: int) -> torch.Tensor:
        ctx.n = n
        for _ in range(n):
            a = a * 2
        return a

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return g * 2**ctx.n, None


class Dim(enum.IntEnum):
    FIRST = 0
    SECOND = 1


X, CUBE, DEEP = randn(6, 6), randn(2, 4, 4), randn(1, 4, 1)
# Functions and what they are called with, in that order, and how many traces that takes.
Calls = tuple[Callable[..., Any], int, list[tuple[Any, ...]]]
NUMBERS: dict[str, Calls] = {
    # Dims, counts and steps: of Thunder's own composition, then of its gradients.
    "squeeze": (lambda a, n: (a * 2).squeeze(n) * 2, 3, [(DEEP, 0), (DEEP, 1), (DEEP, 2)]),
    "new_zeros": (lambda a, n: a[:, :2] + a.new_zeros((6, n)), 2, [(X, 2), (X, 1)]),
    "avg_pool1d": (lambda a, n: F.avg_pool1d(a, n) * 2, 2, [(X, 2), (X, 3)]),
    "topk": (lambda a, n: a.topk(n)[0] * 2, 2, [(X, 2), (X, 3)]),
    "full_like": (lambda a, n: a + torch.full_like(a, n), 1, [(X, 2), (X, 3)]),
    "a slice": (lambda a, n: a[:n] * 2, 3, [(X, 2), (X, 3), (X, -1)]),
    "a dim from the end": (lambda a, n: a.amax(n) * 2, 2, [(X, -1), (X, 0)]),
    "group_norm": (lambda a, n: F.group_norm(a, n) * 2, 2, [(CUBE, 1), (CUBE, 2)]),
    "arange": (lambda a, n: a[:, :4] + torch.arange(0, 10, n), 1, [(X, 3)]),
    "a door's": (lambda a, n: F.rms_norm(a.reshape(-1, n), (n,)) * 2, 2, [(X, 6), (X, 9)]),
    "a flag": (lambda a, k: a.sum(0, keepdim=k) + 1, 2, [(X, True), (X, False)]),
    "a rate": (lambda a, p: F.dropout(a, p).ne(0).sum(), 2, [(X, 0.0), (X, 1.0)]),
    "an enum": (lambda a, n: a.sum(n) * 2, 2, [(X, Dim.FIRST), (X, Dim.SECOND)]),
    "also returned": (lambda a, n: (a.sum(n) * 2, n, n + 1), 2, [(X, 0), (X, 1)]),
    # Operands.
    "an operand": (lambda a, n: a * n + a.clamp(min=n) - n, 1, [(X, 1), (X, -1)]),
    "an operand in place": (lambda a, n: (a * 2).mul_(n).add_(a), 1, [(X, 0.5), (X, 2.0)]),
    "an operand of another type": (lambda a, n: a.long() * n, 2, [(X, 2), (X, 2.5)]),
    "an exponent": (lambda a, n: a**n, 1, [(X, 2), (X, 3), (X, 1), (X, 0)]),
    # What Python takes the value of.
    "a loop": (lambda a, n: sum((a * i for i in range(n)), a), 2, [(X, 2), (X, 3)]),
    "a conversion": (lambda a, n: a * float(n) / math.sqrt(n), 2, [(X, 4), (X, 9)]),
    "a key": (lambda a, n: a * {1: 2.0, 2: 3.0}[n], 2, [(X, 1), (X, 2)]),
    "no key": (lambda a, n: a * {1: 2.0}.get(n, 5.0), 2, [(X, 7), (X, 1)]),
    "no element": (lambda a, n: a * 2 if n in {1, 2} else a, 2, [(X, 7), (X, 1)]),
    "a text": (lambda a, n: a * len(f"{n}") + len(str(n)), 2, [(X, 7), (X, 10)]),
    "an identity": (lambda a, n: a * 2 if n is True else a, 2, [(X, True), (X, False)]),
    "a branch": (lambda a, n: a * max(n, 2) if n else a, 2, [(X, 0), (X, 5)]),
    "a repeated list": (lambda a, n: torch.cat([a] * n) * 2, 2, [(X, 2), (X, 3)]),
    "a custom function": (Doublings.apply, 2, [(X, 2), (X, 3)]),
    "rounding": (lambda a, s: a * math.floor(s) * math.ceil(s), 1, [(X, -1.5), (X, 2.5)]),
    "rounding to a count": (lambda a, n: a[: math.ceil(n / 2)] * 2, 2, [(X, 3), (X, 5)]),
    # Strings.
    "a slice of the user's": (lambda a, k: a[k] * 2, 2, [(X, slice(1, 3)), (X, slice(0, 5))]),
    "a string": (lambda a, m: F.mse_loss(a, a * 2, reduction=m), 2, [(X, "sum"), (X, "mean")]),
    # Sizes.
    "unpacked sizes": (
        lambda a: (a * 2).view(a.shape[0] * a.shape[1]).view(*a.shape) + a,
        1,
        [(randn(2, 3),), (randn(4, 5),)],
    ),
    "a size as a root": (lambda a: a / math.sqrt(a.shape[1]), 2, [(randn(2, 4),), (randn(2, 9),)]),
    "a size as a count": (
        lambda a: sum((a * i for i in range(a.shape[0])), a),
        2,
        [(randn(2, 3),), (randn(4, 3),)],
    ),
    "tril": (lambda a: a.tril() * 2, 1, [(randn(3, 3),), (randn(4, 5),)]),
    "cat of a slice": (
        lambda a: torch.cat([a, a[:1]]) * 2,
        2,
        [(randn(4, 3),), (randn(5, 5),)],
    ),
    "chunk": (lambda a: a.chunk(2, -1)[0] * 2, 2, [(randn(4, 4),), (randn(3, 8),)]),
    "a strided slice": (lambda a: a[:, 1::2] * 2, 2, [(randn(4, 4),), (randn(3, 8),)]),
    "a whole function of torch's": (
        lambda a: a.narrow(0, 1, a.shape[0] - 1) * 2,
        2,
        [(randn(4, 3),), (randn(5, 5),)],
    ),
}


ROWS = [(randn(n, 3),) for n in (5, 1, 2, 8, 3)]
SQUARES = [(randn(*s),) for s in ((3, 3), (2, 6), (1, 1), (6, 1), (1, 6))]
# What sizes decide: functions, and with what they are called without gradients and with them.
SIZES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "a slice to the end": (lambda a: a[:3] * 2, ROWS),
    "a slice from the end": (lambda a: a[-1:] * 2 + a[:, :1], ROWS),
    "a slice behind dots": (lambda a: a[None, ..., :4, :] * 2, ROWS),
    "a mean over a slice": (lambda a: a[:4].mean(0) * a[2:].sum(0), ROWS[::2]),
    "a slice to another's size": (
        lambda a, b: a[: b.shape[0]].mean(0),
        [(randn(5, 3), randn(3)), (randn(2, 3), randn(3)), (randn(5, 3), randn(7))],
    ),
    "neighbours": (lambda a: a[1:] * a[:-1], ROWS),
    "split": (lambda a: sum((x.sum(0) * i for i, x in enumerate(a.split(2))), a), ROWS),
    "tensor_split": (lambda a: a.tensor_split(2)[0] * 2, ROWS),
    "unbind": (lambda a: sum(a.unbind(0), a[0]), ROWS),
    "squeeze": (lambda a: (a * 2).squeeze() + 1, ROWS),
    "squeeze of a dim": (lambda a: (a * 2).squeeze(0).sum(0), ROWS),
    "diagonal": (lambda a: torch.diagonal(a) * 2, ROWS),
    "expand": (lambda a: a.sum(1, keepdim=True).expand(a.shape) * 2, SQUARES),
    "a reshape that is none": (lambda a: a.t().reshape(a.shape) * 2, SQUARES),
    "a mask": (lambda a: torch.where(torch.arange(a.shape[0])[:, None] < 2, a, 0.0), ROWS),
}


def agree(function: Callable[..., Any], jitted: Any, inputs: list[Any], name: str) -> None:
    wanted, found = run(function, leaves(inputs)), run(jitted, leaves(inputs))
    pairs = [(found.outputs, wanted.outputs), (found.gradients, wanted.gradients)]
    for got, right in pairs:
        assert len(got) == len(right)
        for x, y in zip(got, right, strict=True):
            same(x, y, name)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_trace_for_what_differs(name: str) -> None:
    function, traces, calls = NUMBERS[name]
    jitted = jit(function, cache="symbolic values")
    for first, *others in (*calls, calls[0]):
        inputs = [first.detach().requires_grad_(), *others]
        agree(function, jitted, inputs, f"{name} of {tuple(first.shape)} and {others}")
    assert thunder.cache_misses(jitted) == traces


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_decide(name: str, with_gradients: bool, backwards: bool) -> None:
    """In whatever order they come."""
    function, calls = SIZES[name]
    jitted = jit(function, cache="symbolic values")
    ordered = calls[::-1] if backwards else calls
    for a, *others in (*ordered, ordered[0]):
        inputs = [a.detach().requires_grad_(with_gradients), *others]
        agree(function, jitted, inputs, f"{name} of {tuple(a.shape)}")


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a[1:] * a[:-1] + a[-1:],
        lambda a: a * torch.arange(a.shape[0])[:, None],
        lambda a: (a @ a.t()).tril().softmax(-1) @ a,
        lambda a: (a * 2).reshape(-1, 1) + a.shape[0],
    ],
)
def test_sizes_stay_open(function: Callable[..., Any]) -> None:
    jitted = jit(function, cache="symbolic values")
    for n in (8, 4, 6, 8):
        agree(function, jitted, [randn(n, 3)], f"{n} rows")
    assert thunder.cache_misses(jitted) == 1


def test_a_number_is_taken_by_value_in_our_jits_only() -> None:
    """Stock Thunder has the fault, and keeps it."""
    jitted = thunder.jit(lambda a, n: a * float(n), executors=[], cache="symbolic values")
    torch.testing.assert_close(jitted(X, 2), X * 2)
    torch.testing.assert_close(jitted(X, 3), X * 2)
