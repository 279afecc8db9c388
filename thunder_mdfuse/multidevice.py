"""Several GPUs: meshes, shardings, the job's ranks, and fusions on DTensors.

mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
with FusionDefinition() as fd:
    x, w = (fd.define_tensor([-1, -1], dtype=DataType.BFloat16) for _ in range(2))
    fd.add_output(fd.ops.linear(x, w))
(y,) = execute_with_dtensors(fd, [x_dtensor, w_dtensor])
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from thunder_mdfuse.comm.communicator import Communicator as Communicator
from thunder_mdfuse.definition import FusionDefinition
from thunder_mdfuse.direct.mesh import DeviceMesh as DeviceMesh
from thunder_mdfuse.direct.view import DistributedTensor as DistributedTensor
from thunder_mdfuse.direct.view import Sharding as Sharding
from thunder_mdfuse.executable import programs
from thunder_mdfuse.lru import CacheStats as CacheStats


class CommunicatorBackend(Enum):
    """What collectives run on: NCCL between GPUs, gloo between CPUs."""

    nccl = "nccl"
    gloo = "gloo"


def execute_with_dtensors(fd: FusionDefinition, in_dtensors: Sequence[Any]) -> list[Any]:
    """The outputs of ``fd`` as DTensors over the mesh of ``in_dtensors``.

    Plain tensors among the inputs count as replicated; numbers go with them. Raises
    ``ProgramError`` for inputs that do not fit, ``CommError`` when ranks disagree.
    """
    return fd.execute_with_dtensors(in_dtensors)


def get_output_shardings(fd: FusionDefinition) -> list[Sharding | None]:
    """The sharding of each output of the last call on DTensors; None for a number."""
    return fd.get_output_shardings()


def program_stats() -> CacheStats:
    """Of the programs that this process remembers: all fusions of both doors, plain and on meshes.

    A program that was forgotten goes on working where it is held, and is made anew elsewhere.
    """
    return programs.stats()


def keep_programs(most: int) -> None:
    """Remember ``most`` programs from now on. Raises ``MdfuseError`` for less than one."""
    programs.resize(most)


class FusionDefinitionWrapper:
    """A function that defines a fusion, as a function of DTensors.

    It is defined once; each mesh and set of placements it is called with has a program of its own.
    """

    def __init__(self, define_fusion: Callable[[FusionDefinition], Any]) -> None:
        self._define_fusion = define_fusion
        self._fd: FusionDefinition | None = None

    @property
    def fd(self) -> FusionDefinition:
        """The fusion."""
        if self._fd is None:
            with FusionDefinition() as fd:
                self._define_fusion(fd)
            self._fd = fd
        return self._fd

    def __call__(self, in_dtensors: Sequence[Any]) -> list[Any]:
        """The outputs for ``in_dtensors``, as ``execute_with_dtensors``."""
        return self.fd.execute_with_dtensors(in_dtensors)
