"""The table of ``fd.ops``: name -> the function that builds it.

A function takes the ``Scope`` and the author's arguments and returns a ``TensorView``, a
``Scalar``, or a tuple of these. Its docstring and its signature without the scope are what
``help(fd.ops.name)`` shows.
"""

from collections.abc import Callable
from typing import Any, TypeVar

OPS: dict[str, Callable[..., Any]] = {}
Function = TypeVar("Function", bound=Callable[..., Any])


def op(function: Function) -> Function:
    """Enter ``function`` under its own name, without the underscore that keeps builtins free."""
    OPS[function.__name__.strip("_")] = function
    return function


def entered(name: str, doc: str, function: Callable[..., Any]) -> None:
    """Enter a function that is made from a row of a table."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    OPS[name] = function
