"""What eager DTensor makes of a global fusion: the placements of every value.

One process acts as rank 0 of a fake process group, so nothing is communicated and values mean
nothing; placements are those of DTensor's own propagation, for the torch calls that the reference
backend makes. An op that eager has no rule for, or refuses, has no placements here.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from thunder_mdfuse.comm.placements import from_placement, to_placement
from thunder_mdfuse.errors import MdfuseError
from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.sizes import evaluate
from thunder_mdfuse.ir.types import Mesh, Placements, TensorType
from thunder_mdfuse.runtime.aten import ATEN, TORCH_DTYPES
from thunder_mdfuse.sharding.spec import local_shape, replicated

RANKS = 8  # at least as many as any mesh of the tests has
# What eager raises where it has no rule, or a faulty one.
REFUSALS = (
    RuntimeError,
    NotImplementedError,
    ValueError,
    AssertionError,
    IndexError,
    TypeError,
    AttributeError,
)


def start() -> None:
    """The fake process group, where there is none."""
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())


@lru_cache
def device_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """A mesh of the first ranks."""
    start()
    count = torch.Size(shape).numel()
    return DeviceMesh("cpu", torch.arange(count).reshape(shape), mesh_dim_names=names)


def mesh_of(mesh: Mesh) -> DeviceMesh:
    """The device mesh of a logical one."""
    return device_mesh(tuple(a.size for a in mesh.axes), tuple(a.name for a in mesh.axes))


def placed(t: TensorType, places: Placements, mesh: Mesh) -> DTensor:
    """A DTensor of type ``t`` with the placements ``places``, of zeros."""
    at_first = {f"@{a.name}": 0 for a in mesh.axes}
    shape = [evaluate(n, at_first) for n in local_shape(t.placed(places), mesh)]
    return DTensor.from_local(
        torch.zeros(shape, dtype=TORCH_DTYPES[t.dtype]),
        mesh_of(mesh),
        [from_placement(p) for p in places],
        run_check=False,
        shape=torch.Size(t.shape),
        stride=torch.empty(t.shape, device="meta").stride(),
    )


class Wire(TorchDispatchMode):
    """Adds up the bytes that rank 0 receives in the collectives that eager DTensor starts."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor's own dispatch, whose inner calls come here again
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("_c10d_functional", "_dtensor"):
            self.received += _received(func._opname, args, result)
        return result


def _received(op: str, args: tuple[Any, ...], result: Any) -> int:
    if op in ("wait_tensor", "_wrap_tensor_autograd"):
        return 0
    into = args[0].nbytes
    if op == "all_gather_into_tensor":
        return result.nbytes - into
    if op == "all_reduce":
        ranks = _ranks(args[2])
        return 2 * into * (ranks - 1) // ranks
    if op == "reduce_scatter_tensor":
        return into - result.nbytes
    if op in ("all_to_all_single", "shard_dim_alltoall"):
        ranks = _ranks(args[-1])
        return into * (ranks - 1) // ranks
    raise AssertionError(f"what does {op} move?")


def _ranks(group_name: str) -> int:
    return int(_resolve_process_group(group_name).size())


def placements(fusion: Fusion) -> dict[Use, Placements]:
    """Eager's placements of the results of all ops that it does."""
    mesh = fusion.mesh
    assert mesh is not None
    values: dict[Use, Any] = {}
    found: dict[Use, Placements] = {}
    for i, node in enumerate(fusion.nodes):
        for r, (value, known) in enumerate(_results(fusion, node, values, mesh)):
            values[Use(i, r)] = value
            if known:
                found[Use(i, r)] = tuple(to_placement(p, value.ndim) for p in value.placements)
    return found


def _results(
    fusion: Fusion, node: Node, values: dict[Use, Any], mesh: Mesh
) -> list[tuple[Any, bool]]:
    """Each result, and whether eager made it."""
    (t, *_) = node.types
    if not isinstance(t, TensorType):
        return [(_number(node, values), False)]
    if node.op == "input":
        return [(placed(t, t.placements or replicated(mesh), mesh), False)]
    if node.op == "reshard":
        return [(placed(t, node.attrs.placements, mesh), False)]  # type: ignore[union-attr]
    args = [values[a] for a in node.args]
    tensors = [a for a in args if isinstance(a, DTensor)]
    try:
        results = ATEN[node.op](
            args, node.attrs, [t.dtype for t in node.types], torch.device("cpu")
        )
    except REFUSALS:
        results = tuple(placed(t, replicated(mesh), mesh) for t in node.types)
        return [(x, False) for x in results]
    if not tensors:
        # Factories make plain tensors, which beside a DTensor count as Replicate.
        full = [TorchReplicate()] * len(mesh.axes)
        lifted = (DTensor.from_local(x, mesh_of(mesh), full, run_check=False) for x in results)
        return [(x, False) for x in lifted]
    return [(x, _known(x, t)) for x, t in zip(results, node.types, strict=True)]


def _known(x: Any, t: Any) -> bool:
    try:
        for p in x.placements:
            to_placement(p, x.ndim)
    except MdfuseError:
        return False  # a placement of some op's own, such as the mask of an embedding
    # Eager pad gives one placement on any mesh.
    return tuple(x.shape) == t.shape and len(x.placements) == x.device_mesh.ndim


def _number(node: Node, values: dict[Use, Any]) -> Any:
    args = [values[a] for a in node.args]
    return ATEN[node.op](args, node.attrs, [t.dtype for t in node.types])[0]
