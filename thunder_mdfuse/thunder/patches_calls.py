"""Changes of what Thunder asks and does in a call of what was traced before."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import thunder
from thunder.core import compile_data, jit_ext, prims
from thunder.core.compile_data import using_symbolic_values
from thunder.core.prims import PrimIDs
from thunder.core.proxies import IntegerProxy, NumberProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, get_tracectx
from thunder.executors import pythonex
from thunder.extend import FusionExecutor
from thunder.torch.experimental import dtensor_torch_and_prims
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

from thunder_mdfuse.thunder import calls, guards, number_guards
from thunder_mdfuse.thunder.patching import is_ours, once

_CHECK_ARGUMENTS = "check_arguments"
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


def check_quickly(executor: FusionExecutor) -> None:
    """Every call has these checks for every parameter and number that was read while tracing."""
    tensor = pythonex.check_tensor_shape_and_metadata
    plain = replace(tensor, name="check_plain_tensor")

    def of_tensor(bsym: BoundSymbol) -> None:
        if is_ours(executor) and not isinstance(bsym.args[0], DTensorProxy):
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
    jit_ext.handle_check_dtensor_spec_in_prologue = once(of_spec, original)
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


def guard_forms(executor: FusionExecutor) -> None:
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
        if is_ours(executor):
            bsyms = traces.prologue_trace.bound_symbols
            at = [i for i, b in enumerate(bsyms) if b.sym.id is PrimIDs.CHECK_LEN][:2]
            given, named = (bsyms[i].args[0] for i in at)
            text = guards.form_of_call(args, kwargs)
            bsyms.insert(at[1] + 1, check.bind(given, named, text, output=None))
        return traces

    thunder.thunder_general_jit = once(found, original)


def call_quickly(executor: FusionExecutor) -> None:
    """In the jits that name ``executor``."""
    original = TraceCtx.python_callable

    def found(self: TraceCtx, **options: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = original(self, **options)
        data, stats = compile_data._compile_data.get()
        if data is None or stats is None or executor not in data.executors_list:
            return made
        calls.look_up_quickly(data, stats)
        return calls.undecorated(made)

    TraceCtx.python_callable = once(found, original)


def guard_numbers(executor: FusionExecutor) -> None:
    original = jit_ext.propagate_constraints

    def found(ctx: Any, inputs: Any, intermediates: Any, trace: TraceCtx) -> None:
        ours = is_ours(executor) and using_symbolic_values()
        if ours:
            number_guards.guard(ctx, trace)
        original(ctx, inputs, intermediates, trace)
        if ours:
            number_guards.settle(ctx, trace)

    jit_ext.propagate_constraints = once(found, original)
    read = jit_ext.JitCtx.proxify

    def asked(ctx: Any, value: Any) -> Any:
        given = value.value
        plain = isinstance(given, int | float | complex | str | slice)
        if not (plain and is_ours(executor) and using_symbolic_values()):
            return read(ctx, value)
        if not number_guards.is_open(given):
            return number_guards.ask_for_value(ctx, value)
        p = read(ctx, value)
        number_guards.ask_for_type(ctx, p)
        return p

    jit_ext.JitCtx.proxify = once(asked, read)
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
        symbolic = is_ours(executor) and using_symbolic_values() and get_tracectx() is not None
        return ours(self, original) if symbolic else original(self)

    method = once(found, original)
    setattr(kind, name, method)
    if original in doors:
        doors[method] = jit_ext.interpreter_needs_wrap(method)
