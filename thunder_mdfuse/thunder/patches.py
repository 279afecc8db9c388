"""The private places of Thunder 0.2 that are changed for DTensors; each is changed once.

Without them the rest works: then the sum of two gradients of one DTensor, and a cotangent whose
placements differ from the result's, end in Thunder's own error.
"""

from collections.abc import Callable
from typing import Any

import thunder.torch as ltorch
import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import Symbol
from thunder.core.trace import TraceCtx, from_trace
from thunder.extend import FusionExecutor
from thunder.torch.experimental import dtensor_utils
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.thunder import dtensor_twins as twins

# Called by Thunder itself with whatever a user has: in autodiff, and for a proxy's comparisons.
_CALLED_DIRECTLY = ("add", "eq", "ne", "lt", "le", "gt", "ge", "abs")
_ALIGN = "mdfuse_align_cotangent"


def apply(executor: FusionExecutor) -> None:
    """Change Thunder, for jits that name ``executor``."""
    for name in _CALLED_DIRECTLY:
        symbol = getattr(ltorch, name)
        if not hasattr(symbol.meta, "mdfuse"):
            object.__setattr__(symbol, "meta", _meta(executor, name, symbol))
    dtensor_utils.check_dtensor_cotangent_metadata_in_backward = _with_aligned_cotangents


def _meta(executor: FusionExecutor, name: str, symbol: Symbol) -> Callable[..., Any]:
    meta, function = symbol.meta, getattr(torch, name)

    def found(*args: Any, **kwargs: Any) -> Any:
        data = get_compile_data()
        ours = data is not None and executor in data.executors_list
        if ours and any(isinstance(x, DTensorProxy) for x in tree_flatten((args, kwargs))[0]):
            return twins.call(executor, function, symbol, args, kwargs)
        return meta(*args, **kwargs)

    found.__wrapped__, found.mdfuse = meta, True  # type: ignore[attr-defined]
    return found


def aligned(x: torch.Tensor, spec: DTensorSpec) -> DTensor:
    """A cotangent with the traced placements; plain zeros stand for one that is unused."""
    if not isinstance(x, DTensor):
        whole = twins.replicated(spec.mesh)
        x = DTensor.from_local(x, spec.mesh, whole, run_check=False)
    if tuple(x.placements) != tuple(spec.placements):
        x = x.redistribute(placements=spec.placements)
    return x


def _with_aligned_cotangents(backward: TraceCtx) -> TraceCtx:
    symbol = Symbol(
        name=_ALIGN,
        meta=lambda x, spec: x,
        _bind_postprocess=lambda b: setattr(b, "_call_ctx", {_ALIGN: aligned}),
    )
    found = from_trace(backward)
    for bsym in backward.bound_symbols:
        found.bound_symbols.append(bsym)
        if bsym.sym.id is PrimIDs.UNPACK_SEQUENCE and bsym.args[0].name == "cotangents":
            for p in bsym.args[0].collection():
                if isinstance(p, TensorProxy) and isinstance(p, DTensorProxy):
                    found.bound_symbols.append(symbol.bind(p, p.spec._o, output=p))
    return found
