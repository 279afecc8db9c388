"""``fd.ops``: reductions, variances and scans.

``dims`` is one dim, a list of dims (negative ones count from the end), or left out for all.
Integers and bools are summed and multiplied in Int, as torch does.
"""

from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.direct.dtypes import AnyDType, DataType, is_exact, wanted
from thunder_mdfuse.direct.elementwise import apply, common
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.table import entered, op
from thunder_mdfuse.direct.values import TensorView
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.types import DType

Dims = int | Sequence[int] | None
_REDUCTIONS = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}
_SCANS = {"cumsum": "add", "cumprod": "mul", "cummax": "maximum", "cummin": "minimum"}


def dim_of(dim: Any, ndim: int) -> int:
    """``dim`` counted from the front. Raises ``DefinitionError`` when there is no such dim."""
    least = max(ndim, 1)
    if type(dim) is not int or not -least <= dim < least:
        raise DefinitionError(f"dim {dim!r} found, a tensor of {ndim} dims has no such dim")
    return dim % least


def dims_of(dims: Dims, ndim: int) -> tuple[int, ...]:
    """``dims`` ascending and from the front; torch lets a 0-dim tensor have a dim 0."""
    if dims is None:
        return tuple(range(ndim))
    listed = [dims] if isinstance(dims, int) else list(dims)
    found = sorted(dim_of(d, ndim) for d in listed)
    if len(set(found)) != len(found):
        raise DefinitionError(f"dims {listed} name a dim twice")
    return tuple(found) if ndim else ()


def kept(s: Scope, reduced: TensorView, x: TensorView, dims: tuple[int, ...]) -> TensorView:
    """``reduced`` with the reduced ``dims`` of ``x`` as dims of size 1."""
    shape = tuple(1 if d in dims else size for d, size in enumerate(x.type.shape))
    return s.broadcast(reduced, shape, tuple(d for d in range(x.ndim) if d not in dims))


def _enter_reduction(ours: str, name: str) -> None:
    def build(
        s: Scope,
        arg: Any,
        dims: Dims | AnyDType = None,
        keepdim: bool = False,
        dtype: AnyDType = DataType.Null,
    ) -> TensorView:
        if dims is not None and not isinstance(dims, int | Sequence):
            dtype, dims = dims, None  # the overload (arg, dtype)
        x, to = s.tensor(arg), wanted(dtype)
        if to is None and ours in ("sum", "prod") and is_exact(x.type.dtype):
            to = DType.I64
        x = s.cast(x, to or x.type.dtype)
        reduced = dims_of(dims, x.ndim)
        found: TensorView = s.op(name, (x,), at.DimsAttrs(reduced))
        return kept(s, found, x, reduced) if keepdim else found

    entered(ours, f"The ``{ours}`` over ``dims``, computed in ``dtype`` where one is given.", build)


def _enter_scan(ours: str, combine: str) -> None:
    def build(s: Scope, arg: Any, dim: int, init: Any = None) -> TensorView:
        x = s.tensor(arg)
        if ours in ("cumsum", "cumprod") and is_exact(x.type.dtype):
            x = s.cast(x, DType.I64)
        along = dim_of(dim, x.ndim)
        if not x.ndim:
            found = s.op("copy", (x,), at.CopyAttrs())
        else:
            found = s.op(ours, (x,), at.DimAttrs(along))
        return found if init is None else s.tensor(apply(s, combine, common(s, (found, init))))

    entered(ours, f"``{ours}`` along ``dim``; ``init`` comes before the first element.", build)


for _row in _REDUCTIONS.items():
    _enter_reduction(*_row)
for _row in _SCANS.items():
    _enter_scan(*_row)


def _float(s: Scope, arg: Any) -> TensorView:
    x = s.tensor(arg)
    if is_exact(x.type.dtype):
        raise DefinitionError(f"a tensor of floats is needed, found {x!r}; cast it")
    return x


@op
def var(
    s: Scope, arg: Any, dims: Dims = None, correction: float = 1, keepdim: bool = False
) -> TensorView:
    """The variance over ``dims``, divided by the number of elements less ``correction``."""
    x = _float(s, arg)
    reduced = dims_of(dims, x.ndim)
    by = float(s.integer(correction, "the correction"))
    found: TensorView = s.op("var", (x,), at.VarAttrs(reduced, by))
    return kept(s, found, x, reduced) if keepdim else found


@op
def var_mean(
    s: Scope, arg: Any, dims: Dims = None, correction: float = 1, keepdim: bool = False
) -> tuple[TensorView, TensorView]:
    """``var`` and the mean over ``dims``."""
    x = _float(s, arg)
    reduced = dims_of(dims, x.ndim)
    by = float(s.integer(correction, "the correction"))
    squares, mean = s.op("var_mean", (x,), at.VarAttrs(reduced, by))
    if not keepdim:
        return squares, mean
    return kept(s, squares, x, reduced), kept(s, mean, x, reduced)


@op
def welford(s: Scope, arg: Any, dims: Dims) -> tuple[TensorView, TensorView, TensorView]:
    """The mean, the sum of squared distances from it, and the number of elements (Int)."""
    x = _float(s, arg)
    if x.type.dtype.is_complex:
        raise DefinitionError(f"a tensor of real floats is needed, found {x!r}")
    reduced = dims_of(dims, x.ndim)
    dtype, wide = x.type.dtype, s.widened(x)
    count = s.size_value(sizes.product(x.type.shape[d] for d in reduced))
    total = s.op("sum", (wide,), at.DimsAttrs(reduced))
    mean = s.op("div", (total, count))
    spread = s.broadcast(kept(s, mean, x, reduced), x.type.shape)
    distance = s.op("sub", (wide, spread))
    squares = s.op("sum", (s.op("mul", (distance, distance)),), at.DimsAttrs(reduced))
    number = s.full(count, mean.type.shape, DType.I64)
    return s.cast(mean, dtype), s.cast(squares, dtype), number
