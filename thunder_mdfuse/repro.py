"""Scripts that make a fusion again and call it, for a bug report.

In: the text of a definition (a function ``mdfuse_fusion(fd)``) or a program, and inputs. Of these
the script has shapes, strides, dtypes, meshes, placements and the ranges of integers, and the
values of small integer tensors only. It prints what came out, output by output. For DTensors it
runs on as many ranks as there were: of torchrun, of mpirun, or its own under python alone.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from thunder_mdfuse import __version__
from thunder_mdfuse.comm.placements import spec_placements
from thunder_mdfuse.direct.remake import layout_of
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.ir.types import Partial, Placement, Shard, StridedShard

WRITTEN_OUT = 64  # elements of an integer tensor whose values are in the script
_HEAD = '''"""thunder_mdfuse {version}, torch {torch}, {device}"""

import torch
{imports}
{start}
torch.manual_seed({seed})

{made}
'''
_ON_A_MESH = """
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: F401
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: F401
"""
_DEFINITION_IMPORTS = """
from thunder_mdfuse import DataType, FusionDefinition, ParallelType  # noqa: F401
from thunder_mdfuse.direct.mesh import DeviceMesh  # noqa: F401
from thunder_mdfuse.direct.remake import as_ranks, dtensor, laid_out, show  # noqa: F401
"""
_PROGRAM_IMPORTS = """
from thunder_mdfuse.direct import remake
from thunder_mdfuse.direct.remake import as_ranks, dtensor, laid_out, show  # noqa: F401
from thunder_mdfuse.ir.text import parse
"""
_DEFINITION = """
{definition}

with FusionDefinition() as fd:
    mdfuse_fusion(fd)
"""


def repro_script(definition: str, inputs: Sequence[Any] | None, seed: int = 0) -> str:
    """A script that runs as it is.

    ``definition``: what ``repr`` of a ``FusionDefinition`` gives. ``inputs``: flat DTensors,
    tensors and numbers; None for a script that defines and does not call. Raises ``ShardingError``
    for DTensors of placements that no fusion takes.
    """
    made = _DEFINITION.format(definition=definition.rstrip())
    mesh = _mesh_of(inputs or ())
    call = "fd.execute(inputs)" if mesh is None else "fd.execute_with_dtensors(inputs)"
    return _script(_DEFINITION_IMPORTS, made, inputs, mesh, call, seed)


def program_script(
    fusion: Fusion,
    name: str,
    inputs: Sequence[Any],
    mesh: DeviceMesh | None = None,
    seed: int = 0,
) -> str:
    """As ``repro_script`` for the program of a region: its text, and ``inputs`` on ``mesh``."""
    made = f'fusion = parse("""\n{render(fusion)}""")\n'
    mesh = mesh or _mesh_of(inputs)
    call = f"remake.run_fusion(fusion, {name!r}, inputs{'' if mesh is None else ', mesh'})"
    return _script(_PROGRAM_IMPORTS, made, inputs, mesh, call, seed)


def _script(
    imports: str,
    made: str,
    inputs: Sequence[Any] | None,
    mesh: DeviceMesh | None,
    call: str,
    seed: int,
) -> str:
    devices = {str(x.device) for x in inputs or () if isinstance(x, torch.Tensor)}
    ranks = dist.get_world_size() if mesh is not None else 1
    where = ", ".join(sorted(devices)) or "no tensors"
    head = _HEAD.format(
        version=__version__,
        torch=torch.__version__,
        device=where if mesh is None else f"{mesh.device_type}, {ranks} ranks",
        imports=("" if mesh is None else _ON_A_MESH) + imports,
        start="" if mesh is None else f"as_ranks({ranks})",
        seed=seed,
        made=made,
    )
    if inputs is None:
        return head
    device = None if mesh is None else mesh.device_type
    lines = [f"    {_input_text(x, device)}," for x in inputs]
    body = "\n".join([*([] if mesh is None else [_mesh_text(mesh)]), "inputs = [", *lines, "]"])
    inside = "" if mesh is None else "if mesh.get_coordinate() is not None:\n    "
    return f"{head}\n{body}\n{inside}show({call})\n"


def _mesh_of(inputs: Sequence[Any]) -> DeviceMesh | None:
    return next((x.device_mesh for x in inputs if isinstance(x, DTensor)), None)


def _mesh_text(mesh: DeviceMesh) -> str:
    ids, names = mesh.mesh.tolist(), mesh.mesh_dim_names
    return f"mesh = TorchMesh({mesh.device_type!r}, {ids}, mesh_dim_names={names!r})"


def _placement_text(p: Placement) -> str:
    if isinstance(p, StridedShard):
        return f"_StridedShard({p.dim}, split_factor={p.split})"
    if isinstance(p, Shard):
        return f"Shard({p.dim})"
    return f"Partial({p.op!r})" if isinstance(p, Partial) else "Replicate()"


def _dtensor_text(x: DTensor, device: str) -> str:
    places = ", ".join(map(_placement_text, spec_placements(x._spec)))
    local = x.to_local()
    whole = _random(local, tuple(x.shape), device)
    layout = layout_of(local)
    lies = f", layout={layout}" if layout else ""
    return f"dtensor({whole}, mesh, [{places}], stride={x.stride()}{lies})"


def _input_text(value: Any, device: str | None = None) -> str:
    """An expression that gives an input like ``value``; ``device``: where, if not where it is."""
    if isinstance(value, DTensor):
        assert device is not None
        return _dtensor_text(value, device)
    if not isinstance(value, torch.Tensor):
        special = isinstance(value, float) and not math.isfinite(value)
        return f'float("{value}")' if special else repr(value)
    if value.ndim == 0 or (_is_exact(value) and value.numel() <= WRITTEN_OUT):
        made = f"torch.tensor({_literal(value.tolist())}, dtype={value.dtype}"
        made += f", device={device or str(value.device)!r})"
        return _strided(value, made)
    return _strided(value, _random(value, tuple(value.shape), device or str(value.device)))


def _is_exact(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, complex):
        return f"complex({_literal(value.real)}, {_literal(value.imag)})"
    special = isinstance(value, float) and not math.isfinite(value)
    return f'float("{value}")' if special else repr(value)


def _random(value: torch.Tensor, shape: tuple[int, ...], on: str) -> str:
    """Random numbers of the dtype of ``value``; integers in the range of those that are there."""
    device = repr(on)
    if value.dtype == torch.bool:
        return f"torch.randint(0, 2, {shape}, device={device}).bool()"
    if _is_exact(value):
        low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
        return f"torch.randint({low}, {high + 1}, {shape}, dtype={value.dtype}, device={device})"
    if value.dtype.itemsize == 1:
        return f"torch.randn({shape}, device={device}).to({value.dtype})"
    return f"torch.randn({shape}, dtype={value.dtype}, device={device})"


def _strided(value: torch.Tensor, made: str) -> str:
    """``made``, which is contiguous, with the strides of ``value``."""
    layout = layout_of(value)
    return f"laid_out({made}, {layout})" if layout else made
