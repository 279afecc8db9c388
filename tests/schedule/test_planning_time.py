"""Planning and writing kernels takes milliseconds, in proportion to the number of ops.

Processor time is measured, and the best of several runs is compared, because the machine may have
other things to do.
"""

import time
from collections.abc import Callable

import pytest
from schedule.programs import rms_norm, silu, tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200

UNARY = ("sin", "cos", "tanh")


def _chain(b: Builder, x: Use, ops: int) -> list[Use]:
    found = [x]
    for i in range(ops):
        found += b.op(UNARY[i % 3], (found[-1],))
    return found[1:]


def chain(ops: int) -> Fusion:
    """One kernel of one long chain."""
    b = Builder(None, "local")
    return b.finish((_chain(b, b.input(tensor(DType.F32, 64, 128)), ops)[-1],))


def chain_of_outputs(ops: int) -> Fusion:
    """The same, each value of which leaves."""
    b = Builder(None, "local")
    return b.finish(tuple(_chain(b, b.input(tensor(DType.F32, 64, 128)), ops)))


def many_sums(ops: int) -> Fusion:
    """A sum over rows or columns after each second op."""
    b = Builder(None, "local")
    values = _chain(b, b.input(tensor(DType.F32, 64, 128)), ops // 2)
    dims = ((0,), (1,))
    return b.finish(
        tuple(b.op("sum", (v,), at.DimsAttrs(dims[i % 2]))[0] for i, v in enumerate(values))
    )


def sums_of_columns(ops: int) -> Fusion:
    """A sum over the first dim after each second op."""
    b = Builder(None, "local")
    values = _chain(b, b.input(tensor(DType.F32, 64, 128)), ops // 2)
    return b.finish(tuple(b.op("sum", (v,), at.DimsAttrs((0,)))[0] for v in values))


def turned(ops: int) -> Fusion:
    """A long chain of what lies across."""
    b = Builder(None, "local")
    (across,) = b.op("permute", (b.input(tensor(DType.F32, 64, 128)),), at.DimsAttrs((1, 0)))
    (copied,) = b.op("copy", (across,), at.CopyAttrs((0, 1), True))
    return b.finish((_chain(b, copied, ops - 2)[-1],))


def blocks(ops: int) -> Fusion:
    """Residual blocks of norm, linear and activation: as many kernels as linears."""
    b = Builder(None, "local")
    x, w = b.input(tensor(DType.F32, 64, 128)), b.input(tensor(DType.F32, 128))
    weight = b.input(tensor(DType.F32, 128, 128))
    while len(b.nodes) < ops:
        (h,) = b.op("linear", (rms_norm(b, x, w), weight))
        (x,) = b.op("add", (x, silu(b, h)))
    return b.finish((x,))


def independent(ops: int) -> Fusion:
    """Kernels that have nothing to do with each other."""
    b = Builder(None, "local")
    inputs = [b.input(tensor(DType.F32, 64, 128 + i)) for i in range(ops // 2)]
    return b.finish(tuple(_chain(b, x, 2)[-1] for x in inputs))


PROGRAMS = [chain, chain_of_outputs, many_sums, sums_of_columns, turned, blocks, independent]


def _seconds(fusion: Fusion, runs: int) -> float:
    classes = [InputClass(None) for _ in fusion.inputs]
    best = float("inf")
    for _ in range(runs):
        begin = time.process_time()
        for kernel in plan_program(fusion, classes, H200).kernels:
            write_kernel(kernel)
        best = min(best, time.process_time() - begin)
    return best


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_thirty_ops_take_less_than_50_ms(program: Callable[[int], Fusion]) -> None:
    assert _seconds(program(30), 5) < 0.05


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_time_grows_with_the_ops_up_to_two_thousand(program: Callable[[int], Fusion]) -> None:
    """Eight times the ops take about 8 times the time; a quadratic step would make that 64."""
    ratio = _seconds(program(2000), 2) / _seconds(program(250), 3)
    assert ratio < 20, ratio


def test_a_chain_of_thousands_is_lowered() -> None:
    """Longer than Python's recursion may be deep."""
    (kernel,) = plan_program(chain(3000), [InputClass(None)], H200).kernels
    assert sum(i.op in UNARY for i in kernel.body) == 3000
    assert "v3000" in write_kernel(kernel).source
