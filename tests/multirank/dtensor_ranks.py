"""All functions of DTensors, and models, on one mesh axis or on several; started by
test_dtensor_multirank.py.

Arguments: names of checks, to run these alone.
"""

import logging
import sys
import time

import torch.distributed as dist
from multirank import decoders, dtensor_functions, dtensor_functions_nd, dynamo_cases
from multirank.experts import experts
from multirank.ranks import mesh_of

from thunder_mdfuse.comm.communicator import Communicator

# The first decoder of those on one axis is in data_parallel, which the suite runs on four ranks.
ON_ONE_AXIS = (*decoders.ON_ONE_AXIS[1:], experts, dynamo_cases.by_dynamo)
ON_TWO_AXES = (*decoders.ON_TWO_AXES, dynamo_cases.fully_sharded)


def main() -> None:
    logging.disable(logging.WARNING)
    communicator = Communicator.instance()
    assert communicator.group is not None
    if communicator.size() == 2:
        mesh, functions, models = mesh_of([0, 1]), dtensor_functions.on_one_axis(), ON_ONE_AXIS
    else:
        mesh, functions = decoders.on_two_axes(), dtensor_functions_nd.on_two_axes()
        models = ON_TWO_AXES
    asked = sys.argv[1:]
    done = [] if asked else list(functions)
    start = time.perf_counter()
    for function in done:
        dtensor_functions.check(function, mesh)
    print(f"functions: {time.perf_counter() - start:.1f} s")
    for check in models:
        if check.__name__ in asked or not asked:
            start = time.perf_counter()
            check(mesh)
            print(f"{check.__name__}: {time.perf_counter() - start:.1f} s")
    print(f"rank {dist.get_rank()} ok: {len(done)} functions", flush=True)


if __name__ == "__main__":
    main()
