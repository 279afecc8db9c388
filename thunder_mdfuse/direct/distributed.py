"""A definition on DTensors: one program for each mesh and set of placements, found again by these.

Inputs have the placements of the DTensors of the call (plain tensors are replicated), values that
the author gave a sharding have that one, and what is left follows. Outputs are DTensors over the
mesh object of the inputs. Nothing that is remembered between calls keeps a mesh alive.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement as TorchPlacement

from thunder_mdfuse.comm.placements import (
    from_placement,
    logical_mesh,
    spec_placements,
)
from thunder_mdfuse.comm.specs import Seen, SpecWithoutMesh, dtensor
from thunder_mdfuse.comm.team import mesh_digest
from thunder_mdfuse.direct.mesh import DeviceMesh, placements
from thunder_mdfuse.direct.scope import Scope
from thunder_mdfuse.direct.values import TensorView
from thunder_mdfuse.direct.view import Sharding
from thunder_mdfuse.errors import DefinitionError, ProgramError
from thunder_mdfuse.executable import Executable, compile_fusion
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.sizes import Size, evaluate
from thunder_mdfuse.ir.types import REPLICATE, Placements, TensorType
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.lru import CacheStats, Lru
from thunder_mdfuse.runtime.binding import bind
from thunder_mdfuse.sharding.propagate import propagate

MOST_PROGRAMS = 256  # of one definition, by meshes and placements
MOST_CALLS = 4096  # by global shapes too


@dataclass
class Program:
    """The program for one mesh and placements of the inputs."""

    executable: Executable
    outputs: list[TensorType | None]  # None for a number
    places: list[tuple[TorchPlacement, ...] | None]


@dataclass
class Prepared:
    """All that is known of a call but its mesh object and its local tensors."""

    program: Program
    wholes: tuple[tuple[int, ...] | None, ...]  # global shapes of the inputs
    shapes: list[tuple[int, ...] | None]  # of the outputs
    # By output and strides of the local tensor.
    specs: dict[tuple[int, tuple[int, ...]], SpecWithoutMesh] = field(default_factory=dict)


class Opened:
    """The inputs of a call as the program takes them, and what they were as DTensors."""

    def __init__(self, given: Sequence[Any]) -> None:
        mesh: TorchMesh | None = None
        self.locals: list[Any] = []
        self.specs: list[DTensorSpec | None] = []
        key: list[Any] = []
        for x in given:
            if not isinstance(x, DTensor):
                self.locals.append(x)
                self.specs.append(None)
                key.append(x.shape if isinstance(x, torch.Tensor) else None)
                continue
            spec, local = x._spec, x._local_tensor
            if mesh is None:
                mesh = spec.mesh
            elif spec.mesh is not mesh:
                _check_one(mesh, spec.mesh)
            if type(local) is AsyncCollectiveTensor:
                local = local.wait()
            self.locals.append(local)
            self.specs.append(spec)
            assert spec.tensor_meta is not None
            shape = spec.tensor_meta.shape
            key.append((shape, spec.placements, spec.shard_order if mesh.ndim > 1 else None))
        if mesh is None:
            raise ProgramError("no DTensor among the inputs; call execute for plain tensors")
        self.mesh = mesh
        self.key = (mesh_digest(mesh), *key)


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
        self._programs: Lru[Any, Program] = Lru(MOST_PROGRAMS)
        self._prepared: dict[Any, Prepared] = {}
        self._last: tuple[Program, weakref.ref[TorchMesh]] | None = None
        # What the last call was given, by input, and what it was found to be.
        self._seen: tuple[list[Seen | None], Prepared] | None = None

    def again(self, given: Sequence[Any]) -> list[Any] | None:
        """As ``run`` for DTensors whose specs are the objects of the last call, and local tensors
        like its, else None.
        """
        if self._seen is None:
            return None
        seen, known = self._seen
        if len(seen) != len(given):
            return None
        mesh: TorchMesh | None = None
        values: list[Any] = []
        for x, spec, whole in zip(given, seen, known.wholes, strict=True):
            if spec is None:
                if isinstance(x, DTensor) or (whole is not None and x.shape != whole):
                    return None
                values.append(x)
                continue
            if not isinstance(x, DTensor) or not spec.holds(x._spec):
                return None
            local = x._local_tensor
            mesh = x._spec.mesh if mesh is None else mesh
            values.append(local.wait() if type(local) is AsyncCollectiveTensor else local)
        assert mesh is not None
        found = known.program.executable.again(values, mesh, known.wholes)
        return None if found is None else self._close(found, known, mesh)

    def run(self, inputs: Sequence[Any], opened: Opened, values: Sequence[Any]) -> list[Any]:
        """All outputs. ``values``: ``opened.locals`` on one device, and the carrier of sizes."""
        carried = tuple(values[-1].shape) if self._carries else None
        key = (opened.key, carried)
        known = self._prepared.get(key)
        if known is None:
            known = self._prepare(inputs, opened, values)
            if len(self._prepared) >= MOST_CALLS:  # sizes that change with every call
                self._prepared.clear()
            self._prepared[key] = known
        mesh = opened.mesh
        found = known.program.executable.run(values, mesh, known.wholes)
        if not self._carries:
            self._seen = [None if s is None else Seen(s) for s in opened.specs], known
        return self._close(found, known, mesh)

    def _close(self, found: Sequence[Any], known: Prepared, mesh: TorchMesh) -> list[Any]:
        self._last = known.program, weakref.ref(mesh)
        return [
            _closed(value, mesh, known, i) if isinstance(value, torch.Tensor) else value
            for i, value in enumerate(found)
        ]

    @property
    def shardings(self) -> list[Sharding | None] | None:
        """Of all outputs of the last call; None before there was one, or without its mesh."""
        mesh = None if self._last is None else self._last[1]()
        if mesh is None or self._last is None:
            return None
        return [None if p is None else Sharding(mesh, p) for p in self._last[0].places]

    def stats(self) -> CacheStats:
        """Of the programs of this definition."""
        return self._programs.stats()

    def _prepare(self, inputs: Sequence[Any], opened: Opened, values: Sequence[Any]) -> Prepared:
        mesh = opened.mesh
        places = tuple(None if s is None else spec_placements(s) for s in opened.specs)
        key = (mesh_digest(mesh), places)
        program = self._programs.get(key)
        if program is None:
            program = self._programs.put(key, self._program(mesh, inputs, places))
        specs = [*opened.specs, None] if self._carries else opened.specs
        wholes = [_whole(x, s) for x, s in zip(values, specs, strict=True)]
        metas = [
            x if shape is None else torch.empty(shape, dtype=x.dtype, device="meta")
            for x, shape in zip(values, wholes, strict=True)
        ]
        symbols = bind(program.executable.fusion, metas)
        shapes = [None if t is None else _evaluated(t.shape, symbols) for t in program.outputs]
        return Prepared(program, tuple(wholes), shapes)

    def _program(
        self, mesh: TorchMesh, inputs: Sequence[Any], places: Sequence[Placements | None]
    ) -> Program:
        pins: dict[TensorView, Placements] = {}
        for value, placed in zip(inputs, places, strict=True):
            if isinstance(value, TensorView):
                pins[value] = placed or (REPLICATE,) * mesh.ndim
        for value in self._values:
            if value.mesh is None:
                continue
            asked = _asked(value, mesh)
            if pins.setdefault(value, asked) != asked:
                raise DefinitionError(
                    f"the input {value!r} was defined with {', '.join(map(str, asked))}, found a "
                    f"DTensor with {', '.join(map(str, pins[value]))}; redistribute it"
                )
        fusion = self._scope.finish(self._outputs, self._carries, logical_mesh(mesh), pins)
        verify(fusion, "definition")
        placed_fusion = propagate(decompose(fusion))
        types = [placed_fusion.type_of(o.value) for o in placed_fusion.outputs]
        outputs = [t if isinstance(t, TensorType) else None for t in types]
        torchs = [
            None if t is None else tuple(map(from_placement, t.placements or ())) for t in outputs
        ]
        return Program(compile_fusion(fusion, self._name), outputs, torchs)


def _whole(x: Any, spec: DTensorSpec | None) -> tuple[int, ...] | None:
    if spec is not None:
        return tuple(spec.shape)
    return tuple(x.shape) if isinstance(x, torch.Tensor) else None


def _evaluated(shape: Sequence[Size], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, symbols) for size in shape)


def _check_one(mesh: TorchMesh, other: TorchMesh) -> None:
    if mesh != other:
        raise ProgramError(
            f"DTensors on {mesh} and {other} found, all must be on one mesh; redistribute"
        )


def _asked(value: TensorView, mesh: TorchMesh) -> Placements:
    """The placements that the author gave ``value``, whose mesh must be that of the call."""
    assert value.mesh is not None
    if value.mesh != DeviceMesh(mesh):
        raise DefinitionError(
            f"{value!r} is defined on {value.mesh}, the DTensors are on {DeviceMesh(mesh)}; define "
            "the fusion on the mesh of its inputs"
        )
    return placements(value.loops, value.mesh.shape, value.type.shape)


def _closed(local: torch.Tensor, mesh: TorchMesh, known: Prepared, i: int) -> DTensor:
    """Output ``i`` as a DTensor over ``mesh``."""
    at = i, local.stride()
    spec = known.specs.get(at)
    if spec is None:
        shape, places = known.shapes[i], known.program.places[i]
        assert shape is not None and places is not None
        meta = TensorMeta(torch.Size(shape), _strides(shape, local), local.dtype)
        spec = known.specs[at] = SpecWithoutMesh(DTensorSpec(mesh, places, meta))
    return dtensor(local, spec.on(mesh))


def _strides(shape: tuple[int, ...], local: torch.Tensor) -> tuple[int, ...]:
    """The strides of a whole of ``shape`` whose dims lie in the order of the local tensor's."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (local.stride(d), -d)):
        strides[d] = step
        step *= max(shape[d], 1)
    return tuple(strides)
