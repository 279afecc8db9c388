"""A definition on DTensors: one program for each mesh and set of placements, found again by these.

Inputs have the placements of the DTensors of the call (plain tensors are replicated), values that
the author gave a sharding have that one, and what is left follows. Outputs are DTensors over the
mesh object of the inputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement as TorchPlacement

from thunder_mdfuse.comm.placements import from_placement, logical_mesh, to_placement
from thunder_mdfuse.comm.team import mesh_digest
from thunder_mdfuse.direct.dtypes import ParallelType
from thunder_mdfuse.direct.mesh import MESH_TYPES, DeviceMesh, placements
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.values import TensorView
from thunder_mdfuse.errors import DefinitionError, ProgramError
from thunder_mdfuse.executable import Executable, compile_fusion
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.sizes import Size, evaluate
from thunder_mdfuse.ir.types import (
    REPLICATE,
    Placements,
    TensorType,
)
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.runtime.binding import bind
from thunder_mdfuse.sharding.propagate import propagate


@dataclass(frozen=True)
class Sharding:
    """Where an output lies: its mesh, and one placement for each axis of it."""

    mesh: TorchMesh
    placements: tuple[TorchPlacement, ...]

    def axis_sharded_on(self, parallel_type: ParallelType) -> int:
        """The tensor dim that is spread over the mesh axis ``parallel_type``; -1 for none."""
        if parallel_type not in MESH_TYPES:
            raise DefinitionError(f"mesh_x, mesh_y or mesh_z is needed, found {parallel_type}")
        number = self.mesh.ndim - 1 - MESH_TYPES.index(parallel_type)
        placement = self.placements[number] if number >= 0 else None
        dim: int = getattr(placement, "dim", -1)
        return dim


@dataclass
class Entry:
    """The program for one mesh and placements of the inputs."""

    executable: Executable
    outputs: list[TensorType | None]  # None for a number
    shapes: dict[Any, list[tuple[int, ...] | None]] = field(default_factory=dict)


class Distributed:
    """The programs of one definition, by meshes and placements."""

    def __init__(
        self,
        name: str,
        scope: Scope,
        values: Sequence[TensorView],
        outputs: Sequence[tuple[Any, TensorView | None]],
        carries: bool,
    ) -> None:
        self._name, self._scope, self._outputs = name, scope, outputs
        self._values, self._carries = values, carries
        self._entries: dict[Any, Entry] = {}
        self.shardings: list[Sharding | None] | None = None

    def run(self, inputs: Sequence[Any], given: Sequence[Any]) -> list[Any]:
        """All outputs for ``given``, one for each of ``inputs``, the carrier of sizes last."""
        mesh = _mesh_of(given)
        locals_ = [_local(x) for x in given]
        key = (
            mesh_digest(mesh),
            *(x.placements if isinstance(x, DTensor) else None for x in given),
        )
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._entry(mesh, inputs, given)
        wholes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in given]
        found = entry.executable.run(locals_, mesh, wholes)
        shapes = self._shapes(entry, given)
        results: list[Any] = []
        shardings: list[Sharding | None] = []
        for value, of, shape in zip(found, entry.outputs, shapes, strict=True):
            if of is None or shape is None or not isinstance(value, torch.Tensor):
                results.append(value)
                shardings.append(None)
                continue
            assert of.placements is not None
            places = tuple(map(from_placement, of.placements))
            shardings.append(Sharding(mesh, places))
            results.append(_closed(value, mesh, places, shape))
        self.shardings = shardings
        return results

    def _entry(self, mesh: TorchMesh, inputs: Sequence[Any], given: Sequence[Any]) -> Entry:
        logical = logical_mesh(mesh)
        pins: dict[TensorView, Placements] = {}
        for value, x in zip(inputs, given, strict=False):
            if isinstance(value, TensorView):
                whole = (REPLICATE,) * mesh.ndim
                pins[value] = to_placements(x) if isinstance(x, DTensor) else whole
        for value in self._values:
            if value.mesh is None:
                continue
            asked = _asked(value, mesh)
            if pins.setdefault(value, asked) != asked:
                raise DefinitionError(
                    f"the input {value!r} was defined with {', '.join(map(str, asked))}, found a "
                    f"DTensor with {', '.join(map(str, pins[value]))}; redistribute it"
                )
        fusion = self._scope.finish(self._outputs, self._carries, logical, pins)
        verify(fusion, "definition")
        placed = propagate(decompose(fusion))
        types = [placed.type_of(o.value) for o in placed.outputs]
        outputs = [t if isinstance(t, TensorType) else None for t in types]
        return Entry(compile_fusion(fusion, self._name), outputs)

    def _shapes(self, entry: Entry, given: Sequence[Any]) -> list[tuple[int, ...] | None]:
        """The global shapes of the outputs."""
        key = tuple(x.shape if isinstance(x, torch.Tensor) else None for x in given)
        found = entry.shapes.get(key)
        if found is None:
            metas = [
                torch.empty(x.shape, dtype=x.dtype, device="meta")
                if isinstance(x, torch.Tensor)
                else x
                for x in given
            ]
            symbols = bind(entry.executable.fusion, metas)
            found = [None if t is None else _evaluated(t.shape, symbols) for t in entry.outputs]
            entry.shapes[key] = found
        return found


def _evaluated(shape: Sequence[Size], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, symbols) for size in shape)


def _mesh_of(given: Sequence[Any]) -> TorchMesh:
    meshes = [x.device_mesh for x in given if isinstance(x, DTensor)]
    if not meshes:
        raise ProgramError("no DTensor among the inputs; call execute for plain tensors")
    other = next((m for m in meshes if m != meshes[0]), None)
    if other is not None:
        raise ProgramError(
            f"DTensors on {meshes[0]} and {other} found, all must be on one mesh; redistribute"
        )
    return meshes[0]


def _local(x: Any) -> Any:
    if not isinstance(x, DTensor):
        return x
    with torch.no_grad():
        local = x.to_local()
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


def _asked(value: TensorView, mesh: TorchMesh) -> Placements:
    """The placements that the author gave ``value``, whose mesh must be that of the call."""
    assert value.mesh is not None
    if value.mesh != DeviceMesh(mesh):
        raise DefinitionError(
            f"{value!r} is defined on {value.mesh}, the DTensors are on {DeviceMesh(mesh)}; define "
            "the fusion on the mesh of its inputs"
        )
    return placements(value.loops, value.mesh.shape, value.type.shape)


def _closed(
    local: torch.Tensor, mesh: TorchMesh, places: tuple[TorchPlacement, ...], shape: tuple[int, ...]
) -> DTensor:
    """A DTensor of the global ``shape``, its strides in the order of the local ones."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (local.stride(d), -d)):
        strides[d] = step
        step *= max(shape[d], 1)
    return DTensor.from_local(
        local, mesh, places, run_check=False, shape=torch.Size(shape), stride=tuple(strides)
    )


def to_placements(x: DTensor) -> Placements:
    """The IR's placements of a DTensor. Raises ``ShardingError`` for kinds that the IR lacks."""
    return tuple(to_placement(p, x.ndim) for p in x.placements)
