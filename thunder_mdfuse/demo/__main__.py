"""Starts the demo's ranks; under torchrun, mpirun or srun, is one of them.

The exit code is 0 when every rank's result is right.
"""

import runpy
import sys

from thunder_mdfuse import knobs
from thunder_mdfuse.comm.launch import run_as_ranks, under_launcher
from thunder_mdfuse.comm.launchers import read_launch
from thunder_mdfuse.demo.complaints import complain
from thunder_mdfuse.demo.options import RANKS, device_for, parse
from thunder_mdfuse.errors import MdfuseError

# Beyond the ranks' own timeout, which shows where each of them waited.
EXTRA_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """The exit code of the ranks that were started."""
    options = parse(arguments)
    ranks = options.ranks or RANKS
    device = device_for(options.device, ranks)
    if device == "cpu" and options.device == "auto":
        print(f"no GPU for each of {ranks} ranks: running on the CPU", flush=True)
    # Of two --device the last one counts.
    command = [*arguments, "--device", device]
    return run_as_ranks("thunder_mdfuse.demo", command, ranks, options.timeout + EXTRA_SECONDS)


def agrees_with_launcher(arguments: list[str]) -> bool:
    """Whether this rank's launcher started as many as were asked for; says so if not."""
    asked, started = parse(arguments).ranks, read_launch(knobs.launcher_environment()).size
    if asked in (None, started):
        return True
    complain(
        f"MdfuseError: --ranks {asked} was asked for, but the launcher started {started}; leave "
        "--ranks out under a launcher"
    )
    return False


if __name__ == "__main__":
    try:
        if under_launcher():
            if not agrees_with_launcher(sys.argv[1:]):
                sys.exit(1)
            # Thunder takes seconds to import, so only ranks do, and only those with work to do.
            runpy.run_module("thunder_mdfuse.demo.rank", run_name="__main__")
        else:
            sys.exit(main(sys.argv[1:]))
    except MdfuseError as e:
        sys.exit(f"{type(e).__name__}: {e}")
