"""A simulated mesh: the local program of every coordinate, run in one process and in lockstep.

``distribute`` cuts full tensors into what each coordinate holds (with DTensor's own split
functions, so that the chunk rule is torch's and not ours), ``run`` executes a local fusion,
``assemble`` puts results together again. Nothing here is an oracle: tests compare with torch on
the full tensors.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.placement_types import _StridedShard

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Fusion, Node
from thunder_mdfuse.ir.sizes import Expr
from thunder_mdfuse.ir.types import (
    Mesh,
    Partial,
    Placement,
    Placements,
    Replicate,
    Shard,
    StridedShard,
    TensorType,
)
from thunder_mdfuse.runtime.aten import ATEN, TORCH_DTYPES

Coordinate = tuple[int, ...]
Locals = dict[Coordinate, torch.Tensor]
REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stack: stack.sum(0, dtype=stack.dtype),
    "avg": lambda stack: stack.sum(0) / stack.shape[0],
    "min": lambda stack: stack.amin(0),
    "max": lambda stack: stack.amax(0),
    "product": lambda stack: stack.prod(0),
}
IDENTITY = {"sum": 0, "product": 1}


def coordinates(mesh: Mesh) -> Iterator[Coordinate]:
    return product(*(range(axis.size) for axis in mesh.axes))


def pieces(x: torch.Tensor, dim: int, ranks: int, split: int = 1) -> list[torch.Tensor]:
    """The chunks of ``x`` along ``dim`` as DTensor cuts it."""
    placement = TorchShard(dim) if split == 1 else _StridedShard(dim, split_factor=split)
    return placement._split_tensor(x, ranks, with_padding=False, contiguous=True)[0]


def joined(parts: list[torch.Tensor], dim: int, split: int = 1) -> torch.Tensor:
    """The tensor whose ``pieces`` are ``parts``."""
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    whole = torch.empty(shape, dtype=parts[0].dtype)
    indices = pieces(torch.arange(shape[dim]), 0, len(parts), split)
    for part, index in zip(parts, indices, strict=True):
        whole.index_copy_(dim, index, part)
    return whole


def partial_terms(x: torch.Tensor, ranks: int, kind: str, seed: int) -> list[torch.Tensor]:
    """``ranks`` tensors whose reduction ``kind`` is exactly ``x`` (whole numbers stay whole)."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        return torch.randint(-4, 5, x.shape, generator=generator).to(x.dtype)

    others = [draw() for _ in range(ranks - 1)]
    if kind in ("sum", "avg"):
        terms = [*others, (x if kind == "sum" else x * ranks) - sum(others, torch.zeros_like(x))]
    elif kind in ("min", "max"):
        sign = 1 if kind == "min" else -1
        terms = [*(x + sign * other.abs() for other in others), x]
    else:
        signs = [1 - 2 * (other % 2) for other in others]
        terms = [*signs, x * torch.stack([*signs, torch.ones_like(x)]).prod(0)]
    turn = seed % ranks
    return terms[turn:] + terms[:turn]


def distribute(x: torch.Tensor, placements: Placements, mesh: Mesh, seed: int = 0) -> Locals:
    """What each coordinate holds of ``x``."""

    def cut(x: torch.Tensor, axis: int) -> Locals:
        if axis == len(mesh.axes):
            return {(): x}
        held: Locals = {}
        for i, part in enumerate(_parts(x, placements[axis], mesh.axes[axis].size, seed + axis)):
            for rest, local in cut(part, axis + 1).items():
                held[(i, *rest)] = local
        return held

    return cut(x, 0)


def _parts(x: torch.Tensor, p: Placement, ranks: int, seed: int) -> list[torch.Tensor]:
    if isinstance(p, Replicate):
        return [x] * ranks
    if isinstance(p, Partial):
        return partial_terms(x, ranks, p.op, seed)
    return pieces(x, p.dim, ranks, p.split if isinstance(p, StridedShard) else 1)


def assemble(held: Locals, placements: Placements, mesh: Mesh) -> torch.Tensor:
    """The full tensor. Replicas must be equal."""

    def join(prefix: Coordinate) -> torch.Tensor:
        axis = len(prefix)
        if axis == len(mesh.axes):
            return held[prefix]
        parts = [join((*prefix, i)) for i in range(mesh.axes[axis].size)]
        p = placements[axis]
        if isinstance(p, Partial):
            return REDUCE[p.op](torch.stack(parts))
        if isinstance(p, Shard | StridedShard):
            return joined(parts, p.dim, p.split if isinstance(p, StridedShard) else 1)
        for part in parts[1:]:
            assert torch.equal(part, parts[0]), f"replicas on axis {mesh.axes[axis].name} differ"
        return parts[0]

    return join(())


# Running a local fusion.

Value = Any  # a tensor or a number
Evaluate = Callable[[str, Any, list[Value], tuple[Any, ...]], list[Value]]


def concrete(record: Any, env: dict[str, int]) -> Any:
    """An attribute record or type with all sizes evaluated."""
    names = _symbols(record)
    return _concrete(record, tuple((n, env[n]) for n in names)) if names else record


@lru_cache(maxsize=65536)
def _symbols(record: Any) -> tuple[str, ...]:
    """The symbols of the sizes in a record."""
    if isinstance(record, Expr):
        return tuple(sorted(sizes.symbols(record)))
    items: tuple[Any, ...] = ()
    if isinstance(record, tuple):
        items = record
    elif is_dataclass(record) and not isinstance(record, type):
        items = tuple(getattr(record, f.name) for f in fields(record))
    return tuple(sorted({name for item in items for name in _symbols(item)}))


