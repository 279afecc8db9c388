"""The random programs of the emulator suite on a GPU; the oracle is torch on the CPU."""

import pytest
import torch
from codegen.random_programs.draw import draw_program
from codegen.random_programs.known import faults
from codegen.random_programs.program import Call, Program

from thunder_mdfuse.executable import Executable

pytestmark = pytest.mark.gpu
SEEDS = range(1000, 1400)


def on_gpu(call: Call) -> list[torch.Tensor]:
    """The call's inputs on the GPU with their layouts; what shared storage does so there too."""
    storages: dict[int, torch.Tensor] = {}
    moved = []
    for given in call.inputs:
        whole = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage())
        # Empty storages all have the address 0.
        shared = whole.data_ptr() or id(given)
        base = storages.setdefault(shared, whole.cuda())
        moved.append(base.as_strided(given.shape, given.stride(), given.storage_offset()))
    return moved


def on_cpu(value: torch.Tensor) -> torch.Tensor:
    """A copy of ``value`` with its storage and layout: it may be expanded or overlap itself."""
    whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())
    return whole.cpu().as_strided(value.shape, value.stride(), value.storage_offset())


def as_on_cpu(value: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """``value`` with the strides of ``eager`` if neither has gaps.

    A promotion is a copy in torch on the CPU, which made ``eager``, and none on a GPU; what reads
    it may have other strides then.
    """
    dense = torch.ops.aten.is_non_overlapping_and_dense
    if value.shape != eager.shape or not (dense(value) and dense(eager)):
        return value
    found = torch.empty_strided(value.shape, eager.stride(), dtype=value.dtype)
    return found.copy_(value)


def run(program: Program) -> Executable:
    """Raises ``AssertionError`` with the program's text when a call gives something wrong."""
    executable = Executable(program.fusion, f"random{program.seed}")
    promotes = any(n.op == "cast" and not n.attrs.user for n in program.fusion.nodes)
    for number, call in enumerate(program.calls):
        found = executable.run([*on_gpu(call), *call.numbers])
        torch.cuda.synchronize()
        assert executable.last is not None
        assert executable.last.backend == "cuda"
        for i, (value, known) in enumerate(zip(found, call.outputs, strict=True)):
            assert isinstance(value, torch.Tensor)
            assert value.is_cuda
            value = on_cpu(value)
            problem = faults(as_on_cpu(value, known.eager) if promotes else value, known)
            assert problem is None, (
                f"seed {program.seed}, call {number}, output {i}: {problem}\n{program.text}"
            )
    return executable


@pytest.mark.parametrize("first", SEEDS[::50])
def test_random_programs_equal_torch(first: int) -> None:
    for seed in range(first, first + 50):
        run(draw_program(seed))
