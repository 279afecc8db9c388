"""How a rank says what went wrong, before Thunder is imported as well as after."""

import sys

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.launch import started_here
from thunder_mdfuse.comm.launchers import read_launch


def complain(text: str) -> None:
    """Say what went wrong on this rank, with its number unless the starter writes that."""
    rank = read_launch(knobs.launcher_environment()).rank
    who = "" if rank and started_here() else f"rank {rank}: "
    print(f"{who}{text}", file=sys.stderr, flush=True)
