"""Numbers that decide what a function is composed of, and so what its trace is.

Under ``cache="symbolic values"`` one trace serves calls with other numbers. Thunder takes the value
of a dim, a count or a step where it composes a function of others, and of what it has found there
nothing is seen in the trace: whoever reads the number later reads it for the first call alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol

from thunder_mdfuse.thunder.reasons import Reason

# Functions that are composed alike for all numbers among their arguments: these are operands or
# sizes there. They are called so in place as well, with an underscore behind.
_ALIKE_TEXT = """
add sub mul div true_divide floor_divide remainder fmod pow where clamp maximum minimum
eq ne lt le gt ge addcmul addcdiv masked_fill bitwise_and bitwise_or bitwise_xor lerp to
reshape view full full_like zeros zeros_like ones ones_like empty empty_like
"""
_ALIKE = frozenset(_ALIKE_TEXT.split())
# Symbols whose numbers say which dims are meant, or how many: by these a trace has its form.
_BY_DIM = {
    *(PrimIDs.SUM, PrimIDs.PROD, PrimIDs.AMAX, PrimIDs.AMIN, PrimIDs.ARGMAX, PrimIDs.ARGMIN),
    *(PrimIDs.VAR, PrimIDs.VAR_MEAN, PrimIDs.STD, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE, PrimIDs.FLIP),
    *(PrimIDs.CAT, PrimIDs.UNFOLD, PrimIDs.STRIDE_ORDER, PrimIDs.TOPK, PrimIDs.SORT, PrimIDs.TAKE),
    *(PrimIDs.TAKE_ALONG_AXIS, PrimIDs.GATHER, PrimIDs.SCATTER, PrimIDs.SCATTER_ADD),
    *(PrimIDs.INDEX_ADD, PrimIDs.INDEX_COPY),
    *("torch.unsqueeze", "torch.cumsum", "torch.cumprod", "torch.argsort"),
}


def numbers(found: Iterable[Any]) -> list[NumberProxy]:
    """The numbers among ``found`` that are no constants of the trace."""
    return [p for p in found if isinstance(p, NumberProxy)]


def dims(p: Any) -> list[NumberProxy]:
    """The sizes of a tensor that are no constants of the trace."""
    return numbers(p._shape) if isinstance(p, TensorProxy) else []


def inner_first(bsyms: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """All of ``bsyms`` and what they are composed of; a symbol comes after what it is made of."""
    for bsym in bsyms:
        yield from inner_first(bsym.subsymbols)
        yield bsym


def deciding(bsym: BoundSymbol) -> Sequence[NumberProxy]:
    """The numbers among the arguments, no sizes of a tensor there, of which Thunder's composition
    may have taken the value: the dims that are meant, how often something is done.
    """
    if bsym.sym.name.removesuffix("_") in _ALIKE:
        return ()
    found = numbers(bsym.flat_proxy_args)
    if not found:
        return ()
    sizes = {d.name for p in bsym.flat_proxy_args for d in dims(p)}
    return [p for p in found if p.name not in sizes]


def squeezed(bsym: BoundSymbol) -> list[NumberProxy]:
    """The sizes by which ``torch.squeeze`` finds out what it takes away."""
    if bsym.sym.id != ltorch.squeeze.id or not dims(bsym.args[0]):
        return []
    a, chosen = (*bsym.args, *bsym.kwargs.values(), None)[:2]
    if chosen is None:
        return dims(a)
    some = chosen if isinstance(chosen, Sequence) else (chosen,)
    return numbers(a._shape[_value(d)] for d in some)


def kept(bsym: BoundSymbol) -> list[NumberProxy]:
    """The sizes by which a ``reshape`` has nothing to do."""
    idle = any(sub.sym.id is PrimIDs.SHALLOW_COPY for sub in bsym.subsymbols)
    if bsym.sym.id != ltorch.reshape.id or not idle:
        return []
    wanted = tree_flatten((bsym.args[1:], bsym.kwargs))[0]
    pairs = zip(bsym.args[0]._shape, wanted, strict=True)
    return numbers(n for pair in pairs if not _is_same(*pair) for n in pair)


def _is_same(a: Any, b: Any) -> bool:
    return all(isinstance(p, NumberProxy) for p in (a, b)) and a.name == b.name


def clamped(bsym: BoundSymbol) -> list[NumberProxy]:
    """The sizes, and the bounds, of ``a[start:stop]`` where these may be behind the end of a
    shorter tensor, or are so now: Thunder leaves them out of its composition then.
    """
    if bsym.sym.id != ltorch.getitem.id or not dims(bsym.args[0]):
        return []
    a, key = bsym.args
    keys = [k for k in (key if isinstance(key, tuple | list) else (key,)) if k is not None]
    rest = next((i for i, k in enumerate(keys) if k is Ellipsis), None)
    if rest is not None:
        others = sum(map(_dims_of, keys[:rest] + keys[rest + 1 :]))
        keys[rest : rest + 1] = [slice(None)] * (a.ndim - others)
    found: list[NumberProxy] = []
    at = 0
    for k in keys:
        if isinstance(k, slice) and not _is_inside(k, a._shape[at]):
            found += numbers((a._shape[at], k.start, k.stop))
        at += _dims_of(k)
    return found


def _dims_of(key: Any) -> int:
    """How many dims a part of a key is for: a mask's are its own."""
    is_mask = isinstance(key, TensorProxy) and key.dtype is dtypes.bool8
    return int(key.ndim) if is_mask else 1


