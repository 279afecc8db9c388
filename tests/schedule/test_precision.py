"""What may be computed cheaply, and that nothing else is: marks, cheap forms, values."""

import pytest
import torch
from schedule.programs import SOFTMAX, back, reduced, tensor
from schedule.test_one_kernel import run_case

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.attrs import CastAttrs
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


def kernel(text: str | Fusion, round_all: bool = False) -> KernelPlan:
    fusion = parse(text) if isinstance(text, str) else text
    classes = [InputClass(None) for _ in fusion.inputs]
    (plan,) = plan_program(fusion, classes, H200, round_all=round_all).kernels
    return plan


def ops(plan: KernelPlan, loose: bool) -> list[str]:
    return [i.op for i in plan.body if i.loose == loose and i.op not in ("load", "const")]


HALF = """
local
%0 = input(position=0) : bf16[64]
%1 = exp(%0) : bf16[64]
%2 = erf(%1) : bf16[64]
return %2
"""


def test_what_leaves_in_16_bits_is_loose() -> None:
    assert ops(kernel(HALF), loose=True) == ["exp", "erf"]


def test_what_leaves_in_32_bits_is_strict_and_all_before_it() -> None:
    text = """
    local
    %0 = input(position=0) : bf16[64]
    %1 = cast(%0; dtype=f32) : f32[64]
    %2 = exp(%1) : f32[64]
    %3 = div(%2, %1) : f32[64]
    %4 = cast(%3; dtype=bf16) : bf16[64]
    return %4, %2
    """
    plan = kernel(text)
    assert ops(plan, loose=False) == ["cast", "exp"]
    assert ops(plan, loose=True) == ["div"]


def test_what_is_compared_or_cast_to_an_integer_is_strict() -> None:
    for op, dtype in (("lt(%1, %0)", "bool"), ("cast(%1; dtype=i32)", "i32")):
        text = f"""
        local
        %0 = input(position=0) : bf16[64]
        %1 = exp(%0) : bf16[64]
        %2 = {op} : {dtype}[64]
        return %1, %2
        """
        assert "exp" in ops(kernel(text), loose=False), op


def test_rounding_everything_leaves_nothing_cheap() -> None:
    assert ops(kernel(HALF, round_all=True), loose=True) == []
    assert "loose" not in write_kernel(kernel(HALF, round_all=True)).source


def test_a_softmax_in_16_bits_divides_by_multiplying() -> None:
    plan = kernel(SOFTMAX.fusion(64, 128, level="local"))
    assert sum(i.op == "div" for i in plan.body) == 0
    assert sum(i.op == "reciprocal" for i in plan.body) == 1
    exact = kernel(SOFTMAX.fusion(64, 128, dtype=DType.F32, level="local"))
    assert sum(i.op == "div" for i in exact.body) == 1


def test_a_product_that_something_else_needs_is_not_fused() -> None:
    """x*y - x*y has to be exactly 0, and so has its sum with the opposite."""
    text = """
    local
    %0 = input(position=0) : bf16[64]
    %1 = input(position=1) : bf16[64]
    %2 = mul(%0, %1) : bf16[64]
    %3 = neg(%2) : bf16[64]
    %4 = add(%2, %3) : bf16[64]
    %5 = sub(%2, %2) : bf16[64]
    return %4, %5
    """
    assert "fma" not in [i.op for i in kernel(text).body]
    x, y = torch.randn(2, 64).bfloat16()
    found = Executable(parse(text.replace("local", "global")), "zero").run([x, y])
    assert all(not v.any() for v in found if isinstance(v, torch.Tensor))


def test_a_product_and_a_sum_are_fused_when_they_leave_rounded() -> None:
    b = Builder(None, "local")
    x, y, z = (b.input(tensor(DType.BF16, 64)) for _ in "xyz")
    (product,) = b.op("mul", (x, y))
    plan = kernel(b.finish(b.op("add", (product, z))))
    assert ops(plan, loose=True) == ["fma"]
    b = Builder(None, "local")
    x, y, z = (b.input(tensor(DType.F32, 64)) for _ in "xyz")
    (product,) = b.op("mul", (x, y))
    assert ops(kernel(b.finish(b.op("add", (product, z)))), loose=False) == ["mul", "add"]


