"""Executables: outputs that alias, writes, numbers beside tensors, tensors without elements."""

from typing import Any

import pytest
import torch

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.text import parse


@pytest.fixture(params=["emulate", "reference"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs the generated kernels and the reference, and wants the same of both."""
    monkeypatch.setenv("MDFUSE_BACKEND", request.param)
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")


def make(text: str) -> Executable:
    return Executable(parse(text), "test")


def run(text: str, *inputs: Any) -> list[Any]:
    return list(make(text).run(inputs))


def test_an_output_that_is_a_view_shares_the_input() -> None:
    text = """
    global
    %0 = input(position=0) : f32[4, 6]
    %1 = permute(%0; dims=[1, 0]) : f32[6, 4]
    %2 = slice(%1; starts=[1, 0], ends=[6, 4], steps=[2, 1]) : f32[3, 4]
    %3 = reshape(%0; shape=[24]) : f32[24]
    %4 = reshape(%1; shape=[24]) : f32[24]
    return %2, %3, %4, %0
    """
    x = torch.randn(4, 6)
    strided, flat, copied, same = run(text, x)
    assert torch.equal(strided, x.t()[1::2])
    assert (strided.stride(), strided.storage_offset()) == ((2, 6), 1)
    assert torch.equal(copied, x.t().reshape(24))
    x.zero_()
    assert not strided.any()
    assert not flat.any()
    assert bool(copied.any())
    assert same.data_ptr() == x.data_ptr()


def test_views_of_a_fresh_output_share_it() -> None:
    text = """
    global
    %0 = input(position=0) : f32[4, 6]
    %1 = exp(%0) : f32[4, 6]
    %2 = permute(%1; dims=[1, 0]) : f32[6, 4]
    return %1, %2
    """
    fresh, turned = run(text, torch.randn(4, 6))
    assert turned.data_ptr() == fresh.data_ptr()
    assert turned.stride() == (1, 6)


WRITE = """
global
%0 = input(position=0) : f32[4]
%1 = input(position=1) : f32[4]
%2 = add(%0, %1) : f32[4]
%3 = mul(%0, %1) : f32[4]
return %2 -> %0, %3, %0
"""


def test_a_write_goes_into_the_input_after_everything_was_read() -> None:
    x, y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([10.0, 20.0, 30.0, 40.0])
    old = x.clone()
    written, old_product, passed = run(WRITE, x, y)
    assert written.data_ptr() == x.data_ptr()
    assert torch.equal(x, old + y)
    assert torch.equal(old_product, old * y)
    assert torch.equal(passed, x)


def test_writes_that_exchange_two_inputs() -> None:
    text = """
    global
    %0 = input(position=0) : f32[4]
    %1 = input(position=1) : f32[4]
    return %1 -> %0, %0 -> %1
    """
    x, y = torch.arange(4.0), torch.arange(4.0) + 10
    run(text, x, y)
    assert torch.equal(x, torch.arange(4.0) + 10)
    assert torch.equal(y, torch.arange(4.0))


def test_a_write_of_the_inputs_own_transpose() -> None:
    text = """
    global
    %0 = input(position=0) : f32[3, 3]
    %1 = permute(%0; dims=[1, 0]) : f32[3, 3]
    return %1 -> %0
    """
    x = torch.arange(9.0).view(3, 3)
    run(text, x)
    assert torch.equal(x, torch.arange(9.0).view(3, 3).t())


def test_a_view_that_leaves_beside_a_write_shows_what_was_written() -> None:
    text = """
    global
    %0 = input(position=0) : f32[2, 3]
    %1 = permute(%0; dims=[1, 0]) : f32[3, 2]
    %2 = neg(%0) : f32[2, 3]
    return %1, %2 -> %0
    """
    x = torch.arange(6.0).view(2, 3)
    turned, _ = run(text, x)
    assert torch.equal(turned, -torch.arange(6.0).view(2, 3).t())


def test_writes_into_a_strided_input() -> None:
    storage = torch.zeros(4, 2)
    x, y = storage[:, 1], torch.arange(4.0)
    run(WRITE, x, y)
    assert torch.equal(storage, torch.stack([torch.zeros(4), y], 1))


NUMBERS = """
global
%0 = input(position=0) : {kind}
%1 = input(position=1) : {dtype}[5]
%2 = {op}(%1, %0) : {dtype}[5]
return %2
"""


@pytest.mark.parametrize(
    ("kind", "dtype", "op", "number"),
    [
        ("i64", "i8", "add", 3),
        ("i64", "u8", "mul", 2),
        ("i64", "i16", "sub", 1000),
        ("i64", "i32", "add", -7),
        ("i64", "i64", "add", 1 << 40),
        ("i64", "f32", "mul", 3),
        ("f64", "bf16", "mul", 1.5),
        ("f64", "f16", "add", 0.25),
        ("f64", "f32", "mul", float("inf")),
        ("f64", "f32", "mul", 1e300),
        ("f64", "f64", "add", 1e300),
        ("bool", "bool", "logical_and", True),
    ],
)
def test_numbers_beside_tensors(kind: str, dtype: str, op: str, number: Any) -> None:
    """A number takes the tensor's dtype, whatever parameter a kernel can have."""
    names = {"i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"}
    names |= {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
    x = torch.tensor([0, 1, 2, 3, 4]).to(getattr(torch, names.get(dtype, dtype)))
    (found,) = run(NUMBERS.format(kind=kind, dtype=dtype, op=op), number, x)
    expected = getattr(torch, op)(x, torch.tensor(number) if dtype == "bool" else number)
    assert found.dtype is x.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_numbers_are_computed_by_the_host_and_may_leave() -> None:
    text = """
    global
    %0 = input(position=0) : f64
    %1 = input(position=1) : i64
    %2 = input(position=2) : f32[s0]
    %3 = size(size=s0) : i64
    %4 = mul(%1, %3) : i64
    %5 = add(%0, %4) : f64
    %6 = lt(%0, %5) : bool
    %7 = mul(%2, %5) : f32[s0]
    %8 = where(%6, %7, %2) : f32[s0]
    return %8, %5, %4, %6
    """
    executable = make(text)
    for number, count in ((0.5, 3), (2.5, -7)):  # a new number is no new class
        x = torch.ones(8)
        found, total, product, less = executable.run([number, count, x])
        right = number + count * 8
        assert (total, product, less) == (right, count * 8, number < right)
        assert torch.equal(found, x * right if number < right else x)  # type: ignore[arg-type]


def test_tensors_without_dims_and_without_elements() -> None:
    text = """
    global
    %0 = input(position=0) : f32[]
    %1 = input(position=1) : f32[0, 3]
    %2 = exp(%0) : f32[]
    %3 = sum(%1; dims=[0]) : f32[3]
    %4 = prod(%1; dims=[0, 1]) : f32[]
    %5 = neg(%1) : f32[0, 3]
    %6 = broadcast_in_dim(%0; shape=[2, 2], dims=[]) : f32[2, 2]
    %7 = mul(%6, %6) : f32[2, 2]
    return %2, %3, %4, %5, %7
    """
    x, y = torch.tensor(1.5), torch.empty(0, 3)
    grown, zeros, one, nothing, spread = run(text, x, y)
    torch.testing.assert_close(grown, x.exp())
    assert torch.equal(zeros, torch.zeros(3))
    assert torch.equal(one, torch.tensor(1.0))
    assert (nothing.shape, nothing.stride()) == ((0, 3), (-y).stride())
    assert torch.equal(spread, torch.full((2, 2), 2.25))


def test_an_aten_step_gives_the_planned_strides_also_when_empty() -> None:
    text = """
    global
    %0 = input(position=0) : f32[s0, 4]
    %1 = input(position=1) : f32[3, 4]
    %2 = linear(%0, %1) : f32[s0, 3]
    %3 = topk(%0; k=2, dim=1) : f32[s0, 2] | i64[s0, 2]
    return %2, %3, %3.1
    """
    executable = make(text)
    for rows in (5, 0):
        x, w = torch.randn(rows, 4), torch.randn(3, 4)
        linear, values, indices = executable.run([x, w])
        torch.testing.assert_close(linear, torch.nn.functional.linear(x, w))
        expected = x.topk(2, 1)
        for found, right in zip((values, indices), expected, strict=True):
            assert torch.equal(found, right)  # type: ignore[arg-type]
            assert found.stride() == right.stride()  # type: ignore[union-attr]
