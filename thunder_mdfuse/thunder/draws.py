"""Random numbers as two symbols of our own: a state, and numbers that follow from it.

Thunder's ``uniform`` draws from torch's generator, so nobody else can draw the same numbers again.
Split in two, the backward pass is given the state of 16 bytes and computes a dropout's mask anew.
"""

from collections.abc import Iterable
from typing import Any

from thunder.core import dtypes
from thunder.core.prims import OpTags, PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx

STATE, NUMBERS = "mdfuse_rng_state", "mdfuse_uniform"


def _state_meta(shape: Any, *, device: Any) -> tuple[TensorProxy, TensorProxy]:
    seed, offset = (TensorProxy(shape=(), device=device, dtype=dtypes.int64) for _ in range(2))
    return seed, offset


def _numbers_meta(
    shape: Any, low: Any, high: Any, seed: Any, offset: Any, *, device: Any, dtype: Any
) -> TensorProxy:
    return TensorProxy(shape=shape, device=device, dtype=dtype)


_state = Symbol(STATE, meta=_state_meta, id=STATE, is_prim=True, tags=(OpTags.RANDOM_OP,))
_numbers = Symbol(NUMBERS, meta=_numbers_meta, id=NUMBERS, is_prim=True)


def split(leaves: Iterable[BoundSymbol], trace: TraceCtx) -> list[BoundSymbol]:
    """``leaves`` with each ``uniform`` as a state and its numbers; names are new in ``trace``."""
    found: list[BoundSymbol] = []
    for leaf in leaves:
        if leaf.sym.id is not PrimIDs.UNIFORM:
            found.append(leaf)
            continue
        shape, low, high = leaf.args
        device, dtype = leaf.kwargs["device"], leaf.kwargs["dtype"]
        with tracectx(trace):
            state = _state_meta(shape, device=device)
        drawn = _state.bind(shape, device=device, output=state)
        numbers = _numbers.bind(
            shape, low, high, *state, device=device, dtype=dtype, output=leaf.output
        )
        found += [new.from_bsym(tags=new.tags | leaf.tags) for new in (drawn, numbers)]
    return found
