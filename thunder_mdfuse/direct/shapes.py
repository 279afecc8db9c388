"""``fd.ops``: sizes, views, pad and cat.

A shape is a list or tuple of integers, of sizes of tensors, and of Int numbers that the fusion is
given. Views of an input that are outputs share its memory, as in eager torch.
"""

from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.direct.reductions import dim_of, dims_of
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.table import op
from thunder_mdfuse.direct.values import Scalar, TensorView
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Guard
from thunder_mdfuse.ir.sizes import Size


@op
def size(s: Scope, arg: Any, dim: int) -> Scalar:
    """The size of ``dim`` as an Int number."""
    x = s.tensor(arg)
    if not x.ndim:
        raise DefinitionError("a 0-dim tensor has no sizes")
    return s.size_value(x.type.shape[dim_of(dim, x.ndim)])


@op
def shape(s: Scope, arg: Any) -> tuple[Scalar, ...]:
    """The sizes of all dims as Int numbers."""
    return tuple(map(s.size_value, s.tensor(arg).type.shape))


@op
def broadcast(s: Scope, arg: Any, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """``arg`` with a new dim of size 1 for each True; the Falses are its dims, in order."""
    x, flags = s.tensor(arg), list(is_broadcast_dim)
    dims = tuple(d for d, new in enumerate(flags) if not new)
    if len(dims) != x.ndim:
        raise DefinitionError(
            f"is_broadcast_dim {flags} keeps {len(dims)} dims, but the tensor has {x.ndim}"
        )
    old = iter(x.type.shape)
    return s.broadcast(x, tuple(1 if new else next(old) for new in flags), dims, explicit=True)


@op
def broadcast_in_dim(
    s: Scope, arg: Any, shape: Sequence[Any], broadcast_dims: Sequence[int]
) -> TensorView:
    """``arg`` broadcast to ``shape``: its dim ``i`` is dim ``broadcast_dims[i]`` there.

    ``arg`` may be a number. -1 keeps the tensor's size.
    """
    x, dims = s.operand(arg), tuple(broadcast_dims)
    wanted = list(s.sizes(shape))
    if isinstance(x, Scalar):
        x = s.full(x, (), x.ir_dtype)
    if len(dims) != x.ndim or list(dims) != sorted({d % max(len(wanted), 1) for d in dims}):
        raise DefinitionError(
            f"broadcast_dims {list(dims)} must ascend and name one of {len(wanted)} dims for each "
            f"of the tensor's {x.ndim}"
        )
    return _expand(s, x, wanted, dims)


@op
def expand(s: Scope, arg: Any, shape: Sequence[Any]) -> TensorView:
    """``arg`` with its dims of size 1 repeated to ``shape``, and new dims in front; -1 keeps."""
    x, wanted = s.tensor(arg), list(s.sizes(shape))
    if len(wanted) < x.ndim:
        raise DefinitionError(f"a shape of {len(wanted)} dims cannot hold {x!r}")
    return _expand(s, x, wanted, tuple(range(len(wanted) - x.ndim, len(wanted))))


def _expand(s: Scope, x: TensorView, wanted: list[Size], dims: tuple[int, ...]) -> TensorView:
    for own, d in enumerate(dims):
        if wanted[d] == -1:
            wanted[d] = x.type.shape[own]
        elif x.type.shape[own] != 1:
            s.require(x, own, wanted[d])
    target = tuple(map(s.renamed, wanted))
    if any(size == -1 for size in target):
        raise DefinitionError("-1 keeps the size of a dim, and a new dim has none; give its size")
    own_sizes = zip(x.type.shape, dims, strict=True)
    x = s.reshape(x, tuple(1 if size == 1 else target[d] for size, d in own_sizes))
    return s.broadcast(x, target, dims, explicit=True)


@op
def reshape(s: Scope, arg: Any, new_shape: Sequence[Any]) -> TensorView:
    """``arg`` in another shape of as many elements; one size may be -1, which is worked out."""
    x, wanted = s.tensor(arg), list(s.sizes(new_shape))
    total = sizes.product(x.type.shape)
    unknown = [d for d, size in enumerate(wanted) if size == -1]
    if len(unknown) > 1:
        raise DefinitionError(f"new_shape {wanted} has more than one -1")
    if unknown:
        others = sizes.product(size for size in wanted if size != -1)
        wanted[unknown[0]] = _quotient(s, total, others)
    else:
        s.equate(total, sizes.product(wanted))
    return s.reshape(x, tuple(map(s.renamed, wanted)))


def _quotient(s: Scope, total: Size, others: Size) -> Size:
    """``total / others``, which must be whole: certainly, or by a guard."""
    if others == 0:
        raise DefinitionError("a size of -1 beside a size of 0 could be anything")
    found = sizes.exact_quotient(total, others)
    if found is not None:
        return found
    if isinstance(total, int) and isinstance(others, int):
        raise DefinitionError(f"{total} elements do not fill a shape of multiples of {others}")
    found = sizes.floordiv(total, others)
    if isinstance(others, int):
        s.guards[Guard(others, "divides", total)] = None
    else:
        s.guards[Guard(sizes.multiply(found, others), "==", total)] = None
    return found


@op
def permute(s: Scope, arg: Any, dims: Sequence[int]) -> TensorView:
    """``arg`` with its dims in another order: dim ``i`` of the result is dim ``dims[i]``."""
    x = s.tensor(arg)
    order = tuple(dim_of(d, x.ndim) for d in dims)
    if sorted(order) != list(range(x.ndim)):
        raise DefinitionError(f"dims {list(dims)} are no permutation of the dims of {x!r}")
    found: TensorView = s.op("permute", (x,), at.DimsAttrs(order))
    return found


@op
def squeeze(
    s: Scope, arg: Any, dims: Sequence[int] | int, squeeze_expanded: bool = False
) -> TensorView:
    """``arg`` without ``dims``, which must be of size 1.

    ``squeeze_expanded``: dims that ``expand`` or ``broadcast_in_dim`` repeated may go as well.
    """
    x = s.tensor(arg)
    gone = dims_of(dims, x.ndim)
    for d in gone:
        if x.type.shape[d] == 1:
            continue
        if squeeze_expanded and _is_expanded(s, x, d):
            x = cut(s, x, d, 0, 1)
        else:
            s.require(x, d, 1)
    found: TensorView = s.op("squeeze", (x,), at.DimsAttrs(gone))
    return found


def _is_expanded(s: Scope, x: TensorView, dim: int) -> bool:
    node = s.builder.nodes[x.use.node]
    if not isinstance(node.attrs, at.BroadcastAttrs):
        return False
    if dim not in node.attrs.dims or not node.args:
        return True
    found = s.builder.type_of(node.args[0])
    shape = getattr(found, "shape", ())
    return bool(shape) and shape[node.attrs.dims.index(dim)] == 1


def cut(s: Scope, x: TensorView, dim: int, start: Size, end: Size) -> TensorView:
    """The part of ``x`` from ``start`` to ``end`` along ``dim``."""
    starts: list[Size] = [0] * x.ndim
    ends = list(x.type.shape)
    starts[dim], ends[dim] = start, end
    attrs = at.SliceAttrs(tuple(starts), tuple(ends), (1,) * x.ndim)
    found: TensorView = s.op("slice", (x,), attrs)
    return found


@op
def slice(
    s: Scope,
    arg: Any,
    start_indices: Sequence[Any],
    end_indices: Sequence[Any],
    strides: Sequence[Any] | None = None,
    manual_normalization: bool = False,
) -> TensorView:
    """``arg[start:end:stride]`` in every dim, as Python slices: bounds past the end are cut.

    Negative integers count from the end. ``manual_normalization``: the bounds are within the
    tensor, start before end, and are taken as they are.
    """
    x = s.tensor(arg)
    starts, ends = s.sizes(start_indices), s.sizes(end_indices)
    steps = (1,) * x.ndim if strides is None else tuple(s.integer(n, "a stride") for n in strides)
    if not len(starts) == len(ends) == len(steps) == x.ndim:
        raise DefinitionError(
            f"a start, an end and a stride for each of {x.ndim} dims are needed, found "
            f"{len(starts)}, {len(ends)} and {len(steps)}"
        )
    if not manual_normalization:
        own = x.type.shape
        starts = tuple(_within(b, n) for b, n in zip(starts, own, strict=True))
        ends = tuple(_within(b, n) for b, n in zip(ends, own, strict=True))
        ends = tuple(map(sizes.maximum, ends, starts))
    found: TensorView = s.op("slice", (x,), at.SliceAttrs(starts, ends, steps))
    return found


def _within(bound: Size, size: Size) -> Size:
    """A bound of a slice as Python takes it: from the end when negative, and no further."""
    if isinstance(bound, int) and bound < 0:
        return sizes.maximum(sizes.add(size, bound), 0)
    return sizes.minimum(bound, size)


@op
def stride_order(s: Scope, arg: Any, stride_order: Sequence[int]) -> TensorView:
    """A copy whose dim ``i`` is the ``stride_order[i]``-th from the fastest in memory."""
    x, order = s.tensor(arg), list(stride_order)
    if sorted(order) != list(range(x.ndim)):
        raise DefinitionError(f"stride_order {order} is no permutation of {x.ndim} places")
    slowest_first = tuple(sorted(range(x.ndim), key=lambda d: -order[d]))
    found: TensorView = s.op("copy", (x,), at.CopyAttrs(slowest_first))
    return found


@op
def pad(s: Scope, arg: Any, pad_widths: Sequence[Any], value: Any = None) -> TensorView:
    """``arg`` with ``value`` (0) around it; ``pad_widths`` are pairs (before, after) from the last
    dim on.
    """
    x, widths = s.tensor(arg), s.sizes(pad_widths)
    if len(widths) % 2 or len(widths) > 2 * x.ndim:
        raise DefinitionError(f"pairs of widths for up to {x.ndim} dims are needed, found {widths}")
    low: list[Size] = [0] * x.ndim
    high: list[Size] = [0] * x.ndim
    for i in range(len(widths) // 2):
        low[-1 - i], high[-1 - i] = widths[2 * i], widths[2 * i + 1]
    filling = s.scalar(0 if value is None else value)
    found: TensorView = s.op("pad", (x, filling), at.PadAttrs(tuple(low), tuple(high)))
    return found


@op
def cat(s: Scope, tensors: Sequence[Any], dim: int = 0, manual_padding: bool = False) -> TensorView:
    """``tensors`` one after the other along ``dim``; their dtypes promote."""
    if manual_padding:
        raise DefinitionError(
            "manual_padding is for operands padded by hand; add them instead, or leave it out"
        )
    parts = [s.tensor(t, "each of tensors") for t in tensors]
    if not parts or not parts[0].ndim:
        raise DefinitionError("at least one tensor with a dim is needed")
    dtype = s.common_dtype(parts)
    parts = [s.cast(part, dtype) for part in parts]
    along = dim_of(dim, parts[0].ndim)
    for part in parts[1:]:
        if part.ndim != parts[0].ndim:
            raise DefinitionError(f"tensors of one rank are needed, found {parts[0]!r}, {part!r}")
        for d in range(part.ndim):
            if d != along:
                s.require(part, d, parts[0].type.shape[d])
    first = parts[0].type.shape
    fitted = [
        s.reshape(p, (*first[:along], p.type.shape[along], *first[along + 1 :])) for p in parts
    ]
    found: TensorView = s.op("cat", fitted, at.DimAttrs(along))
    return found
