"""Straight-line Python: the text of a function, and what its names stand for.

In: lines, and objects that they name. Out: a function, compiled from the text, which errors show
line by line as they do a file's. A call of a program is such a function: nothing is looked up in
it, and what it does can be read.
"""

import itertools
from collections.abc import Callable
from typing import Any

_numbers = itertools.count()


class Straight:
    """A function ``name(parameters)`` under construction; ``text`` is what it is so far."""

    def __init__(self, name: str, parameters: str) -> None:
        self.name, self._parameters = name, parameters
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._notes: dict[int, str] = {}

    def add(self, line: str, note: str = "") -> None:
        """A further line; an error in it says ``note`` beside its own words."""
        self._lines.append(line)
        if note:
            self._notes[len(self._lines)] = note

    def known(self, name: str, value: Any) -> str:
        """``name``, which stands for ``value`` in the text."""
        if self._names.setdefault(name, value) is not value:
            raise ValueError(f"{name} stands for {self._names[name]!r} already")
        return name

    def new(self, prefix: str, value: Any) -> str:
        """A name of its own for ``value``: ``prefix`` and a number."""
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return self.known(f"{prefix}{number}", value)

    @property
    def text(self) -> str:
        """The text of the function."""
        head = [f"def {self.name}({self._parameters}):", "    try:"]
        tail = ["    except Exception as e:", "        note(e)", "        raise"]
        return "\n".join([*head, *(f"        {line}" for line in self._lines), *tail, ""])

    @property
    def names(self) -> dict[str, Any]:
        """What the text's names stand for."""
        return {**self._names, "note": self._note}

    def function(self) -> Callable[..., Any]:
        """The function that the text is."""
        return compiled(self.name, self.text, self.names)

    def _note(self, error: Exception) -> None:
        assert error.__traceback__ is not None
        found = self._notes.get(error.__traceback__.tb_lineno - 2)  # below the head
        if found:
            error.add_note(found)


def compiled(name: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function ``name`` of ``text``, whose other names are ``names``."""
    # The name is a module's, which torch.compile imports for the globals of what it looks into.
    scope = {**names, "__name__": __name__, "__loader__": _Loader(text)}
    # A name of its own, by which tracebacks ask for its lines; they ask no loader for "<...>".
    exec(compile(text, f"{name} {next(_numbers)} of thunder_mdfuse", "exec"), scope)
    return scope[name]  # type: ignore[no-any-return]


class _Loader:
    """What ``linecache`` asks for the lines of code that is in no file."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, name: str) -> str:
        return self._text
