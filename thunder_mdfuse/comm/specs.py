"""Specs of DTensors between calls, and DTensors made of them, with little work for the host.

Nothing here keeps a mesh alive: with it its process groups would live on.
"""

import weakref
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec


class SpecWithoutMesh:
    """All of a spec but its mesh, which it does not keep alive; making a spec takes long."""

    def __init__(self, spec: DTensorSpec) -> None:
        self._fields = {k: v for k, v in vars(spec).items() if k != "mesh"}

    def on(self, mesh: DeviceMesh) -> DTensorSpec:
        """The spec over the mesh object ``mesh``, which equals the one that it was made with."""
        spec = object.__new__(DTensorSpec)
        spec.__dict__.update(self._fields, mesh=mesh)
        return spec


class Seen:
    """A spec as it was when it was seen. It keeps neither the spec nor its mesh alive."""

    __slots__ = ("_mesh", "_meta", "_order", "_placements", "_spec")

    def __init__(self, spec: DTensorSpec) -> None:
        self._spec, self._mesh = weakref.ref(spec), weakref.ref(spec.mesh)
        self._placements, self._meta, self._order = _parts(spec)

    def holds(self, spec: DTensorSpec) -> bool:
        """Whether ``spec`` is that one, and has not changed since."""
        return (
            self._spec() is spec
            and self._mesh() is spec.mesh
            and self._placements is spec.placements
            and self._meta is spec.tensor_meta
            and self._order is spec.shard_order
        )


def _parts(spec: DTensorSpec) -> tuple[Any, Any, Any]:
    return spec.placements, spec.tensor_meta, spec.shard_order


def dtensor(local: torch.Tensor, spec: DTensorSpec) -> DTensor:
    """The DTensor of a local tensor, which requires no gradient. Its ``__init__`` does nothing, and
    takes twice as long as all the rest, since torch.compile must not look into it.
    """
    return DTensor.__new__(DTensor, local, spec, requires_grad=False)
