"""The private places of Thunder that are changed: all of them, and each once. Those that have to do
with a call of what was traced before are in ``patches_calls``.

Every change is for DTensors, or for jits that name this executor, but for tracing and the guards of
a call, which are in all jits what Thunder's are, in less time. Where one cannot be made (another
version of Thunder, a place that is gone) a warning says what is lost; the rest works.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import thunder.torch as ltorch
import torch
from thunder import clang
from thunder.core import devices, jit_ext, prims, transform_common, update_aliases
from thunder.core.interpreter import unwrap, wrap, wrap_const
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, from_trace, tracectx
from thunder.extend import FusionExecutor
from thunder.torch.experimental import dtensor_utils
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.thunder import dtensor_twins as twins
from thunder_mdfuse.thunder import dynamo, hooks, shortcuts
from thunder_mdfuse.thunder import patches_calls as for_calls
from thunder_mdfuse.thunder.late import once_imported
from thunder_mdfuse.thunder.patching import is_ours, once, set_meta

# Called by Thunder itself with whatever a user has: in autodiff, and for a proxy's comparisons.
_CALLED_DIRECTLY = ("add", "eq", "ne", "lt", "le", "gt", "ge", "abs")
_ALIGN = "mdfuse_align_cotangent"
_KNOWN = ("0.2.6", "0.2.7")


@dataclass(frozen=True)
class Patch:
    """One change; ``without``: what does not work where it cannot be made."""

    apply: Callable[[FusionExecutor], None]
    without: str


def apply(executor: FusionExecutor) -> None:
    """Change Thunder, for jits that name ``executor``."""
    for patch in PATCHES:
        _applied(patch, executor)


def guard_arguments(executor: FusionExecutor) -> bool:
    """Let Thunder see what is inside of a list that a door of ``executor`` is given, as it does for
    its own symbols: it guards the numbers and takes the tensors for inputs. Whether that was done.
    """
    return _applied(GUARD, executor)


def _applied(patch: Patch, executor: FusionExecutor) -> bool:
    found = version("lightning-thunder")
    try:
        if found.startswith(_KNOWN):
            patch.apply(executor)
            return True
    except AttributeError:
        pass
    warnings.warn(f"Thunder {found} is not {' or '.join(_KNOWN)}, so {patch.without}", stacklevel=3)
    return False


def _guard_arguments(executor: FusionExecutor) -> None:
    original, track = jit_ext.interpreter_needs_wrap, jit_ext.recursively_proxy
    doors: set[int] = set()

    def found(function: Callable[..., Any]) -> Callable[..., Any]:
        call: Callable[..., Any] = original(function)
        if not doors:
            doors.update(map(id, executor._lookasides.values()))
        if id(function) not in doors:
            return call

        def door(*args: Any, **kwargs: Any) -> Any:
            track(*args, *kwargs.values())
            return call(*args, **kwargs)

        return door

    jit_ext.interpreter_needs_wrap = once(found, original)


def _dispatch_direct_calls(executor: FusionExecutor) -> None:
    for name in _CALLED_DIRECTLY:
        symbol = getattr(ltorch, name)
        set_meta(symbol, _meta(executor, getattr(torch, name), symbol))


def _meta(
    executor: FusionExecutor, function: Callable[..., Any], symbol: Symbol
) -> Callable[..., Any]:
    meta = symbol.meta

    def found(*args: Any, **kwargs: Any) -> Any:
        if is_ours(executor) and any(
            isinstance(x, DTensorProxy) for x in tree_flatten((args, kwargs))[0]
        ):
            return twins.call(executor, function, symbol, args, kwargs)
        return meta(*args, **kwargs)

    return found


def aligned(x: torch.Tensor, spec: DTensorSpec) -> DTensor:
    """A cotangent with the traced placements; plain zeros stand for one that is unused."""
    if not isinstance(x, DTensor):
        whole = twins.replicated(spec.mesh)
        x = DTensor.from_local(x, spec.mesh, whole, run_check=False)
    if tuple(x.placements) != tuple(spec.placements):
        x = x.redistribute(placements=spec.placements)
    return x


def _align_cotangents(executor: FusionExecutor) -> None:
    original = dtensor_utils.check_dtensor_cotangent_metadata_in_backward

    def found(backward: TraceCtx) -> TraceCtx:
        symbol = Symbol(
            name=_ALIGN,
            meta=lambda x, spec: x,
            _bind_postprocess=lambda b: setattr(b, "_call_ctx", {_ALIGN: aligned}),
        )
        trace = from_trace(backward)
        for bsym in backward.bound_symbols:
            trace.bound_symbols.append(bsym)
            if bsym.sym.id is PrimIDs.UNPACK_SEQUENCE and bsym.args[0].name == "cotangents":
                for p in bsym.args[0].collection():
                    if isinstance(p, TensorProxy) and isinstance(p, DTensorProxy):
                        trace.bound_symbols.append(symbol.bind(p, p.spec._o, output=p))
        return trace

    dtensor_utils.check_dtensor_cotangent_metadata_in_backward = once(found, original)


def _keep_types_of_aliases(executor: FusionExecutor) -> None:
    original = update_aliases._get_new_alias

    def found(alias: Any, trace: TraceCtx) -> Any:
        if not isinstance(alias.proxy, DTensorProxy):
            return original(alias, trace)
        with tracectx(trace):
            return DTensorProxy(like=alias.proxy, requires_grad=alias.proxy.requires_grad)

    meta = prims.update_aliases.meta

    def typed(aliases: Any) -> Any:
        if not any(isinstance(a, DTensorProxy) for a in aliases):
            return meta(aliases)
        return tuple(type(a)(like=a, requires_grad=a.requires_grad) for a in aliases)

    update_aliases._get_new_alias = once(found, original)
    set_meta(prims.update_aliases, typed)


def _know_instances(executor: FusionExecutor) -> None:
    doors = jit_ext._general_jit_lookaside_map
    original = doors[isinstance]

    def found(x: Any, kind: Any) -> Any:
        """A ``DTensorProxy`` is an instance of what DTensor is one of; a parameter is also."""
        proxy, asked = unwrap(x), unwrap(kind)
        if not isinstance(proxy, DTensorProxy):
            return original(x, kind)
        kinds = tuple(asked) if isinstance(asked, tuple | list) else (asked,)
        answer = any(issubclass(DTensor, k) for k in kinds if k is not torch.nn.Parameter)
        if torch.nn.Parameter in kinds:
            answer = answer or isinstance(x.original_value, torch.nn.Parameter)
        inputs = [wrap_const(isinstance).provenance, x.provenance, kind.provenance]
        record = jit_ext.ProvenanceRecord(jit_ext.PseudoInst.LOOKASIDE, inputs=inputs)
        return wrap(answer, provenance=record)

    doors[isinstance] = once(found, original)


def _trace_quickly(executor: FusionExecutor) -> None:
    shortcuts.take()


def _run_hooks(executor: FusionExecutor) -> None:
    doors = jit_ext._general_jit_lookaside_map

    def found(module: Any, *args: Any, **kwargs: Any) -> Any:
        return (hooks.called if is_ours(executor) else hooks.as_torch)(module, *args, **kwargs)

    doors[torch.nn.Module._call_impl] = found


def _broadcast_on_the_cpu(executor: FusionExecutor) -> None:
    """Thunder takes a 0-dim CPU tensor for a number beside any tensor, so that nothing sums its
    gradient. That is for tensors on other devices; on the CPU it is a tensor as all are.
    """
    original = clang.maybe_broadcast

    def found(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> Any:
        if is_ours(executor):
            devices = {a.device.type for a in args if isinstance(a, TensorProxy)}
            treat_cpu_scalar_tensors_as_numbers &= devices != {"cpu"}
        return original(
            *args, treat_cpu_scalar_tensors_as_numbers=treat_cpu_scalar_tensors_as_numbers
        )

    clang.maybe_broadcast = once(found, original)


def _shape_empty_ranges(executor: FusionExecutor) -> None:
    """``arange(0)`` has one dim; Thunder's has none, and what reads it is composed for that."""
    original = prims.iota.meta

    def found(length: Any, **kwargs: Any) -> Any:
        made = original(length, **kwargs)
        if type(length) is int and length == 0 and is_ours(executor):
            return TensorProxy(shape=(0,), device=made.device, dtype=made.dtype)
        return made

    set_meta(prims.iota, found)


