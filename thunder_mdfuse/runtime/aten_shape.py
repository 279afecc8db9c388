"""Rows of the torch-call table: views, copies, rearrangements, reductions, scans, factories."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir.chunks import chunk_size, chunk_start
from thunder_mdfuse.ir.sizes import evaluate
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime import philox
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES

Args = Sequence[Any]
Row = Callable[..., tuple[Any, ...]]
ROWS: dict[str, Row] = {}


def one(function: Callable[[Args, Any, Sequence[DType], Any], Any]) -> Row:
    """A row whose function returns its only result."""
    return lambda args, attrs, dtypes, device=None: (function(args, attrs, dtypes, device),)


def _broadcast_in_dim(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    (x,) = args
    if not isinstance(x, torch.Tensor):
        x = torch.tensor(x, dtype=TORCH_DTYPES[dtypes[0]], device=device)
    if not x.ndim and all(size == 1 for size in attrs.shape):
        return x.view(attrs.shape)
    front = attrs.dims[0] if attrs.dims else len(attrs.shape)
    for d in range(front, len(attrs.shape)):
        if d not in attrs.dims:
            x = x.unsqueeze(d - front)
    return x.expand(attrs.shape)


def _slice(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    spans = zip(attrs.starts, attrs.ends, attrs.steps, strict=True)
    found: torch.Tensor = args[0][tuple(slice(*span) for span in spans)]
    return found


def _copy(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x: torch.Tensor = args[0]
    order = attrs.order
    if order is None:
        return x.clone()
    memory_format = _FORMATS.get(order)
    if order == tuple(range(x.ndim)):
        memory_format = torch.contiguous_format
    if memory_format is not None:
        if attrs.reuse:
            return x.contiguous(memory_format=memory_format)
        return x.clone(memory_format=memory_format)
    if attrs.reuse and x.permute(order).is_contiguous():
        return x
    inner = x.permute(order).clone(memory_format=torch.contiguous_format)
    return inner.permute(tuple(order.index(d) for d in range(x.ndim)))


_FORMATS = {(0, 2, 3, 1): torch.channels_last, (0, 2, 3, 4, 1): torch.channels_last_3d}


def _pad(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x: torch.Tensor = args[0]
    value = args[1]
    if not x.ndim:
        return x.clone()
    value = value.item() if isinstance(value, torch.Tensor) else value
    pairs = [n for d in reversed(range(x.ndim)) for n in (attrs.low[d], attrs.high[d])]
    if x.dtype.is_complex or isinstance(value, complex):
        # functional.pad has no complex values: pad with zeros, then fill what was added.
        padded = functional.pad(x, pairs)
        added = functional.pad(torch.zeros_like(x, dtype=torch.bool), pairs, value=True)
        return padded.masked_fill_(added, value)
    return functional.pad(x, pairs, value=value)


def _flip(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    return torch.flip(args[0], attrs.dims)


def _cat(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    return torch.cat(tuple(args), attrs.dim)


def _chunk(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    """This position's part, cut out and cloned as DTensor does."""
    x: torch.Tensor = args[0]
    position = _position(attrs)
    n, parts, first = x.size(attrs.dim), [], 0
    for j in range(attrs.split):
        whole = evaluate(chunk_size(n, attrs.split, j), {}) if attrs.split > 1 else n
        start = evaluate(chunk_start(whole, attrs.ranks, position), {})
        length = evaluate(chunk_size(whole, attrs.ranks, position), {})
        parts.append(x.narrow(attrs.dim, first + start, length))
        first += whole
    return parts[0].clone() if len(parts) == 1 else torch.cat(parts, attrs.dim)


def _position(attrs: Any) -> int:
    if attrs.position is None:
        raise ProgramError(
            f"this rank's position along {attrs.team!r} is not known; give @{attrs.team} a value, "
            "or pass the DeviceMesh that the program runs on"
        )
    position: int = attrs.position
    return position


