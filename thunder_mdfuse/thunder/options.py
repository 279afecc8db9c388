"""Compile options: ``thunder.jit(fn, executors=[mdfuse_executor], mdfuse_recompute=False)``.

``OPTIONS`` has one row for each, with the text that ``thunder.last_compile_options`` shows. An
option of ours that is unknown, or has a value that it does not take, is an error when the function
is compiled.
"""

import difflib
from dataclasses import dataclass

from thunder.core.compile_data import get_compile_data, get_compile_option

from thunder_mdfuse.errors import ExecutorError

PREFIX = "mdfuse_"


@dataclass(frozen=True)
class Option:
    """One option, which is True or False."""

    name: str
    default: bool
    help: str


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            "mdfuse_keep_inputs",
            False,
            "True: each region keeps its last inputs, for its last_inputs and repro_script_for().",
        ),
        Option(
            "mdfuse_recompute",
            True,
            "False: the backward pass reads what the forward pass computed from memory, where it "
            "would compute it again if that moved fewer bytes.",
        ),
    )
}


def option(name: str) -> bool:
    """The value of option ``name`` for the function that is being compiled, else its default.

    Raises ``ExecutorError`` for a value that it does not take.
    """
    row = OPTIONS[name]
    found = get_compile_option(name, f"{row.help} By default {row.default}.")
    if found is None:
        return row.default
    if not isinstance(found, bool):
        raise ExecutorError(f"{name}={found!r}: it takes True or False. {row.help}")
    return found


def check_names() -> None:
    """Raises ``ExecutorError`` for an option whose name begins as ours do and is none of them."""
    data = get_compile_data()
    for name in () if data is None else data.compile_options:
        if name.startswith(PREFIX) and name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            known = "; ".join(
                f"{o.name} (by default {o.default}): {o.help}" for o in OPTIONS.values()
            )
            raise ExecutorError(f"unknown compile option {name}: {meant}There are {known}")
