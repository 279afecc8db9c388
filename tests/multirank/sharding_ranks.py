"""Random sharded programs over real ranks; started by test_sharding_multirank.py.

    sharding_ranks.py SEED COUNT

Every rank draws the same programs, runs each as one executable on its part of the inputs, and
compares its part of the outputs with what torch computes on the full tensors. Meshes are the whole
group with one, two and three axes, named or not, with ids in order and permuted.
"""

import sys
from itertools import product

import torch
import torch.distributed as dist
from sharding.checking import drawn
from sharding.programs import NAMES, Program
from sharding.simulated import assemble, distribute
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.team import axis_names
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.ir.types import Placements
from thunder_mdfuse.sharding.propagate import propagate

SHAPES = {2: [(2,), (1, 2), (2, 1)], 4: [(4,), (2, 2), (2, 1, 2), (1, 4)]}


def device_meshes(ranks: int) -> dict[tuple[int, ...], list[DeviceMesh]]:
    """By shape: ids in order with names, and permuted."""
    ids = torch.arange(ranks)
    return {
        shape: [
            DeviceMesh("cpu", order.reshape(shape), mesh_dim_names=NAMES[: len(shape)])
            for order in (ids, ids.flip(0).roll(1))
        ]
        for shape in SHAPES[ranks]
    }


def check(program: Program, mesh: DeviceMesh, number: int) -> int:
    """Run ``program`` here and compare; how many collectives it has."""
    assert axis_names(mesh) == tuple(a.name for a in program.mesh.axes)
    coordinate = tuple(mesh.get_coordinate() or ())
    locals_ = [
        distribute(x, places, program.mesh, seed=7 * i)[coordinate].clone()
        for i, (x, places) in enumerate(program.inputs)
    ]
    executable = Executable(program.fusion, f"drawn{number}")
    outputs = executable.run(locals_, mesh)
    for place, found, expected in zip(
        placements(executable), outputs, program.expected, strict=True
    ):
        held = gathered(found, mesh)
        wholes = list(held.values()) if place is None else [assemble(held, place, program.mesh)]
        for whole in wholes:
            assert torch.equal(whole, expected), describe(program, whole, expected)
    return sum(n.op == "wait" for n in executable.local.nodes)


def describe(program: Program, found: torch.Tensor, expected: torch.Tensor) -> str:
    return f"found {found}, expected {expected}, of\n{render(program.fusion)}"


def placements(executable: Executable) -> list[Placements | None]:
    fusion: Fusion = propagate(decompose(executable.fusion))
    return [fusion.tensor(o.value).placements for o in fusion.outputs]


def gathered(local: torch.Tensor, mesh: DeviceMesh) -> dict[tuple[int, ...], torch.Tensor]:
    """What each coordinate holds."""
    found: list = [None] * mesh.size()
    dist.all_gather_object(found, local)
    ids = mesh.mesh
    places = product(*(range(n) for n in ids.shape))
    return {c: found[int(ids[c])] for c in places}


def main() -> None:
    number, count = int(sys.argv[1]), int(sys.argv[2])
    communicator = Communicator.instance()
    ranks = communicator.size()
    assert communicator.group is not None
    meshes = device_meshes(ranks)
    collectives = 0
    for i, program in enumerate(drawn(number, count, SHAPES[ranks])):
        shape = tuple(a.size for a in program.mesh.axes)
        collectives += check(program, meshes[shape][i % 2], i)
    print(f"rank {communicator.rank()} ok: {count} programs, {collectives} collectives", flush=True)


if __name__ == "__main__":
    main()
