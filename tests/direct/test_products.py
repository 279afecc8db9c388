"""``fd.ops``: matrix products and attention, against eager torch."""

import math
from typing import Any

import pytest
import torch
from direct.checks import check, compare, defined
from torch.nn import functional

from thunder_mdfuse import FusionDefinition
from thunder_mdfuse.errors import DefinitionError


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 6), (6, 5)),
        ((6,), (6, 5)),
        ((4, 6), (6,)),
        ((6,), (6,)),
        ((2, 4, 6), (6, 5)),
        ((2, 4, 6), (2, 6, 5)),
        ((2, 1, 4, 6), (3, 6, 5)),
    ],
)
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = torch.randn(a).to(dtype), torch.randn(b).to(dtype)
    check(lambda fd, x, y: fd.ops.matmul(x, y), torch.matmul, [x, y])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(dtype: torch.dtype) -> None:
    for shape in ((4, 6), (2, 4, 6), (6,)):
        x, w, b = (torch.randn(s).to(dtype) for s in (shape, (5, 6), (5,)))
        check(lambda fd, x, w: fd.ops.linear(x, w), functional.linear, [x, w])
        check(lambda fd, x, w, b: fd.ops.linear(x, w, b), functional.linear, [x, w, b])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("a", "b"), [((6, 8), (3, 8, 5)), ((3, 4, 8), (8, 6)), ((4, 6), (6, 8)), ((6, 5), (3, 5, 7))]
)
def test_grouped_products(a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    """Groups of 2, 0 and 4, against each group's own product in f64."""
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)

    def eager(x: torch.Tensor, y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        x, y, spans = x.double(), y.double(), (slice(0, 2), slice(2, 2), slice(2, 6))
        if x.ndim == y.ndim:
            return torch.stack([x[:, s] @ y[s] for s in spans]).to(dtype)
        if x.ndim == 2:
            return torch.cat([x[s] @ y[g] for g, s in enumerate(spans)]).to(dtype)
        return torch.cat([x[g] @ y[:, s] for g, s in enumerate(spans)], 1).to(dtype)

    x, y = torch.randn(a).to(dtype), torch.randn(b).to(dtype)
    check(lambda fd, x, y, e: fd.ops.grouped_mm(x, y, e), eager, [x, y, ends], strides=False)


@pytest.mark.parametrize(
    ("shapes", "kwargs", "message"),
    [
        (((6, 8), (3, 7, 5)), {}, "sizes 8 and 7 differ"),
        (((6, 8), (4, 8, 5)), {}, "differ where equal ones are needed"),
        (((3, 6, 8), (3, 8, 5)), {}, "one of them of two dims"),
        (((6, 8), (3, 8, 5)), {"dtype": torch.float64}, "in Float, Half or BFloat16"),
        (((6, 8), (3, 8, 5)), {"index": torch.int64}, "Int32 offsets of one dim"),
        (((6, 8), (3, 8, 5)), {"scale": 2.0}, "with scales or a bias is not generated"),
    ],
)
def test_grouped_products_that_are_refused(shapes: Any, kwargs: Any, message: str) -> None:
    dtype, index = kwargs.get("dtype", torch.float32), kwargs.get("index", torch.int32)
    inputs = [*(torch.zeros(s, dtype=dtype) for s in shapes), torch.zeros(3, dtype=index)]
    with pytest.raises(DefinitionError, match=message), FusionDefinition() as fd:
        values = [fd.from_pytorch(x, static_sizes=True) for x in inputs]
        fd.ops.grouped_mm(*values, kwargs.get("scale"))


def heads(n: int, s: int, t: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    sizes = ((2, n, s, 8), (2, n, t, 8), (2, n, t, 8))
    return [torch.randn(size).to(dtype) for size in sizes]


def logsumexp(q: Any, k: Any, added: Any = None, scale: float | None = None) -> torch.Tensor:
    scores = q.float() @ k.float().mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return torch.logsumexp(scores if added is None else scores + added, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(dtype: torch.dtype) -> None:
    q, k, v = heads(3, 5, 7, dtype)
    check(
        lambda fd, q, k, v: fd.ops.sdpfa_fwd(q, k, v)[:2],
        lambda q, k, v: (functional.scaled_dot_product_attention(q, k, v), logsumexp(q, k)),
        [q, k, v],
    )
    check(
        lambda fd, q, k, v: fd.ops.sdpfa_fwd(q, k, v, None, None, 0.0, False, 0.3)[:2],
        lambda q, k, v: (
            functional.scaled_dot_product_attention(q, k, v, scale=0.3),
            logsumexp(q, k, scale=0.3),
        ),
        [q, k, v],
    )


def test_attention_that_is_causal_biased_or_masked() -> None:
    q, k, v = heads(3, 5, 5)
    later = torch.full((5, 5), -math.inf).triu(1)
    check(
        lambda fd, q, k, v: fd.ops.sdpfa_fwd(q, k, v, is_causal=True)[:2],
        lambda q, k, v: (
            functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            logsumexp(q, k, later),
        ),
        [q, k, v],
    )
    bias, mask = torch.randn(3, 5, 5), torch.rand(5, 5) < 0.7
    mask.fill_diagonal_(True)
    hidden = torch.zeros(5, 5).masked_fill(~mask, -math.inf)
    for kwargs, added in (
        ({"bias": 0}, bias),
        ({"mask": 1}, hidden),
        ({"bias": 0, "mask": 1}, bias + hidden),
    ):

        def define(fd: Any, q: Any, k: Any, v: Any, *others: Any, names: Any = kwargs) -> Any:
            return fd.ops.sdpfa_fwd(q, k, v, **{n: others[i] for n, i in names.items()})[:2]

        def wanted(q: Any, k: Any, v: Any, *others: Any, added: Any = added) -> Any:
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=added)
            return out, logsumexp(q, k, added)

        check(define, wanted, [q, k, v, bias, mask])


def gradients(q: Any, k: Any, v: Any, out: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(out, (q, k, v), grad))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_backward(causal: bool) -> None:
    inputs = heads(3, 5, 5)
    grad = torch.randn(2, 3, 5, 8)

    def define(fd: FusionDefinition, g: Any, q: Any, k: Any, v: Any) -> Any:
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, is_causal=causal)
        return fd.ops.sdpfa_bwd(g, q, k, v, out, lse, 0.0, causal, seed, offset)

    def wanted(g: Any, *given: Any) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in given)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return gradients(q, k, v, out, g)

    check(define, wanted, [grad, *inputs], strides=False)


