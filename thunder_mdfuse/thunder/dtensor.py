"""DTensor's side of a region: meshes, placements and specs, to the IR and back.

At trace time a ``DTensorProxy``'s
spec gives a value's placements; at run time DTensors are opened to local tensors, and local results
are closed again over the mesh object that the call brought.
"""

from collections.abc import Sequence
from typing import Any

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement as TorchPlacement

from thunder_mdfuse.comm.placements import spec_placements, to_placement
from thunder_mdfuse.comm.specs import dtensor
from thunder_mdfuse.comm.team import axis_names
from thunder_mdfuse.errors import ExecutorError, ShardingError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.chunks import chunk_size, position
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import (
    Mesh,
    Placements,
    Shard,
    StridedShard,
    TensorType,
)
from thunder_mdfuse.thunder.dtensor_twins import PlaceId
from thunder_mdfuse.thunder.reasons import Reason
from thunder_mdfuse.thunder.values import Values


def to_placements(spec: DTensorSpec) -> Placements:
    """The IR's placements for a spec's. Raises ``ShardingError`` for kinds that the IR lacks."""
    return spec_placements(spec)


def described(p: Proxy) -> str:
    """A value's type in a few words, as ``cpu f32[i0, 8] @ [Shard(0)]``: global shape, sizes that
    are symbols by name.
    """
    if isinstance(p, NumberProxy):
        return f"{p.python_type.__name__} {p.name}"
    if not isinstance(p, TensorProxy):
        return str(p.type_string())
    dims = ", ".join(d.name if isinstance(d, NumberProxy) else str(d) for d in p._shape)
    text = f"{p.device.device_str()} {p.dtype.shortname()}[{dims}]"
    if not isinstance(p, DTensorProxy):
        return text
    return f"{text} @ [{', '.join(_described_placement(q, p.ndim) for q in p.spec._o.placements)}]"


def _described_placement(p: TorchPlacement, ndim: int) -> str:
    try:
        return str(to_placement(p, ndim))
    except ShardingError:  # a kind that the IR lacks
        return repr(p)


def described_mesh(mesh: DeviceMesh) -> str:
    """A mesh by its axes, as ``mesh[dp=2, tp=4]``."""
    axes = (f"{name}={mesh.size(i)}" for i, name in enumerate(axis_names(mesh)))
    return f"mesh[{', '.join(axes)}]"


def spec_refusal(p: DTensorProxy) -> Reason | None:
    """Why a value with this proxy's spec cannot be in a region."""
    try:
        to_placements(p.spec._o)
    except ShardingError as e:
        return Reason(f"{p.name}: {e}")
    return None


def local_shape(shape: Sequence[Size], placements: Placements, mesh: Mesh) -> tuple[Size, ...]:
    """The shape at this rank, as expressions in the mesh coordinate (DTensor's chunk rule)."""
    sizes = list(shape)
    for axis, p in zip(mesh.axes, placements, strict=True):
        if isinstance(p, Shard | StridedShard):
            split = p.split if isinstance(p, StridedShard) else 1
            sizes[p.dim] = chunk_size(sizes[p.dim], axis.size, position(axis.name), split)
    return tuple(sizes)


def parts_of(p: DTensorProxy) -> list[int]:
    """Into how many parts each dim of a value is cut, over all mesh axes."""
    spec = p.spec._o
    parts = [1] * p.ndim
    for axis, placement in enumerate(spec.placements):
        if not (placement.is_replicate() or placement.is_partial()):
            parts[placement.dim] *= spec.mesh.size(axis)
    return parts


def from_local_check(bsym: BoundSymbol) -> Reason | None:
    """The local shape must be what DTensor's chunk rule says, since the program is one for all
    ranks.
    """
    x, out = bsym.args[0], bsym.output
    if bsym.kwargs.get("run_check"):
        return Reason("from_local(run_check=True) compares ranks, which a region does not")
    expected = _chunk_shape(out.spec._o)
    if tuple(x._shape) != expected:
        return Reason(
            f"from_local: the local tensor {x.name} has shape {tuple(x._shape)}, the chunk rule "
            f"gives {expected} at this rank; pass shape= and stride= of the whole"
        )
    return None


def to_local_check(bsym: BoundSymbol) -> Reason | None:
    return spec_refusal(bsym.args[0])


def redistribute_check(bsym: BoundSymbol) -> Reason | None:
    x, mesh = bsym.args[0], bsym.args[1] if len(bsym.args) > 1 else None
    if mesh is not None and mesh != x.spec._o.mesh:
        return Reason(f"redistribute from {x.spec._o.mesh} to another mesh ({mesh})")
    return None


def _chunk_shape(spec: DTensorSpec) -> tuple[int, ...]:
    sizes = list(spec.shape)
    coordinate = spec.mesh.get_coordinate() or [0] * spec.mesh.ndim
    for axis, p in enumerate(to_placements(spec)):
        if isinstance(p, Shard | StridedShard):
            split = p.split if isinstance(p, StridedShard) else 1
            size = chunk_size(sizes[p.dim], spec.mesh.size(axis), coordinate[axis], split)
            assert isinstance(size, int)
            sizes[p.dim] = size
    return tuple(sizes)


