"""Sharded programs over real ranks; started by test_sharding_multirank.py.

    sharding_ranks.py SEED COUNT        random programs
    sharding_ranks.py eager             every dtype; single ops, against eager DTensor's values
                                        too; four ranks

Every rank draws the same programs, runs each as one executable on its part of the inputs, and
compares its part of the outputs with what torch computes on the full tensors. Meshes are the whole
group with one, two and three axes, named or not, with ids in order and permuted, and sub-meshes.
"""

import logging
import sys
from dataclasses import replace
from itertools import product

import torch
import torch.distributed as dist
from sharding.checking import drawn
from sharding.eager_cases import CASES, program
from sharding.programs import NAMES, Program
from sharding.simulated import assemble, distribute
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.placements import from_placement, logical_mesh
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.text import parse, parse_placement, render
from thunder_mdfuse.ir.types import DType, Placements, TensorType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.sharding.propagate import propagate

SHAPES = {2: [(2,), (1, 2), (2, 1)], 4: [(4,), (2, 2), (2, 1, 2), (1, 4), (2,)]}


def device_meshes(ranks: int) -> dict[tuple[int, ...], list[DeviceMesh]]:
    """By shape: ids in order and named, permuted, without names; and the axes of a mesh."""
    ids = torch.arange(ranks)
    found = {}
    for shape in SHAPES[ranks]:
        if torch.Size(shape).numel() < ranks:
            grid = DeviceMesh("cpu", ids.flip(0).reshape(2, 2), mesh_dim_names=("dp", "tp"))
            found[shape] = [grid["tp"], grid["dp"]]
            continue
        names = NAMES[: len(shape)]
        found[shape] = [
            DeviceMesh("cpu", ids.reshape(shape), mesh_dim_names=names),
            DeviceMesh("cpu", ids.flip(0).roll(1).reshape(shape), mesh_dim_names=names),
            DeviceMesh("cpu", ids.reshape(shape)),
        ]
    return found


def check(one: Program, mesh: DeviceMesh, number: int) -> int:
    """Run ``one`` here and compare; how many collectives it has."""
    one = replace(one, fusion=replace(one.fusion, mesh=logical_mesh(mesh)))
    coordinate = tuple(mesh.get_coordinate() or ())
    locals_ = [
        distribute(x, places, one.mesh, seed=7 * i)[coordinate].clone()
        for i, (x, places) in enumerate(one.inputs)
    ]
    executable = Executable(one.fusion, f"drawn{number}")
    outputs = executable.run(locals_, mesh)
    for place, found, expected in zip(placements(executable), outputs, one.expected, strict=True):
        held = gathered(found, mesh)
        wholes = list(held.values()) if place is None else [assemble(held, place, one.mesh)]
        for whole in wholes:
            assert torch.equal(whole, expected), describe(one, whole, expected)
    return sum(n.op == "wait" for n in executable.local.nodes)


def describe(one: Program, found: torch.Tensor, expected: torch.Tensor) -> str:
    return f"found {found}, expected {expected}, of\n{render(one.fusion)}"


def placements(executable: Executable) -> list[Placements | None]:
    fusion: Fusion = propagate(decompose(executable.fusion))
    return [fusion.tensor(o.value).placements for o in fusion.outputs]


def gathered(local: torch.Tensor, mesh: DeviceMesh) -> dict[tuple[int, ...], torch.Tensor]:
    """What each coordinate holds."""
    found: list = [None] * dist.get_world_size()
    dist.all_gather_object(found, local)
    ids = mesh.mesh
    places = product(*(range(n) for n in ids.shape))
    return {c: found[int(ids[c])] for c in places}


def value(t: TensorType, seed: int) -> torch.Tensor:
    """Whole numbers; indices are below every size that they index in the cases."""
    made = torch.Generator().manual_seed(seed)
    shape = tuple(map(int, t.shape))
    low, high = (0, 4) if t.dtype in (DType.I64, DType.BOOL) else (1, 6)
    return torch.randint(low, high, shape, generator=made).to(TORCH_DTYPES[t.dtype])