def test_a_users_cast_rounds_and_a_promotion_does_not() -> None:
    text = """
    global
    %0 = input(position=0) : bf16[64]
    %1 = input(position=1) : f32[64]
    %2 = mul(%0, %0) : bf16[64]
    %3 = cast(%2; dtype=f32) : f32[64]
    %4 = add(%3, %1) : f32[64]
    %5 = cast(%4; dtype=bf16, user=true) : bf16[64]
    %6 = cast(%5; dtype=f32) : f32[64]
    return %4, %6
    """
    x, y = torch.randn(64).bfloat16(), torch.randn(64)
    kept, rounded = Executable(parse(text), "casts").run([x, y])
    wide = x.float() * x.float() + y  # the product of two bf16 numbers is exact in f32
    assert torch.equal(kept, wide)  # type: ignore[arg-type]
    assert torch.equal(rounded, wide.bfloat16().float())  # type: ignore[arg-type]


ROWS = """
global
%0 = input(position=0) : bf16[6, 64]
%1 = sum(%0; dims=[1]) : bf16[6]
%2 = broadcast_in_dim(%1; shape=[6, 64], dims=[0]) : bf16[6, 64]
%3 = div(%0, %2) : bf16[6, 64]
return %3
"""


def test_rows_divided_by_special_sums() -> None:
    """Zero, infinite and NaN sums give what a division gives."""
    x = torch.randn(6, 64).bfloat16()
    x[1] = 0.0
    x[2, 5] = float("inf")
    x[3, 5] = float("nan")
    x[4] = torch.tensor([1.0, -1.0] * 32)
    x[5] = 1e38
    (found,) = Executable(parse(ROWS), "rows").run([x])
    wide = x.double()
    expected = wide / wide.sum(1, keepdim=True).float().double()
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [3.0, 0.1, 1e-30, 1e30, 1e-38, 1e-40, -3e38, 0.0])
def test_division_by_a_number(number: float) -> None:
    b = Builder()
    x = b.input(tensor(DType.BF16, 64))
    fusion = b.finish(b.op("div", (x, b.const(number))))
    values = torch.randn(64).bfloat16()
    values[:5] = torch.tensor([0.0, -0.0, 1e-39, float("inf"), float("nan")])
    (found,) = Executable(fusion, "number").run([values])
    assert isinstance(found, torch.Tensor)
    right = (values.double() / number).bfloat16()
    torch.testing.assert_close(found, right, rtol=2**-7, atol=1e-40, equal_nan=True)


@pytest.mark.parametrize("size", [1e-40, 1e-38, 1e-20, 1.0, 1e20, 3e38, 0.0])
def test_a_row_is_divided_by_its_largest(size: float) -> None:
    """Which may be so near 0 that it has no reciprocal."""
    b = Builder()
    x = b.input(tensor(DType.BF16, 4, 257))
    (quotient,) = b.op("div", (x, back(b, reduced(b, "amax", x), x)))
    values = (torch.rand(4, 257) * size).bfloat16()
    values[0, 0], values[1] = 0.0, size
    (found,) = Executable(b.finish((quotient,)), "largest").run([values])
    assert isinstance(found, torch.Tensor)
    right = values.double() / values.double().amax(1, keepdim=True)
    torch.testing.assert_close(found.double(), right, rtol=2**-7, atol=0, equal_nan=True)


def test_a_half_softmax_is_within_one_rounding() -> None:
    for dtype in (DType.BF16, DType.F16):
        run_case(SOFTMAX, 5, 1000, dtype)


@pytest.mark.parametrize("dtype", [DType.F8E4M3, DType.F8E5M2], ids=str)
def test_an_8_bit_float_has_its_own_range(dtype: DType) -> None:
    """Also inside a kernel, and by a cast that the user did not mark."""
    b = Builder()
    (small,) = b.op("cast", (b.input(tensor(DType.F32, 8)),), CastAttrs(dtype))
    fusion = b.finish(b.op("cast", (small,), CastAttrs(DType.F32)))
    x = torch.tensor([float("inf"), -1e9, float("nan"), 1.03, -0.0, 448.0, 465.0, 1e-9])
    (found,) = Executable(fusion, "small").run([x])
    torch_dtype = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}[str(dtype)]
    torch.testing.assert_close(found, x.to(torch_dtype).float(), rtol=0, atol=0, equal_nan=True)
