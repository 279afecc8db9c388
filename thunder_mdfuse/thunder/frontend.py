"""Lightning-Thunder's own door, for the parts of this package that are users of it (demo,
benchmark).
"""

from collections.abc import Callable, Sequence
from typing import Any

import thunder

from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.fusion_call import FusionCall


def jit(function: Callable[..., Any], executors: Sequence[str], **options: Any) -> Any:
    """``thunder.jit`` of ``function`` with executors by name, in this order before Thunder's own.

    Raises ``ExecutorError`` for a name that no installed package has registered.
    """
    found = []
    for name in executors:
        executor = thunder.get_executor(name)
        if executor is None:
            raise ExecutorError(
                f"Thunder knows no executor {name!r}: the package that registers it is not "
                "installed or cannot be imported"
            )
        found.append(executor)
    return thunder.jit(function, executors=found, **options)


def stock(function: Callable[..., Any]) -> Any:
    """``thunder.jit`` of ``function`` with what Thunder has by itself, as most users run it."""
    return thunder.jit(function)


def regions(jitted: Any, backward: bool = False) -> list[FusionCall]:
    """The regions of a jitted function's last forward trace that have been called, in order; with
    ``backward`` those of its backward pass after them.
    """
    traces = [thunder.last_traces(jitted)[-1]]
    if backward:
        traces.append(thunder.last_backward_traces(jitted)[-1])
    calls = [c for t in traces for c in t.python_ctx().values() if isinstance(c, FusionCall)]
    return [call for call in calls if call.last_used is not None]


def last_trace(jitted: Any) -> str:
    """The final computation trace of a jitted function's last call, as Thunder prints it."""
    return str(thunder.last_traces(jitted)[-1])
