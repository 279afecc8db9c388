"""All functions of DTensors on one mesh axis, and decoders; started by test_dtensor_multirank.py.

Arguments: names of checks of decoders.py, to run these alone.
"""

import logging
import sys
import time

import torch.distributed as dist
from multirank.decoders import ON_ONE_AXIS
from multirank.dtensor_functions import check, functions
from multirank.ranks import mesh_of

from thunder_mdfuse.comm.communicator import Communicator


def main() -> None:
    logging.disable(logging.WARNING)
    communicator = Communicator.instance()
    assert communicator.group is not None
    mesh = mesh_of(range(communicator.size()))
    asked = sys.argv[1:]
    done = [] if asked else functions()
    for function in done:
        check(function, mesh)
    for decoder in ON_ONE_AXIS:
        if decoder.__name__ in asked or not asked:
            start = time.perf_counter()
            decoder(mesh)
            print(f"{decoder.__name__}: {time.perf_counter() - start:.1f} s")
    print(f"rank {dist.get_rank()} ok: {len(done)} functions", flush=True)


if __name__ == "__main__":
    main()
