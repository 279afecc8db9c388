"""Results that were wrong once: dtypes, storages, NaN and strides of what a user gets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_eager import jit

FLAGS = torch.tensor([True, False, True])
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a * 300,
        lambda a: a + 200,
        lambda a: (a * 300) * (a + 7),
        lambda a: (a * 300).sum(),
        lambda a: torch.where(a, a * 5, 3),
        lambda a: (a * 200) > 150,
        lambda a: (a * 300) + torch.ones(3, dtype=torch.int8),
        lambda a: a * 1.5,
    ],
)
def test_a_bool_tensor_with_an_int_is_i64(function: Callable[..., torch.Tensor]) -> None:
    found, expected = jit(function)(FLAGS), function(FLAGS)
    assert found.dtype is expected.dtype and torch.equal(found, expected)


def _storages(function: Callable[..., Any], x: torch.Tensor) -> tuple[list[int], list[Any]]:
    """For the input and each output the first of them with its storage; the outputs' strides."""
    found = function(x)
    pointers = [t.untyped_storage().data_ptr() for t in (x, *found)]
    return [pointers.index(p) for p in pointers], [t.stride() for t in found]


MATRIX, INTEGERS = torch.arange(12.0).view(3, 4), torch.arange(3)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: (x.clone(), x.clone(), x * 2, x * 2), MATRIX),
        (lambda x: (x.sum(1), x.sum(1, keepdim=True)), MATRIX),
        (lambda x: (x.amax(), x.max()), MATRIX),
        (lambda x: (x * 2, (x * 2).view(-1), x.t(), x), MATRIX),
        (lambda x: (lambda y: (y, y.t(), y.view(-1)))(x * 2), MATRIX),
        (lambda x: (x.contiguous(), x.view(-1)), MATRIX),
        (lambda x: (x[:1].expand(3, 4), x[:1].expand(3, 4) * 1), MATRIX),
        (lambda a: (a.sigmoid(), torch.floor(a)), INTEGERS),
        (lambda a: (a.sigmoid(), a.round(), torch.trunc(a)), INTEGERS),
        (lambda a: (torch.abs(a), a + 1), INTEGERS.to(torch.uint8)),
    ],
)
def test_outputs_share_storage_where_eager_ones_do(
    function: Callable[..., Any], x: torch.Tensor
) -> None:
    assert _storages(jit(function), x) == _storages(function, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_relu_keeps_nan(dtype: torch.dtype) -> None:
    x = torch.tensor([NAN, -0.0, 0.0, 1.0, -2.0, INF, -INF], dtype=dtype)
    for function in (torch.relu, F.relu, torch.nn.ReLU(), lambda a: a.relu()):
        torch.testing.assert_close(jit(function)(x), torch.relu(x), equal_nan=True)
    leaf = x.requires_grad_()
    (found,) = torch.autograd.grad((jit(F.relu)(leaf) * 3).sum(), leaf)
    (expected,) = torch.autograd.grad((F.relu(leaf) * 3).sum(), leaf)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: F.softmax(s, -1),
        lambda s: s.softmax(1),
        lambda s: torch.softmax(s, 0),
        lambda s: F.log_softmax(s, 0),
        lambda s: F.layer_norm(s, (4,)),
        lambda s: F.rms_norm(s, (4,)),
    ],
)
def test_norms_of_a_transposed_tensor_are_contiguous(
    function: Callable[..., torch.Tensor],
) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).t()
    found, expected = jit(function)(x), function(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(jit(lambda s: function(s).view(-1))(x), expected.view(-1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.log_softmax(x, -1),
        lambda x: x.log_softmax(1),
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, 2, 2, 1]), reduction="none"),
        lambda x: torch.logsumexp(x, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_softmax_of_infinite_logits(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    rows = [[1, INF, 2], [INF, -INF, INF], [-INF, -INF, -INF], [1, -INF, 2], [1, NAN, 3]]
    leaf = torch.tensor(rows, dtype=dtype).requires_grad_()
    found, expected = jit(function)(leaf), function(leaf)
    torch.testing.assert_close(found, expected, equal_nan=True)
    gradients = [torch.autograd.grad(out.sum(), leaf)[0] for out in (found, expected)]
    torch.testing.assert_close(*gradients, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x, d: torch.softmax(x, d), (0, 1)),
        (lambda x, d: torch.sum(x, d), ([0, 1], [1], [0])),
        (lambda x, d: torch.mean(x, **d), ({"dim": [0]}, {"dim": [1]})),
        (lambda x, d: torch.permute(x, d), ([0, 1], [1, 0])),
        (lambda x, d: x.reshape(d), ([2, 6], [12], [6, 2])),
        (lambda x, d: x[d], ([0, 1], [1, 2])),
        (lambda x, d: x * d[0] + d[1], ([2.0, 1.0], [2.0, 3.0])),
        (lambda x, d: F.layer_norm(x, d), ([4], [3, 4])),
        (lambda x, d: F.pad(x, d), ([1, 0], [0, 1])),
        (lambda x, d: torch.cat([x, *d]), ([torch.ones(1, 4)], [torch.zeros(1, 4)])),
        (lambda x, d: torch.cat(d), ([torch.ones(1, 4)] * 2, [torch.zeros(2, 4)] * 2)),
    ],
)
def test_a_list_given_with_other_contents_is_another_call(
    function: Callable[..., torch.Tensor], arguments: tuple[Any, ...]
) -> None:
    x, jitted = torch.arange(12.0).view(3, 4), jit(function)
    for given in arguments:
        torch.testing.assert_close(jitted(x, given), function(x, given))


