"""All functions of DTensors on one mesh axis; started by test_dtensor_multirank.py."""

import logging

import torch.distributed as dist
from multirank.dtensor_functions import check, functions
from multirank.ranks import mesh_of

from thunder_mdfuse.comm.communicator import Communicator


def main() -> None:
    logging.disable(logging.WARNING)
    communicator = Communicator.instance()
    assert communicator.group is not None
    mesh = mesh_of(range(communicator.size()))
    done = functions()
    for function in done:
        check(function, mesh)
    print(f"rank {dist.get_rank()} ok: {len(done)} functions", flush=True)


if __name__ == "__main__":
    main()
