"""Rows of the torch-call table that move, reduce, index or multiply, against eager torch."""

import math

import pytest
import torch
from runtime.rows import FLOATS, call, same, shares
from torch.nn import functional

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.types import DType

# Views, copies, rearrangements.


def test_views_share_storage():
    x = torch.arange(24.0).view(2, 1, 3, 4)
    found = {
        "permute": (call("permute", x, attrs=at.DimsAttrs((3, 0, 1, 2))), x.permute(3, 0, 1, 2)),
        "squeeze": (call("squeeze", x, attrs=at.DimsAttrs((1,))), x.squeeze(1)),
        "slice": (
            call("slice", x, attrs=at.SliceAttrs((1, 0, 0, 1), (2, 1, 3, 4), (1, 1, 2, 2))),
            x[1:2, :, ::2, 1::2],
        ),
        "reshape": (call("reshape", x, attrs=at.ShapeAttrs((6, 4))), x.reshape(6, 4)),
        "broadcast_in_dim": (
            call("broadcast_in_dim", x, attrs=at.BroadcastAttrs((5, 2, 7, 3, 1, 4), (1, 2, 3, 5))),
            x.unsqueeze(3).expand(5, 2, 7, 3, 1, 4),
        ),
    }
    for ours, theirs in found.values():
        same(ours, theirs)
        assert ours.data_ptr() == theirs.data_ptr()
    turned = x.permute(3, 2, 1, 0)
    copied = call("reshape", turned, attrs=at.ShapeAttrs((24,)))
    same(copied, turned.reshape(24))
    assert not shares(copied, x)


def test_numbers_and_0_dim_tensors_broadcast():
    spread = at.BroadcastAttrs((2, 3), ())
    same(
        call("broadcast_in_dim", 2, attrs=spread, dtypes=[DType.F32]),
        torch.tensor(2.0).expand(2, 3),
    )
    x = torch.tensor(1.5)
    ours = call("broadcast_in_dim", x, attrs=at.BroadcastAttrs((1, 1), ()))
    same(ours, x.unsqueeze(0).unsqueeze(0))
    assert shares(ours, x)


COPIES = [
    ((0, 1, 2, 3), lambda x: x.clone(memory_format=torch.contiguous_format)),
    ((0, 2, 3, 1), lambda x: x.clone(memory_format=torch.channels_last)),
    ((3, 1, 0, 2), lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)),
    (None, torch.clone),
]


@pytest.mark.parametrize(
    ("order", "eager"), COPIES, ids=["contiguous", "channels_last", "permuted", "clone"]
)
def test_copies_have_the_order_asked_for_and_storage_of_their_own(order, eager):
    for x in (torch.randn(2, 3, 4, 5), torch.randn(5, 3, 4, 2).permute(3, 1, 2, 0)):
        ours = call("copy", x, attrs=at.CopyAttrs(order))
        same(ours, eager(x))
        assert not shares(ours, x)
        if order is not None:
            # Reused where it fits, as ``contiguous`` does.
            assert call("copy", ours, attrs=at.CopyAttrs(order, reuse=True)) is ours
            other = call("copy", x.flip(0)[:, :, ::2], attrs=at.CopyAttrs(order, reuse=True))
            same(other, eager(x.flip(0)[:, :, ::2]))


def test_flip_cat_and_pad():
    x = torch.randn(2, 3)
    same(call("flip", x, attrs=at.DimsAttrs((1,))), x.flip(1))
    same(call("flip", x, attrs=at.DimsAttrs(())), x)
    same(call("cat", x, x, x, attrs=at.DimAttrs(1)), torch.cat((x, x, x), 1))
    pads = at.PadAttrs((1, -1), (0, 2))
    same(call("pad", x, 1.5, attrs=pads), functional.pad(x, (-1, 2, 1, 0), value=1.5))
    same(call("pad", x, torch.tensor(1.5), attrs=pads), call("pad", x, 1.5, attrs=pads))
    counts = torch.arange(6).view(2, 3)
    same(call("pad", counts, 7, attrs=pads), functional.pad(counts, (-1, 2, 1, 0), value=7))
    z = x + 0j
    filled = torch.complex(call("pad", x, 2.0, attrs=pads), call("pad", x * 0, 3.0, attrs=pads))
    torch.testing.assert_close(call("pad", z, 2 + 3j, attrs=pads), filled)
    same(call("pad", torch.tensor(1.0), 0.0, attrs=at.PadAttrs((), ())), torch.tensor(1.0))


