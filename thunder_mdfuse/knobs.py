"""Every environment variable that this package reads, and the only file that reads one.

``KNOBS`` is the list that the README's table is made from. A value is read when it is asked for, so
tests and notebooks may change ``os.environ`` at any time; an unknown ``MDFUSE_*`` variable warns
once.
"""

import difflib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from thunder_mdfuse.errors import MdfuseError


@dataclass(frozen=True)
class Knob:
    """One environment variable: its name, its default as text, how to read it, the values that it
    takes, what it does.

    ``parse`` raises ``ValueError`` for every other value; ``takes`` says which those are, in words.
    """

    name: str
    default: str
    parse: Callable[[str], object]
    takes: str
    help: str


def _flag(text: str) -> bool:
    return _one_of("0", "1")(text) == "1"


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return parse


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(text)
        return number

    return parse


# A longer wait is a slip of the pen, and past what the clocks of a process group can count.
MOST_SECONDS = 1e6


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= MOST_SECONDS:  # so that NaN is refused
        raise ValueError(text)
    return number


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            "MDFUSE_BACKEND",
            "auto",
            _one_of("auto", "cuda", "emulate", "reference"),
            "auto, cuda, emulate or reference",
            "what executes programs; auto: cuda for CUDA tensors, reference for CPU ones",
        ),
        Knob(
            "MDFUSE_DUMP",
            "",
            str,
            "a folder, or nothing",
            "where every stage of every region is written",
        ),
        Knob(
            "MDFUSE_FUEL",
            "-1",
            _whole(-1),
            "a whole number from -1 up",
            "how many regions may be fused, for bisection; -1: all",
        ),
        Knob(
            "MDFUSE_COMM_TIMEOUT",
            "30",
            _seconds,
            "a number of seconds above 0, at most a million",
            "how long to wait for another rank before an error names it",
        ),
        Knob(
            "MDFUSE_EAGER_ROUNDING",
            "0",
            _flag,
            "0 or 1",
            "1: round every half-precision intermediate as eager PyTorch does",
        ),
        Knob("MDFUSE_DISK_CACHE", "1", _flag, "0 or 1", "0: keep compiled kernels in memory only"),
        Knob("MDFUSE_VERIFY", "0", _flag, "0 or 1", "1: check the program between all stages"),
        Knob(
            "MDFUSE_NVTX",
            "0",
            _flag,
            "0 or 1",
            "1: name regions, when they are made, for profilers that torch knows nothing of (nsys)",
        ),
        Knob(
            "MDFUSE_EMULATOR_ORDERS",
            "3",
            _whole(1),
            "a whole number from 1 up",
            "how many thread orders the emulator runs and compares for each launch",
        ),
    )
}

# Packages whose lines are no place for a warning: ours, and what loads its modules.
_PASSED_OVER = (__name__.partition(".")[0], "importlib")
_warned: set[str] = set()
_scanned = 0


def value(name: str) -> object:
    """The parsed value of the knob ``name``.

    Raises ``MdfuseError`` when its text is not valid, and, at the first look at an environment,
    when any other knob's is not: a slip shows before anything is compiled.
    """
    _look_around()
    return _parsed(name, os.environ.get(name))


def unparsed(name: str) -> Callable[[], object]:
    """A function that tells in 0.1 us whether the text of the knob ``name`` is still the same: it
    returns the text, or None, as the environment holds it.
    """
    # What os.environ keeps, without the decoding of each key and value.
    kept = getattr(os.environ, "_data", os.environ)
    key = name.encode() if kept is not os.environ and os.name == "posix" else name
    return partial(kept.get, key)


@lru_cache(maxsize=256)  # a call of a program reads three knobs
def _parsed(name: str, given: str | None) -> object:
    knob = KNOBS[name]
    text = knob.default if given is None else given
    try:
        return knob.parse(text)
    except ValueError:
        raise MdfuseError(
            f"{knob.name}={text!r} is not valid: it takes {knob.takes}. Set it to that, or unset "
            f"it for the default, {knob.default!r}."
        ) from None


def _look_around() -> None:
    """Look for unknown names and bad values when there are more or fewer variables than at the
    last look.

    Reading all of them takes 30 us, and a knob is read at each call of a program.
    """
    global _scanned
    if len(os.environ) == _scanned:
        return
    for name in os.environ:
        if not name.startswith("MDFUSE_"):
            continue
        if name in KNOBS:
            _parsed(name, os.environ.get(name))
        elif name not in _warned:
            _warned.add(name)
            _warn_of_unknown(name)
    _scanned = len(os.environ)


def _warn_of_unknown(name: str) -> None:
    """Warns at the line outside of this package that made it read its environment."""
    close = difflib.get_close_matches(name, KNOBS, n=1)
    meant = f"did you mean {close[0]}? Known" if close else "known"
    message = f"unknown environment variable {name}; {meant} are {', '.join(sorted(KNOBS))}"
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] in _PASSED_OVER:
        frame = frame.f_back
    warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


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
