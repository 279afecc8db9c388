"""The known faults of eager DTensor on real ranks; started by test_eager_faults_multirank.py.

Ours runs first. Eager's side runs in the order of the list; a fault that stops some ranks only has
no collective behind it here, and the ranks tell each other over a group of their own.
"""

import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from sharding.eager_faults import FAULTS, Fault, text
from sharding.simulated import assemble, distribute
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.placements import from_placement, logical_mesh
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.sharding.propagate import propagate


def parts(fault: Fault, mesh: DeviceMesh) -> list[DTensor]:
    """The inputs as DTensors."""
    fusion, logical = parse(text(fault)), logical_mesh(mesh)
    at = tuple(mesh.get_coordinate() or ())
    found = []
    for i, x in enumerate(fault.inputs):
        places = fusion.nodes[i].types[0].placements  # type: ignore[union-attr]
        assert places is not None
        local = distribute(x, places, logical, seed=i)[at].contiguous()
        placements = [from_placement(p) for p in places]
        found.append(
            DTensor.from_local(
                local, mesh, placements, run_check=False, shape=x.shape, stride=x.stride()
            )
        )
    return found


def ours(fault: Fault, mesh: DeviceMesh, group: dist.ProcessGroup) -> None:
    fusion = parse(text(fault))
    (output,) = propagate(fusion).outputs
    places = propagate(fusion).tensor(output.value).placements
    assert places is not None
    executable = Executable(fusion, fault.name.replace(" ", "_"))
    (local,) = executable.run([x.to_local() for x in parts(fault, mesh)], mesh)
    held = [None] * dist.get_world_size()
    dist.all_gather_object(held, local, group=group)
    ids = mesh.mesh
    at = {tuple(c): held[int(ids[tuple(c)])] for c in torch.ones_like(ids).nonzero().tolist()}
    found = assemble(at, places, logical_mesh(mesh))  # type: ignore[arg-type]
    torch.testing.assert_close(found, fault.function(*fault.inputs))


def eager(fault: Fault, mesh: DeviceMesh, group: dist.ProcessGroup) -> str:
    """``raises``, ``wrong`` or ``right``: the worst that a rank has seen."""
    expected = fault.function(*fault.inputs)
    error, made = False, None
    try:
        made = fault.function(*parts(fault, mesh))
    except (RuntimeError, IndexError, AssertionError, ValueError):
        error = True
    if any(told(error, group)):
        return "raises"
    assert made is not None
    try:
        whole = made.full_tensor()
    except (RuntimeError, IndexError, AssertionError, ValueError):
        error = True
    if any(told(error, group)):
        return "raises"
    wrong = whole.shape != expected.shape or not torch.allclose(whole, expected, rtol=1e-4)
    return "wrong" if any(told(wrong, group)) else "right"


def told(flag: bool, group: dist.ProcessGroup) -> list[bool]:
    found = [False] * dist.get_world_size()
    dist.all_gather_object(found, flag, group=group)
    return found


def main() -> None:
    logging.disable(logging.WARNING)
    communicator = Communicator.instance()
    assert communicator.group is not None
    ranks = communicator.size()
    group = dist.new_group(timeout=timedelta(seconds=20))
    names = ("dp", "tp")
    shapes = {fault.mesh for fault in FAULTS}
    meshes = {s: init_device_mesh("cpu", s, mesh_dim_names=names[: len(s)]) for s in sorted(shapes)}
    for fault in FAULTS:
        ours(fault, meshes[fault.mesh], group)
    for fault in FAULTS:
        found = eager(fault, meshes[fault.mesh], group)
        assert found == fault.eager, f"{fault.name}: eager is {found}, noted is {fault.eager}"
    print(f"rank {communicator.rank()} of {ranks} ok", flush=True)


if __name__ == "__main__":
    main()
