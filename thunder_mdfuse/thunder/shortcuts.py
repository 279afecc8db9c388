"""Shorter ways through Thunder's interpreter to the same traces and guards.

Thunder interprets Python one instruction at a time, and what an instruction does with a dict or a
list is itself interpreted Python: to read one global takes two more functions and twenty
instructions. Here what those end in is called at once. The other shortcuts are of what Thunder does
around instructions, which has nothing to do with what they compute.
"""

import dis
import inspect
import sys
import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from types import CodeType, ModuleType
from typing import Any

from thunder.core import interpreter
from thunder.core.interpreter import (
    INTERPRETER_SIGNALS,
    InterpreterFrame,
    MutMappingWrapperMethods,
    WrappedValue,
    _interpret_call,
    unwrap,
    wrap_const,
)

_RAISED = INTERPRETER_SIGNALS.EXCEPTION_RAISED
Handler = Callable[..., Any]


def global_variable(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``globals_lookup``: a module's variable, or else a builtin, by its name."""

    @wraps(original)
    def found(variables: Any, name: Any) -> Any:
        if _is_wrapped(variables, dict):
            if unwrap(name) in variables.value:
                return MutMappingWrapperMethods.__getitem__(variables, name)
            if "__builtins__" in variables.value:
                own = MutMappingWrapperMethods.__getitem__(variables, wrap_const("__builtins__"))
                if _is_wrapped(own, dict) and unwrap(name) in own.value:
                    return MutMappingWrapperMethods.__getitem__(own, name)
        return original(variables, name)

    return found


def item(original: Handler) -> Handler:
    """The handler of ``container[key]``."""

    @wraps(original)
    def found(inst: dis.Instruction, /, stack: Any, **state: Any) -> Any:
        container = stack._stack[-2]
        if not _is_wrapped(container, dict, list, tuple):
            return original(inst, stack=stack, **state)
        key, container = stack.pop_wrapped(), stack.pop_wrapped()
        return _put(stack, _interpret_call(type(container.value).__getitem__, container, key))

    return found


def membership(original: Handler) -> Handler:
    """The handler of ``key in container`` and ``key not in container``."""

    @wraps(original)
    def found(inst: dis.Instruction, /, stack: Any, **state: Any) -> Any:
        if not _is_wrapped(stack._stack[-1], dict):
            return original(inst, stack=stack, **state)
        container, key = stack.pop_wrapped(), stack.pop_wrapped()
        answer = _interpret_call(dict.__contains__, container, key)
        if inst.arg == 1 and answer is not _RAISED:
            answer = _interpret_call(lambda answer: not answer, answer)
        return _put(stack, answer)

    return found


def _is_wrapped(value: Any, *kinds: type) -> bool:
    """Whether it is a wrapped value of one of these types itself, whose methods are known."""
    return isinstance(value, WrappedValue) and type(value.value) in kinds


def _put(stack: Any, value: Any) -> Any:
    if value is _RAISED:
        return value
    stack.append(value)
    return None


HANDLERS = {"BINARY_SUBSCR": item, "CONTAINS_OP": membership}


@lru_cache(maxsize=4096)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """``dis.get_instructions``, which the interpreter calls each time that a function runs."""
    return tuple(dis.get_instructions(code))


def stack(context: int = 1) -> list[inspect.FrameInfo | None]:
    """``inspect.stack``, of which the interpreter wants the third frame: that one alone, without
    its source. For all frames of a notebook or a test it takes as long as a small trace.
    """
    frame = sys._getframe(3)
    found = inspect.getframeinfo(frame, context=0)
    return [None, None, inspect.FrameInfo(frame, *found, positions=found.positions)]


def frame_of_python(
    original: Callable[[InterpreterFrame], Any],
) -> Callable[[InterpreterFrame], Any]:
    """``get_or_make_python_frame``, at the end of every loop: a thread makes the frame while this
    one asks again and again, until Python lets the other one run.
    """

    @wraps(original)
    def found(self: InterpreterFrame) -> Any:
        with _switching:
            return original(self)

    return found


class _Switching:
    """While a thread is in here, all threads let each other run at once."""

    def __init__(self) -> None:
        self._lock, self._inside, self._usual = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(1e-6)
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._usual)


_switching = _Switching()


class _Changed(ModuleType):
    """A module for one importer: all that another one has, with some names changed."""

    def __init__(self, module: ModuleType, **changes: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(module.__dict__ | changes)


def take() -> None:
    """Have the interpreter take them, in all jits of this process; once."""
    if isinstance(interpreter.dis, _Changed):
        return
    handlers = interpreter._default_opcode_handler_map
    own = {name: handler(handlers[name]) for name, handler in HANDLERS.items()}
    found = global_variable(interpreter.globals_lookup)
    frame = frame_of_python(InterpreterFrame.get_or_make_python_frame)
    handlers.update(own)
    interpreter.globals_lookup = found
    InterpreterFrame.get_or_make_python_frame = frame
    interpreter.dis = _Changed(dis, get_instructions=instructions)
    interpreter.inspect = _Changed(inspect, stack=stack)
