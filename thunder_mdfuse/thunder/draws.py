"""Random numbers as two symbols of our own: a state, and numbers that follow from it.

Thunder's ``uniform`` and ``randn`` draw from torch's generator, so nobody else can draw the same
numbers again. Split in two, the backward pass is given the state of 16 bytes and computes a
dropout's mask anew.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from thunder.core import dtypes
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx

STATE, UNIFORM, NORMAL = "mdfuse_rng_state", "mdfuse_uniform", "mdfuse_normal"


def _state_meta(shape: Any, *, device: Any) -> tuple[TensorProxy, TensorProxy]:
    seed, offset = (TensorProxy(shape=(), device=device, dtype=dtypes.int64) for _ in range(2))
    return seed, offset


def _numbers_meta(shape: Any, *bounds_and_state: Any, device: Any, dtype: Any) -> TensorProxy:
    return TensorProxy(shape=shape, device=device, dtype=dtype)


_ROUGH = (dtypes.bfloat16, dtypes.float16)
_state = Symbol(STATE, meta=_state_meta, id=STATE, is_prim=True, tags=(OpTags.RANDOM_OP,))
# By the prim that each stands for; a prim's own arguments come first, then the state.
_NUMBERS = {
    PrimIDs.UNIFORM: Symbol(UNIFORM, meta=_numbers_meta, id=UNIFORM, is_prim=True),
    PrimIDs.RANDN: Symbol(NORMAL, meta=_numbers_meta, id=NORMAL, is_prim=True),
}


def exact_chances(
    leaves: Sequence[BoundSymbol], trace: TraceCtx, outside: set[str]
) -> list[BoundSymbol]:
    """``leaves`` with uniform numbers of a half type in f32 where all that reads them are
    comparisons with a number, and no name of ``outside``.

    A half type has a few hundred numbers in [0, 1): a dropout of 0.1 would drop 0.104.
    """
    drawn = {b.output.name: b for b in leaves if b.sym.id is PrimIDs.UNIFORM}
    rough = {n for n, b in drawn.items() if b.output.dtype in _ROUGH and n not in outside}
    for leaf in leaves:
        compared = leaf.sym.id is PrimIDs.LT and not isinstance(leaf.args[1], TensorProxy)
        if not compared:
            rough -= {p.name for p in leaf.flat_proxy_args}
    fine: dict[str, TensorProxy] = {}
    found: list[BoundSymbol] = []
    for leaf in leaves:
        if leaf.sym.id is PrimIDs.UNIFORM and leaf.output.name in rough:
            with tracectx(trace):
                wide = TensorProxy(like=leaf.output, dtype=dtypes.float32)
            fine[leaf.output.name] = wide
            kwargs = {**leaf.kwargs, "dtype": dtypes.float32}
            leaf = leaf.from_bsym(kwargs=kwargs, output=wide)
        elif any(p.name in fine for p in leaf.flat_proxy_args):
            args = (fine[leaf.args[0].name], *leaf.args[1:])
            leaf = leaf.from_bsym(args=args)
        found.append(leaf)
    return found


def split(leaves: Iterable[BoundSymbol], trace: TraceCtx) -> list[BoundSymbol]:
    """``leaves`` with each draw as a state and its numbers; names are new in ``trace``."""
    found: list[BoundSymbol] = []
    for leaf in leaves:
        symbol = _NUMBERS.get(leaf.sym.id)
        if symbol is None:
            found.append(leaf)
            continue
        shape, device = leaf.args[0], leaf.kwargs["device"]
        with tracectx(trace):
            state = _state_meta(shape, device=device)
        drawn = _state.bind(shape, device=device, output=state)
        numbers = symbol.bind(
            *leaf.args, *state, device=device, dtype=leaf.kwargs["dtype"], output=leaf.output
        )
        found += [new.from_bsym(tags=new.tags | leaf.tags) for new in (drawn, numbers)]
    return found