symbolic_values = pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option")


@symbolic_values
def test_dims_of_a_value_inside_a_region_are_known_there() -> None:
    jitted = jit(lambda x: torch.cat([x, x * 2], 0).reshape(-1), cache="symbolic values")
    for rows in (4, 7):
        x = torch.ones(rows, 8)
        assert torch.equal(jitted(x), torch.cat([x, x * 2], 0).reshape(-1))


@symbolic_values
def test_a_trace_for_another_broadcast_is_a_clear_error() -> None:
    jitted = jit(lambda x, y: x + y, cache="symbolic values")
    jitted(torch.ones(4, 8), torch.ones(8))
    with pytest.raises(Exception, match=r"broadcast in another way, .*cache='constant values'"):
        jitted(torch.ones(4, 1), torch.ones(8))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("gradient", [False, True])
def test_nll_loss_ignores_what_torch_does(reduction: str, gradient: bool) -> None:
    """Unless told otherwise, the target -100."""
    x = torch.randn(5, 7, requires_grad=gradient)
    target = torch.tensor([0, -100, 6, 3, -100])
    found = jit(lambda a, t: F.nll_loss(a, t, reduction=reduction))(x, target)
    right = F.nll_loss(x, target, reduction=reduction)
    torch.testing.assert_close(found, right)
    if gradient:
        (mine,) = torch.autograd.grad(found.sum(), x)
        (theirs,) = torch.autograd.grad(right.sum(), x)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("given", [(3, 2, 1), (2,), (2, []), (3, 1, 1, 2)])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_maxima_of_windows(given: tuple[Any, ...], dims: int) -> None:
    """Padding counts as minus infinity, which Thunder's convolution with ones and zeros, where
    torch's kernel is not taken, makes NaN of.
    """
    pool = getattr(F, f"max_pool{dims}d")
    function = lambda x: pool(x * 2.0, *given) + 1.0
    x = torch.randn(2, 3, *[9] * dims, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(jit(function)(x), function(x))
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for leaf, call in zip(leaves, (jit(function), function), strict=True):
        call(leaf).cos().sum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_is_rounded_once_with_what_it_is_added_to(dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(2, 8, 8, dtype=dtype) for _ in range(3))
    function = lambda a, b, c: torch.baddbmm(a * 2.0, b, c, beta=0.5) * 2.0
    assert torch.equal(jit(function)(a, b, c), function(a, b, c))


@pytest.mark.parametrize(
    "function",
    [
        lambda a: (a.detach(), a * 2),
        lambda a: (lambda t: (t, t.detach(), t * 2))(a.exp()),
        lambda a: (a.contiguous(), a * 2),
    ],
)
def test_an_input_that_is_an_output_has_its_own_gradient(function: Callable[..., Any]) -> None:
    found = []
    for call in (jit(function), function):
        a = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
        first, *rest = call(a)
        (first * rest[-1]).sum().backward()
        found.append(a.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "function",
    [
        lambda n: torch.arange(n) + 1,
        lambda n: torch.ones(3) + torch.arange(n).sum(),
        lambda n: torch.cat([torch.arange(n), torch.arange(n + 2) * 2]),
        lambda n: (torch.arange(n)[:, None] * torch.ones(1, 3)).sum(0),
    ],
)
def test_a_range_of_nothing_has_a_dim(function: Callable[[int], torch.Tensor]) -> None:
    for n in (0, 3, 0):
        found, wanted = jit(function)(n), function(n)
        assert found.shape == wanted.shape and found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)
