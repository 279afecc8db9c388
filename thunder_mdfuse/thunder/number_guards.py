"""Guards on numbers that decide what is traced, under ``cache="symbolic values"``.

Thunder asks in a call's prologue for the tensors' metadata and not for the numbers: a function that
it has composed for ``dim=0`` is called with ``dim=1`` as well. Here the prologue asks for every
number of the user's whose value went into the trace, and a call with another one is traced anew.
Such a number is a constant of its trace from then on. Numbers that are operands stay open, and so
do sizes, but for those by which Thunder composes functions otherwise, or their gradients.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import thunder.torch as ltorch
from thunder import clang
from thunder.core import prims
from thunder.core.interpreter import WrappedValue
from thunder.core.jit_ext import EXT_FLAG_IS_PROXY_DERIVED, JitCtx, get_jit_ctx
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy, proxy
from thunder.core.pytree import tree_flatten_with_dataclass, tree_unflatten
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, get_tracectx, tracectx

from thunder_mdfuse.thunder.deciding import (
    clamped,
    cut,
    deciding,
    dims,
    inner_first,
    kept,
    numbers,
    single,
    squeezed,
)


@dataclass(frozen=True)
class _Taken:
    number: NumberProxy
    is_test: bool = False  # of Thunder's, in a function that it composes
    at: int = 0  # which one that is in the trace


# Numbers of which Python code has taken the values while a function was traced.
_taken: "weakref.WeakKeyDictionary[JitCtx, list[_Taken]]" = weakref.WeakKeyDictionary()


def taken(p: NumberProxy, convert: Callable[[NumberProxy], Any]) -> Any:
    """What ``convert`` makes of ``p``, as ``range(p)`` does."""
    _note(p)
    return convert(p)


def tested(p: NumberProxy, convert: Callable[[NumberProxy], Any]) -> Any:
    """What ``convert`` makes of ``p``, as ``if p:`` and ``math.isfinite(p)`` do."""
    _note(p, is_test=not _in_function())
    return convert(p)


def text(p: NumberProxy, convert: Callable[[NumberProxy], str]) -> str:
    """``str(p)``: of the number where the user asks, of the proxy in Thunder's messages."""
    if not _in_function():
        return convert(p)
    _note(p)
    return str(p.value)


def _in_function() -> bool:
    """Whether the function itself runs that is traced, not one of Thunder's that it calls."""
    trace = get_tracectx()
    return trace is not None and len(trace.scopes) == 1


def _note(p: NumberProxy, is_test: bool = False) -> None:
    trace = get_tracectx()
    if trace is None or p.is_dynamic():
        return
    try:
        ctx = get_jit_ctx()
    except LookupError:  # its guards are made
        return
    _taken.setdefault(ctx, []).append(_Taken(p, is_test, len(trace.scopes[0])))


def guard(ctx: JitCtx, trace: TraceCtx) -> None:
    """Have the prologue ask for the numbers whose values went into ``trace``, and for the sizes
    that are more to it than sizes.
    """
    tensors = _tensors(ctx)
    sizes = _sizes(tensors)
    origins = _Origins(trace, sizes)
    differentiated = any(p.requires_grad for p in tensors)
    taken = _taken.pop(ctx, [])
    found = [t.number for t in taken]
    closed = [t.number for t in taken if not t.is_test or _chooses(t, trace, origins)]
    for bsym in filter(_has_form, trace.bound_symbols):
        found += deciding(bsym)
        if _is_closed(bsym):
            closed += [d for p in bsym.flat_proxy_args for d in dims(p)]
        if differentiated and any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_args):
            closed += deciding(bsym)
    for bsym in inner_first(trace.bound_symbols):
        closed += squeezed(bsym) + kept(bsym) + clamped(bsym)
        if differentiated:
            closed += cut(bsym) + single(bsym)
    asked = origins.of(closed) + [p for p in origins.of(found) if p.name not in sizes]
    for p in asked:
        ctx.add_constraint((clang.check_number_type_and_value, p, p.value))