def test_attention_with_dropout() -> None:
    """The mask, found with an identity for the values, is that of output and gradients."""
    p, n = 0.3, 16
    q, k = torch.randn(2, 2, n, 8), torch.randn(2, 2, n, 8)
    eye = torch.eye(n).expand(2, 2, n, n).contiguous()
    v, grad = torch.randn(2, 2, n, 8), torch.randn(2, 2, n, 8)
    fd = defined(lambda fd, q, k, v: fd.ops.sdpfa_fwd(q, k, v, dropout_p=p), [q, k, v])
    torch.manual_seed(1)
    out, lse, seed, offset = fd.execute([q, k, v])
    torch.manual_seed(1)
    dropped, *_ = fd.execute([q, k, eye])
    assert seed.shape == offset.shape == ()
    assert abs((dropped == 0).double().mean() - p) < 0.08
    mask = (dropped != 0) / (1 - p)
    x, y, z = (t.clone().requires_grad_() for t in (q, k, v))
    wanted = (torch.softmax(x @ y.mT / math.sqrt(8), -1) * mask) @ z
    compare([out, lse], [wanted.detach(), logsumexp(q, k)])

    def backward(fd: FusionDefinition, *a: Any) -> Any:
        return fd.ops.sdpfa_bwd(*a[:6], p, False, *a[6:])

    given = [grad, q, k, v, out, lse, seed, offset]
    found = defined(backward, given).execute(given)
    compare(found, gradients(x, y, z, wanted, grad), 1e-4, strides=False)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd, x, y: fd.ops.matmul(x, x), "sizes 6 and 4 differ"),
        (lambda fd, x, y: fd.ops.matmul(x, fd.ops.cast(y, torch.float64)), "one dtype"),
        (lambda fd, x, y: fd.ops.linear(x, y), "sizes 6 and 5 differ"),
        (lambda fd, x, y: fd.ops.linear(x, x, x), "a bias of one dim"),
        (lambda fd, x, y: fd.ops.sdpfa_fwd(x, x, x), "[batch, heads, length, width]"),
        (lambda fd, x, y: fd.ops.matmul(x, fd.ops.sum(x)), "at least one dim"),
    ],
)
def test_what_is_refused(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as e:
        defined(define, [torch.randn(4, 6), torch.randn(6, 5)], static_sizes=True)
    assert message in str(e.value)
