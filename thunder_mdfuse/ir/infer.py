"""Type rules: from operand types and attributes to result types, placements left out.

A rule is called with the op's name (for messages), the operand types and the attribute record. It
raises ``IRError`` when the operands do not fit. Scalars beside tensors are weakly typed: they take
the tensors' dtype. Sizes are compared as expressions; what only a guard can make equal must be made
equal before.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, ScalarType, TensorType, Type

Rule = Callable[[str, tuple[Type, ...], Any], tuple[Type, ...]]


def tensor(op: str, types: tuple[Type, ...], i: int) -> TensorType:
    """Operand ``i`` as a tensor type."""
    found = types[i]
    if not isinstance(found, TensorType):
        raise IRError(f"{op}: operand {i} must be a tensor, found the scalar type {found}")
    return found


def _common(op: str, types: tuple[Type, ...]) -> Type:
    """The one dtype and shape of all tensor operands, or the wider scalar type without any."""
    tensors = [t for t in types if isinstance(t, TensorType)]
    if not tensors:
        order = [DType.BOOL, DType.I64, DType.F64, DType.C128]
        return ScalarType(max((t.dtype for t in types), key=order.index))
    first = tensors[0]
    for other in tensors[1:]:
        if other.dtype is not first.dtype or other.shape != first.shape:
            listing = ", ".join(map(str, types))
            raise IRError(f"{op}: tensor operands need one dtype and shape, found {listing}")
    return TensorType(first.dtype, first.shape)


def elementwise(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    return (_common(op, types),)


def predicate(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    common = _common(op, types)
    if isinstance(common, ScalarType):
        return (ScalarType(DType.BOOL),)
    return (TensorType(DType.BOOL, common.shape),)


def where(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    if types[0].dtype is not DType.BOOL:
        raise IRError(f"{op}: the condition must be bool, found {types[0]}")
    picked = _common(op, types[1:])
    if not isinstance(types[0], TensorType):
        return (picked,)
    shape = types[0].shape
    if isinstance(picked, TensorType) and picked.shape != shape:
        raise IRError(f"{op}: the condition is {types[0]}, the choices are {picked.shape}")
    return (TensorType(picked.dtype, shape),)


def real_part(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    parts = {DType.C64: DType.F32, DType.C128: DType.F64}
    return (TensorType(parts.get(x.dtype, x.dtype), x.shape),)


def exponent(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    """The i32 part of ``frexp``."""
    return (TensorType(DType.I32, tensor(op, types, 0).shape),)


def magnitude(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    """``abs``: of a complex number it is a real one."""
    parts = {DType.C64: DType.F32, DType.C128: DType.F64}
    x = _common(op, types)
    return (replace(x, dtype=parts.get(x.dtype, x.dtype)),)


def cast(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    if isinstance(types[0], ScalarType):
        return (ScalarType(attrs.dtype),)
    return (TensorType(attrs.dtype, types[0].shape),)


def reduction(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    _check_dims(op, attrs.dims, x.ndim)
    if op in ("amax", "amin") and any(x.shape[d] == 0 for d in attrs.dims):
        raise IRError(
            f"{op} over dims {list(attrs.dims)} of {x}: nothing has no {op}; reduce a dim that has "
            "elements"
        )
    return (TensorType(x.dtype, drop_dims(x.shape, attrs.dims)),)


def variance(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    """``var``: real, also of complex numbers."""
    return magnitude(op, reduction(op, types, attrs), attrs)


def variance_and_mean(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    return variance(op, types, attrs) + reduction(op, types, attrs)


def arg_reduction(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    if attrs.dim is None:
        return (TensorType(DType.I64, ()),)
    _check_dims(op, (attrs.dim,), x.ndim)
    return (TensorType(DType.I64, drop_dims(x.shape, (attrs.dim,))),)


def drop_dims(shape: tuple[Size, ...], dims: tuple[int, ...]) -> tuple[Size, ...]:
    """``shape`` without the dims in ``dims``."""
    return tuple(s for d, s in enumerate(shape) if d not in dims)


def _check_dims(op: str, dims: tuple[int, ...], ndim: int) -> None:
    if len(set(dims)) != len(dims) or any(not 0 <= d < ndim for d in dims):
        raise IRError(f"{op}: dims {dims} must be distinct and in range({ndim})")


def broadcast_in_dim(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    dims, shape = attrs.dims, attrs.shape
    if isinstance(types[0], ScalarType):
        return (TensorType(types[0].dtype, shape),)
    x = types[0]
    if len(dims) != x.ndim or list(dims) != sorted(set(dims)):
        raise IRError(f"{op}: dims {dims} must ascend and name one dim for each of {x}")
    for size, d in zip(x.shape, dims, strict=True):
        if not 0 <= d < len(shape) or (size != 1 and size != shape[d]):
            raise IRError(f"{op}: {x} does not broadcast to {shape} along dims {dims}")
    return (TensorType(x.dtype, shape),)


def reshape(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    have, want = sizes.product(x.shape), sizes.product(attrs.shape)
    if isinstance(have, int) and isinstance(want, int) and have != want:
        raise IRError(f"{op}: {x} has {have} elements, the shape {attrs.shape} has {want}")
    return (TensorType(x.dtype, attrs.shape),)


def permute(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    if sorted(attrs.dims) != list(range(x.ndim)):
        raise IRError(f"{op}: {attrs.dims} is not a permutation of the dims of {x}")
    return (TensorType(x.dtype, tuple(x.shape[d] for d in attrs.dims)),)


def squeeze(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    _check_dims(op, attrs.dims, x.ndim)
    wrong = [d for d in attrs.dims if x.shape[d] != 1]
    if wrong:
        raise IRError(f"{op}: dims {wrong} of {x} are not of size 1")
    return (TensorType(x.dtype, drop_dims(x.shape, attrs.dims)),)


def slicing(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    if not len(attrs.starts) == len(attrs.ends) == len(attrs.steps) == x.ndim:
        raise IRError(f"{op}: needs a start, an end and a step for each dim of {x}")
    if any(step < 1 for step in attrs.steps):
        raise IRError(f"{op}: steps must be at least 1, found {attrs.steps}")
    spans = zip(attrs.starts, attrs.ends, attrs.steps, strict=True)
    return (TensorType(x.dtype, tuple(sizes.ceildiv(e - s, step) for s, e, step in spans)),)


def unfold(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    _check_dims(op, (attrs.dim,), x.ndim)
    if attrs.step < 1:
        raise IRError(f"{op}: the step must be at least 1, found {attrs.step}")
    windows = sizes.floordiv(x.shape[attrs.dim] - attrs.size, attrs.step) + 1
    shape = (*x.shape[: attrs.dim], windows, *x.shape[attrs.dim + 1 :], attrs.size)
    return (TensorType(x.dtype, shape),)


def pad(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    if not len(attrs.low) == len(attrs.high) == x.ndim:
        raise IRError(f"{op}: needs a low and a high padding for each dim of {x}")
    ends = zip(x.shape, attrs.low, attrs.high, strict=True)
    return (TensorType(x.dtype, tuple(s + low + high for s, low, high in ends)),)


def cat(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    parts = [tensor(op, types, i) for i in range(len(types))]
    first, d = parts[0], attrs.dim
    _check_dims(op, (d,), first.ndim)
    for part in parts:
        same = part.shape[:d] + part.shape[d + 1 :] == first.shape[:d] + first.shape[d + 1 :]
        if part.dtype is not first.dtype or part.ndim != first.ndim or not same:
            raise IRError(f"{op}: {part} does not fit {first} outside of dim {d}")
    total: Size = 0
    for part in parts:
        total = sizes.add(total, part.shape[d])
    return (TensorType(first.dtype, (*first.shape[:d], total, *first.shape[d + 1 :])),)


def same(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    return (TensorType(x.dtype, x.shape),)


def factory(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    return (TensorType(attrs.dtype, attrs.shape),)


def take(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x, index = tensor(op, types, 0), tensor(op, types, 1)
    _check_dims(op, (attrs.dim,), x.ndim)
    shape = x.shape[: attrs.dim] + index.shape + x.shape[attrs.dim + 1 :]
    return (TensorType(x.dtype, shape),)


def gather(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x, index = tensor(op, types, 0), tensor(op, types, 1)
    if x.ndim != index.ndim:
        raise IRError(f"{op}: {x} and its index {index} need equally many dims")
    return (TensorType(x.dtype, index.shape),)


def embedding(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    index, weight = tensor(op, types, 0), tensor(op, types, 1)
    if weight.ndim != 2:
        raise IRError(f"{op}: the weight must have 2 dims, found {weight}")
    return (TensorType(weight.dtype, (*index.shape, weight.shape[1])),)


def embedding_backward(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    grad = tensor(op, types, 0)
    return (TensorType(grad.dtype, (attrs.rows, grad.shape[-1])),)


def matmul(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    a, b = tensor(op, types, 0), tensor(op, types, 1)
    if not a.ndim or not b.ndim or a.dtype is not b.dtype:
        raise IRError(f"{op}: needs two tensors of one dtype and at least one dim, found {a}, {b}")
    inner_b = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner_b:
        raise IRError(f"{op}: the inner sizes of {a} and {b} differ")
    batch = broadcast_shapes(op, a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.ndim > 1 else ()
    columns = b.shape[-1:] if b.ndim > 1 else ()
    return (TensorType(a.dtype, batch + rows + columns),)


def broadcast_shapes(op: str, a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...]:
    """The shape that ``a`` and ``b`` broadcast to by torch's rule."""
    n = max(len(a), len(b))
    a, b = (1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b
    for x, y in zip(a, b, strict=True):
        if x != y and x != 1 and y != 1:
            raise IRError(f"{op}: shapes {a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def linear(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    x, w = tensor(op, types, 0), tensor(op, types, 1)
    if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[1] or x.dtype is not w.dtype:
        raise IRError(f"{op}: x[..., in] and w[out, in] of one dtype are needed, found {x}, {w}")
    if len(types) == 3 and tensor(op, types, 2).shape != w.shape[:1]:
        raise IRError(f"{op}: the bias {types[2]} must have shape [{w.shape[0]}]")
    return (TensorType(x.dtype, x.shape[:-1] + w.shape[:1]),)


def convolution(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    """x[n, in, ...], w[out, in / groups, ...] and bias[out] of one dtype give [n, out, ...]."""
    x, w = tensor(op, types, 0), tensor(op, types, 1)
    window = w.ndim - 2
    if window < 1 or x.ndim != w.ndim or x.dtype is not w.dtype:
        raise IRError(f"{op}: x and w of one dtype and 3 or more dims are needed, found {x}, {w}")
    if x.shape[1] != w.shape[1] * attrs.groups:
        raise IRError(f"{op}: {attrs.groups} groups of {w.shape[1]} channels do not make up {x}")
    if len(types) == 3 and tensor(op, types, 2).shape != w.shape[:1]:
        raise IRError(f"{op}: the bias {types[2]} must have shape [{w.shape[0]}]")
    if {len(attrs.stride), len(attrs.padding), len(attrs.dilation)} != {window}:
        raise IRError(f"{op}: {attrs} must have a number for each of the {window} dims of a window")
    rows = zip(x.shape[2:], w.shape[2:], attrs.stride, attrs.padding, attrs.dilation, strict=True)
    found = tuple(
        sizes.floordiv(n + 2 * p - (k - 1) * apart - 1, step) + 1 for n, k, step, p, apart in rows
    )
    return (TensorType(x.dtype, (x.shape[0], w.shape[0], *found)),)


def grouped_mm(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    """One product a group: where a or b has two dims, ``offsets`` are the ends of the groups along
    the rows of a, the columns of b, or the inner dim of both (``torch._grouped_mm``).
    """
    a, b = tensor(op, types, 0), tensor(op, types, 1)
    flat = 2 in (a.ndim, b.ndim)
    if not {a.ndim, b.ndim} <= {2, 3} or a.dtype is not b.dtype or a.shape[-1] != b.shape[-2]:
        raise IRError(f"{op}: a[.., m, k] and b[.., k, n] of one dtype are needed, found {a}, {b}")
    if flat != (len(types) == 3):
        raise IRError(f"{op}: offsets belong to operands of two dims, found {a}, {b}")
    groups = (a if a.ndim == 3 else b).shape[:1]
    if flat:
        offsets = tensor(op, types, 2)
        if offsets.dtype is not DType.I32 or offsets.ndim != 1:
            raise IRError(f"{op}: offsets must be i32 of one dim, found {offsets}")
        if a.ndim == b.ndim:
            groups = offsets.shape
        elif offsets.shape != groups:
            raise IRError(f"{op}: the offsets {offsets} must be one for each of {groups[0]} groups")
    kept = groups if a.ndim == b.ndim else ()
    return (TensorType(a.dtype, (*kept, a.shape[-2], b.shape[-1])),)


def sdpa(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    q, v = tensor(op, types, 0), tensor(op, types, 2)
    return (TensorType(q.dtype, q.shape[:-1] + v.shape[-1:]),)


def sdpa_backward(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    return tuple(TensorType(t.dtype, t.shape) for t in types[1:4] if isinstance(t, TensorType))


def sort(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    return TensorType(x.dtype, x.shape), TensorType(DType.I64, x.shape)


def argsort(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    return sort(op, types, attrs)[1:]


def topk(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    _check_dims(op, (attrs.dim,), x.ndim)
    shape = (*x.shape[: attrs.dim], attrs.k, *x.shape[attrs.dim + 1 :])
    return TensorType(x.dtype, shape), TensorType(DType.I64, shape)


def multinomial(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    x = tensor(op, types, 0)
    if x.ndim not in (1, 2) or not x.dtype.is_float:
        raise IRError(f"{op}: weights are floats of one or two dims, found {x}")
    return (TensorType(DType.I64, (*x.shape[:-1], attrs.samples)),)


def constant(op: str, types: tuple[Type, ...], attrs: Any) -> tuple[Type, ...]:
    return (ScalarType(attrs.dtype),)


def size(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    return (ScalarType(DType.I64),)


def rng_state(op: str, types: tuple[Type, ...], attrs: object) -> tuple[Type, ...]:
    """The two i64 state words that a random op reads: seed and offset, as 0-dim tensors."""
    state = TensorType(DType.I64, ())
    return state, state