def _keep_first(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    """Replicate -> Partial: what reduces to the value when every position has its own of these."""
    x: torch.Tensor = args[0]
    neutral = {"sum": 0, "product": 1}.get(attrs.op)
    if _position(attrs) == 0 or neutral is None:
        return x.clone(memory_format=torch.contiguous_format)
    return torch.full_like(x, neutral, memory_format=torch.contiguous_format)


ROWS["broadcast_in_dim"] = one(_broadcast_in_dim)
ROWS["permute"] = one(lambda args, attrs, dtypes, device: args[0].permute(attrs.dims))
ROWS["squeeze"] = one(lambda args, attrs, dtypes, device: args[0].squeeze(attrs.dims))
ROWS["slice"] = one(_slice)
ROWS["unfold"] = one(
    lambda args, attrs, dtypes, device: args[0].unfold(attrs.dim, attrs.size, attrs.step)
)
ROWS["reshape"] = one(lambda args, attrs, dtypes, device: args[0].reshape(attrs.shape))
ROWS["copy"] = one(_copy)
ROWS["pad"] = one(_pad)
ROWS["flip"] = one(_flip)
ROWS["cat"] = one(_cat)
ROWS["chunk"] = one(_chunk)
ROWS["keep_first"] = one(_keep_first)


def _some_dims(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Torch reads "no dims" as "all dims": reduce a new dim of one element instead."""
    return (x, dims) if dims else (x.unsqueeze(-1), (x.ndim,))


def _sum(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    x, dims = _some_dims(args[0], attrs.dims)
    return torch.sum(x, dims, dtype=TORCH_DTYPES[dtypes[0]])


def _prod(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    """Torch's prod takes one dim, so several are first made one."""
    x, dims = _some_dims(args[0], attrs.dims)
    kept = [d for d in range(x.ndim) if d not in dims]
    one_dim = x.permute(*kept, *dims).flatten(len(kept)) if len(dims) > 1 else x
    return torch.prod(
        one_dim, len(kept) if len(dims) > 1 else dims[0], dtype=TORCH_DTYPES[dtypes[0]]
    )


def _extreme(name: str) -> Row:
    """amax, amin. Of an empty shard they are what changes no maximum or minimum beside it; that
    the whole is not empty the type rule has seen.
    """
    function = getattr(torch, name)

    def call(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
        x, dims = _some_dims(args[0], attrs.dims)
        if math.prod(x.size(d) for d in dims):
            found: torch.Tensor = function(x, dims)
            return found
        shape = [n for d, n in enumerate(x.shape) if d not in dims]
        return x.new_full(shape, _least(x.dtype) if name == "amax" else _most(x.dtype))

    return one(call)


def _least(dtype: torch.dtype) -> bool | int | float:
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype == torch.bool else torch.iinfo(dtype).min


def _most(dtype: torch.dtype) -> bool | int | float:
    if dtype.is_floating_point:
        return math.inf
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _var_mean(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    x, dims = _some_dims(args[0], attrs.dims)
    count = math.prod(x.size(d) for d in dims)
    if x.numel() and count > attrs.correction:
        return torch.var_mean(x, dims, correction=attrs.correction)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "degrees of freedom is <= 0"
        return torch.var_mean(x, dims, correction=attrs.correction)


ROWS["sum"] = one(_sum)
ROWS["prod"] = one(_prod)
ROWS["amax"] = _extreme("amax")
ROWS["amin"] = _extreme("amin")
ROWS["var"] = lambda args, attrs, dtypes, device=None: _var_mean(args, attrs, dtypes)[:1]
ROWS["var_mean"] = _var_mean
ROWS["argmax"] = one(lambda args, attrs, dtypes, device: torch.argmax(args[0], attrs.dim))
ROWS["argmin"] = one(lambda args, attrs, dtypes, device: torch.argmin(args[0], attrs.dim))
ROWS["cumsum"] = one(
    lambda args, attrs, dtypes, device: torch.cumsum(
        args[0], attrs.dim, dtype=TORCH_DTYPES[dtypes[0]]
    )
)
ROWS["cumprod"] = one(
    lambda args, attrs, dtypes, device: torch.cumprod(
        args[0], attrs.dim, dtype=TORCH_DTYPES[dtypes[0]]
    )
)

ROWS["cummax"] = one(lambda args, attrs, dtypes, device: torch.cummax(args[0], attrs.dim).values)
ROWS["cummin"] = one(lambda args, attrs, dtypes, device: torch.cummin(args[0], attrs.dim).values)


def _full(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    value = args[0].item() if isinstance(args[0], torch.Tensor) else args[0]
    return torch.full(attrs.shape, value, dtype=TORCH_DTYPES[attrs.dtype], device=device)


def _iota(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    """``start + i * step``, with the rounding of torch's own arange."""
    start, step = args
    dtype = TORCH_DTYPES[attrs.dtype]
    count = math.prod(attrs.shape)
    if not count or not step:
        return torch.full(attrs.shape, start, dtype=dtype, device=device)
    # Half a step short, so that rounding cannot add an element or lose one.
    end = start + count * step if isinstance(start + step, int) else start + (count - 0.5) * step
    return torch.arange(start, end, step, dtype=dtype, device=device).view(attrs.shape)


def _rng_state(
    args: Args, attrs: Any, dtypes: Sequence[DType], device: torch.device | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A key and a counter offset that no other draw of the device's generator has.

    They are drawn from it, so one step of the generator is enough for any number of elements, and a
    captured graph has new ones at each replay, as all that torch draws.
    """
    made = torch.empty(2, dtype=torch.int64, device=device).random_()
    return made[0], made[1]


def _uniform(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    seed, offset, index = _counters(args, attrs, device)
    return philox.uniform(seed, offset, index, TORCH_DTYPES[attrs.dtype], attrs.low, attrs.high)


def _normal(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    seed, offset, index = _counters(args, attrs, device)
    return philox.normal(seed, offset, index, TORCH_DTYPES[attrs.dtype])


def _counters(
    args: Args, attrs: Any, device: torch.device | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Seed, offset and the linear index of each element."""
    first = args[0]
    where = first.device if isinstance(first, torch.Tensor) else (device or torch.device("cpu"))
    seed, offset = (torch.as_tensor(a, dtype=torch.int64, device=where) for a in args)
    return seed, offset, philox.linear_index(attrs.shape, attrs.whole, attrs.starts, where)


def _randint(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    """What eager torch draws; an operand is there for the order alone."""
    dtype = TORCH_DTYPES[attrs.dtype]
    return torch.randint(attrs.low, attrs.high, attrs.shape, dtype=dtype, device=device)


def _multinomial(args: Args, attrs: Any, dtypes: Sequence[DType], device: Any) -> torch.Tensor:
    weights: torch.Tensor = args[0]
    own = None
    if attrs.seed is not None:
        own = torch.Generator(weights.device).manual_seed(attrs.seed)
    return torch.multinomial(weights, attrs.samples, attrs.replacement, generator=own)


ROWS["randint"] = one(_randint)
ROWS["multinomial"] = one(_multinomial)
ROWS["full"] = one(_full)
ROWS["iota"] = one(_iota)
ROWS["rng_state"] = _rng_state
ROWS["uniform"] = one(_uniform)
ROWS["normal"] = one(_normal)