def _leave_regions_alone(executor: FusionExecutor) -> None:
    """A region holds what runs and nothing else. Looking for symbols in it that do nothing, Thunder
    asks for the tags of all of it once for each symbol: at 32 layers of a model a third of the time
    of its first call.
    """
    original = transform_common._remove_noop_subsymbols

    def found(bsym: BoundSymbol) -> None:
        if bsym.sym.executor is not executor:
            original(bsym)

    transform_common._remove_noop_subsymbols = once(found, original)


def _know_the_current_device(executor: FusionExecutor) -> None:
    original = devices._parse_device_info

    def found(device: Any, index: int | None = None, /) -> Any:
        unnamed = index is None and device in ("cuda", devices.DeviceType.CUDA)
        if unnamed and is_ours(executor):
            index = torch.cuda.current_device()
        return original(device, index)

    devices._parse_device_info = once(found, original)


def _split_by_twins(executor: FusionExecutor) -> None:
    once_imported("thunder.dynamo.splitter", partial(_patch_splitter, executor))


def _patch_splitter(executor: FusionExecutor, splitter: Any) -> None:
    tried, translated = splitter.is_node_supported_by_thunder, splitter.translate_dtensor_ops
    try_symbol = sys.modules["thunder.dynamo.utils"].try_execute_thunder_symbol

    def supported(node: Any, options: dict[str, Any]) -> Any:
        named = options.get("executors") or ()
        if executor not in named and executor.name not in named:
            return tried(node, options)
        with dynamo.whole_and_plain(node):
            door = dynamo.own_door(executor, node)
            if door is not None:
                return try_symbol(door, node, options)
            return tried(node, options)

    def opened(graph: Any) -> None:
        dynamo.open_closures(graph)
        translated(graph)

    splitter.is_node_supported_by_thunder = once(supported, tried)
    splitter.translate_dtensor_ops = once(opened, translated)


