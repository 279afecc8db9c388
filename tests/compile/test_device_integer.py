"""Integer arithmetic of csrc/device/integer.cuh against Python's integers, and against torch."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernels.emulated import INCLUDE, apply, launch, table_kernel

from thunder_mdfuse.codegen.index import reciprocal

KINDS = {
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
}


def _truncated(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 2**64)
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


# Each takes (a, b, bits); the result is wrapped to the type. Division by zero is ours: all bits
# set, and the dividend as the remainder.
BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "div_trunc": lambda a, b, _: _truncated(a, b),
    "div_floor": lambda a, b, _: a // b if b else -1,
    "fmod": lambda a, b, _: a - b * _truncated(a, b) if b else a,
    "remainder": lambda a, b, _: a % b if b else a,
    "pow": lambda a, b, _: _power(a, b),
    "minimum": lambda a, b, _: min(a, b),
    "maximum": lambda a, b, _: max(a, b),
    "bitwise_and": lambda a, b, _: a & b,
    "bitwise_or": lambda a, b, _: a | b,
    "bitwise_xor": lambda a, b, _: a ^ b,
    "shl": lambda a, b, bits: a << b if 0 <= b < bits else 0,
    "shr": lambda a, b, bits: a >> b if 0 <= b < bits else (-1 if a < 0 else 0),
    "gcd": lambda a, b, _: math.gcd(a, b),
}
UNARY: dict[str, Callable[[int], int]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "bitwise_not": lambda a: ~a,
    "floor": int,
    "ceil": int,
    "round": int,
    "trunc": int,
    "signbit": lambda a: a < 0,
    "isnan": lambda _: 0,
    "isinf": lambda _: 0,
    "isfinite": lambda _: 1,
}
BOOL = ("bitwise_and", "bitwise_or", "bitwise_xor", "minimum", "maximum")

SOURCE = INCLUDE + "".join(
    table_kernel(f"binary_{kind}", 2, [f"mdf::{op}(x, y)" for op in BINARY], kind, kind)
    + table_kernel(f"unary_{kind}", 1, [f"mdf::{op}(x)" for op in UNARY], kind, kind)
    for kind in KINDS
)
SOURCE += table_kernel("binary_bool", 2, [f"mdf::{op}(x, y)" for op in BOOL], "bool", "bool")
SOURCE += table_kernel(
    "ternary_i64", 3, ["mdf::clamp(x, y, z)", "mdf::where(x > 0, y, z)"], "i64", "i64"
)
SOURCE += table_kernel("unary_bool", 1, ["mdf::bitwise_not(x)"], "bool", "bool")


def _values(kind: str) -> list[int]:
    info = np.iinfo(KINDS[kind])
    near = [0, 1, 2, 3, 5, 7, 8, 12, 31, 32, 63, 64, 100, -1, -2, -3, -7, -8, -12, -100]
    low, high = int(info.min), int(info.max)
    return [v for v in [*near, low, low + 1, high, high - 1] if low <= v <= high]


def _wrapped(values: list[int], kind: str) -> np.ndarray:
    bits = np.iinfo(KINDS[kind]).bits
    unsigned = np.array([v % 2**bits for v in values], dtype=np.uint64)
    return unsigned.astype(f"u{bits // 8}").view(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_binary_equals_python(kind: str) -> None:
    values = _values(kind)
    pairs = [(a, b) for a in values for b in values]
    x, y = (np.array(column, dtype=KINDS[kind]) for column in zip(*pairs, strict=True))
    bits = np.iinfo(KINDS[kind]).bits
    for number, (op, oracle) in enumerate(BINARY.items()):
        out = np.empty_like(x)
        apply(SOURCE, f"binary_{kind}", number, [x, y], out)
        expected = _wrapped([oracle(a, b, bits) for a, b in pairs], kind)
        wrong = np.flatnonzero(out != expected)
        if op == "gcd":
            # The lowest number has no absolute value; what comes of it is torch's, tested below.
            low = np.iinfo(KINDS[kind]).min
            wrong = wrong[((x[wrong] != low) & (y[wrong] != low)) | (low == 0)]
        assert not wrong.size, f"{op}{pairs[wrong[0]]}: {out[wrong[0]]}, not {expected[wrong[0]]}"


@pytest.mark.parametrize("kind", KINDS)
def test_unary_equals_python(kind: str) -> None:
    values = _values(kind)
    x = np.array(values, dtype=KINDS[kind])
    for number, (op, oracle) in enumerate(UNARY.items()):
        out = np.empty_like(x)
        apply(SOURCE, f"unary_{kind}", number, [x], out)
        expected = _wrapped([oracle(v) for v in values], kind)
        assert out.tolist() == expected.tolist(), op


TORCH: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div_floor": torch.floor_divide,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "pow": torch.pow,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "gcd": torch.gcd,
}


@pytest.mark.parametrize("op", TORCH)
@pytest.mark.parametrize("kind", ["i8", "u8", "i16", "i32", "i64"])
def test_binary_equals_torch(kind: str, op: str) -> None:
    values = torch.from_numpy(np.array(_values(kind), dtype=KINDS[kind]))
    x, y = values.repeat_interleave(len(values)), values.repeat(len(values))
    # What torch leaves to the processor: division by zero and of the lowest number by -1.
    low = torch.iinfo(x.dtype).min
    if op in ("div_trunc", "div_floor", "fmod", "remainder"):
        keep = (y != 0) & ~((x == low) & (y == -1))
        x, y = x[keep], y[keep]
    out = torch.empty_like(x)
    apply(SOURCE, f"binary_{kind}", list(BINARY).index(op), [x, y], out)
    assert torch.equal(out, TORCH[op](x, y))


def test_bool() -> None:
    x, y = torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0, 1, 0, 1]).bool()
    oracles = (
        torch.bitwise_and,
        torch.bitwise_or,
        torch.bitwise_xor,
        torch.logical_and,
        torch.logical_or,
    )
    for number, oracle in enumerate(oracles):
        out = torch.empty_like(x)
        apply(SOURCE, "binary_bool", number, [x, y], out)
        assert torch.equal(out, oracle(x, y)), BOOL[number]
    out = torch.empty_like(x)
    apply(SOURCE, "unary_bool", 0, [x], out)
    assert torch.equal(out, ~x)


def test_clamp_and_where() -> None:
    x, y, z = torch.cartesian_prod(*[torch.tensor([-3, 0, 2, 9])] * 3).T.contiguous()
    out = torch.empty_like(x)
    apply(SOURCE, "ternary_i64", 0, [x, y, z], out)
    assert torch.equal(out, torch.clamp(x, y, z))
    apply(SOURCE, "ternary_i64", 1, [x, y, z], out)
    assert torch.equal(out, torch.where(x > 0, y, z))


def test_a_quotient_by_multiplication_is_exact() -> None:
    """At the ends of each quotient's range, for divisors of every size."""
    rng = np.random.default_rng(0)
    top = 2**31 - 1
    divisors = [*range(1, 40), 2**16, 2**16 + 1, 2**30, 2**30 + 1, top - 1, top]
    divisors += [int(2**e) for e in rng.uniform(0, 31, 200)]
    pairs = []
    for d in divisors:
        last = top // d
        for q in {0, 1, last // 2, last}:
            pairs += [(n, d) for n in (q * d - 1, q * d, q * d + 1, top) if 0 <= n <= top]
    n, d = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    q = np.array([reciprocal(int(x)) for x in d], np.uint64)
    kernel = INCLUDE + (
        'extern "C" __global__ void divide(MDF_IN(mdf::i32) n, MDF_IN(mdf::i32) d,\n'
        "    MDF_IN(mdf::u64) q, MDF_OUT(mdf::i32) y, MDF_OUT(mdf::i32) z) {\n"
        "  const mdf::i32 i = threadIdx.x + blockIdx.x * 32;\n"
        "  const mdf::i32 a = mdf::load1(n, i);\n"
        "  const mdf::u64 b = mdf::load1(q, i);\n"
        "  mdf::store1(y, i, mdf::quotient(a, b));\n"
        "  mdf::store1(z, i, mdf::rest(a, mdf::load1(d, i), b));\n}\n"
    )
    n, d, q = (x[: len(x) // 32 * 32] for x in (n, d, q))
    y, z = np.empty_like(n), np.empty_like(n)
    launch(kernel, "divide", inputs=[n, d, q], outputs=[y, z], block=32, grid=len(n) // 32)
    assert np.array_equal(y, n // d)
    assert np.array_equal(z, n % d)
