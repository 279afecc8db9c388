"""``fd.ops``: by index, sorted, filled and random.

Indices are Int or Int32 tensors within range; a negative one is not counted from the end.
"""

from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.direct.dtypes import AnyDType, DataType, ir_dtype
from thunder_mdfuse.direct.reductions import dim_of
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.shapes import cut
from thunder_mdfuse.direct.table import entered, op
from thunder_mdfuse.direct.values import Scalar, TensorView
from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType


def _index(s: Scope, index: Any) -> TensorView:
    """An index tensor in Int, which is what torch indexes with."""
    x = s.tensor(index, "the index")
    if x.type.dtype not in (DType.I64, DType.I32):
        raise DefinitionError(f"the index must be Int or Int32, found {x!r}")
    return s.cast(x, DType.I64)


def _along(x: TensorView, dim: int) -> int:
    if not x.ndim:
        raise DefinitionError("a tensor with at least one dim is needed, found a 0-dim one")
    return dim_of(dim, x.ndim)


@op
def index_select(s: Scope, arg: Any, index: Any, dim: int) -> TensorView:
    """The slices of ``arg`` along ``dim`` that the 1-dim ``index`` names."""
    x, where_from = s.tensor(arg), _index(s, index)
    if where_from.ndim > 1:
        raise DefinitionError(f"the index must have one dim, found {where_from!r}")
    if not where_from.ndim:
        where_from = s.reshape(where_from, (1,))
    found: TensorView = s.op("take", (x, where_from), at.DimAttrs(_along(x, dim)))
    return found


@op
def select(s: Scope, arg: Any, index: Any, dim: int) -> TensorView:
    """``arg`` at the number ``index`` along ``dim``, which goes; negative from the end.

    A view for an index that is known or is a size, else a copy.
    """
    x, number = s.tensor(arg), s.scalar(index)
    along = _along(x, dim)
    if number.ir_dtype is not DType.I64:
        raise DefinitionError(f"the index must be an integer, found {number!r}")
    if number.size is None:
        return _selected(s, x, number, along)
    start = number.size
    if isinstance(start, int) and start < 0:
        start = sizes.add(x.type.shape[along], start)
    one = cut(s, x, along, start, sizes.add(start, 1))
    found: TensorView = s.op("squeeze", (one,), at.DimsAttrs((along,)))
    return found


def _selected(s: Scope, x: TensorView, number: Scalar, along: int) -> TensorView:
    size = s.size_value(x.type.shape[along])
    zero = s.scalar(0)
    behind = s.number_op("add", (number, size))
    number = s.number_op("where", (s.number_op("lt", (number, zero)), behind, number))
    taken = s.op("take", (x, s.full(number, (1,), DType.I64)), at.DimAttrs(along))
    found: TensorView = s.op("squeeze", (taken,), at.DimsAttrs((along,)))
    return found


@op
def gather(s: Scope, arg: Any, index: Any, dim: int) -> TensorView:
    """``torch.gather``: the element of ``arg`` at each place of ``index``, which names ``dim``."""
    x, where_from = s.tensor(arg), _index(s, index)
    _same_rank(x, where_from)
    found: TensorView = s.op("gather", (x, where_from), at.DimAttrs(_along(x, dim)))
    return found


def _same_rank(x: TensorView, index: TensorView) -> None:
    if x.ndim != index.ndim:
        raise DefinitionError(f"an index of {x.ndim} dims is needed, found {index!r}")


@op
def take_along_axis(s: Scope, arg: Any, index: Any, dim: int) -> TensorView:
    """As ``gather``, with the dims other than ``dim`` broadcast together."""
    x, where_from = s.tensor(arg), _index(s, index)
    _same_rank(x, where_from)
    along = _along(x, dim)
    for d in range(x.ndim):
        if d != along and 1 not in (x.type.shape[d], where_from.type.shape[d]):
            s.require(where_from, d, x.type.shape[d])
    pairs = list(zip(x.type.shape, where_from.type.shape, strict=True))
    other = [b if a == 1 else a for a, b in pairs]
    wanted = [
        tuple(pairs[d][which] if d == along else other[d] for d in range(x.ndim))
        for which in (0, 1)
    ]
    operands = (s.broadcast(x, wanted[0]), s.broadcast(s.fitted(where_from, wanted[1]), wanted[1]))
    found: TensorView = s.op("take_along_axis", operands, at.DimAttrs(along))
    return found


@op
def scatter(s: Scope, arg: Any, index: Any, src: Any, dim: int) -> TensorView:
    """A copy of ``arg`` with ``src`` (a tensor or a number) at the places that ``index`` names."""
    x, where_to = s.tensor(arg), _index(s, index)
    _same_rank(x, where_to)
    what = s.operand(src)
    if isinstance(what, Scalar):
        what = s.full(what, where_to.type.shape, x.type.dtype)
    what = s.cast(what, x.type.dtype)
    found: TensorView = s.op("scatter", (x, where_to, what), at.DimAttrs(_along(x, dim)))
    return found


@op
def topk(
    s: Scope, arg: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = False
) -> tuple[TensorView, TensorView]:
    """The ``k`` largest (or smallest) values along ``dim``, and their indices (Int)."""
    x = s.tensor(arg)
    attrs = at.TopkAttrs(s.size(k), _along(x, dim), bool(largest), bool(sorted))
    values, indices = s.op("topk", (x,), attrs)
    return values, indices


