"""How a place of Thunder's is changed: once, and for jits that name this executor."""

from collections.abc import Callable
from typing import Any

from thunder.core.compile_data import get_compile_data
from thunder.core.symbol import Symbol
from thunder.extend import FusionExecutor


def once(found: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """``found`` in the place of ``original``, unless that is one of ours already."""
    if hasattr(original, "mdfuse"):
        return original
    found.__wrapped__, found.mdfuse = original, True  # type: ignore[attr-defined]
    return found


def is_ours(executor: FusionExecutor) -> bool:
    """Whether what is traced now is for a jit that names ``executor``."""
    data = get_compile_data()
    return data is not None and executor in data.executors_list


def set_meta(symbol: Symbol, meta: Callable[..., Any]) -> None:
    """Have ``meta`` type the results of ``symbol``."""
    object.__setattr__(symbol, "meta", once(meta, symbol.meta))
