"""Ranks of a mesh draw the same random numbers, however each was seeded.

In: a mesh and a device. The first time, and again when ``torch.manual_seed`` has given another
seed, the device's generator on every rank takes the state that it has on the first rank of the
mesh, as eager DTensor does; from then on the ranks draw in step without a word. Two meshes that
share no rank, such as the rows of a larger one, draw each their own.
"""

import weakref

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse.comm.agreement import agree_on_value
from thunder_mdfuse.comm.team import axis_names

# By group, and by device: the seed of the generator when its ranks last agreed.
_seeds: "weakref.WeakKeyDictionary[dist.ProcessGroup, dict[str, int]]" = weakref.WeakKeyDictionary()


def agree_on_seed(mesh: DeviceMesh, device: torch.device) -> None:
    """Returns when the generators of all ranks of ``mesh`` have one state.

    ``CommError`` when a rank does not come in ``MDFUSE_COMM_TIMEOUT``: all ranks are to draw on a
    mesh in the same order, and to be given another seed all or none.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return  # the call that warmed it up has agreed
    generator = _generator(device)
    axes = [i for i in range(mesh.ndim) if mesh.size(i) > 1]
    groups = [mesh.get_group(i) for i in axes]
    seed = generator.initial_seed()
    if all(_seeds.get(group, {}).get(str(device)) == seed for group in groups):
        return
    own = found = generator.get_state().numpy().tobytes()
    for axis, group in zip(axes, groups, strict=True):
        what = (
            f"the seed of random numbers on mesh axis {axis_names(mesh)[axis]}, {device} "
            "(torch.manual_seed is for all ranks, and once a program has drawn alike on all)"
        )
        found = agree_on_value(group, found, _first(mesh, axis, group), what)
    if found != own:
        generator.set_state(torch.frombuffer(bytearray(found), dtype=torch.uint8))
    for group in groups:
        _seeds.setdefault(group, {})[str(device)] = generator.initial_seed()


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


def _first(mesh: DeviceMesh, axis: int, group: dist.ProcessGroup) -> int:
    """The rank in ``group`` of the mesh's first position on ``axis``."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    at = [0 if i == axis else c for i, c in enumerate(coordinate)]
    return dist.get_group_rank(group, int(mesh.mesh[tuple(at)]))
