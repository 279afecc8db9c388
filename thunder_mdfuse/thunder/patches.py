"""The private places of Thunder that are changed: all of them, and each once.

Every change is for DTensors alone, but for ``guard_arguments``, which is for the doors of this
executor, for numbers under symbolic values, for calls of modules in its jits, for its regions, and
for tracing and for the guards of a call, which give and ask the same as Thunder's in less time; the
rest of Thunder stays as it is. Where one cannot be made (another version of Thunder, a place that
is gone) a warning says what is lost; the rest works.
"""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import thunder
import thunder.torch as ltorch
import torch
from thunder import clang
from thunder.core import compile_data, devices, jit_ext, prims, transform_common, update_aliases
from thunder.core.compile_data import get_compile_data, using_symbolic_values
from thunder.core.interpreter import unwrap, wrap, wrap_const
from thunder.core.prims import PrimIDs
from thunder.core.proxies import IntegerProxy, NumberProxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, from_trace, get_tracectx, tracectx
from thunder.executors import pythonex
from thunder.extend import FusionExecutor
from thunder.torch.experimental import dtensor_torch_and_prims, dtensor_utils
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.thunder import calls, dynamo, guards, hooks, number_guards, shortcuts
from thunder_mdfuse.thunder import dtensor_twins as twins
from thunder_mdfuse.thunder.late import once_imported

# Called by Thunder itself with whatever a user has: in autodiff, and for a proxy's comparisons.
_CALLED_DIRECTLY = ("add", "eq", "ne", "lt", "le", "gt", "ge", "abs")
# How Python takes the value of a number, as in range(n), {1: x}[n], float(n), f"{n}".
_CONVERSIONS = (
    (NumberProxy, "__int__", number_guards.taken),
    (NumberProxy, "__complex__", number_guards.taken),
    (NumberProxy, "__hash__", number_guards.taken),
    (IntegerProxy, "__index__", number_guards.taken),
    (NumberProxy, "__bool__", number_guards.tested),
    (NumberProxy, "__float__", number_guards.tested),
    (NumberProxy, "__str__", number_guards.text),
    (NumberProxy, "__floor__", number_guards.floor),
    (NumberProxy, "__ceil__", number_guards.ceil),
)
_CHECK_ARGUMENTS = "check_arguments"
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