@lru_cache(maxsize=65536)
def _concrete(record: Any, values: tuple[tuple[str, int], ...]) -> Any:
    return _evaluated(record, dict(values))


def _evaluated(record: Any, env: dict[str, int]) -> Any:
    if isinstance(record, Expr):
        return sizes.evaluate(record, env)
    if isinstance(record, tuple):
        return tuple(_evaluated(item, env) for item in record)
    if is_dataclass(record) and not isinstance(record, type):
        changed = {f.name: _evaluated(getattr(record, f.name), env) for f in fields(record)}
        return replace(record, **changed)
    return record


def run(
    fusion: Fusion,
    inputs: list[Locals],
    evaluate: Evaluate,
    symbols: dict[str, int] | None = None,
) -> list[Locals]:
    """The outputs of the local program at every coordinate."""
    mesh = fusion.mesh
    assert mesh is not None and fusion.level == "local"
    places = list(coordinates(mesh))
    envs = {
        c: {**(symbols or {}), **{f"@{a.name}": i for a, i in zip(mesh.axes, c, strict=True)}}
        for c in places
    }
    values: dict[Coordinate, list[list[Value]]] = {c: [] for c in places}
    for i, node in enumerate(fusion.nodes):
        args = {c: [values[c][a.node][a.result] for a in node.args] for c in places}
        if node.op == "input":
            results = {c: [inputs[i][c]] for c in places}
        elif node.op == "wait":
            results = args
        elif node.op in COLLECTIVES:
            results = _collective(node, args, mesh, envs)
        else:
            results = {
                c: evaluate(
                    node.op, concrete(node.attrs, envs[c]), args[c], concrete(node.types, envs[c])
                )
                for c in places
            }
        for c in places:
            _check_types(i, node, results[c], envs[c])
            values[c].append(results[c])
    return [{c: values[c][o.value.node][o.value.result] for c in places} for o in fusion.outputs]


def _check_types(i: int, node: Node, results: list[Value], env: dict[str, int]) -> None:
    for t, found in zip(concrete(node.types, env), results, strict=True):
        if isinstance(t, TensorType):
            assert tuple(found.shape) == t.shape, f"%{i} {node.op}: {tuple(found.shape)}, not {t}"
            assert found.dtype == TORCH_DTYPES[t.dtype], f"%{i} {node.op}: {found.dtype}, not {t}"


def _collective(
    node: Node,
    args: dict[Coordinate, list[Value]],
    mesh: Mesh,
    envs: dict[Coordinate, dict[str, int]],
) -> dict[Coordinate, list[Value]]:
    axis = [a.name for a in mesh.axes].index(node.attrs.team)
    assert mesh.axes[axis].size == node.attrs.ranks
    results: dict[Coordinate, list[Value]] = {}
    for c in args:
        if c[axis]:
            continue
        team = [(*c[:axis], i, *c[axis + 1 :]) for i in range(node.attrs.ranks)]
        records = {concrete(node.attrs, envs[member]) for member in team}
        assert len(records) == 1, f"the members of a team disagree: {records}"
        held = [args[member][0] for member in team]
        for member, out in zip(team, COLLECTIVES[node.op](records.pop(), held), strict=True):
            results[member] = [out]
    return results


def _all_gather(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    whole = joined(held, attrs.dim, attrs.split)
    assert whole.shape[attrs.dim] == attrs.size
    return [whole] * attrs.ranks


def _all_reduce(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    return [REDUCE[attrs.op](torch.stack(held))] * attrs.ranks


def _reduce_scatter(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    return pieces(REDUCE[attrs.op](torch.stack(held)), attrs.dim, attrs.ranks)


def _all_to_all(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    whole = joined(held, attrs.gather_dim)
    assert whole.shape[attrs.gather_dim] == attrs.gather_size
    assert whole.shape[attrs.scatter_dim] == attrs.scatter_size
    return pieces(whole, attrs.scatter_dim, attrs.ranks)


def _broadcast(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    assert held[attrs.source].shape[attrs.dim] == attrs.size
    return [held[attrs.source]] * attrs.ranks


def _permute_ranks(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    return held[::-1]


def _chunk(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    assert all(torch.equal(x, held[0]) for x in held), "chunk of a value that is not replicated"
    return pieces(held[0], attrs.dim, attrs.ranks, attrs.split)


def _keep_first(attrs: Any, held: list[torch.Tensor]) -> list[torch.Tensor]:
    others = [torch.full_like(x, IDENTITY[attrs.op]) for x in held[1:]]
    return [held[0], *others]


COLLECTIVES: dict[str, Callable[[Any, list[torch.Tensor]], list[torch.Tensor]]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "permute_ranks": _permute_ranks,
    # Not communication, but they depend on the position in the team.
    "chunk": _chunk,
    "keep_first": _keep_first,
}


# Single local nodes.


def evaluate(op: str, attrs: Any, args: list[Value], types: tuple[Any, ...]) -> list[Value]:
    """The results of a local node that needs no other rank: the reference backend's torch call."""
    return list(ATEN[op](args, attrs, [t.dtype for t in types], torch.device("cpu")))
