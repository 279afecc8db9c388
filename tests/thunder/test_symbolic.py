"""``cache="symbolic values"``: one trace for many shapes, and never a program for the wrong one."""

from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F
from against_eager import jit, leaves, regions, run, same
from thunder.core.options import DebugOptions

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.errors import IRError

pytestmark = pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option:UserWarning")

# Equal and unequal sizes, and sizes of one: a trace is made for the first, all must be right.
SIZES = ((4, 8), (5, 3), (3, 3), (1, 8), (6, 1), (4, 8))


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "scale and add": (lambda x, y: x * 2 + y, lambda a, b: (randn(a, b), randn(b))),
    "a float": (lambda x, s: (x * s).sum(-1) + s, lambda a, b: (randn(a, b), a / 2)),
    "an int": (lambda x, n: x * n, lambda a, b: (randn(a, b), a)),
    "layer_norm": (
        lambda x, w: F.layer_norm(x, (x.shape[1],), w),
        lambda a, b: (randn(a, b), randn(b)),
    ),
    "softmax": (lambda x: x.softmax(-1), lambda a, b: (randn(a, b),)),
    "a size as a number": (lambda x: x.mean() * x.shape[0], lambda a, b: (randn(a, b),)),
    "a size from two": (
        lambda x, y: x.reshape(x.shape[0] * x.shape[1]) * 2 + y,
        lambda a, b: (randn(a, b), randn(a * b)),
    ),
    "a size left open": (
        lambda x: (x.view(x.shape[0], 2, -1).transpose(0, 1) * 2).sum(0),
        lambda a, b: (randn(a, 4 * b),),
    ),
    "cat": (lambda x, y: torch.cat([x, y], 0) * 2, lambda a, b: (randn(a, b), randn(3, b))),
    "slices": (lambda x: x[1:] * 2 + x[:-1], lambda a, b: (randn(a + 2, b),)),
    "linear": (lambda x, w: F.gelu(F.linear(x, w)), lambda a, b: (randn(a, b), randn(7, b))),
    "gradients": (
        lambda x, w: F.gelu(F.linear(x, w)).mean(),
        lambda a, b: (randn(a, b).requires_grad_(), randn(7, b).requires_grad_()),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_trace_for_many_shapes(name: str) -> None:
    function, make = PROGRAMS[name]
    jitted = jit(function, cache="symbolic values")
    for sizes in SIZES:
        inputs = make(*sizes)
        wanted, found = run(function, leaves(inputs)), run(jitted, leaves(inputs))
        pairs = zip(
            [*found.outputs, *found.gradients], [*wanted.outputs, *wanted.gradients], strict=True
        )
        for i, (x, y) in enumerate(pairs):
            same(x, y, f"{name} at {sizes}, result {i}")
    assert thunder.cache_misses(jitted) == 1
    assert not explain(jitted).unfused, explain(jitted)


def specialisations(function: Any, *inputs: tuple[Any, ...]) -> list[int]:
    """How many specialisations the one region has after each call."""
    jitted = jit(function, cache="symbolic values")
    counts = []
    for call in inputs:
        torch.testing.assert_close(jitted(*call), function(*call))
        (region,) = regions(jitted)
        counts.append(region.cache_info().specialisations)
    return counts


def test_shapes_alike_in_what_is_equal_share_a_program() -> None:
    shapes = ((4, 8), (5, 7), (3, 3), (9, 2), (1, 8), (1, 5))
    counts = specialisations(lambda x: x * 2 + x, *((randn(*s),) for s in shapes))
    assert counts == [1, 1, 2, 2, 3, 3]


def test_a_float_is_not_compiled_in() -> None:
    x = randn(4, 8)
    counts = specialisations(lambda x, s: x * s, *((x, s) for s in (0.5, 2.0, 3.0)))
    assert counts == [1, 1, 1]


def test_a_size_left_open_stays_symbolic() -> None:
    function, make = PROGRAMS["a size left open"]
    assert specialisations(function, make(4, 8), make(5, 9), make(7, 6)) == [1, 1, 1]


def test_a_size_that_a_constant_must_equal_is_guarded() -> None:
    function = lambda x: x.reshape(4, 2) * 2
    jitted = jit(function, cache="symbolic values")
    for x in (randn(8), randn(2, 4), randn(8)):
        torch.testing.assert_close(jitted(x), function(x))
    with pytest.raises(IRError, match=r"9 elements|must be equal"):
        jitted(randn(9))
    torch.testing.assert_close(jitted(randn(8)), function(randn(8)))


def test_an_int_in_a_shape_is_known() -> None:
    function = lambda x, n: x.reshape(n, -1) * 2
    jitted = jit(function, cache="symbolic values")
    for n in (2, 4, 8, 2):
        x = randn(8, 3)
        torch.testing.assert_close(jitted(x, n), function(x, n))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, d: (a * d).sum(d),
        lambda a, d: torch.cat([a, a * 2], d),
        lambda a, d: a.unsqueeze(d) * 2,
        lambda a, d: a.narrow(1, d - 1, 1) * 2,
        lambda a, d: a.cumsum(d) * 2,
        lambda a, d: a[:, :d] * 2,
        lambda a, d: a.repeat(1, 1, d) * 2,
        lambda a, d: a.permute(0, d, 3 - d) * 2,
        lambda a, d: F.glu(torch.cat([a, a], 1)[:, :4], d),
        lambda a, d: torch.polygamma(d, a + 10),
        lambda a, d: torch.diagonal(a[0] * 1, d) * 2,
        lambda a, d: F.interpolate(a, size=d * 3) * 2,
        lambda a, d: a[:, :1].expand(2, d, 4) * 2,
        lambda a, d: (a * 2).reshape(d, -1) + 1,
    ],
)
def test_a_dim_that_is_an_argument(function: Callable[..., torch.Tensor]) -> None:
    """It decides what is traced: a trace for each of its values."""
    jitted = jit(function, cache="symbolic values")
    a = torch.randn(2, 3, 4)
    for d in (1, 2, 1):
        torch.testing.assert_close(jitted(a, d), function(a, d))
    assert thunder.cache_misses(jitted) == 2
    assert regions(jitted)


def test_the_trace_shows_where_sizes_come_from() -> None:
    function = lambda t, n: (t * 2).reshape(n, -1).sum(-1)
    jitted = thunder.jit(
        function,
        executors=[mdfuse_executor],
        cache="symbolic values",
        debug_options=DebugOptions(check_traces=True),
    )
    a = torch.randn(4, 8, 6)
    for n in (32, 16):
        torch.testing.assert_close(jitted(a, n), function(a, n))
