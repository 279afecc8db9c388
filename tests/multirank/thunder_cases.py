"""DTensor programs through thunder.jit, compared with eager DTensor: cases of the suite.

What is compared for every output: its type, placements, the identity of its mesh object, global
shape and stride, and the local tensor with its strides. A program must also have been fused, so
that no check passes because eager DTensor ran it.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import thunder
import torch
import torch.distributed as dist
import torch.nn.functional as F
from multirank.ranks import DEVICE, TOLERANCE, Case, mesh_of, raises
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.comm.team import mesh_coordinate
from thunder_mdfuse.thunder.fusion_call import FusionCall

R = Replicate()
S = Shard


@dataclass(frozen=True)
class Program:
    """A function and its arguments; ``left``: how many of its symbols stay outside of regions."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    left: int = 0


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    """The same numbers on every rank."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=made).to(DEVICE)


def sharded(mesh: DeviceMesh, placements: Sequence[Placement], *shape: int, seed: int = 0) -> Any:
    return distribute_tensor(tensor(*shape, seed=seed), mesh, list(placements))


def partial(mesh: DeviceMesh, op: str, *shape: int) -> DTensor:
    local = tensor(*shape, seed=1 + dist.get_rank()).abs() + 0.5
    return DTensor.from_local(local, mesh, [Partial(op)] * mesh.ndim, run_check=False)


def one_axis(mesh: DeviceMesh) -> Iterator[Program]:
    """Programs on a mesh with one axis."""
    n = mesh.size()

    def d(placement: Placement, *shape: int, seed: int = 0) -> Any:
        return sharded(mesh, [placement], *shape, seed=seed)

    yield Program("scale and add", lambda x, y: x * 2.0 + y, (d(S(0), 4, 8), d(S(0), 4, 8, seed=1)))
    yield Program("an integer", lambda x, y: x * 2 + y, (d(S(0), 5, 8), d(S(0), 5, 8, seed=1)))
    yield Program("numbers first", lambda x: 2 * x + (1.5 + x), (d(S(1), 5, 8),))
    yield Program("uneven", lambda x, y: x * 2.0 + y, (d(S(0), 5, 8), d(S(0), 5, 8, seed=1)))
    yield Program("an empty shard", lambda x: x * 2.0 + x, (d(S(1), 3, n - 1),))
    yield Program("bfloat16", lambda x: x * 2.0 + x, (d(S(0), 5, 8).to(torch.bfloat16),))
    yield Program("placements differ", lambda x, y: x * y + y, (d(S(0), 4, 8), d(S(1), 4, 8)))
    yield Program("broadcast", lambda x, b: x + b, (d(S(0), 5, 8), d(R, 8)))
    yield Program("elementwise", lambda x: torch.exp(-x) + torch.reciprocal(x), (d(S(1), 4, 9),))
    yield Program("silu", lambda x: F.silu(x), (d(S(0), 5, 8),))
    yield Program("column-parallel", lambda x, w: F.linear(x, w), (d(R, 4, 8), d(S(0), 7, 8)))
    yield Program(
        "with a bias", lambda x, w, b: F.linear(x, w, b), (d(R, 4, 8), d(S(0), 6, 8), d(S(0), 6))
    )
    yield Program("row-parallel", lambda x, w: F.linear(x, w), (d(S(1), 4, 8), d(S(1), 6, 8)))
    yield Program(
        "row-parallel, reduced",
        lambda x, w: F.linear(x, w).redistribute(placements=[R]),
        (d(S(1), 4, 8), d(S(1), 6, 8)),
    )
    yield Program(
        "row-parallel, scattered",
        lambda x, w: F.linear(x, w).redistribute(placements=[S(0)]) * 2.0,
        (d(S(1), 6, 8), d(S(1), 6, 8)),
    )
    for target in (R, S(0), S(1)):
        for source in (R, S(0), S(1)):
            yield Program(
                f"{source} to {target}",
                lambda x, target=target: (x * 2.0).redistribute(placements=[target]) + 1.0,
                (d(source, 6, 5),),
            )
        yield Program(
            f"Partial to {target}",
            lambda x, target=target: x.redistribute(placements=[target]) * 2.0,
            (partial(mesh, "sum", 6, 5),),
        )
    for op in ("avg", "max", "min"):
        yield Program(
            f"Partial({op}) to Replicate",
            lambda x: x.redistribute(placements=[R]) * 2.0,
            (partial(mesh, op, 6, 5),),
        )
    yield Program("Partial plus Partial", lambda x: x + x, (partial(mesh, "sum", 4, 5),))
    yield Program("Partial times a number", lambda x: x * 2.0, (partial(mesh, "sum", 4, 5),))
    yield Program("exp of Partial", lambda x: torch.exp(x) * 2.0, (partial(mesh, "sum", 4, 5),))
    yield Program("reshape", lambda x: torch.reshape(x * 2.0, (4, 2, 4)), (d(S(0), 4, 8),))
    yield Program("transpose", lambda x: torch.transpose(x, 0, 1) * 2.0, (d(S(1), 4, 9),))
    yield Program("permuted in memory", lambda x: x * 2.0 + x, (transposed(mesh),))
    yield Program("to_local", lambda x: (x * 2.0).to_local(), (d(S(0), 5, 8),))
    yield Program("to_local and on", lambda x: (x * 2.0).to_local() * 3, (d(S(0), 5, 8),))
    yield Program(
        "from_local",
        lambda x: DTensor.from_local(x, mesh, [S(0)], run_check=False) * 2.0,
        (tensor(3, 4, seed=dist.get_rank()),),
    )
    yield Program(
        "from_local and back",
        lambda x: DTensor.from_local(x * 2, mesh, [S(0)], run_check=False).to_local() + 1,
        (tensor(3, 4, seed=dist.get_rank()),),
    )
    rows = 2 * n - 1
    yield Program(
        "from_local, uneven",
        lambda x: (
            DTensor.from_local(
                x, mesh, [S(0)], run_check=False, shape=torch.Size((rows, 4)), stride=(4, 1)
            )
            * 2.0
        ),
        (tensor(2 if dist.get_rank() < n - 1 else 1, 4, seed=dist.get_rank()),),
    )
    yield Program("Partial plus a number", lambda x: x + 1.0, (partial(mesh, "sum", 4, 5),))
    yield Program("an input returned", lambda x: (x, x * 2.0), (d(S(0), 5, 8),))
    ends = distribute_tensor(torch.tensor([2, 2, 8], dtype=torch.int32).to(DEVICE), mesh, [R])
    for left, right in ((R, S(2)), (S(1), S(1)), (R, R)):
        x, w = d(left, 8, 8 * n).bfloat16(), d(right, 3, 8 * n, 8 * n).bfloat16()
        yield Program(
            f"grouped products of {left} and {right}",
            lambda x, w, e: torch._grouped_mm(x * 2.0, w, e) * 0.5,
            (x, w, ends),
        )
    yield Program(
        "SwiGLU with residual",
        lambda x, g, u, w: (
            F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), w).redistribute(placements=[R]) + x
        ),
        (d(R, 4, 8), d(S(0), 12, 8), d(S(0), 12, 8, seed=1), d(S(1), 8, 12)),
    )


def transposed(mesh: DeviceMesh) -> Any:
    return sharded(mesh, [S(0)], 6, 5).transpose(0, 1)


def two_axes(mesh: DeviceMesh) -> Iterator[Program]:
    """Programs on a mesh with two axes."""

    def d(a: Placement, b: Placement, *shape: int, seed: int = 0) -> Any:
        return sharded(mesh, [a, b], *shape, seed=seed)

    yield Program("scale and add", lambda x, y: x * 2.0 + y, (d(S(0), S(1), 5, 7), d(R, R, 5, 7)))
    yield Program("one dim on both axes", lambda x: torch.exp(x) * 2.0, (d(S(0), S(0), 7, 3),))
    yield Program("transpose", lambda x: torch.transpose(x, 0, 1) * 2.0, (d(S(0), S(1), 5, 7),))
    yield Program(
        "rows on one axis, columns on the other",
        lambda x, w: F.linear(x, w),
        (d(S(0), R, 6, 8), d(R, S(0), 6, 8)),
    )
    yield Program(
        "inner dim on one axis",
        lambda x, w: F.linear(x, w).redistribute(placements=[S(0), R]) * 2.0,
        (d(S(0), S(1), 6, 8), d(R, S(1), 6, 8)),
    )
    yield Program(
        "to Replicate",
        lambda x: (x * 2.0).redistribute(placements=[R, R]) + 1.0,
        (d(S(0), S(1), 5, 7),),
    )
    yield Program(
        "axes exchanged",
        lambda x: (x * 2.0).redistribute(placements=[S(1), S(0)]) + 1.0,
        (d(S(0), S(1), 8, 8),),
    )


def regions(jitted: Any) -> list[FusionCall]:
    """The fusion callables of a jitted function's newest forward trace."""
    context = thunder.last_traces(jitted)[-1].python_ctx()
    return [c for c in context.values() if isinstance(c, FusionCall)]