_ORDER = (PrimIDs.LT, PrimIDs.LE, PrimIDs.GT, PrimIDs.GE)
# Functions that compare sizes only to see whether they are called rightly, or of which ``clamped``
# knows what they compare them for.
_COMPARING = frozenset([ltorch.getitem.id, ltorch.arange.id])


def _chooses(test: _Taken, trace: TraceCtx, origins: "_Origins") -> bool:
    """Whether a function of Thunder's may be composed otherwise for what a test has found. What
    sizes are equal, or 1, is found by a region in each call anew.
    """
    maker = origins.maker(test.number)
    if maker is None or maker.sym.id not in _ORDER or test.at >= len(trace.bound_symbols):
        return False
    a, b = maker.args
    if type(b) in (int, float) and b == 0 and origins.is_size(a):
        return False
    return trace.bound_symbols[test.at].sym.id not in _COMPARING


class _Origins:
    """What numbers are computed of: the user's numbers, and the sizes of the inputs."""

    def __init__(self, trace: TraceCtx, sizes: set[str]) -> None:
        self._sizes = sizes
        self._makers: dict[str, BoundSymbol] = {}
        for bsym in inner_first(trace.bound_symbols):
            for p in bsym.flat_proxy_outs:
                for number in (*numbers([p]), *dims(p)):
                    self._makers.setdefault(number.name, bsym)

    def maker(self, number: NumberProxy) -> BoundSymbol | None:
        """The symbol that computes ``number``; None for the user's."""
        return self._makers.get(number.name)

    def is_size(self, number: Any) -> bool:
        """Whether it is computed of sizes so that it cannot be negative."""
        if not isinstance(number, NumberProxy):
            return bool(number >= 0)
        maker = self._makers.get(number.name)
        if maker is None:
            return number.name in self._sizes
        if maker.sym.id in (PrimIDs.MUL, PrimIDs.ADD, PrimIDs.PY_FLOORDIV):
            return all(map(self.is_size, maker.args))
        return maker.sym.id is PrimIDs.SHAPE or any(map(dims, maker.flat_proxy_outs))

    def of(self, wanted: Sequence[NumberProxy]) -> list[NumberProxy]:
        """The inputs that ``wanted`` are, or are computed of."""
        left, seen, found = list(wanted), set[str](), []
        while left:
            p = left.pop()
            if p.name in seen or p.is_dynamic():
                continue
            seen.add(p.name)
            maker = self._makers.get(p.name)
            if p.history is not None:
                found.append(p)
            elif maker is not None:
                left += numbers(maker.flat_proxy_args)
                left += [d for q in maker.flat_proxy_args for d in dims(q)]
        return found


def _has_form(bsym: BoundSymbol) -> bool:
    """Whether a symbol computes tensors; the host computes its numbers anew in each call."""
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    tensors = any(isinstance(p, TensorProxy) for p in proxies)
    return tensors and bsym.sym.id is not PrimIDs.RETURN


def _is_closed(bsym: BoundSymbol) -> bool:
    """Whether a function of torch's ran for its results' sizes, which are constants thereby."""
    if bsym.subsymbols or isinstance(bsym.sym.id, PrimIDs):
        return False
    tensors = [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]
    return any(p.ndim and not dims(p) for p in tensors)


def _tensors(ctx: JitCtx) -> list[TensorProxy]:
    return [c[1] for c in ctx._constraints if c[0] is clang.check_tensor_shape_and_metadata]


def _sizes(tensors: Sequence[TensorProxy]) -> set[str]:
    return {d.name for p in tensors for d in dims(p)}


def is_open(value: Any) -> bool:
    """Whether an argument can be another one in the next call: a number, but neither a flag nor one
    of a class of the user's.
    """
    return type(value) in (int, float, complex)


