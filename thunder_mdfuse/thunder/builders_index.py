"""How symbols that look up and store at positions become nodes of the IR.

Stores at several indices, and Python's own ``x[key] = value``, become one scatter into the flat
tensor: the position of each element that is written is a sum over the dims of index times stride.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core import dtypes
from thunder.core.proxies import TensorProxy

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, ScalarType, TensorType
from thunder_mdfuse.thunder.builders import Build, Results, ndim
from thunder_mdfuse.thunder.values import NumberNeeded, Values


def _index(v: Values, index: Any) -> Use:
    """An index tensor as i64, which is what torch's indexing takes everywhere."""
    use = v.value(index)
    if v.type(use).dtype is DType.I64:
        return use
    return v.op("cast", (use,), at.CastAttrs(DType.I64))[0]


def take(v: Values, a: Any, index: Any, dim: int) -> Results:
    """A 0-dim index keeps the dim, with size 1."""
    use = _index(v, index)
    if not ndim(v, use):
        (use,) = v.op("reshape", (use,), at.ShapeAttrs((1,)))
    return v.result("take", (v.value(a), use), at.DimAttrs(dim))


def gather(name: str) -> Build:
    """``gather`` and ``take_along_axis``."""

    def build(v: Values, a: Any, index: Any, dim: int) -> Results:
        return v.result(name, (v.value(a), _index(v, index)), at.DimAttrs(dim))

    return build


def scatter(name: str) -> Build:
    """``scatter``, ``scatter_add``, ``index_add``; a number as source fills the index's shape."""

    def build(v: Values, a: Any, index: Any, source: Any, dim: int) -> Results:
        target, where_to, what = v.value(a), _index(v, index), v.value(source)
        if isinstance(v.type(what), ScalarType):
            found = v.type(where_to)
            assert isinstance(found, TensorType)
            what = v.full(source, found.shape, v.type(target).dtype)
        return v.result(name, (target, where_to, what), at.DimAttrs(dim))

    return build


def embedding(v: Values, index: Any, weight: Any, *, padding_idx: Any = None, **_: Any) -> Results:
    uses = (_index(v, index), v.value(weight))
    return v.result("embedding", uses, at.EmbeddingAttrs(_padding(padding_idx)))


def embedding_backward(
    v: Values, grad: Any, index: Any, rows: Any, padding_idx: Any, by_frequency: Any, sparse: Any
) -> Results:
    attrs = at.EmbeddingBackwardAttrs(v.size(rows), _padding(padding_idx), bool(by_frequency))
    return v.result("embedding_backward", (v.value(grad), _index(v, index)), attrs)


def _padding(index: Any) -> int | None:
    return None if index is None or index < 0 else int(index)


def index_copy(v: Values, a: Any, index: Any, source: Any, dim: int) -> Results:
    """A scatter whose index is the same along all other dims."""
    use, where_to, what = v.value(a), _index(v, index), v.value(source)
    if not ndim(v, where_to):
        (where_to,) = v.op("reshape", (where_to,), at.ShapeAttrs((1,)))
    shape, along = v.tensor(what).shape, dim % ndim(v, use)
    (where_to,) = v.op("broadcast_in_dim", (where_to,), at.BroadcastAttrs(shape, (along,)))
    return v.result("scatter", (use, where_to, what), at.DimAttrs(along))


def index_put(v: Values, a: Any, indices: Sequence[Any], values: Any, accumulate: bool) -> Results:
    shape = v.tensor(v.value(a)).shape
    items = [_index(v, i) for i in indices]
    rest = [_Slice(0, 1, n) for n in shape[len(items) :]]
    return _store(v, a, [*items, *rest], values, "scatter_add" if accumulate else "scatter")


def setitem(v: Values, a: Any, key: Any, value: Any) -> Results:
    """A copy of ``a`` after ``copy[key] = value``."""
    keys = list(key) if isinstance(key, tuple | list) else [key]
    if is_mask(keys[0]):
        return _masked(v, a, keys[0], value)
    return _store(v, a, _items(v, v.tensor(v.value(a)).shape, keys), value, "scatter")


def is_mask(key: Any) -> bool:
    """Whether a key is a tensor of bools."""
    return isinstance(key, TensorProxy) and key.dtype is dtypes.bool8


