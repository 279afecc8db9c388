"""Calls of modules in Thunder's interpreter, with forward hooks such as ``parallelize_module``
gives them, and without.

Thunder interprets torch's questions for hooks and its loop over them, bytecode by bytecode: half a
second for every module, and a second with a hook. Here they run in Python, and only the hooks and
``forward`` themselves are interpreted. A hook that cannot be traced is named in the error.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    InterpreterError,
    PseudoInst,
    _interpret_call,
    do_raise,
    get_interpreterruntimectx,
    unwrap,
    wrap_const,
)
from torch.nn.modules import module as torch_module

from thunder_mdfuse.errors import ExecutorError

_RAISED = INTERPRETER_SIGNALS.EXCEPTION_RAISED
_UNTRACEABLE = (InterpreterError, NotImplementedError)
# Whose hooks look at the state of autograd, so that what they raise is about tracing.
_OPAQUE = "torch.distributed.fsdp"
_whole = torch.nn.Module._call_impl
# The same under another name, for what is left to torch's own loop.
_torch_loop = FunctionType(_whole.__code__, _whole.__globals__, _whole.__name__)


def called(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What a module returns: a door for ``torch.nn.Module._call_impl`` with wrapped arguments."""
    module = unwrap(self)
    if _needs_torch(module):
        return as_torch(self, *args, **kwargs)
    try:
        if module._forward_pre_hooks or module._forward_hooks:
            return _hooked(self, module, args, kwargs)
        return _interpret(_interpret(getattr, self, wrap_const("forward")), *args, **kwargs)
    except _Raised:
        return _RAISED


def as_torch(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What a module returns by torch's own code for it, interpreted."""
    return _interpret_call(_torch_loop, self, *args, **kwargs)


def _needs_torch(module: torch.nn.Module) -> bool:
    """Whether there are hooks on the backward pass, on all modules, or for errors, or torch.jit
    traces.
    """
    return bool(
        torch._C._get_tracing_state()
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._forward_hooks_always_called
        or torch_module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )


class _Raised(Exception):
    """The interpreted code has raised, and the interpreter knows what."""


def _hooked(self: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    given = _interpret(lambda *args, **kwargs: (args, kwargs), *args, **kwargs)
    for number, hook in module._forward_pre_hooks.items():
        named = number in module._forward_pre_hooks_with_kwargs
        found = _before_with_names if named else _before
        given = _run(found, self, "forward pre-hook", number, hook, given)
    out = _interpret(lambda module, given: module.forward(*given[0], **given[1]), self, given)
    for number, hook in module._forward_hooks.items():
        named = number in module._forward_hooks_with_kwargs
        out = _run(
            _after_with_names if named else _after, self, "forward hook", number, hook, given, out
        )
    return out


def _before(hook: Any, module: Any, given: Any) -> Any:
    found = hook(module, given[0])
    if found is None:
        return given
    return (found if isinstance(found, tuple) else (found,)), given[1]


def _before_with_names(hook: Any, module: Any, given: Any) -> Any:
    found = hook(module, given[0], given[1])
    if found is None:
        return given
    if not isinstance(found, tuple) or len(found) != 2:
        raise RuntimeError(
            "forward pre-hook must return None or a tuple of (new_args, new_kwargs), "
            f"but got {found}."
        )
    return found


def _after(hook: Any, module: Any, given: Any, out: Any) -> Any:
    found = hook(module, given[0], out)
    return out if found is None else found


def _after_with_names(hook: Any, module: Any, given: Any, out: Any) -> Any:
    found = hook(module, given[0], given[1], out)
    return out if found is None else found


def _interpret(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = _interpret_call(function, *args, **kwargs)
    if found is _RAISED:
        raise _Raised
    return found


def _run(
    function: Callable[..., Any], self: Any, kind: str, number: int, hook: Any, *given: Any
) -> Any:
    """Interpret one hook. Errors of the hook's own stay as they are."""
    found: BaseException
    try:
        return _interpret(function, _wrapped(self, kind, number, hook), self, *given)
    except _UNTRACEABLE as e:
        found = e
    except _Raised:
        found = get_interpreterruntimectx().curexc
        if not isinstance(found, _UNTRACEABLE) and not _module_of(hook).startswith(_OPAQUE):
            raise
    error = _untraceable(unwrap(self), kind, hook, found)
    error.__cause__ = found
    do_raise(error)
    raise _Raised


def _wrapped(self: Any, kind: str, number: int, hook: Any) -> Any:
    """The hook, of which the interpreter knows where it is found, for guards on what it reads.

    Where Thunder looks when it checks guards, a jitted module itself has no hooks.
    """
    if self.provenance.inst is PseudoInst.INPUT_FN:
        return wrap_const(hook)
    if kind == "forward hook":
        return _interpret(lambda module, n: module._forward_hooks[n], self, wrap_const(number))
    return _interpret(lambda module, n: module._forward_pre_hooks[n], self, wrap_const(number))


def _module_of(hook: Any) -> str:
    return getattr(hook, "__module__", None) or type(hook).__module__


def _untraceable(
    module: torch.nn.Module, kind: str, hook: Any, error: BaseException
) -> ExecutorError:
    name = getattr(hook, "__qualname__", repr(hook))
    return ExecutorError(
        f"the {kind} {_module_of(hook)}.{name} of a {type(module).__name__} cannot be traced: "
        f"{error}; write it with functions that Thunder traces, jit the modules inside of it on "
        "their own, or use thunder.dynamo.thunderfx, which leaves such code to torch"
    )
