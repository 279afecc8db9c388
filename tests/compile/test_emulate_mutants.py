"""Every mutant of the golden kernels is caught, by a fault or by a wrong result."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from thunder_mdfuse.compile.emulate import Allocation, build, poison
from thunder_mdfuse.compile.emulate_mutants import mutants
from thunder_mdfuse.errors import EmulatorError

KERNELS = Path(__file__).parent / "kernels"

# Mutants that nothing catches, each with the reason why that is right.
SURVIVORS: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Case:
    """How a golden kernel is launched on small data, and what it has to compute."""

    grid: int
    block: int
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    scalars: Sequence[int | float]
    expected: Sequence[torch.Tensor]
    scratch: Sequence[torch.Tensor] = ()
    cluster: int = 1


def _pointwise() -> Case:
    x = torch.linspace(-2, 2, 1003).bfloat16()
    expected = (x.float() * 0.5).exp().bfloat16()
    return Case(2, 64, [x], [torch.empty_like(x)], [1003, 0.5], [expected])


def _row_reduction() -> Case:
    # Small integers and 256 columns of which some are zero: sums are exact in every order.
    x = torch.zeros(3, 256)
    x[:, :200] = torch.randint(-8, 8, (3, 200), generator=torch.Generator().manual_seed(0))
    x = x[:, :200].contiguous()
    x[:, 199] -= x.sum(1) - 400
    mean = x.sum(1, keepdim=True) / 200
    return Case(3, 128, [x], [x.clone(), x[:, 0].clone()], [200], [x - mean, x.amax(1)])


def _transpose() -> Case:
    x = torch.arange(40 * 37, dtype=torch.int32).reshape(40, 37)
    return Case(3, 64, [x], [torch.empty(37, 40, dtype=torch.int32)], [40, 37], [x.T.contiguous()])


def _grid_reduction() -> Case:
    x = torch.arange(300, dtype=torch.float64)
    parts, total = torch.empty(10, dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    counter = torch.zeros(1, dtype=torch.int32)
    return Case(5, 64, [x], [parts, total], [300], [x.sum().reshape(1)], [counter])


def _cluster_reduction() -> Case:
    x = torch.arange(1, 401, dtype=torch.float32).reshape(2, 200)
    expected = x / x.sum(1, keepdim=True)
    return Case(8, 64, [x], [torch.empty_like(x)], [200], [expected], cluster=4)


def _warp_exchange() -> Case:
    # 150 values: the second warp has nothing left in the last round.
    padded = torch.zeros(160, dtype=torch.int32)
    padded[:150] = torch.arange(150, dtype=torch.int32) * 5 % 97 - 48
    groups = padded.reshape(-1, 32)
    weights = 2 ** torch.arange(32, dtype=torch.int64)
    votes = ((groups < 0) * weights).sum(1)
    signed = torch.where(votes >= 2**31, votes - 2**32, votes).int()
    outputs = [padded[:150].clone(), torch.empty_like(signed)]
    expected = [groups.flip(1).reshape(-1)[:150].clone(), signed]
    return Case(1, 64, [padded[:150].clone()], outputs, [150], expected)


CASES: dict[str, Callable[[], Case]] = {
    "pointwise": _pointwise,
    "row_reduction": _row_reduction,
    "transpose": _transpose,
    "grid_reduction": _grid_reduction,
    "cluster_reduction": _cluster_reduction,
    "warp_exchange": _warp_exchange,
}


def _run(source: str, entry: str, case: Case) -> None:
    """Raises if the emulator finds a fault or the result is wrong."""
    memory = [*case.inputs, *case.outputs, *case.scratch]
    allocations = []
    for k, tensor in enumerate(memory):
        nbytes = tensor.numel() * tensor.element_size()
        writable = k >= len(case.inputs)
        fresh = len(case.inputs) <= k < len(case.inputs) + len(case.outputs)
        allocations.append(Allocation(tensor.data_ptr(), nbytes, writable, f"memory {k}", fresh))
        if fresh:
            poison(tensor.data_ptr(), nbytes)
    args: list[int | float] = [tensor.data_ptr() for tensor in memory]
    build(source, entry).launch_checked(
        grid=(case.grid, 1, 1),
        block=(case.block, 1, 1),
        args=[*args, *case.scalars],
        allocations=allocations,
        cluster=case.cluster,
        timeout=20,
    )
    for found, expected in zip(case.outputs[-len(case.expected) :], case.expected, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for tensor in case.scratch:
        assert not tensor.any(), "a counter was not reset"


@pytest.mark.parametrize("name", CASES)
def test_golden_kernels_are_right(name: str) -> None:
    _run((KERNELS / f"{name}.cu").read_text(), name, CASES[name]())


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_caught(name: str) -> None:
    source = (KERNELS / f"{name}.cu").read_text()
    survived = []
    for mutation, mutant in mutants(source):
        try:
            _run(mutant, name, CASES[name]())
        except (EmulatorError, AssertionError):
            continue
        survived.append((name, mutation))
    assert [found for found in survived if found not in SURVIVORS] == []


def test_mutants_change_one_thing_each() -> None:
    source = (KERNELS / "warp_exchange.cu").read_text()
    found = dict(mutants(source))
    assert len(found) == len(mutants(source)) == 8
    assert "no warp_barrier on line 15" in found
    assert "mdf::warp_barrier(0x0000ffffu)" in found["half the mask of warp_barrier on line 17"]
    assert "mdf::ballot(v < 0, 0x0000ffffu)" in found["half the mask of ballot on line 18"]
    assert "if ((true)) v = mdf::load1(x, i);" in found["no bound on line 13"]
    for text in found.values():
        assert sum(a != b for a, b in zip(text.splitlines(), source.splitlines(), strict=True)) == 1


def test_poison_is_nan_in_every_float() -> None:
    buffer = ctypes.create_string_buffer(64)
    poison(ctypes.addressof(buffer), 64)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert torch.frombuffer(buffer, dtype=dtype).isnan().all()