def ask_for_value(ctx: JitCtx, value: WrappedValue) -> Proxy:
    """Have the prologue ask for what an argument is, which is a constant of the trace, as under
    ``cache="constant values"``. Thunder would give the function a proxy, which is not ``True``.
    """
    value.provenance.ext_flag |= EXT_FLAG_IS_PROXY_DERIVED
    p: Proxy = proxy(value.value, history=value.provenance)
    check = next(check for kind, check in _CHECKS.items() if isinstance(value.value, kind))
    ctx.add_constraint((check, p, value.value))
    return p


_CHECKS = {
    str: clang.check_string_value,
    slice: clang.check_slice_value,
    object: clang.check_number_type_and_value,
}


def ask_for_type(ctx: JitCtx, p: NumberProxy) -> None:
    """Have the prologue ask for the type of an open number."""
    ctx.add_constraint((clang.check_type, p, p.python_type))


def settle(ctx: JitCtx, trace: TraceCtx) -> None:
    """Put the values of the user's numbers that the prologue asks for, and of what follows from
    them, into ``trace``.
    """
    sizes = _sizes(_tensors(ctx))
    known = {
        c[1].name: c[2]
        for c in ctx._constraints
        if c[0] is clang.check_number_type_and_value and c[1].name not in sizes
    }
    if known:
        trace.bound_symbols = [_settled(bsym, known) for bsym in trace.bound_symbols]
        _replaced(tuple(ctx._proxy_swapmap.values()), known)
    # A number would get the name of the variable that it is in, but not where it is a tensor's
    # size, nor in the backward pass of an autograd.Function.
    for variable, p in list(ctx._proxy_swapmap.items()):
        if isinstance(p, NumberProxy):
            del ctx._proxy_swapmap[variable]


def _settled(bsym: BoundSymbol, known: dict[str, Any]) -> BoundSymbol:
    """``bsym`` with what is ``known``, which gets the numbers that follow."""
    if bsym.sym.id is PrimIDs.RETURN or _follows(bsym, known):
        return bsym
    args, kwargs, output = _replaced((bsym.args, bsym.kwargs, bsym.output), known)
    inner = [_settled(sub, known) for sub in bsym.subsymbols if not _follows(sub, known)]
    return bsym.from_bsym(args=args, kwargs=kwargs, output=output, subsymbols=inner)


def _follows(bsym: BoundSymbol, known: dict[str, Any]) -> bool:
    """Whether a symbol's numbers are known by those that it is given; ``known`` gets them. Only
    what the function returns reads them then.
    """
    given = bsym.flat_proxy_args
    if not given or _has_form(bsym) or not all(p.name in known for p in given):
        return False
    known.update((p.name, p.value) for p in numbers(bsym.flat_proxy_outs))
    return True


def _replaced(tree: Any, known: dict[str, Any]) -> Any:
    leaves, spec = tree_flatten_with_dataclass(tree)
    found: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, TensorProxy) and any(d.name in known for d in dims(leaf)):
            shape = (known.get(d.name, d) if isinstance(d, NumberProxy) else d for d in leaf._shape)
            with tracectx(TraceCtx()):  # where the name is free
                changed = leaf.replace(shape=tuple(shape))
            leaf._shape, leaf._numel = changed._shape, changed._numel
        found.append(known.get(leaf.name, leaf) if isinstance(leaf, NumberProxy) else leaf)
    return tree_unflatten(found, spec)


def floor(p: NumberProxy, original: Callable[[NumberProxy], Any]) -> Any:
    """The largest integer not above ``p``: Thunder's, ``original``, converts to an integer first,
    and then no executor has it.
    """
    if p.python_type is not float:
        return original(p)
    return prims.convert_element_type(prims.py_floordiv(p, 1.0), int)


def ceil(p: NumberProxy, original: Callable[[NumberProxy], Any]) -> Any:
    """The smallest integer not below ``p``; as ``floor``."""
    if p.python_type is not float:
        return original(p)
    return prims.neg(floor(prims.neg(p), original))