def single(name: str, meshes: dict[tuple[int, ...], DeviceMesh]) -> bool:
    """One case, ours against torch on the whole, and against eager where eager does it."""
    fusion, function = parse(program(name)), CASES[name][2]
    logical = fusion.mesh
    assert logical is not None
    mesh = meshes[tuple(a.size for a in logical.axes)]
    types = [fusion.tensor(Use(i)) for i in fusion.inputs]
    wholes = [value(t, i) for i, t in enumerate(types)]
    expected = function(*wholes)
    at = tuple(mesh.get_coordinate() or ())
    locals_, tensors = [], []
    for i, (x, t) in enumerate(zip(wholes, types, strict=True)):
        assert t.placements is not None
        locals_.append(distribute(x, t.placements, logical, seed=i)[at].clone())
        tensors.append(
            DTensor.from_local(
                locals_[-1],
                mesh,
                [from_placement(p) for p in t.placements],
                run_check=False,
                shape=x.shape,
                stride=x.stride(),
            )
        )
    executable = Executable(fusion, "case")
    (local,) = executable.run(locals_, mesh)
    (place,) = placements(executable)
    assert place is not None
    found = assemble(gathered(local, mesh), place, logical)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=name)
    try:
        made = function(*tensors)
    except (RuntimeError, NotImplementedError):
        return False  # refused by its sharding rules, on all ranks alike
    torch.testing.assert_close(found, made.full_tensor(), rtol=1e-5, atol=1e-5, msg=name)
    return True


def against_eager(ranks: int) -> None:
    assert ranks == 4
    meshes = {
        shape: DeviceMesh("cpu", torch.arange(ranks).reshape(shape), mesh_dim_names=names)
        for shape, names in (((4,), ("tp",)), ((2, 2), ("dp", "tp")))
    }
    done = sum(single(name, meshes) for name in CASES)
    assert done >= len(CASES) - 8, f"eager does {done} of {len(CASES)} cases"
    print(f"rank {dist.get_rank()} ok: {len(CASES)} cases, {done} of them eager's", flush=True)


# What every dtype must survive: all ways of moving data, uneven parts among them.
MOVES = [
    ("Shard(0)", "Replicate"),
    ("StridedShard(0, 2)", "Replicate"),
    ("Shard(0)", "Shard(1)"),
    ("Replicate", "StridedShard(1, 3)"),
]
WRAPS = (DType.I8, DType.U8, DType.I16)


def every_dtype(ranks: int) -> None:
    """Data moves in any dtype; sums of small integers wrap as torch's do."""
    mesh = DeviceMesh("cpu", torch.arange(ranks), mesh_dim_names=("tp",))
    at = tuple(mesh.get_coordinate() or ())
    made = torch.Generator().manual_seed(5)

    def part(whole: torch.Tensor, placement: str) -> torch.Tensor:
        return distribute(whole, (parse_placement(placement),), logical_mesh(mesh))[at].contiguous()

    def moved(local: torch.Tensor, dtype: DType, before: str, after: str) -> torch.Tensor:
        text = f"""global mesh[tp={ranks}]
            %0 = input(position=0) : {dtype}[7, 5] @ [{before}]
            %1 = reshard(%0; placements=[{after}]) : {dtype}[7, 5] @ [{after}]
            return %1"""
        return Executable(parse(text), "moved").run([local], mesh)[0]

    for dtype in DType:
        raw = torch.randint(0, 256, (7, 5, TORCH_DTYPES[dtype].itemsize), generator=made)
        whole = raw.to(torch.uint8).view(TORCH_DTYPES[dtype]).reshape(7, 5)
        whole = raw[..., 0] % 2 == 0 if dtype is DType.BOOL else whole
        for before, after in MOVES:
            found = moved(part(whole, before), dtype, before, after)
            same = torch.equal(as_bytes(found), as_bytes(part(whole, after)))
            assert same, f"{dtype} {before} -> {after}"
        if dtype in WRAPS:
            total = (whole.long() * ranks).to(whole.dtype)
            assert torch.equal(moved(whole, dtype, "Partial(sum)", "Replicate"), total), dtype


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The bits, since NaNs are among them."""
    return x.contiguous().view(torch.uint8)


def main() -> None:
    communicator = Communicator.instance()
    assert communicator.group is not None
    logging.disable(logging.WARNING)
    if sys.argv[1] == "eager":
        every_dtype(communicator.size())
        against_eager(communicator.size())
        return
    number, count = int(sys.argv[1]), int(sys.argv[2])
    ranks = communicator.size()
    meshes = device_meshes(ranks)
    collectives = 0
    for i, one in enumerate(drawn(number, count, SHAPES[ranks])):
        shape = tuple(a.size for a in one.mesh.axes)
        collectives += check(one, meshes[shape][i % len(meshes[shape])], i)
    print(f"rank {communicator.rank()} ok: {count} programs, {collectives} collectives", flush=True)


if __name__ == "__main__":
    main()
