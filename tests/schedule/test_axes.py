"""A domain has as few axes as its accesses allow, the fastest in memory last."""

import pytest
from schedule.programs import tensor

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.sizes import Size, symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.axes import positions
from thunder_mdfuse.schedule.plan import Axis, KernelPlan
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200

HINTS = {"s0": 6, "s1": 8, "s2": 12}
Strides = tuple[Size, ...]


def kernel(fusion: Fusion, *strides: Strides | None) -> KernelPlan:
    classes = [InputClass(s) for s in strides or [None] * len(fusion.inputs)]
    (plan,) = plan_program(fusion, classes, H200, HINTS).kernels
    return plan


def pointwise(*shape: Size) -> Fusion:
    b = Builder(None, "local")
    x, y = (b.input(tensor(DType.F32, *shape)) for _ in "xy")
    return b.finish(b.op("add", (x, y)))


S0, S1, S2 = (symbol(n) for n in HINTS)


@pytest.mark.parametrize("shape", [(6, 8, 12), (S0, S1, S2), (6, 1, S2)], ids=str)
def test_contiguous_tensors_have_one_axis(shape: tuple[Size, ...]) -> None:
    plan = kernel(pointwise(*shape))
    assert len(plan.columns) == 1
    total: Size = 1
    for size in shape:
        total = total * size
    assert plan.columns[0].extent == total


def test_tensors_of_one_permuted_layout_have_one_axis_too() -> None:
    strides = (1, S0 * S2, S0)
    assert len(kernel(pointwise(S0, S1, S2), strides, strides).columns) == 1


def test_a_gap_keeps_axes_apart() -> None:
    plan = kernel(pointwise(S0, S1, S2), (S1 * (S2 + 4), S2 + 4, 1), None)
    assert [a.extent for a in plan.columns] == [S0 * S1, S2]


def test_the_fastest_axis_is_that_of_the_output() -> None:
    """It has the operands' order; the one operand of another order is read across."""
    turned = (1, S0)
    plan = kernel(pointwise(S0, S1), turned, turned)
    assert len(plan.columns) == 1
    plan = kernel(pointwise(S0, S1), turned, (S1, 1))
    assert [a.name for a in plan.columns] == ["d1", "d0"]  # as the first operand
    assert plan.stores[0].offset == symbol("d0") + symbol("d1") * S0


def test_rows_and_columns_merge_apart() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(DType.F32, S0, S1, S2, 4))
    plan = kernel(b.finish(b.op("sum", (x,), at.DimsAttrs((2, 3)))))
    assert [a.extent for a in plan.rows] == [S0 * S1]
    assert [a.extent for a in plan.columns] == [4 * S2]


def test_a_broadcast_bias_keeps_its_axis() -> None:
    b = Builder(None, "local")
    x, bias = b.input(tensor(DType.F32, S0, S1, S2)), b.input(tensor(DType.F32, S2))
    (whole,) = b.op("broadcast_in_dim", (bias,), at.BroadcastAttrs((S0, S1, S2), (2,)))
    plan = kernel(b.finish(b.op("add", (x, whole))))
    assert [a.extent for a in plan.columns] == [S0 * S1, S2]


def test_a_domain_without_axes() -> None:
    assert kernel(pointwise(1, 1)).columns == ()
    assert kernel(pointwise()).columns == ()


def test_positions_are_row_major() -> None:
    axes = (Axis("a", 3), Axis("b", 4), Axis("c", 5))
    found = positions(axes, "flat")
    assert {n: str(s) for n, s in found.items()} == {
        "c": "mod(flat, 5)",
        "b": "mod(floordiv(flat, 5), 4)",
        "a": "floordiv(flat, 20)",
    }