@pytest.mark.parametrize("n", [8, 7, 5, 1, 0])
@pytest.mark.parametrize("split", [1, 2])
def test_chunks_of_all_positions_make_up_the_whole(n, split):
    x = torch.randn(2, n)
    rows = torch.arange(n)
    parts = [call("chunk", x, attrs=at.ChunkAttrs("tp", 3, 1, split, position=p)) for p in range(3)]
    cut = [list(part.chunk(3)) + [rows[:0]] * 3 for part in list(rows.chunk(split)) or [rows]]
    for p, part in enumerate(parts):
        theirs = torch.cat([pieces[p] for pieces in cut]) if n else rows
        torch.testing.assert_close(part, x[:, theirs])
        assert not n or not shares(part, x)
    assert sum(part.size(1) for part in parts) == n


@pytest.mark.parametrize("op", ["sum", "product", "avg", "min", "max"])
def test_keep_first_is_undone_by_the_reduction(op):
    x = torch.randn(2, 3).t()
    parts = torch.stack(
        [call("keep_first", x, attrs=at.ReduceCommAttrs("tp", 4, op, position=p)) for p in range(4)]
    )
    reduce = {
        "sum": parts.sum,
        "product": parts.prod,
        "avg": parts.mean,
        "min": parts.amin,
        "max": parts.amax,
    }[op]
    assert torch.equal(reduce(0), x)
    assert parts[0].is_contiguous()


# Reductions and scans.


@pytest.mark.parametrize("dims", [(0,), (1, 2), (0, 1, 2), (2, 0)])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32], ids=str)
def test_reductions(dims, dtype):
    x = (torch.randn(3, 4, 5) * 2).to(dtype)
    attrs = at.DimsAttrs(tuple(sorted(dims)))
    same(call("sum", x, attrs=attrs), x.sum(dims, dtype=dtype))
    same(call("amax", x, attrs=attrs), x.amax(dims))
    same(call("amin", x, attrs=attrs), x.amin(dims))
    kept = [d for d in range(3) if d not in dims]
    theirs = x.permute(*kept, *sorted(dims)).reshape(*[x.size(d) for d in kept], -1)
    same(call("prod", x, attrs=attrs), theirs.prod(-1, dtype=dtype))


def test_reducing_no_dims_reduces_nothing():
    x = torch.randn(2, 3)
    for op in ("sum", "prod", "amax", "amin"):
        same(call(op, x, attrs=at.DimsAttrs(())), x)
    none = at.VarAttrs((), 0.0)
    same(call("var", x, attrs=none), torch.zeros(2, 3))
    same(call("var_mean", x, attrs=none)[1], x)
    assert call("var", x, attrs=at.VarAttrs((), 1.0)).isnan().all()


def test_sums_of_small_integers_wrap():
    x = torch.full((3,), 100, dtype=torch.int8)
    same(call("sum", x, attrs=at.DimsAttrs((0,))), torch.tensor(44, dtype=torch.int8))
    same(call("cumsum", x, attrs=at.DimAttrs(0)), x.cumsum(0, dtype=torch.int8))


def test_variance():
    x = torch.randn(3, 4)
    same(call("var", x, attrs=at.VarAttrs((1,), 1.0)), x.var(1))
    for ours, theirs in zip(
        call("var_mean", x, attrs=at.VarAttrs((0, 1), 0.0)),
        torch.var_mean(x, (0, 1), correction=0),
        strict=True,
    ):
        same(ours, theirs)


def test_positions_and_scans():
    x = torch.tensor(((3.0, 1.0, math.nan), (2.0, 5.0, 4.0)))
    for op in ("argmax", "argmin"):
        for dim in (0, 1, None):
            found = call(op, x, attrs=at.DimAttrs(dim), dtypes=[DType.I64])
            same(found, getattr(torch, op)(x, dim))
    same(call("cumsum", x, attrs=at.DimAttrs(1)), x.cumsum(1))
    same(call("cumprod", x, attrs=at.DimAttrs(0)), x.cumprod(0))
    same(call("cummax", x, attrs=at.DimAttrs(1)), x.cummax(1).values)
    same(call("cummin", x, attrs=at.DimAttrs(0)), x.cummin(0).values)