def from_local(v: Values, x: Any, *_: Any, **__: Any) -> Any:
    placements = v.pins[0]
    assert placements is not None
    shape = v.sizes(v.outs[0]._shape)
    return v.result("from_local", (v.value(x),), at.LocalAttrs(shape, placements))


def to_local(v: Values, x: Any, **_: Any) -> Any:
    use = v.value(x)
    found = v.type(use)
    assert isinstance(found, TensorType) and found.placements is not None
    assert v.builder.mesh is not None
    shape = local_shape(found.shape, found.placements, v.builder.mesh)
    return v.op("to_local", (use,), at.ShapeAttrs(shape))


def redistribute(v: Values, x: Any, *_: Any, **__: Any) -> tuple[Use, ...]:
    placements = v.pins[0]
    assert placements is not None
    return v.result("reshard", (v.value(x),), at.ReshardAttrs(placements))


def place(v: Values, x: Any) -> Any:
    """A value of a twin as eager DTensor places it; where it has no rule, as it is."""
    placements = v.pins[0]
    use = v.value(x)
    return use if placements is None else v.result("reshard", (use,), at.ReshardAttrs(placements))


def traced_mesh(bsyms: Sequence[BoundSymbol]) -> DeviceMesh | None:
    """The mesh object that the trace knows for a region's DTensors; None when it has none."""
    proxies = (p for b in bsyms for p in (*b.flat_proxy_args, *b.flat_proxy_outs))
    return next((p.spec._o.mesh for p in proxies if isinstance(p, DTensorProxy)), None)


def local_inputs(bsyms: Sequence[BoundSymbol]) -> dict[str, str]:
    """Plain tensors that become DTensors, each with the name of what it becomes."""
    made = (b for b in bsyms if b.sym.id == "dtensor_from_local")
    return {b.args[0].name: b.output.name for b in made}


Specs = dict[str, DTensorSpec]


def specs_for(bsyms: Sequence[BoundSymbol], inputs: Sequence[Proxy], given: Specs) -> Specs:
    """The specs that eager DTensor gives every DTensor of a region, its inputs' specs being
    ``given``.
    """
    traced = {p.name: p.spec._o for p in inputs if isinstance(p, DTensorProxy)}
    if given != traced:
        return _replayed(bsyms, given)
    outs = (p for bsym in bsyms for p in bsym.flat_proxy_outs)
    made = {p.name: p.spec._o for p in outs if isinstance(p, DTensorProxy)}
    return {**traced, **made}


def _replayed(bsyms: Sequence[BoundSymbol], given: Specs) -> Specs:
    """Ask eager DTensor again for specs that differ from the traced ones (another mesh, another
    placement); values inside of twins are left to propagation.
    """
    found = dict(given)
    mesh = next(iter(given.values())).mesh if given else traced_mesh(bsyms)
    for bsym in bsyms:
        if isinstance(bsym.sym.id, PlaceId):
            assert mesh is not None
            spec = bsym.sym.id.again(found, mesh)
            if spec is not None:
                found[bsym.output.name] = spec
        elif bsym.sym.id is PrimIDs.COPY_ and bsym.args[1].name in found:
            found[bsym.output.name] = found[bsym.args[1].name]
        elif bsym.sym.id == "dtensor_from_local":
            found[bsym.output.name] = spec_on(mesh or bsym.args[1], bsym.output.spec._o)
    return found


def waited(x: torch.Tensor) -> torch.Tensor:
    """The tensor behind an unfinished collective, once that has ended; ``x`` itself otherwise."""
    return x.wait() if type(x) is AsyncCollectiveTensor else x


def check_one_mesh(name: str, mesh: DeviceMesh, other: DeviceMesh) -> None:
    """Raise ``ExecutorError`` unless two inputs of one call are on equal meshes."""
    if other is not mesh and other != mesh:
        raise ExecutorError(
            f"{name}: its inputs are on different meshes, {mesh} and {other}; one region works on "
            "one mesh: redistribute or rebuild one side so that all inputs share a mesh"
        )


def spec_on(mesh: DeviceMesh, spec: DTensorSpec) -> DTensorSpec:
    """``spec`` over the mesh object ``mesh``, which equals its own."""
    if spec.mesh is mesh:
        return spec
    assert spec.tensor_meta is not None
    meta = TensorMeta(spec.tensor_meta.shape, spec.tensor_meta.stride, spec.tensor_meta.dtype)
    return DTensorSpec(mesh, spec.placements, meta)


def close(local: torch.Tensor, spec: DTensorSpec) -> DTensor:
    """The DTensor of a local result."""
    # An input that is an output has its own gradient; torch wants it told apart.
    local = local.detach() if local.requires_grad else local
    return dtensor(local, spec)