def flat(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


def same(found: Any, wanted: Any, what: str, mesh: DeviceMesh | None = None) -> None:
    """Assert that two outputs are alike in everything that a user can see.

    ``mesh``: the mesh object that ``found`` must be on, where eager DTensor is no judge: its cache
    takes equal meshes for the same.
    """
    assert type(found) is type(wanted), f"{what}: {type(found)}, wanted {type(wanted)}"
    if isinstance(wanted, DTensor):
        assert found.placements == wanted.placements, (
            f"{what}: {found.placements}, wanted {wanted.placements}"
        )
        assert found.device_mesh is (mesh or wanted.device_mesh), f"{what}: another mesh object"
        assert found.shape == wanted.shape, f"{what}: {found.shape}, wanted {wanted.shape}"
        assert found.stride() == wanted.stride(), (
            f"{what}: strides {found.stride()}, wanted {wanted.stride()}"
        )
        found, wanted = found._local_tensor, wanted._local_tensor
    # One plan serves all ranks, so an empty shard has the strides of one with elements.
    assert found.stride() == wanted.stride() or not wanted.numel(), (
        f"{what}: local strides {found.stride()}, wanted {wanted.stride()}"
    )
    torch.testing.assert_close(
        found, wanted, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m: f"{what}: {m}"
    )


def check(program: Program) -> None:
    """One program, called twice, against eager."""
    jitted = thunder.jit(program.function, executors=[mdfuse_executor])
    wanted = flat(program.function(*program.inputs))
    for _ in range(2):
        found = flat(jitted(*program.inputs))
        assert len(found) == len(wanted)
        for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
            same(x, y, f"{program.name}, output {i}")
    said = explain(jitted)
    assert said.regions, f"{program.name}: nothing was fused: {said}"
    assert len(said.unfused) == program.left, f"{program.name}: {said}"


def check_gradients(mesh: DeviceMesh) -> None:
    """The functions that have gradients in Thunder 0.2.6."""

    def function(x: Any, y: Any) -> Any:
        return torch.transpose(torch.exp(x) * y, 0, 1)

    leaves = [
        [sharded(mesh, [S(0)], 5, 8, seed=s).detach().requires_grad_() for s in (0, 1)]
        for _ in range(2)
    ]
    jitted = thunder.jit(function, executors=[mdfuse_executor])
    # Thunder compares a cotangent's strides with those of the output.
    weight = sharded(mesh, [S(0)], 5, 8, seed=2).transpose(0, 1)
    for f, (x, y) in zip((function, jitted), leaves, strict=True):
        f(x, y).backward(weight)
    for i, (wanted, found) in enumerate(zip(*leaves, strict=True)):
        same(found.grad, wanted.grad, f"gradient {i}")
    assert {r.part for r in explain(jitted).regions} == {"forward", "backward"}


def check_meshes(n: int) -> None:
    """Thunder takes all meshes of one shape for the same. Here shards go by coordinates, and eager
    is no judge: its gathers go by the ranks of the group, whatever their order in the mesh.
    """

    def held(whole: torch.Tensor, mesh: DeviceMesh, dim: int) -> DTensor:
        local = whole.chunk(n, dim)[mesh_coordinate(mesh)[0]].contiguous()  # type: ignore[index]
        return DTensor.from_local(local, mesh, [S(dim)], run_check=False)

    forth, twin = (DeviceMesh(DEVICE, list(range(n))) for _ in range(2))
    back = DeviceMesh(DEVICE, list(reversed(range(n))))
    function = lambda x, y: (x * 2.0 + y).redistribute(x.device_mesh, [S(1)])
    jitted = thunder.jit(function, executors=[mdfuse_executor])
    x, y = (tensor(4 * n, 8 * n, seed=s) for s in (0, 1))
    for mesh in (forth, twin, back, forth):
        found = jitted(held(x, mesh, 0), held(y, mesh, 0))
        same(found, held(x * 2.0 + y, mesh, 1), f"on {mesh}", mesh)
    assert thunder.cache_misses(jitted) == 2
    (region,) = regions(jitted)
    assert region.cache_info().specialisations == 1, region.cache_info()
    x, y = sharded(forth, [S(0)], 4 * n, 8), sharded(back, [S(0)], 4 * n, 8)
    raises(RuntimeError, "across different mesh", lambda: jitted(x, y))


def check_symbolic(mesh: DeviceMesh) -> None:
    """Under symbolic values Thunder guards no placement at all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The 'symbolic values' cache option")
        jitted = thunder.jit(
            lambda x, y: x * 2.0 + y, executors=[mdfuse_executor], cache="symbolic values"
        )
    for placement in (S(0), S(1), R):
        x, y = (sharded(mesh, [placement], 5, 8, seed=s) for s in (0, 1))
        same(jitted(x, y), x * 2.0 + y, f"symbolic values, {placement}", mesh)
    assert thunder.cache_misses(jitted) == 1


def check_unfinished(mesh: DeviceMesh) -> None:
    """An input whose collective has not ended is waited for."""
    jitted = thunder.jit(lambda x: x * 2.0 + 1.0, executors=[mdfuse_executor])
    x = sharded(mesh, [S(0)], 6, 5)
    for _ in range(2):
        found = jitted(x.redistribute(placements=[R], async_op=True))
        same(found, x.redistribute(placements=[R]) * 2.0 + 1.0, "an unfinished input", mesh)


def check_two_meshes_in_one_program(n: int) -> None:
    """Each mesh has its regions; nothing mixes them."""
    forth, back = DeviceMesh(DEVICE, list(range(n))), DeviceMesh(DEVICE, list(reversed(range(n))))
    x, y = sharded(forth, [S(0)], 6, 5), sharded(back, [S(0)], 6, 5)
    jitted = thunder.jit(lambda x, y: (x * 2.0 + 1.0, y * 3.0 + 1.0), executors=[mdfuse_executor])
    for found, wanted in zip(jitted(x, y), (x * 2.0 + 1.0, y * 3.0 + 1.0), strict=True):
        same(found, wanted, "two meshes")
    assert len(regions(jitted)) == 2


def check_plain_tensors_between(mesh: DeviceMesh) -> None:
    """Plain tensors are in the region of the DTensors around them, with what is a rank's own; but
    not where their sizes differ by rank, or where random numbers must.
    """
    rank = dist.get_rank()

    def between(x: Any, y: torch.Tensor, p: float) -> tuple[torch.Tensor, Any]:
        local = (x * 2.0).to_local() * (rank + 0.5) + y
        if rank % 2:
            local = local.abs()
        kept = F.dropout(local, p) if p else local
        back = DTensor.from_local(kept, mesh, [Partial()], run_check=False)
        return local.sum(1), back.redistribute(placements=[R]) * 3.0

    def uneven(x: Any, y: torch.Tensor, p: float) -> tuple[torch.Tensor, Any]:
        local = (x * 2.0).to_local() * (rank + 0.5) + y
        back = DTensor.from_local(
            local.exp(), mesh, [S(0)], run_check=False, shape=torch.Size((7, 5)), stride=(5, 1)
        )
        return local.sum(1), back * 3.0

    n = 4 * mesh.size()
    for function, rows, p, count in ((between, n, 0.0, 1), (between, n, 0.5, 3), (uneven, 7, 0, 3)):
        x = sharded(mesh, [S(0)], rows, 5)
        own = tensor(*x.to_local().shape, seed=5 + rank)
        jitted = thunder.jit(function, executors=[mdfuse_executor])
        found, wanted = jitted(x, own, p), function(x, own, p)
        torch.testing.assert_close(found[0], wanted[0])
        if p == 0:  # else the masks are others
            same(found[1], wanted[1], "plain tensors between DTensors", mesh)
        assert len(regions(jitted)) == count, explain(jitted)

    def squared(x: Any, y: torch.Tensor) -> Any:
        back = uneven(x, y, 0.0)[1]
        return back * back

    found_and_wanted = []
    for side in (thunder.jit(squared, executors=[mdfuse_executor]), squared):
        x, own = sharded(mesh, [S(0)], 7, 5).requires_grad_(), tensor(*own.shape).requires_grad_()
        side(x, own).to_local().sum().backward()
        found_and_wanted.append((x.grad, own.grad))
    (found, mine), (wanted, theirs) = found_and_wanted
    same(found, wanted, "a gradient across uneven parts", mesh)
    torch.testing.assert_close(mine, theirs)

    numbers = thunder.jit(
        lambda x, y: ((x * 2.0).to_local() + torch.randn(4, 5, device=DEVICE), y),
        executors=[mdfuse_executor],
    )
    torch.manual_seed(rank)
    found, _ = numbers(sharded(mesh, [Replicate()], 4, 5), own)
    everywhere = [torch.empty_like(found) for _ in range(mesh.size())]
    dist.all_gather(everywhere, found)
    assert not torch.equal(everywhere[0], everywhere[1]), "plain random numbers are a rank's own"


def check_refusals(mesh: DeviceMesh) -> None:
    """What cannot be in a region runs outside of it, with a reason."""
    local = tensor(3 + dist.get_rank(), 4)
    shape, stride = torch.Size((3 * mesh.size(), 4)), (4, 1)

    def odd(x: Any) -> Any:
        return DTensor.from_local(x, mesh, [S(0)], run_check=False, shape=shape, stride=stride)

    jitted = thunder.jit(odd, executors=[mdfuse_executor])
    same(jitted(local), odd(local), "an odd local shape")
    if dist.get_rank():
        said = str(explain(jitted))
        assert "the chunk rule gives" in said, said


def one_axis_programs(ranks: int) -> None:
    """With more ranks than two, which shard no differently, only the first of them."""
    for program in islice(one_axis(mesh_of(range(ranks))), None if ranks == 2 else 12):
        check(program)


def two_axes_programs(ranks: int) -> None:
    for program in two_axes(mesh_of([[0, 1], [2, 3]], ("dp", "tp"))):
        check(program)


def on_one_axis(run: Callable[[DeviceMesh], None]) -> Callable[[int], None]:
    return lambda ranks: run(mesh_of(range(ranks)))


CASES = [
    Case("thunder", name, run, ranks)
    for name, run, ranks in (
        ("one_axis", one_axis_programs, 2),
        ("two_axes", two_axes_programs, 4),
        ("gradients", on_one_axis(check_gradients), 2),
        ("meshes", check_meshes, 2),
        ("symbolic", on_one_axis(check_symbolic), 2),
        ("unfinished", on_one_axis(check_unfinished), 2),
        ("two_meshes", check_two_meshes_in_one_program, 2),
        ("plain_between", on_one_axis(check_plain_tensors_between), 2),
        ("refusals", on_one_axis(check_refusals), 2),
    )
]