def _once(found: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """``found`` in the place of ``original``, unless that is one of ours already."""
    if hasattr(original, "mdfuse"):
        return original
    found.__wrapped__, found.mdfuse = original, True  # type: ignore[attr-defined]
    return found


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

    jit_ext.interpreter_needs_wrap = _once(found, original)


def _is_ours(executor: FusionExecutor) -> bool:
    """Whether what is traced now is for a jit that names ``executor``."""
    data = get_compile_data()
    return data is not None and executor in data.executors_list


def _set_meta(symbol: Symbol, meta: Callable[..., Any]) -> None:
    object.__setattr__(symbol, "meta", _once(meta, symbol.meta))


def _dispatch_direct_calls(executor: FusionExecutor) -> None:
    for name in _CALLED_DIRECTLY:
        symbol = getattr(ltorch, name)
        _set_meta(symbol, _meta(executor, getattr(torch, name), symbol))


def _meta(
    executor: FusionExecutor, function: Callable[..., Any], symbol: Symbol
) -> Callable[..., Any]:
    meta = symbol.meta

    def found(*args: Any, **kwargs: Any) -> Any:
        if _is_ours(executor) and any(
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

    dtensor_utils.check_dtensor_cotangent_metadata_in_backward = _once(found, original)


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

    update_aliases._get_new_alias = _once(found, original)
    _set_meta(prims.update_aliases, typed)


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

    doors[isinstance] = _once(found, original)


def _trace_quickly(executor: FusionExecutor) -> None:
    shortcuts.take()


def _run_hooks(executor: FusionExecutor) -> None:
    doors = jit_ext._general_jit_lookaside_map

    def found(module: Any, *args: Any, **kwargs: Any) -> Any:
        return (hooks.called if _is_ours(executor) else hooks.as_torch)(module, *args, **kwargs)

    doors[torch.nn.Module._call_impl] = found


def _check_quickly(executor: FusionExecutor) -> None:
    """Every call has these checks for every parameter and number that was read while tracing."""
    tensor = pythonex.check_tensor_shape_and_metadata
    plain = replace(tensor, name="check_plain_tensor")

    def of_tensor(bsym: BoundSymbol) -> None:
        if _is_ours(executor) and not isinstance(bsym.args[0], DTensorProxy):
            # Another symbol: a trace has one function for all symbols of a name.
            bsym.sym = plain
            bsym.sym._bind_postprocess(bsym)
        else:
            bsym._call_ctx = {tensor.name: guards.check_tensor}

    def of_spec(prim: Any, trace: TraceCtx, args: Any) -> bool:
        if prim == dtensor_torch_and_prims.check_dtensor_spec_repr:
            args = [args[0], guards.SpecText(args[1])]
        return bool(original(prim, trace, args))

    original = jit_ext.handle_check_dtensor_spec_in_prologue
    jit_ext.handle_check_dtensor_spec_in_prologue = _once(of_spec, original)
    object.__setattr__(tensor, "_bind_postprocess", of_tensor)
    for symbol, check in (
        (plain, guards.check_plain_tensor),
        (dtensor_torch_and_prims._check_python_repr_impl, guards.check_spec),
        (pythonex.check_number_type_and_value, guards.check_number),
    ):
        _set_check(symbol, check)


def _set_check(symbol: Symbol, check: Callable[..., None]) -> None:
    context = {symbol.name: check}
    bind = lambda bsym: setattr(bsym, "_call_ctx", context)
    object.__setattr__(symbol, "_bind_postprocess", bind)


def _guard_forms(executor: FusionExecutor) -> None:
    """Of a call's arguments, in the jits that name ``executor``."""
    original = thunder.thunder_general_jit
    if hasattr(original, "mdfuse"):
        return
    check = prims.make_prim(
        _CHECK_ARGUMENTS,
        _CHECK_ARGUMENTS,
        meta=lambda args, kwargs, text: None,
        tags=(prims.OpTags.DONT_DCE,),
    )
    run = pythonex.ex.register_operator(_CHECK_ARGUMENTS, like=check, fn=guards.check_arguments)
    pythonex.ex.register_implementation(check, run)

    def found(function: Any, args: Any, kwargs: Any, /, **options: Any) -> Any:
        traces = original(function, args, kwargs, **options)
        if _is_ours(executor):
            bsyms = traces.prologue_trace.bound_symbols
            at = [i for i, b in enumerate(bsyms) if b.sym.id is PrimIDs.CHECK_LEN][:2]
            given, named = (bsyms[i].args[0] for i in at)
            text = guards.form_of_call(args, kwargs)
            bsyms.insert(at[1] + 1, check.bind(given, named, text, output=None))
        return traces

    thunder.thunder_general_jit = _once(found, original)


def _call_quickly(executor: FusionExecutor) -> None:
    """In the jits that name ``executor``."""
    original = TraceCtx.python_callable

    def found(self: TraceCtx, **options: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = original(self, **options)
        data, stats = compile_data._compile_data.get()
        if data is None or stats is None or executor not in data.executors_list:
            return made
        calls.look_up_quickly(data, stats)
        return calls.undecorated(made)

    TraceCtx.python_callable = _once(found, original)


def _broadcast_on_the_cpu(executor: FusionExecutor) -> None:
    """Thunder takes a 0-dim CPU tensor for a number beside any tensor, so that nothing sums its
    gradient. That is for tensors on other devices; on the CPU it is a tensor as all are.
    """
    original = clang.maybe_broadcast

    def found(*args: Any, treat_cpu_scalar_tensors_as_numbers: bool = True) -> Any:
        if _is_ours(executor):
            devices = {a.device.type for a in args if isinstance(a, TensorProxy)}
            treat_cpu_scalar_tensors_as_numbers &= devices != {"cpu"}
        return original(
            *args, treat_cpu_scalar_tensors_as_numbers=treat_cpu_scalar_tensors_as_numbers
        )

    clang.maybe_broadcast = _once(found, original)


def _shape_empty_ranges(executor: FusionExecutor) -> None:
    """``arange(0)`` has one dim; Thunder's has none, and what reads it is composed for that."""
    original = prims.iota.meta

    def found(length: Any, **kwargs: Any) -> Any:
        made = original(length, **kwargs)
        if type(length) is int and length == 0 and _is_ours(executor):
            return TensorProxy(shape=(0,), device=made.device, dtype=made.dtype)
        return made

    _set_meta(prims.iota, found)


def _leave_regions_alone(executor: FusionExecutor) -> None:
    """A region holds what runs and nothing else. Looking for symbols in it that do nothing, Thunder
    asks for the tags of all of it once for each symbol: at 32 layers of a model a third of the time
    of its first call.
    """
    original = transform_common._remove_noop_subsymbols

    def found(bsym: BoundSymbol) -> None:
        if bsym.sym.executor is not executor:
            original(bsym)

    transform_common._remove_noop_subsymbols = _once(found, original)


def _know_the_current_device(executor: FusionExecutor) -> None:
    original = devices._parse_device_info

    def found(device: Any, index: int | None = None, /) -> Any:
        unnamed = index is None and device in ("cuda", devices.DeviceType.CUDA)
        if unnamed and _is_ours(executor):
            index = torch.cuda.current_device()
        return original(device, index)

    devices._parse_device_info = _once(found, original)


def _guard_numbers(executor: FusionExecutor) -> None:
    original = jit_ext.propagate_constraints

    def found(ctx: Any, inputs: Any, intermediates: Any, trace: TraceCtx) -> None:
        ours = _is_ours(executor) and using_symbolic_values()
        if ours:
            number_guards.guard(ctx, trace)
        original(ctx, inputs, intermediates, trace)
        if ours:
            number_guards.settle(ctx, trace)

    jit_ext.propagate_constraints = _once(found, original)
    read = jit_ext.JitCtx.proxify

    def asked(ctx: Any, value: Any) -> Any:
        given = value.value
        plain = isinstance(given, int | float | complex | str | slice)
        if not (plain and _is_ours(executor) and using_symbolic_values()):
            return read(ctx, value)
        if not number_guards.is_open(given):
            return number_guards.ask_for_value(ctx, value)
        p = read(ctx, value)
        number_guards.ask_for_type(ctx, p)
        return p

    jit_ext.JitCtx.proxify = _once(asked, read)
    for kind, name, ours in _CONVERSIONS:
        _set_method(executor, kind, name, ours)


def _set_method(
    executor: FusionExecutor,
    kind: type[NumberProxy],
    name: str,
    ours: Callable[[NumberProxy, Callable[[NumberProxy], Any]], Any],
) -> None:
    original = getattr(kind, name)
    doors = jit_ext._general_jit_lookaside_map

    def found(self: NumberProxy) -> Any:
        symbolic = _is_ours(executor) and using_symbolic_values() and get_tracectx() is not None
        return ours(self, original) if symbolic else original(self)

    method = _once(found, original)
    setattr(kind, name, method)
    if original in doors:
        doors[method] = jit_ext.interpreter_needs_wrap(method)


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

    splitter.is_node_supported_by_thunder = _once(supported, tried)
    splitter.translate_dtensor_ops = _once(opened, translated)


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
    Patch(_check_quickly, "a call takes longer, with DTensors most of all"),
    Patch(
        _guard_forms, "a trace for an argument that is None is taken where there is something, too"
    ),
    Patch(_call_quickly, "a call takes 30 us longer"),
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
        _guard_numbers,
        "under cache='symbolic values' a number that says which dims are meant, or how often "
        "something is done, is that of the first call wherever Thunder or Python takes it",
    ),
    Patch(_run_hooks, "a call of a module takes half a second to trace, and its hooks may fail"),
    Patch(_trace_quickly, "tracing takes twice as long"),
]
