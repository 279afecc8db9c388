"""Every environment variable that this package reads, and the only file that reads one.

``KNOBS`` is the list that the README's table is made from. A value is read when it is asked for, so
tests and notebooks may change ``os.environ`` at any time; an unknown ``MDFUSE_*`` variable warns
once.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from thunder_mdfuse.errors import MdfuseError


@dataclass(frozen=True)
class Knob:
    """One environment variable: its name, its default as text, how to read it, what it does."""

    name: str
    default: str
    parse: Callable[[str], object]
    help: str


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def _seconds(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise ValueError("expected a positive number of seconds")
    return value


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            "MDFUSE_BACKEND",
            "auto",
            _one_of("auto", "cuda", "emulate", "reference"),
            "what executes programs: auto (cuda for CUDA tensors, reference for CPU ones), cuda, "
            "emulate or reference",
        ),
        Knob("MDFUSE_DUMP", "", str, "folder into which every stage of every region is written"),
        Knob(
            "MDFUSE_FUEL", "-1", int, "number of regions that may be fused, for bisection; -1: all"
        ),
        Knob(
            "MDFUSE_COMM_TIMEOUT",
            "30",
            _seconds,
            "seconds to wait for another rank before an error names it",
        ),
        Knob(
            "MDFUSE_EAGER_ROUNDING",
            "0",
            _flag,
            "1: round every half-precision intermediate as eager PyTorch does",
        ),
        Knob("MDFUSE_DISK_CACHE", "1", _flag, "0: keep compiled kernels in memory only"),
        Knob("MDFUSE_VERIFY", "0", _flag, "1: check the program between all stages"),
        Knob(
            "MDFUSE_EMULATOR_ORDERS",
            "3",
            int,
            "number of thread orders that the emulator runs and compares for each launch",
        ),
    )
}

_warned: set[str] = set()
_scanned = 0


def value(name: str) -> object:
    """The parsed value of the knob ``name``. Raises ``MdfuseError`` when the text is not valid."""
    _warn_unknown()
    knob = KNOBS[name]
    text = os.environ.get(name, knob.default)
    try:
        return knob.parse(text)
    except ValueError as e:
        raise MdfuseError(f"{name}={text!r} is not valid: {e}. {knob.help}") from None


def _warn_unknown() -> None:
    """Look for unknown names when there are more or fewer variables than at the last look.

    Reading all of them takes 30 us, and a knob is read at each call of a program.
    """
    global _scanned
    if len(os.environ) == _scanned:
        return
    _scanned = len(os.environ)
    for name in os.environ:
        if name.startswith("MDFUSE_") and name not in KNOBS and name not in _warned:
            _warned.add(name)
            known = ", ".join(sorted(KNOBS))
            warnings.warn(f"unknown environment variable {name}; known are {known}", stacklevel=3)


def flag(name: str) -> bool:
    """The knob ``name`` as a bool."""
    return bool(value(name))


def text(name: str) -> str:
    """The knob ``name`` as text."""
    return str(value(name))


def integer(name: str) -> int:
    """The knob ``name`` as an int."""
    found = value(name)
    assert isinstance(found, int)
    return found


def seconds(name: str) -> float:
    """The knob ``name`` in seconds."""
    found = value(name)
    assert isinstance(found, float)
    return found


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/thunder_mdfuse`` (default ``~/.cache/thunder_mdfuse``); need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "thunder_mdfuse"


def launcher_environment() -> dict[str, str]:
    """The variables that launchers (torchrun, mpirun, Slurm) set for a process, as they are now."""
    prefixes = ("OMPI_", "PMI", "MPI_", "SLURM_", "MASTER_", "TORCHELASTIC_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "XDG_RUNTIME_DIR")
    return {k: v for k, v in os.environ.items() if k.startswith(prefixes) or k in names}


def child_environment(**changes: str) -> dict[str, str]:
    """A copy of this process's environment with ``changes``, for processes that we start."""
    return {**os.environ, **changes}
