"""Random programs over a mesh, each beside its oracle: torch on the full tensors.

Values are whole numbers in f64 and every op keeps them whole and small, so that sums in any order
are exact and results can be compared bit for bit.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from sharding.pool import SIZES, Pool

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.types import DType, Mesh, MeshAxis, Placements

MESHES = [(2,), (3,), (4,), (1,), (2, 2), (2, 3), (3, 2), (4, 2), (1, 2), (2, 2, 2), (2, 1, 2)]
NAMES = ("dp", "cp", "tp")


@dataclass
class Program:
    """A fusion, its inputs, and what its outputs must be."""

    mesh: Mesh
    inputs: list[tuple[torch.Tensor, Placements]]
    fusion: Fusion
    expected: list[torch.Tensor]


# One function an op: picks operands from the pool and appends the op with its oracle. What may
# grow is followed by a remainder, which also is an op that no pending reduction passes.


def _limit(pool: Pool, use: Use, x: torch.Tensor) -> None:
    if pool.draw(st.booleans()) or x.abs().amax().item() > 1e6:
        pool.values.pop()
        pool.emit("remainder", (use, pool.builder.const(13.0)), oracle=(torch.remainder(x, 13.0),))


UNARY = {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign}
SCALAR = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.clamp_min}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


def unary(pool: Pool) -> None:
    use, x = pool.pick(torch.is_floating_point)
    name = pool.draw(st.sampled_from(sorted(UNARY)))
    pool.emit(name, (use,), oracle=(UNARY[name](x),))


def scalar(pool: Pool) -> None:
    use, x = pool.pick(torch.is_floating_point)
    name = pool.draw(st.sampled_from(sorted(SCALAR)))
    c = pool.draw(st.integers(-2, 2))
    (out,) = pool.emit(name, (use, pool.builder.const(float(c))), oracle=(SCALAR[name](x, c),))
    _limit(pool, out, pool.values[-1][1])


def binary(pool: Pool) -> None:
    use, x = pool.pick(torch.is_floating_point)
    other, y = pool.partner(x)
    name = pool.draw(st.sampled_from(sorted(BINARY)))
    (out,) = pool.emit(name, (use, other), oracle=(BINARY[name](x, y),))
    _limit(pool, out, pool.values[-1][1])


def where(pool: Pool) -> None:
    use, x = pool.pick(torch.is_floating_point)
    other, y = pool.partner(x)
    (test,) = pool.builder.op("lt", (use, other))
    pool.emit("where", (test, other, use), oracle=(torch.where(x < y, y, x),))


def reduction(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.is_floating_point() and x.ndim > 0)
    if picked is None:
        return
    use, x = picked
    dims = tuple(sorted(pool.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1))))
    name = pool.draw(st.sampled_from(["sum", "sum", "amax", "amin", "prod"]))
    if name == "prod":
        # Of signs, so that it stays exact.
        (use,), x = pool.builder.op("sign", (use,)), x.sign()
        kept = [d for d in range(x.ndim) if d not in dims]
        y = x.permute(*kept, *dims).flatten(len(kept)).prod(len(kept))
    else:
        y = getattr(torch, name)(x, dims)
    pool.emit(name, (use,), at.DimsAttrs(dims), (y,))
    _limit(pool, pool.values[-1][0], pool.values[-1][1])


def broadcast(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.is_floating_point() and x.ndim < 3)
    if picked is None:
        return
    use, x = picked
    at_dim = pool.draw(st.integers(0, x.ndim))
    n = pool.draw(st.sampled_from(SIZES))
    y = x.unsqueeze(at_dim)
    y = y.expand([n if d == at_dim else size for d, size in enumerate(y.shape)])
    grow = [d for d, size in enumerate(y.shape) if size == 1 and d != at_dim]
    if grow and pool.draw(st.booleans()):
        y = y.expand([4 if d == grow[0] else size for d, size in enumerate(y.shape)])
    dims = tuple(d for d in range(y.ndim) if d != at_dim)
    pool.emit("broadcast_in_dim", (use,), at.BroadcastAttrs(tuple(y.shape), dims), (y,))


def permute(pool: Pool) -> None:
    use, x = pool.pick()
    dims = tuple(pool.draw(st.permutations(range(x.ndim))))
    pool.emit("permute", (use,), at.DimsAttrs(dims), (x.permute(dims),))


def squeeze(pool: Pool) -> None:
    picked = pool.pick(lambda x: 1 in x.shape)
    if picked is None:
        return
    use, x = picked
    d = list(x.shape).index(1)
    pool.emit("squeeze", (use,), at.DimsAttrs((d,)), (x.squeeze(d),))


def factored(draw, n: int) -> list[int]:
    """Sizes whose product is ``n``."""
    shape = []
    while n > 1 and len(shape) < 3:
        k = draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
        shape.append(k)
        n //= k
    return [*shape, n] if n > 1 or not shape else shape


def reshape(pool: Pool) -> None:
    use, x = pool.pick()
    # Often dims are merged and split side by side, as models do; sometimes anything goes.
    shape = factored(pool.draw, x.numel())
    if x.ndim > 1 and pool.draw(st.booleans()):
        d = pool.draw(st.integers(0, x.ndim - 2))
        shape = [*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :]]
    elif x.ndim and pool.draw(st.booleans()):
        d = pool.draw(st.integers(0, x.ndim - 1))
        shape = [*x.shape[:d], *factored(pool.draw, x.shape[d])[:4], *x.shape[d + 1 :]]
    if len(shape) <= 4:
        pool.emit("reshape", (use,), at.ShapeAttrs(tuple(shape)), (x.reshape(shape),))


def slicing(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.ndim > 0)
    if picked is None:
        return
    use, x = picked
    d = pool.draw(st.integers(0, x.ndim - 1))
    n = x.shape[d]
    start = pool.draw(st.integers(0, n - 1))
    end = pool.draw(st.integers(start + 1, n))
    step = pool.draw(st.integers(1, 2))
    spans = [(start, end, step) if i == d else (0, size, 1) for i, size in enumerate(x.shape)]
    y = x[tuple(slice(*span) for span in spans)]
    pool.emit("slice", (use,), at.SliceAttrs(*(tuple(s) for s in zip(*spans, strict=True))), (y,))


def pad(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.is_floating_point() and x.ndim > 0)
    if picked is None:
        return
    use, x = picked
    d = pool.draw(st.integers(0, x.ndim - 1))
    low, high = pool.draw(st.integers(0, 2)), pool.draw(st.integers(0, 2))
    fill = pool.draw(st.sampled_from([0.0, 3.0]))
    widths = [0, 0] * (x.ndim - 1 - d) + [low, high]
    y = torch.nn.functional.pad(x, widths, value=fill)
    lows = tuple(low if i == d else 0 for i in range(x.ndim))
    highs = tuple(high if i == d else 0 for i in range(x.ndim))
    pool.emit("pad", (use, pool.builder.const(fill)), at.PadAttrs(lows, highs), (y,))


ALONG = ("flip", "cumsum", "cummax", "cummin", "sort", "topk", "argmax", "argmin")


def along(pool: Pool) -> None:
    """flip, scans, sort, topk, argmax along a dim."""
    picked = pool.pick(lambda x: x.is_floating_point() and x.ndim > 0)
    if picked is None:
        return
    use, x = picked
    d = pool.draw(st.integers(0, x.ndim - 1))
    name = pool.draw(st.sampled_from(sorted(ALONG)))
    if name == "flip":
        pool.emit(name, (use,), at.DimsAttrs((d,)), (x.flip(d),))
    elif name in ("cumsum", "cummax", "cummin"):
        y = getattr(torch, name)(x, d)
        pool.emit(name, (use,), at.DimAttrs(d), (y if name == "cumsum" else y.values,))
    elif name == "sort":
        pool.emit(name, (use,), at.SortAttrs(d, stable=True), tuple(x.sort(dim=d, stable=True)))
    elif name == "topk":
        k = pool.draw(st.integers(1, x.shape[d]))
        pool.emit(name, (use,), at.TopkAttrs(k, d), tuple(torch.topk(x, k, d)))
        pool.values.pop()  # which of equal values comes first is not defined
    else:
        dim = None if pool.draw(st.integers(0, 3)) == 0 else d
        pool.emit(name, (use,), at.DimAttrs(dim), (getattr(torch, name)(x, dim),))


def cat(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.ndim > 0)
    if picked is None:
        return
    use, x = picked
    other, y = pool.partner(x)
    d = pool.draw(st.integers(0, x.ndim - 1))
    pool.emit("cat", (use, other, use), at.DimAttrs(d), (torch.cat([x, y, x], d),))


def matmul(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.is_floating_point() and 1 <= x.ndim <= 3)
    if picked is None:
        return
    use, x = picked
    other = pool.pick(lambda y: y.is_floating_point() and _multiplies(x, y))
    if other is None or pool.draw(st.booleans()):
        other = pool.fresh((x.shape[-1], pool.draw(st.sampled_from(SIZES))))
    (out,) = pool.emit("matmul", (use, other[0]), oracle=(x @ other[1],))
    _limit(pool, out, pool.values[-1][1])


def _multiplies(x: torch.Tensor, y: torch.Tensor) -> bool:
    if y.ndim == 0 or y.ndim > 3 or y.shape[-2 if y.ndim > 1 else 0] != x.shape[-1]:
        return False
    batches = zip(reversed(x.shape[:-2]), reversed(y.shape[:-2]), strict=False)
    return all(a == b or 1 in (a, b) for a, b in batches)


def linear(pool: Pool) -> None:
    picked = pool.pick(lambda x: x.is_floating_point() and 1 <= x.ndim <= 3)
    if picked is None:
        return
    use, x = picked
    w = pool.pick(lambda y: y.is_floating_point() and y.ndim == 2 and y.shape[1] == x.shape[-1])
    if w is None or pool.draw(st.booleans()):
        w = pool.fresh((pool.draw(st.sampled_from(SIZES)), x.shape[-1]))
    args, tensors = [use, w[0]], [x, w[1]]
    if pool.draw(st.booleans()):
        bias = pool.fresh(w[1].shape[:1])
        args.append(bias[0])
        tensors.append(bias[1])
    (out,) = pool.emit("linear", tuple(args), oracle=(torch.nn.functional.linear(*tensors),))
    _limit(pool, out, pool.values[-1][1])


def indexing(pool: Pool) -> None:
    """take, gather, scatter_add, index_add with indices that are iota modulo the size."""
    picked = pool.pick(lambda x: x.is_floating_point() and x.ndim > 0)
    if picked is None:
        return
    use, x = picked
    d = pool.draw(st.integers(0, x.ndim - 1))
    builder, n = pool.builder, pool.draw(st.sampled_from(SIZES))
    one = builder.const(1)
    (ramp,) = builder.op("iota", (one, builder.const(3)), at.FactoryAttrs((n,), DType.I64))
    (index,) = builder.op("remainder", (ramp, builder.const(x.shape[d])))
    where = (torch.arange(n) * 3 + 1) % x.shape[d]
    name = pool.draw(st.sampled_from(["take", "gather", "scatter_add", "index_add"]))
    if name == "take":
        pool.emit(name, (use, index), at.DimAttrs(d), (x.index_select(d, where),))
        return
    shape = tuple(n if i == d else size for i, size in enumerate(x.shape))
    wide = where.reshape([-1] + [1] * (x.ndim - 1 - d)).expand(shape)
    (full,) = builder.op("broadcast_in_dim", (index,), at.BroadcastAttrs(shape, (d,)))
    if name == "gather":
        pool.emit(name, (use, full), at.DimAttrs(d), (torch.gather(x, d, wide),))
        return
    source = torch.full(shape, 2.0, dtype=torch.float64)
    (made,) = builder.op("full", (builder.const(2.0),), at.FactoryAttrs(shape, DType.F64))
    if name == "scatter_add":
        y = x.scatter_add(d, wide, source)
        pool.emit(name, (use, full, made), at.DimAttrs(d), (y,))
    else:
        y = x.index_add(d, where, source)
        pool.emit(name, (use, index, made), at.DimAttrs(d), (y,))


def rows(pool: Pool) -> None:
    """embedding and its backward: rows of a table, and what falls on them."""
    picked = pool.pick(lambda x: x.is_floating_point() and x.ndim == 2)
    if picked is None:
        return
    use, x = picked
    shape = tuple(pool.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=2)))
    count, n, c = torch.Size(shape).numel(), x.shape[0], pool.draw(st.integers(1, 5))
    ramp = (torch.arange(count) * c).reshape(shape) % n
    builder = pool.builder
    (flat,) = builder.op(
        "iota", (builder.const(0), builder.const(c)), at.FactoryAttrs((count,), DType.I64)
    )
    (index,) = builder.op("reshape", (flat,), at.ShapeAttrs(shape))
    (index,) = builder.op("remainder", (index, builder.const(n)))
    if pool.draw(st.booleans()):
        y = torch.nn.functional.embedding(ramp, x)
        pool.emit("embedding", (index, use), at.EmbeddingAttrs(), (y,))
        return
    grad, g = pool.fresh((*shape, pool.draw(st.sampled_from(SIZES))))
    skipped = pool.draw(st.sampled_from([None, 0, n - 1]))
    y = torch.ops.aten.embedding_dense_backward(
        g, ramp, n, -1 if skipped is None else skipped, False
    )
    pool.emit("embedding_backward", (grad, index), at.EmbeddingBackwardAttrs(n, skipped), (y,))


def cast(pool: Pool) -> None:
    """To integers and on with them, and back."""
    use, x = pool.pick()
    dtype = DType.F64 if x.dtype == torch.int64 else DType.I64
    y = x.to(torch.float64 if x.dtype == torch.int64 else torch.int64)
    pool.emit("cast", (use,), at.CastAttrs(dtype), (y,))


def made(pool: Pool) -> None:
    """full and iota, so that values meet that were computed from no input."""
    n = pool.draw(st.sampled_from(SIZES))
    builder = pool.builder
    if pool.draw(st.booleans()):
        attrs = at.FactoryAttrs((n,), DType.F64)
        ramp = torch.arange(n).double() * 2 + 1
        pool.emit("iota", (builder.const(1), builder.const(2)), attrs, (ramp,))
    else:
        attrs = at.FactoryAttrs((n, 2), DType.F64)
        pool.emit("full", (builder.const(3.0),), attrs, (torch.full((n, 2), 3.0).double(),))


def moved(pool: Pool) -> None:
    """An explicit change of placement, pending reductions among them."""
    use, x = pool.pick()
    places = pool.placements(x)
    (out,) = pool.builder.op("reshard", (use,), at.ReshardAttrs(places), (places,))
    pool.values.append((out, x))


OPS = [
    unary,
    scalar,
    binary,
    binary,
    where,
    reduction,
    reduction,
    broadcast,
    permute,
    squeeze,
    reshape,
    reshape,
    slicing,
    pad,
    along,
    cat,
    matmul,
    linear,
    indexing,
    rows,
    cast,
    made,
    moved,
    moved,
]


@st.composite
def programs(draw, meshes=MESHES) -> Program:
    """A program of a few ops over one to three inputs on a mesh with one of the shapes ``meshes``.

    Names, by the number of axes, are those of a mesh whose axes the user named, or of one without.
    """
    shape = draw(st.sampled_from(meshes))
    mesh = Mesh(tuple(MeshAxis(n, k) for n, k in zip(NAMES, shape, strict=False)))
    pool = Pool(draw, Builder(mesh))
    for _ in range(draw(st.integers(1, 3))):
        pool.fresh(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
    for _ in range(draw(st.integers(2, 8))):
        draw(st.sampled_from(OPS))(pool)
        if pool.values[-1][1].numel() > 2000:
            pool.values.pop()
    # All that was built is read by an output, up to a limit; an inner value may be one too.
    outputs = [*(pool.leaves()[:4] or pool.values[-1:]), draw(st.sampled_from(pool.values))]
    fusion = pool.builder.finish(tuple(use for use, _ in outputs))
    return Program(mesh, pool.inputs, fusion, [x for _, x in outputs])