@op
def argsort(
    s: Scope, arg: Any, dim: int = -1, descending: bool = False, stable: bool = False
) -> TensorView:
    """The indices (Int) that sort ``arg`` along ``dim``."""
    x = s.tensor(arg)
    attrs = at.SortAttrs(_along(x, dim), bool(descending), bool(stable))
    found: TensorView = s.op("argsort", (x,), attrs)
    return found


@op
def embedding_fwd(
    s: Scope,
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: Any = None,
    scale_grad_by_freq: Any = None,
    sparse: Any = None,
) -> TensorView:
    """The rows of ``weight`` that ``input`` names. What concerns gradients alone is not used."""
    if max_norm is not None:
        raise DefinitionError(
            "max_norm would rescale rows of the weight in place; rescale them with ops, and write "
            "the result with fd.add_output(rescaled, weight)"
        )
    operands = (_index(s, input), s.tensor(weight, "the weight"))
    padding = None if padding_idx is None else s.integer(padding_idx, "padding_idx")
    attrs = at.EmbeddingAttrs(None if padding is None or padding < 0 else padding)
    found: TensorView = s.op("embedding", operands, attrs)
    return found


@op
def iota(
    s: Scope, length: Any, start: Any = None, step: Any = None, dtype: AnyDType = DataType.Int
) -> TensorView:
    """``start + i * step`` (0 and 1) for ``i`` below ``length``."""
    first = s.scalar(0 if start is None else start)
    by = s.scalar(1 if step is None else step)
    attrs = at.FactoryAttrs((s.size(length),), ir_dtype(dtype))
    found: TensorView = s.op("iota", (first, by), attrs)
    return found


@op
def full(s: Scope, shape: Sequence[Any], fill_value: Any, dtype: AnyDType) -> TensorView:
    """A tensor of ``shape`` filled with the number ``fill_value``."""
    return s.full(s.scalar(fill_value), s.sizes(shape), ir_dtype(dtype))


@op
def uniform(
    s: Scope,
    minval: Any,
    maxval: Any,
    shape: Sequence[Any],
    *,
    rng_seed: Any = None,
    rng_offset: Any = None,
    dtype: AnyDType = DataType.Float,
) -> TensorView:
    """Random numbers in [``minval``, ``maxval``).

    Equal ``rng_seed`` and ``rng_offset`` (both or neither) give equal numbers; without them they
    come from the device's generator.
    """
    to, sized = _random_dtype(dtype), s.sizes(shape)
    low, high = s.scalar(minval), s.scalar(maxval)
    state = random_state(s, sized, rng_seed, rng_offset)
    if low.is_symbolic() or high.is_symbolic():
        drawn = s.op("uniform", state, at.PhiloxAttrs(sized, to.compute))
        width = s.number_op("sub", (high, low))
        moved = s.op("add", (s.op("mul", (drawn, width)), low))
        return s.cast(s.tensor(moved), to)
    least, most = (float(s.number(b, "a bound").real) for b in (low, high))
    found: TensorView = s.op("uniform", state, at.PhiloxAttrs(sized, to, least, most))
    return found


@op
def normal(
    s: Scope,
    mean: Any,
    std: Any,
    shape: Sequence[Any],
    *,
    rng_seed: Any = None,
    rng_offset: Any = None,
    dtype: AnyDType = DataType.Float,
) -> TensorView:
    """Normal random numbers of ``mean`` and ``std``; seed and offset as for ``uniform``."""
    to, sized = _random_dtype(dtype), s.sizes(shape)
    state = random_state(s, sized, rng_seed, rng_offset)
    drawn = s.op("normal", state, at.PhiloxAttrs(sized, to.compute))
    spread = s.op("mul", (drawn, s.scalar(std)))
    return s.cast(s.tensor(s.op("add", (spread, s.scalar(mean)))), to)


def _random_dtype(dtype: AnyDType) -> DType:
    to = ir_dtype(dtype)
    if not to.is_float or to.itemsize == 1:
        raise DefinitionError(f"random numbers are Double, Float, Half or BFloat16, found {dtype}")
    return to


def random_state(
    s: Scope, shape: tuple[Size, ...], seed: Any, offset: Any
) -> tuple[TensorView, TensorView]:
    """Seed and offset as 0-dim tensors: the author's, or a new draw of the generator."""
    if (seed is None) != (offset is None):
        raise DefinitionError("rng_seed and rng_offset are needed together, found only one")
    if seed is None:
        attrs = at.RngAttrs(s.draws, sizes.product(shape))
        s.draws += 1
        drawn: tuple[TensorView, TensorView] = s.op("rng_state", (), attrs)
        return drawn
    return _word(s, seed), _word(s, offset)


def _word(s: Scope, x: Any) -> TensorView:
    value = s.operand(x)
    if isinstance(value, Scalar):
        return s.full(value, (), DType.I64)
    if value.ndim:
        raise DefinitionError(f"a number or a 0-dim Int tensor is needed, found {value!r}")
    return s.cast(value, DType.I64)


def _enter_random_like(ours: str, name: str) -> None:
    def build(s: Scope, arg: Any) -> TensorView:
        x = s.tensor(arg)
        if not x.type.dtype.is_float or x.type.dtype.itemsize == 1:
            raise DefinitionError(f"random numbers are floats, found {x!r}; cast it")
        shape = x.type.shape
        attrs = at.PhiloxAttrs(shape, x.type.dtype)
        found: TensorView = s.op(name, random_state(s, shape, None, None), attrs)
        return found

    entered(ours, f"Random numbers (``{name}``) of the shape and dtype of ``arg``.", build)


for _row in (("rand_like", "uniform"), ("randn_like", "normal")):
    _enter_random_like(*_row)