def _masked(v: Values, a: Any, mask: Any, value: Any) -> Results:
    """A number, or a tensor of one, where the mask of the leading dims is set."""
    use, where_to, what = v.value(a), v.value(mask), _as(v, value, v.tensor(v.value(a)).dtype)
    shape = v.tensor(use).shape
    dims = tuple(range(ndim(v, where_to)))
    (where_to,) = v.op("broadcast_in_dim", (where_to,), at.BroadcastAttrs(shape, dims))
    if isinstance(v.type(what), TensorType):
        (what,) = v.op("broadcast_in_dim", (what,), at.BroadcastAttrs(shape, ()))
    return v.result("where", (where_to, what, use))


@dataclass(frozen=True)
class _Slice:
    """``count`` positions along one dim: ``start``, ``start + step``, ..."""

    start: Size
    step: int
    count: Size


# What one entry of a key is: positions along a dim, a new dim of size 1 (None), one position that
# takes its dim away, or a tensor of positions.
_Item = _Slice | int | Use | None


def _items(v: Values, shape: Sequence[Size], keys: Sequence[Any]) -> list[_Item]:
    """The key entry by entry, and a whole slice for every dim that it leaves out."""
    named = sum(k is not None and k is not Ellipsis for k in keys)
    if not any(k is Ellipsis for k in keys):
        keys = [*keys, Ellipsis]
    found: list[_Item] = []
    dims = iter(shape)
    for k in keys:
        if k is Ellipsis:
            found += [_Slice(0, 1, next(dims)) for _ in range(len(shape) - named)]
        elif k is None:
            found.append(None)
        elif isinstance(k, slice):
            found.append(_slice(v, k, next(dims)))
        elif isinstance(k, TensorProxy):
            next(dims)
            found.append(_index(v, k))
        else:
            position, size = int(v.number(k).real), next(dims)
            found.append(position if position >= 0 else _known(size) + position)
    return found


def _slice(v: Values, key: slice, size: Size) -> _Slice:
    if key == slice(None):
        return _Slice(0, 1, size)
    ends = (key.start, key.stop, key.step)
    known = slice(*(None if e is None else int(v.number(e).real) for e in ends))
    positions = range(*known.indices(_known(size)))
    return _Slice(positions.start, positions.step, len(positions))


def _known(size: Size) -> int:
    """A size that must be known, since a position counts from it."""
    if not isinstance(size, int):
        raise NumberNeeded(str(size))
    return size


def _scalar(v: Values, size: Size) -> Use:
    return v.value(size) if isinstance(size, int) else v.op("size", (), at.SizeAttrs(size))[0]


def _wrapped(v: Values, index: Use, size: Size) -> tuple[Use, Use]:
    """Positions with those below zero counted from the end, and where they are out of the dim."""
    whole = _scalar(v, size)
    (below,) = v.op("lt", (index, v.value(0)))
    (wrapped,) = v.op("where", (below, v.op("add", (index, whole))[0], index))
    (under,) = v.op("lt", (wrapped, v.value(0)))
    (over,) = v.op("ge", (wrapped, whole))
    return wrapped, v.op("logical_or", (under, over))[0]


def _as(v: Values, x: Any, dtype: DType) -> Use:
    use = v.value(x)
    return use if v.type(use).dtype is dtype else v.op("cast", (use,), at.CastAttrs(dtype))[0]


def _common(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """The shape that all of ``shapes`` broadcast to."""
    most = max(map(len, shapes))
    rows = [(1,) * (most - len(s)) + s for s in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*rows, strict=True))


def _places(v: Values, items: Sequence[_Item]) -> tuple[tuple[Size, ...], list[int], int]:
    """The shape of what a key selects, where in it each item's dim is, and the indices' first dim.

    As in torch: tensors side by side give their dims where they stand, others in front.
    """
    order = [i for i, item in enumerate(items) if not isinstance(item, int)]
    tensors = [n for n, i in enumerate(order) if isinstance(items[i], Use)]
    shapes = [v.tensor(items[order[n]]).shape for n in tensors]  # type: ignore[arg-type]
    shared = _common(shapes) if shapes else ()
    adjacent = bool(tensors) and tensors == list(range(tensors[0], tensors[0] + len(tensors)))
    first = tensors[0] if adjacent else 0
    shape: list[Size] = []
    where = [0] * len(items)
    for n, i in enumerate(order):
        item = items[i]
        if tensors and n == first:
            first = len(shape)
            shape += shared
        if isinstance(item, _Slice) or item is None:
            where[i] = len(shape)
            shape.append(1 if item is None else item.count)
    return tuple(shape), where, first


