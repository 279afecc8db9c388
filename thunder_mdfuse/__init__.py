"""thunder_mdfuse: a Lightning-Thunder fusion executor for one GPU or many.

Names are loaded on first use, so that ``import thunder_mdfuse`` needs no GPU, no compiler, no
Thunder.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "mdfuse_executor": "thunder_mdfuse.thunder.executor",
    "explain": "thunder_mdfuse.thunder.inspect",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_PUBLIC]
