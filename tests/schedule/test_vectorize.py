"""Which accesses are vectors, how wide, and that no vector is taken that could be misaligned."""

import pytest
import torch
from schedule.programs import tensor

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.sizes import Size, symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.schedule.plan import KernelPlan, Load
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan, plan_program
from thunder_mdfuse.schedule.target import H200

Strides = tuple[Size, ...]
S = symbol("s")


def plan(
    fusion: Fusion, classes: list[InputClass], hints: dict[str, int] | None = None
) -> ProgramPlan:
    return plan_program(fusion, classes, H200, hints or {}, "cpu")


def only(program: ProgramPlan) -> KernelPlan:
    (kernel,) = program.kernels
    return kernel


def accesses(kernel: KernelPlan) -> list[str]:
    loads = [i.detail.access for i in kernel.body if isinstance(i.detail, Load)]
    return [*loads, *(s.access for s in kernel.stores)]


def copy(dtype: DType, *shape: Size) -> Fusion:
    b = Builder(None, "local")
    return b.finish(b.op("neg", (b.input(tensor(dtype, *shape)),)))


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        (DType.F64, 2),
        (DType.F32, 4),
        (DType.BF16, 8),
        (DType.I8, 8),  # 16 elements would be more than a thread should have
    ],
)
def test_vectors_have_16_bytes(dtype: DType, width: int) -> None:
    kernel = only(plan(copy(dtype, 64), [InputClass(None)]))
    assert kernel.launch.vector == width
    assert accesses(kernel) == ["vector", "vector"]


@pytest.mark.parametrize(("n", "width"), [(64, 8), (60, 4), (62, 2), (63, 1)])
def test_the_row_must_be_a_multiple(n: int, width: int) -> None:
    assert only(plan(copy(DType.BF16, 2, n), [InputClass((128, 1))])).launch.vector == width


@pytest.mark.parametrize("n", [64, 60, 63, 1])
def test_of_a_flat_kernel_elements_may_be_left_over(n: int) -> None:
    launch = only(plan(copy(DType.BF16, 1, n), [InputClass(None)])).launch
    assert (launch.vector, launch.ragged) == (8 if n > 1 else 1, n in (60, 63))


@pytest.mark.parametrize("alignment", [16, 8, 4, 2])
def test_a_pointer_that_is_not_aligned_is_read_across(alignment: int) -> None:
    kernel = only(plan(copy(DType.BF16, 64), [InputClass(None, alignment)]))
    assert kernel.launch.vector == 8
    assert accesses(kernel) == ["vector" if alignment == 16 else "across", "vector"]


@pytest.mark.parametrize("stride", [72, 68, 66, 65])
def test_a_row_that_is_not_aligned_is_read_across(stride: int) -> None:
    kernel = only(plan(copy(DType.BF16, 4, 64), [InputClass((stride, 1))]))
    assert kernel.launch.vector == 8
    assert accesses(kernel) == ["vector" if stride == 72 else "across", "vector"]


def test_a_slice_that_begins_at_no_multiple_is_read_across() -> None:
    for start, access in ((8, "vector"), (4, "across"), (1, "across")):
        b = Builder(None, "local")
        x = b.input(tensor(DType.BF16, 4, 80))
        attrs = at.SliceAttrs((0, start), (4, start + 64), (1, 1))
        fusion = b.finish(b.op("neg", b.op("slice", (x,), attrs)))
        assert accesses(only(plan(fusion, [InputClass(None)])))[0] == access


def test_what_does_not_move_is_loaded_once_for_a_vector() -> None:
    b = Builder(None, "local")
    x, column = b.input(tensor(DType.F32, 4, 64)), b.input(tensor(DType.F32, 4))
    (whole,) = b.op("broadcast_in_dim", (column,), at.BroadcastAttrs((4, 64), (0,)))
    kernel = only(plan(b.finish(b.op("add", (x, whole))), [InputClass(None)] * 2))
    assert accesses(kernel) == ["vector", "broadcast", "vector"]


def test_a_mask_along_the_row_makes_lanes() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(DType.F32, 4, 62))
    fusion = b.finish(b.op("pad", (x, b.const(0.0)), at.PadAttrs((0, 1), (0, 1))))
    assert accesses(only(plan(fusion, [InputClass(None)]))) == ["lane", "vector"]
    b = Builder(None, "local")
    x = b.input(tensor(DType.F32, 4, 64))
    fusion = b.finish(b.op("pad", (x, b.const(0.0)), at.PadAttrs((1, 0), (1, 0))))
    assert accesses(only(plan(fusion, [InputClass(None)]))) == ["vector", "vector"]


def test_a_width_that_rests_on_a_size_is_guarded() -> None:
    program = plan(copy(DType.F32, 3, S), [InputClass(None)], {"s": 8})
    assert "4 divides s" in [str(g) for g in program.guards] or "4 divides 3*s" in map(
        str, program.guards
    )
    odd = plan(copy(DType.F32, 3, S), [InputClass(None)], {"s": 9})
    assert not any(g.relation == "divides" for g in odd.guards)  # right for multiples too


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("n", [61, 62, 64])
def test_any_window_of_a_matrix_is_read_right(offset: int, n: int) -> None:
    """The emulator refuses a misaligned vector."""
    storage = torch.arange(3 * 72, dtype=torch.float32)
    x = storage.as_strided((3, n), (72, 1), offset)
    low = x.data_ptr() % 16
    program = plan(copy(DType.F32, 3, n), [InputClass((72, 1), low & -low if low else 16)])
    texts = [write_kernel(k) for k in program.kernels]
    bound = BoundProgram(program, texts, {}, "emulate", torch.device("cpu"), "")
    (found,) = bound.run([x], None)
    assert torch.equal(found, -x)  # type: ignore[arg-type]