GUARD = Patch(
    _guard_arguments,
    "this executor has no functions of its own: with DTensors there are those of Thunder alone, "
    "and relu, nll_loss and the norms are as Thunder has them",
)

PATCHES = [
    Patch(
        _dispatch_direct_calls,
        "with DTensors the gradient of a value that is used twice, and comparisons, end in an "
        "error of Thunder's",
    ),
    Patch(
        _align_cotangents,
        "with DTensors a cotangent whose placements are not the result's ends in an error of "
        "Thunder's",
    ),
    Patch(_keep_types_of_aliases, "in-place functions of DTensors end in an error of Thunder's"),
    Patch(_know_instances, "isinstance(x, DTensor) is False in a jitted function"),
    Patch(for_calls.check_quickly, "a call takes longer, with DTensors most of all"),
    Patch(
        for_calls.guard_forms,
        "a trace for an argument that is None is taken where there is something, too",
    ),
    Patch(for_calls.call_quickly, "a call takes 30 us longer"),
    Patch(
        _split_by_twins,
        "thunderfx leaves functions of DTensors that are differentiated, and rms_norm, to torch",
    ),
    Patch(
        _know_the_current_device,
        "device='cuda' in a jitted function is the first GPU, on every rank",
    ),
    Patch(_shape_empty_ranges, "a function of torch.arange(0) may end in an error"),
    Patch(_broadcast_on_the_cpu, "the gradient of a 0-dim tensor on the CPU may be wrong"),
    Patch(
        _leave_regions_alone, "the first call takes the square of the number of a model's layers"
    ),
    Patch(
        for_calls.guard_numbers,
        "under cache='symbolic values' a number that says which dims are meant, or how often "
        "something is done, is that of the first call wherever Thunder or Python takes it",
    ),
    Patch(_run_hooks, "a call of a module takes half a second to trace, and its hooks may fail"),
    Patch(_trace_quickly, "tracing takes twice as long"),
]