# Factories.


def test_factories():
    attrs = at.FactoryAttrs((2, 3), DType.F16)
    same(call("full", 0.1, attrs=attrs), torch.full((2, 3), 0.1, dtype=torch.float16))
    same(call("full", torch.tensor(2), attrs=attrs), torch.full((2, 3), 2.0, dtype=torch.float16))
    for start, step, n in ((0, 1, 5), (7, -2, 4), (1 << 40, 3, 2), (5, 0, 3)):
        ours = call("iota", start, step, attrs=at.FactoryAttrs((n,), DType.I64))
        same(ours, torch.tensor([start + step * i for i in range(n)]))
    ours = call("iota", 0.1, 0.3, attrs=at.FactoryAttrs((40,), DType.F32))
    same(ours, torch.arange(0.1, 0.1 + 0.3 * 39.5, 0.3))
    assert call("iota", 0, 1, attrs=at.FactoryAttrs((0,), DType.F32)).shape == (0,)
    for n in range(1, 200):
        ours = call("iota", 0.7, 0.1, attrs=at.FactoryAttrs((n,), DType.BF16))
        assert ours.shape == (n,)


# Index, scatter, sort.


def test_take_and_gather():
    x = torch.randn(3, 4, 5)
    index = torch.tensor(((0, 2), (3, 1)))
    same(call("take", x, index, attrs=at.DimAttrs(1)), x[:, index.flatten()].view(3, 2, 2, 5))
    same(call("take", x, torch.tensor(2), attrs=at.DimAttrs(0)), x[2].clone())
    same(call("take", x, index[0], attrs=at.DimAttrs(2)), x[:, :, index[0]].contiguous())
    along = torch.randint(0, 4, (3, 2, 5))
    same(call("gather", x, along, attrs=at.DimAttrs(1)), x.gather(1, along))
    same(call("take_along_axis", x, along, attrs=at.DimAttrs(1)), x.take_along_dim(along, 1))


def test_scatter():
    x, source = torch.randn(3, 4), torch.randn(3, 4)
    index = torch.tensor(((0, 0, 1, 2), (2, 2, 1, 0)))
    attrs = at.DimAttrs(0)
    added = x.scatter_add(0, index, source)
    same(call("scatter_add", x, index, source, attrs=attrs), added)
    unique = index[:1]
    same(call("scatter", x, unique, source, attrs=attrs), x.scatter(0, unique, source))
    same(call("scatter", x, unique, 2.5, attrs=attrs), x.scatter(0, unique, 2.5))
    rows = torch.tensor((2, 0))
    same(call("index_add", x, rows, source[:2], attrs=attrs), x.index_add(0, rows, source[:2]))


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("scaled", [False, True])
def test_embedding_and_its_gradient(padding, scaled):
    index = torch.tensor(((0, 1), (1, 3)))
    weight = torch.randn(5, 3, requires_grad=True)
    theirs = functional.embedding(index, weight, padding, scale_grad_by_freq=scaled)
    ours = call("embedding", index, weight, attrs=at.EmbeddingAttrs(padding), dtypes=[DType.F32])
    same(ours.detach(), theirs.detach())
    grad = torch.randn(2, 2, 3)
    (expected,) = torch.autograd.grad(theirs, weight, grad)
    attrs = at.EmbeddingBackwardAttrs(5, padding, scaled)
    same(call("embedding_backward", grad, index, attrs=attrs), expected)


def test_sort_and_topk():
    x = torch.tensor(((3.0, 1.0, 1.0, 2.0), (0.0, -0.0, math.nan, 5.0)))
    for descending in (False, True):
        attrs = at.SortAttrs(1, descending, stable=True)
        for ours, theirs in zip(
            call("sort", x, attrs=attrs),
            x.sort(dim=1, descending=descending, stable=True),
            strict=True,
        ):
            same(ours, theirs)
        order = x.argsort(dim=1, descending=descending, stable=True)
        same(call("argsort", x, attrs=attrs, dtypes=[DType.I64]), order)
    for largest in (True, False):
        attrs = at.TopkAttrs(2, 1, largest)
        for ours, theirs in zip(call("topk", x, attrs=attrs), x.topk(2, 1, largest), strict=True):
            same(ours, theirs)
    same(call("sort", torch.tensor(2.0), attrs=at.SortAttrs(0))[0], torch.tensor(2.0))


