"""What a call on DTensors costs the host, beside the same fusion on plain tensors.

One fusion without collectives, ``relu(x * y + z)``, through ``FusionDefinition``; on the GPU where
there is one, else on the CPU; alone, or as a rank of a launcher. Times are of the calling thread,
so that ranks may share cores; the best of many calls, both kinds taking turns.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.definition import FusionDefinition

ROUNDS = 10
CALLS = 20
ROWS, COLUMNS = 64, 64


@dataclass(frozen=True)
class HostCost:
    """Microseconds of one call."""

    plain: float
    dtensors: float

    @property
    def ratio(self) -> float:
        """How many calls on plain tensors one on DTensors costs."""
        return self.dtensors / self.plain


def _fusion() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, y, z = (fd.define_tensor([-1, -1]) for _ in range(3))
        fd.add_output(fd.ops.relu(fd.ops.add(fd.ops.mul(x, y), z)))
    return fd


def host_cost(mesh: DeviceMesh) -> HostCost:
    """The costs with three inputs sharded over the last axis of ``mesh``, warmed up before."""
    places = [*[Shard(1)] * (mesh.ndim - 1), Shard(0)]
    whole = torch.randn(ROWS, COLUMNS, device=mesh.device_type)
    sharded = [distribute_tensor(whole, mesh, places, src_data_rank=None) for _ in range(3)]
    plain = [x.to_local().clone() for x in sharded]
    on_plain, on_dtensors = _fusion(), _fusion()
    calls = (lambda: on_plain.execute(plain), lambda: on_dtensors.execute_with_dtensors(sharded))
    rounds = [[_best(call, mesh.device_type) for call in calls] for _ in range(ROUNDS)]
    return HostCost(*(min(column) for column in zip(*rounds, strict=True)))


def _best(call: Callable[[], object], device: str) -> float:
    best = float("inf")
    for _ in range(CALLS):
        start = time.thread_time()
        call()
        best = min(best, time.thread_time() - start)
    if device == "cuda":
        torch.cuda.synchronize()  # what is queued must not stand in the way of the next round
    return best * 1e6


def main(argv: list[str] | None = None) -> None:
    """Print one line for each rank."""
    argparse.ArgumentParser(
        prog="python -m thunder_mdfuse.bench.dtensor_host",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    communicator = Communicator.instance()
    assert communicator.group is not None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = DeviceMesh(device, list(range(communicator.size())), mesh_dim_names=("tp",))
    cost = host_cost(mesh)
    print(
        f"rank {communicator.rank()} of {communicator.size()} on {device}: plain tensors "
        f"{cost.plain:.1f} us, DTensors {cost.dtensors:.1f} us, ratio {cost.ratio:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
