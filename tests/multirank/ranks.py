"""What the cases of the multi-rank suite share: where they run, and how they compare."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

# Each rank on a GPU of its own, or all on the CPU: which one is a matter of the host alone.
DEVICE = "cuda" if torch.cuda.device_count() > 1 else "cpu"
TOLERANCE = 1e-5 if DEVICE == "cpu" else 1e-4  # f32; on the CPU torch runs the same kernels


@dataclass(frozen=True)
class Case:
    """A check that all ranks of a job run together; ``ranks``: how many it needs at least."""

    door: str
    name: str
    run: Callable[[int], None]
    ranks: int = 2

    def __str__(self) -> str:
        return f"{self.door}-{self.name}"


def place(x: torch.Tensor, mesh: DeviceMesh, *placements: Placement) -> DTensor:
    """``x``, equal on all ranks, as a DTensor.

    Cut out by coordinate: eager's collectives mix coordinates and ranks of a group.
    """
    return distribute_tensor(x.to(DEVICE), mesh, placements, src_data_rank=None)


def close(found: Any, wanted: torch.Tensor, what: str = "") -> None:
    """Assert that a DTensor is ``wanted``, comparing this rank's part where it has a whole part."""
    assert isinstance(found, DTensor), found
    assert found.shape == wanted.shape, what
    if any(p.is_partial() for p in found.placements):
        part, whole = found.full_tensor(), wanted.to(DEVICE)
    else:
        part = found.to_local()
        whole = place(wanted, found.device_mesh, *found.placements).to_local()
    torch.testing.assert_close(part, whole, rtol=TOLERANCE, atol=TOLERANCE, msg=_said(what))


def _said(what: str) -> Callable[[str], str]:
    return lambda m: f"{what}: {m}"


def raises(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    """Assert that ``call`` raises a ``kind`` that says ``text``."""
    try:
        call()
    except kind as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


def mesh_of(ids: Any, names: Sequence[str] | None = ("tp",)) -> DeviceMesh:
    """A mesh of these ranks on the device of the suite."""
    return DeviceMesh(DEVICE, torch.tensor(ids), mesh_dim_names=names and tuple(names))