# Products and attention.


def test_products():
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5)
    same(call("matmul", a, b), a @ b)
    same(call("matmul", a[0, 0], b), a[0, 0] @ b)
    w, bias = torch.randn(5, 4), torch.randn(5)
    same(call("linear", a, w), functional.linear(a, w))
    same(call("linear", a, w, bias), functional.linear(a, w, bias))


@pytest.mark.parametrize("k", [8, 5])
def test_grouped_products(k):
    """Rows of 5 f32 begin at no multiples of 16 bytes, which torch's own call refuses."""
    a, b = torch.randn(6, k), torch.randn(3, k, 7)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    expected = torch.cat([a[:2] @ b[0], a[2:2] @ b[1], a[2:] @ b[2]])
    torch.testing.assert_close(call("grouped_mm", a, b, ends), expected)
    batched = torch.randn(3, 4, k)
    torch.testing.assert_close(call("grouped_mm", batched, b), torch.bmm(batched, b))


@pytest.mark.parametrize(
    ("a", "b"), [((6, 8), (3, 8, 0)), ((0, 8), (3, 8, 4)), ((6, 0), (3, 0, 4)), ((6, 1), (3, 1, 1))]
)
def test_grouped_products_of_little_or_nothing(a, b):
    """An empty shard, and dims of one element, whose strides say nothing."""
    x, y = torch.randn(a), torch.randn(b)
    ends = torch.tensor([min(2, a[0]), min(2, a[0]), a[0]], dtype=torch.int32)
    spans = zip([0, *ends[:-1]], ends, strict=True)
    expected = torch.cat([x[i:j] @ y[g] for g, (i, j) in enumerate(spans)])
    torch.testing.assert_close(call("grouped_mm", x, y, ends), expected)


ATTENTION = [
    (at.SdpaAttrs(), False),
    (at.SdpaAttrs(is_causal=True), False),
    (at.SdpaAttrs(scale=0.3), True),
]


@pytest.mark.parametrize(("attrs", "masked"), ATTENTION, ids=str)
def test_attention_and_its_gradients(attrs, masked):
    q, k, v = (torch.randn(2, 3, 4, 8, dtype=torch.float64) for _ in range(3))
    mask = (torch.randn(4, 4, dtype=torch.float64),) if masked else ()
    scale = attrs.scale or 8**-0.5
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    scores = leaves[0] @ leaves[1].mT * scale + (mask[0] if masked else 0.0)
    if attrs.is_causal:
        scores = scores.masked_fill(~torch.ones(4, 4, dtype=torch.bool).tril(), -math.inf)
    theirs = scores.softmax(-1) @ leaves[2]
    torch.testing.assert_close(call("sdpa", q, k, v, *mask, attrs=attrs), theirs.detach())
    grad = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    expected = torch.autograd.grad(theirs, leaves, grad)
    with torch.no_grad():
        found = call("sdpa_backward", grad, q, k, v, *mask, attrs=attrs)
    for ours, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, wanted)
        assert not ours.requires_grad


def test_groups_of_heads():
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8)
    attrs = at.SdpaAttrs(enable_gqa=True)
    theirs = functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    same(call("sdpa", q, k, k, attrs=attrs), theirs)
    grads = call("sdpa_backward", q, q, k, k, attrs=attrs)
    assert [g.shape for g in grads] == [q.shape, k.shape, k.shape]


@pytest.mark.parametrize("shape", [(2, 0, 4, 8), (0, 3, 4, 8), (2, 3, 0, 8)])
def test_attention_of_an_empty_shard(shape):
    q, v = torch.randn(shape), torch.randn(*shape[:3], 6)
    attrs = at.SdpaAttrs()
    assert call("sdpa", q, q, v, attrs=attrs).shape == v.shape
    grads = call("sdpa_backward", torch.randn_like(v), q, q, v, attrs=attrs)
    assert [g.shape for g in grads] == [q.shape, q.shape, v.shape]


def test_gradients_of_attention_with_dropout_are_refused():
    x = torch.randn(1, 1, 2, 4)
    with pytest.raises(ProgramError, match=r"dropout_p is 0.5.*leave attention with dropout"):
        call("sdpa_backward", x, x, x, x, attrs=at.SdpaAttrs(dropout_p=0.5))
