"""Shorter ways through what Thunder does around a call's prologue and computation.

A call of a function that was traced before looks for its cache entry with a description of the
process's state, and both the computation and what follows it are decorated to run without grad mode
and autocast. That takes the host longer than a small region's kernels take the GPU. Here the usual
case, no autocast and arguments in no containers, is done at once. Whatever is not usual takes
Thunder's own way, and so does a call that no cache entry is for.
"""

import time
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from types import CellType, FunctionType
from typing import Any

import thunder
import torch
from thunder.core.compile_data import reset_compile_data_and_stats, set_compile_data_and_stats
from thunder.core.options import CACHE_OPTIONS
from thunder.executors.torchex import no_autocast

_KEPT = (CACHE_OPTIONS.CONSTANT_VALUES, CACHE_OPTIONS.SYMBOLIC_VALUES)
_PLAIN = frozenset([bool, int, float, complex, str, type(None)])  # what is no container
_CPU = torch.device("cpu")
_DEVICES = torch._GLOBAL_DEVICE_CONTEXT
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _codes_of_decorators() -> list[Any]:
    decorated = torch.no_grad()(no_autocast(lambda: None))
    return [decorated.__code__, decorated.__wrapped__.__code__]


_DECORATORS = _codes_of_decorators()


def undecorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, the callable of a trace, which is decorated with ``torch.no_grad`` and
    Thunder's ``no_autocast``, in a way that takes a tenth of the time of both.

    Decorated otherwise it is returned as it is.
    """
    inner = getattr(function, "__wrapped__", None)
    bare = getattr(inner, "__wrapped__", None)
    codes = [getattr(f, "__code__", None) for f in (function, inner)]
    if bare is None or hasattr(bare, "__wrapped__") or codes != _DECORATORS:
        return function

    @wraps(bare)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _any_autocast():
            return function(*args, **kwargs)
        if not torch.is_grad_enabled():
            return bare(*args, **kwargs)
        torch._C._set_grad_enabled(False)
        try:
            return bare(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(True)

    return call


def look_up_quickly(data: Any, stats: Any) -> None:
    """Have calls of the jitted function with this compile data and statistics find their cache
    entries in a shorter way. Nothing is changed where Thunder's functions are not as expected.
    """
    asked = _variables(data.populate_cache_info)
    place = _variables(data.get_computation_and_inputs).get("get_computation_and_inputs_fn")
    names = ("_alias_tensor_of_args_kwargs", "fn", "compile_options")
    if place is None or not all(name in asked for name in names):
        return
    slow = place.cell_contents
    if not hasattr(slow, "mdfuse"):
        place.cell_contents = _looking_up(
            slow, weakref.ref(data), weakref.ref(stats), *(asked[n].cell_contents for n in names)
        )


def _variables(function: Callable[..., Any]) -> dict[str, CellType]:
    """The variables that ``function`` shares with the function that it was made in."""
    if not isinstance(function, FunctionType):
        return {}
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _looking_up(
    slow: Callable[..., Any],
    data: "weakref.ref[Any]",
    stats: "weakref.ref[Any]",
    aliases: Callable[..., str],
    function: Callable[..., Any],
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """Thunder's ``get_computation_and_inputs``, which is ``slow``."""

    def found(*args: Any, **kwargs: Any) -> Any:
        cd, cs = data(), stats()
        if cd is None or cs is None or cd.cache_option not in _KEPT:
            return slow(*args, **kwargs)
        state = _state(args, kwargs, function)
        if state is None:
            return slow(*args, **kwargs)
        if not options.get("skip_inplace_alias_updates", False):
            state["alias_tensor_indices"] = _aliases(args, kwargs, aliases)
        cd.is_grad_enabled = state["is_grad_enabled"]
        cs.last_trace_cache_start = time.perf_counter_ns()
        asking = thunder._cache_info_ctx.set(state)
        token = set_compile_data_and_stats(cd, cs)
        try:
            for entry in reversed(cs.interpreter_cache):
                try:
                    inputs, for_epilogue = entry.prologue_fn(*args, **kwargs)
                except Exception:  # the entry is for other arguments
                    continue
                _note_hit(cs, entry)
                return entry, inputs, for_epilogue
        finally:
            reset_compile_data_and_stats(token)
            thunder._cache_info_ctx.reset(asking)
        return slow(*args, **kwargs)

    found.mdfuse = True  # type: ignore[attr-defined]
    return found


def _state(
    args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[..., Any]
) -> dict[str, Any] | None:
    """What a trace depends on beside its arguments, without aliases; None where it is unusual."""
    for value in (*args, *kwargs.values()):
        if type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
            return None
    if _any_autocast() or getattr(function, "use_ddp", False) or getattr(function, "use_fsdp", 0):
        return None
    return {
        "default_dtype": torch.get_default_dtype(),
        "default_device": _default_device(),
        "is_autocast_enabled": False,
        "is_grad_enabled": torch.is_grad_enabled(),
        "no_grad_sync": False,
    }


def _default_device() -> torch.device:
    if torch._C._len_torch_function_stack() or hasattr(_DEVICES, "device_context"):
        return torch.get_default_device()
    return _CPU


def _aliases(args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Callable[..., str]) -> str:
    """Which plain tensors among the arguments share a storage, as Thunder writes it."""
    tensors = [t for t in (*args, *kwargs.values()) if type(t) is torch.Tensor]
    if len(tensors) < 2:
        return ""
    if any(t.layout is not torch.strided for t in tensors):
        return aliases(*args, **kwargs)
    storages = {t.untyped_storage().data_ptr() for t in tensors}
    return "" if len(storages) == len(tensors) else aliases(*args, **kwargs)


def _note_hit(stats: Any, entry: Any) -> None:
    """What Thunder notes of a call that a cache entry is for."""
    stats.cache_hits += 1
    stats.last_traces = entry.computation_traces
    stats.last_interpreted_instructions = stats.last_interpreter_log = None
    stats.last_prologue_traces, stats.last_prologue = entry.prologue_traces, entry.prologue_fn
    stats.last_prologue_transformation_start = stats.last_prologue_transformation_stop = 0
    stats.last_computation_transformation_start = stats.last_computation_transformation_stop = 0
