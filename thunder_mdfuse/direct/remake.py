"""What a reproduction script calls: its ranks, its DTensors, its program, and what came out.

A script is written on one rank and runs on all, so that a DTensor is described by what holds on
every rank: global shape and strides, placements, and how a local part lies in memory.
"""

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Shard, _StridedShard

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.launch import run_command_as_ranks, under_launcher
from thunder_mdfuse.errors import CommError
from thunder_mdfuse.executable import compile_fusion
from thunder_mdfuse.ir.graph import Fusion

PATIENCE_SECONDS = 3600.0  # for a script that starts its own ranks; each wait in it has its own end
Layout = Sequence[tuple[int, int | None]]


def as_ranks(ranks: int) -> None:
    """Returns in each of ``ranks`` processes, with a default process group.

    Under torchrun, mpirun or srun these are the launcher's, and another number of them is a
    ``CommError``. Where nothing was launched, this process starts its own script as ``ranks``
    processes and exits with their exit code.
    """
    if ranks > 1 and not under_launcher():
        sys.exit(run_command_as_ranks([sys.executable, *sys.argv], ranks, PATIENCE_SECONDS))
    communicator = Communicator.instance()
    if communicator.size() != ranks:
        raise CommError(
            f"the script is for {ranks} ranks, found {communicator.size()}; start it with "
            f"torchrun --nproc-per-node {ranks}, mpirun -np {ranks}, or python alone"
        )
    assert communicator.group is not None  # makes it


def dtensor(
    whole: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    stride: Sequence[int],
    layout: Layout = (),
) -> DTensor:
    """The DTensor of ``whole``, which every rank has, cut as ``placements`` say.

    ``stride``: the global strides. ``layout``: how local parts lie, from the slowest dim: each dim
    and the number of elements left out after it, None for a dim of stride 0; empty: contiguous.
    Along an axis that holds parts of a sum, each rank has the same numbers in another order.
    """
    local = whole
    for axis, placement in enumerate(placements):
        local = _cut(local, placement, mesh, axis)
    local = local.contiguous()
    return DTensor.from_local(
        laid_out(local, layout) if layout else local,
        mesh,
        placements,
        run_check=False,
        shape=whole.shape,
        stride=tuple(stride),
    )


def _cut(x: torch.Tensor, placement: Placement, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return x[:0] if x.ndim else x
    here, size = coordinate[axis], mesh.size(axis)
    if isinstance(placement, _StridedShard):
        pieces = _chunks(x, placement.dim, placement.split_factor)
        return torch.cat([_chunks(p, placement.dim, size)[here] for p in pieces], placement.dim)
    if isinstance(placement, Shard):
        return _chunks(x, placement.dim, size)[here]
    return x.flatten().roll(here).view(x.shape) if isinstance(placement, Partial) else x


def _chunks(x: torch.Tensor, dim: int, count: int) -> list[torch.Tensor]:
    """``count`` parts of ``x``, all but the last ones of one length; trailing ones may be empty."""
    full, length = x.size(dim), -(-x.size(dim) // count)
    starts = [min(i * length, full) for i in range(count + 1)]
    return [x.narrow(dim, a, b - a) for a, b in pairwise(starts)]


def layout_of(local: torch.Tensor) -> list[tuple[int, int | None]]:
    """The ``layout`` of a local tensor; empty when it is contiguous."""
    if local.is_contiguous():
        return []
    steps = local.stride()
    slowest_first = sorted(range(local.ndim), key=lambda d: (-steps[d], d))
    found: list[tuple[int, int | None]] = []
    dense = 1
    for d in reversed(slowest_first):
        step = steps[d]
        if local.size(d) > 1 and step == 0:
            found.append((d, None))
            continue
        found.append((d, step - dense))
        dense = step * local.size(d)
    return found[::-1]


def laid_out(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A copy of ``x`` that lies in memory as ``layout`` says."""
    strides, step = [0] * x.ndim, 1
    for d, left_out in reversed(layout):
        if left_out is None:
            x = x.narrow(d, 0, min(1, x.size(d))).expand(x.shape)
            continue
        strides[d] = step + left_out
        step = strides[d] * x.size(d)
    last = sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    room = torch.zeros(last + 1 if x.numel() else 0, dtype=x.dtype, device=x.device)
    made = room.as_strided(x.shape, strides)
    once = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
    made[once].copy_(x[once])
    return made


def run_fusion(
    fusion: Fusion, name: str, inputs: Sequence[Any], mesh: DeviceMesh | None = None
) -> list[Any]:
    """The outputs of a program as local tensors. ``inputs``: DTensors, tensors and numbers."""
    locals_ = [x.to_local() if isinstance(x, DTensor) else x for x in inputs]
    return list(compile_fusion(fusion, name).run(locals_, mesh))


def show(outputs: Sequence[Any]) -> None:
    """Print a line for each output: dtype, shape, strides, and where it lies."""
    rank = f"rank {dist.get_rank()}: " if dist.is_initialized() else ""
    for x in outputs:
        if isinstance(x, DTensor):
            local = x.to_local()
            said = (
                f"{x.dtype} {tuple(x.shape)} {x.stride()} {x.device} {x.placements} local "
                f"{tuple(local.shape)} {local.stride()}"
            )
        elif isinstance(x, torch.Tensor):
            said = f"{x.dtype} {tuple(x.shape)} {x.stride()} {x.device}"
        else:
            said = str(x)
        # In one write: lines of several ranks may come at once.
        sys.stdout.write(f"{rank}{said}\n")
        sys.stdout.flush()