# Bounds between which there is something for all sizes but 0 and 1.
_INSIDE = ((0, None), (1, None), (-1, None), (0, -1))


def _is_inside(key: slice, size: Any) -> bool:
    bounds = _value(key.start) or 0, _value(key.stop)
    return bounds == (0, None) or (bounds in _INSIDE and _value(size) > 1)


def _value(p: Any) -> Any:
    return p.value if isinstance(p, NumberProxy) else p


def single(bsym: BoundSymbol) -> list[NumberProxy]:
    """The sizes that are 1 now: Thunder's gradients take these for broadcast ones."""
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    return [d for p in proxies for d in dims(p) if d.value == 1]


def cut(bsym: BoundSymbol) -> list[NumberProxy]:
    """The sizes of which a slice leaves something out: Thunder's gradient of it puts in as many
    zeros as it is now.
    """
    if bsym.sym.id is not PrimIDs.SLICE:
        return []
    a, starts, ends, strides = (*bsym.args, None)[:4]
    parts = zip(a._shape, starts, ends, strides or [1] * a.ndim, strict=True)
    return [part[0] for part in parts if isinstance(part[0], NumberProxy) and not _is_whole(*part)]


def _is_whole(size: NumberProxy, start: Any, end: Any, step: Any) -> bool:
    known = type(start) is type(step) is int
    return known and (start, step) == (0, 1) and _is_same(end, size)


def decided_refusal(bsym: BoundSymbol) -> Reason | None:
    """For a symbol that is composed by the value of a number that no guard asks for."""
    for p in deciding(bsym):
        if _may_change(p):
            return Reason(
                f"{bsym.sym.name}: what it is composed of depends on {p.name}, which may be "
                "another number in the next call"
            )
    return None


def dim_refusal(bsym: BoundSymbol) -> Reason | None:
    """For a dim that may be another in the next call under symbolic values."""
    given: tuple[Any, ...] = ()
    if bsym.sym.id in _BY_DIM:
        given = (bsym.args, bsym.kwargs)
    elif bsym.sym.id is PrimIDs.BROADCAST_IN_DIM:
        given = (bsym.args[2:], bsym.kwargs)
    for p in numbers(tree_flatten(given)[0]):
        if _may_change(p):
            return Reason(f"{bsym.sym.name}: the dim {p.name} may be another in the next call")
    if bsym.sym.id == "torch.Tensor.expand":
        # What it makes has names of its own for sizes that are no tensor's.
        made = {d.name for d in dims(bsym.output)}
        for p in deciding(bsym):
            if _may_change(p) and p.name not in made:
                return Reason(f"{bsym.sym.name}: its size {p.name} is no tensor's")
    return None


def _may_change(p: NumberProxy) -> bool:
    return not p.is_static_constrained()
