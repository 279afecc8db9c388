"""The interpreter's shortcuts come to the traces, guards and errors of Thunder's own ways."""

import dis
import inspect
import re
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from against_eager import jit
from thunder.core import interpreter
from thunder.core.interpreter import InterpreterFrame
from torch import nn

from thunder_mdfuse.bench.llama import Config, Llama
from thunder_mdfuse.thunder import hooks, shortcuts

FACTOR, TABLE, NESTED = 2.0, {"a": 3.0, "b": [1.0, 4.0]}, ((5.0, 6.0), {"c": torch.ones(3)})


def own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thunder as it is without the shortcuts."""
    handlers = interpreter._default_opcode_handler_map
    for name in shortcuts.HANDLERS:
        monkeypatch.setitem(handlers, name, handlers[name].__wrapped__)
    lookup = interpreter.globals_lookup
    assert lookup.__wrapped__.__module__ == interpreter.__name__
    monkeypatch.setattr(interpreter, "globals_lookup", lookup.__wrapped__)
    frame = InterpreterFrame.get_or_make_python_frame
    monkeypatch.setattr(InterpreterFrame, "get_or_make_python_frame", frame.__wrapped__)
    for module in (dis, inspect):
        monkeypatch.setattr(interpreter, module.__name__, module)
    monkeypatch.setattr(hooks, "called", hooks.as_torch)


def globals_and_builtins(x: torch.Tensor, given: Any) -> Any:
    return x * FACTOR * max(TABLE["a"], 1.0) + sum(NESTED[0]) + NESTED[1]["c"] * abs(given["by"])


def containers(x: torch.Tensor, given: Any) -> Any:
    rows, made = given["rows"], {"z": x}
    for number, row in enumerate(rows):
        made[str(number)] = row * TABLE["b"][-1 - number % 2]
    if "z" in made and "y" not in made and "by" in given and 3 not in rows[0].shape[1:]:
        made["z"] = made["z"] + rows[-1][:2].sum()
    return tuple(made.values()), made.get("none", given["by"]), [*rows][1:], x.shape[0] * 2


def handled(x: torch.Tensor, given: Any) -> Any:
    try:
        return x + given["nothing"]
    except KeyError as e:
        return x * len(e.args)


def no_key(x: torch.Tensor, given: Any) -> Any:
    return x + given["nothing"]


def no_place(x: torch.Tensor, given: Any) -> Any:
    return x + given["rows"][7]


def no_name(x: torch.Tensor, given: Any) -> Any:
    return x + nowhere  # noqa: F821


class Hookless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = 3.0, nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])

    def forward(self, x: torch.Tensor, given: Any, *more: Any, by: float = 2.0) -> Any:
        for inner in self.inner:
            x = inner(x)
        return x * self.scale * by + sum(more, given["by"])


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hookless = Hookless()

    def forward(self, x: torch.Tensor, given: Any) -> Any:
        return self.hookless(x, given, 1.0, *given["rows"], by=4.0)


def inputs() -> tuple[torch.Tensor, dict[str, Any]]:
    made = torch.Generator().manual_seed(0)
    x, *rows = (torch.randn(3, generator=made) for _ in range(4))
    return x, {"rows": rows, "by": 7.0}


def seen(make: Callable[[], Any], given: tuple[Any, ...]) -> list[str]:
    """The traces and the guards, and the error if there is one, with the lines that it names."""
    jitted = jit(make())
    try:
        found = [str(jitted(*given))]
    except Exception as e:
        chain = [e, *filter(None, [e.__cause__])]
        own = [f for c in chain for f in traceback.extract_tb(c.__traceback__)]
        return [repr(e), *(f"{f.name}:{f.lineno}" for f in own if f.filename == __file__)]
    found += map(str, thunder.last_prologue_traces(jitted) + thunder.last_traces(jitted))
    return [re.sub(r"took \d+ \w+|0x[0-9a-f]+", "", text) for text in found]


TOKENS = torch.zeros(2, 4, dtype=torch.long)
PROGRAMS = {
    **{
        f.__name__: (lambda f=f: f, inputs())
        for f in (globals_and_builtins, containers, handled, no_key, no_place, no_name)
    },
    "modules": (Calling, inputs()),
    "llama": (lambda: Llama(Config(16, 8, 1, 2, 1, 8, 4)), (TOKENS, TOKENS)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_that_is_seen_is_thunders(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return PROGRAMS[name][0]()

    found = seen(made, PROGRAMS[name][1])
    own_ways(monkeypatch)
    assert found == seen(made, PROGRAMS[name][1])
    assert name.startswith("no_") != ("prologue" in found[1])


def test_threads_that_trace_at_once_leave_the_switch_interval_alone() -> None:
    usual, inside, leave = sys.getswitchinterval(), threading.Barrier(2), threading.Event()

    def enter() -> None:
        with shortcuts._switching:
            inside.wait(20)
            leave.wait(20)

    thread = threading.Thread(target=enter)
    with shortcuts._switching:
        thread.start()
        inside.wait(20)
    assert sys.getswitchinterval() < usual  # the other one is still inside
    leave.set()
    thread.join()
    assert sys.getswitchinterval() == usual


def test_the_frame_that_calls_is_inspects() -> None:
    def fn_() -> Any:
        return [(s()[2]) for s in (inspect.stack, shortcuts.stack)]

    def callsite() -> Any:
        return fn_()

    theirs, ours = callsite()
    for part in ("frame", "filename", "lineno", "function", "positions"):
        assert getattr(ours, part) == getattr(theirs, part), part


def test_a_modules_hooks_are_looked_for_in_each_trace() -> None:
    """And those of all modules, and ``torch.jit`` tracing, which torch's own loop knows."""
    module, x = nn.Sequential(nn.ReLU(), nn.ReLU()), torch.randn(3)
    jitted = jit(module)
    torch.testing.assert_close(jitted(x), module(x))
    handle = module[1].register_forward_hook(lambda module, args, out: out + 1)
    torch.testing.assert_close(jit(module)(x), x.relu() + 1)
    handle.remove()
    found = jit(nn.Sequential(module))
    every = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out + 1 if isinstance(module, nn.ReLU) else None
    )
    try:
        torch.testing.assert_close(found(x), (x.relu() + 1).relu() + 1)
    finally:
        every.remove()
