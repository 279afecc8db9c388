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
        base = storages.setdefault(whole.data_ptr(), whole.cuda())
        moved.append(base.as_strided(given.shape, given.stride(), given.storage_offset()))
    return moved


def run(program: Program) -> None:
    executable = Executable(program.fusion, f"random{program.seed}")
    for number, call in enumerate(program.calls):
        found = executable.run(on_gpu(call))
        torch.cuda.synchronize()
        assert executable.last is not None
        assert executable.last.backend == "cuda"
        for i, (value, known) in enumerate(zip(found, call.outputs, strict=True)):
            assert isinstance(value, torch.Tensor)
            assert value.is_cuda
            copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            problem = faults(copy.copy_(value), known)
            assert problem is None, (
                f"seed {program.seed}, call {number}, output {i}: {problem}\n{program.text}"
            )


@pytest.mark.parametrize("first", SEEDS[::50])
def test_random_programs_equal_torch(first: int) -> None:
    for seed in range(first, first + 50):
        run(draw_program(seed))