def _position(v: Values, shape: Sequence[Size], items: Sequence[_Item]) -> Use:
    """For each element that a key selects, its place in the flat tensor of ``shape``.

    It is -1, which no store accepts, where an index is out of its dim: as a sum it could be the
    place of another element.
    """
    selected, where, first = _places(v, items)
    tensors = [v.tensor(i).ndim for i in items if isinstance(i, Use)]
    last = first + max(tensors, default=0)
    position = v.op("full", (v.value(0),), at.FactoryAttrs(selected, DType.I64))[0]
    outside: list[Use] = []
    dim = 0
    for item, at_dim in zip(items, where, strict=True):
        if item is None:
            continue
        stride = _scalar(v, sizes.product(shape[dim + 1 :]))
        if isinstance(item, int):
            part = v.value(item)
        elif isinstance(item, Use):
            dims = at.BroadcastAttrs(selected, tuple(range(last - ndim(v, item), last)))
            part, out = (
                v.op("broadcast_in_dim", (x,), dims)[0] for x in _wrapped(v, item, shape[dim])
            )
            outside.append(out)
        else:
            counted = at.FactoryAttrs((item.count,), DType.I64)
            steps = v.op("iota", (_scalar(v, item.start), v.value(item.step)), counted)
            (part,) = v.op("broadcast_in_dim", steps, at.BroadcastAttrs(selected, (at_dim,)))
        dim += 1
        position = v.op("add", (position, v.op("mul", (part, stride))[0]))[0]
    for out in outside:
        (position,) = v.op("where", (out, v.value(-1), position))
    return position


def _store(v: Values, a: Any, items: Sequence[_Item], value: Any, op: str) -> Results:
    """``a`` with ``value`` at what ``items`` select."""
    use = v.value(a)
    shape, dtype = v.tensor(use).shape, v.tensor(use).dtype
    position, what = _position(v, shape, items), _as(v, value, dtype)
    selected = v.tensor(position).shape
    if isinstance(v.type(what), ScalarType):
        what = v.op("full", (what,), at.FactoryAttrs(selected, dtype))[0]
    elif (found := v.tensor(what).shape) != selected:
        # Torch lets a value have more dims in front, of size 1.
        extra = max(0, len(found) - len(selected))
        (what,) = v.op("reshape", (what,), at.ShapeAttrs(found[extra:])) if extra else (what,)
        dims = tuple(range(len(selected) - len(found) + extra, len(selected)))
        (what,) = v.op("broadcast_in_dim", (what,), at.BroadcastAttrs(selected, dims))
    flat = [
        v.op("reshape", (x,), at.ShapeAttrs((sizes.product(n),)))[0]
        for x, n in ((use, shape), (position, selected), (what, selected))
    ]
    stored = v.op(op, flat, at.DimAttrs(0))
    return v.result("reshape", stored, at.ShapeAttrs(shape))


def nll_loss_backward(
    v: Values,
    g: Any,
    a: Any,
    target: Any,
    weight: Any,
    mode: str,
    ignored: Any,
    total: Any,
) -> Results:
    """``-g * weight[class]`` where the class is the target and not ignored, by comparison.

    Written with a comparison against the class number rather than as a scatter, so that it fuses
    with the softmax's gradient around it.
    """
    whole = v.type(v.value(a))
    assert isinstance(whole, TensorType)
    shape, dim = whole.shape, 1 if whole.ndim >= 2 else 0
    others = tuple(d for d in range(whole.ndim) if d != dim)

    def spread(use: Use, dims: tuple[int, ...]) -> Use:
        return v.op("broadcast_in_dim", (use,), at.BroadcastAttrs(shape, dims))[0]

    classes = v.op("iota", (v.value(0), v.value(1)), at.FactoryAttrs((shape[dim],), DType.I64))[0]
    wanted = spread(_index(v, target), others)
    (hit,) = v.op("eq", (wanted, spread(classes, (dim,))))
    (kept,) = v.op("ne", (wanted, v.value(ignored)))
    (here,) = v.op("logical_and", (hit, kept))
    (value,) = v.op("neg", (v.value(g),))
    if mode == "mean":
        (count,) = v.op("cast", (v.value(total),), at.CastAttrs(v.type(value).dtype))
        (value,) = v.op("div", (value, count))
    value = spread(value, others if mode == "none" else ())
    if weight is not None:
        (value,) = v.op("mul", (value, spread(v.value(weight), (dim,))))
    return v.result("where", (here, value, v.value(0.0)))
