"""Complex arithmetic in kernels, against eager torch in complex128."""

import pytest
import torch
from codegen.emulated import LAYOUTS, program, run, same_bits, strided, typed

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.attrs import VarAttrs
from thunder_mdfuse.ir.graph import Builder
from thunder_mdfuse.ir.types import DType, ScalarType, TensorType

DTYPES = (torch.complex64, torch.complex128)
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-13}
INF, NAN = float("inf"), float("nan")


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


def _values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    tolerance = TOLERANCE.get(dtype, 1e-5)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    torch.testing.assert_close(found.to(wide), wanted.to(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic(dtype: torch.dtype, kind: str) -> None:
    a, b, w = (strided(_values((5, 33), dtype, n), kind) for n in range(3))
    functions = {
        **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
        "lerp": torch.lerp,
        "neg": torch.neg,
        "reciprocal": torch.reciprocal,
        "abs": torch.abs,
        "real": torch.real,
        "imag": torch.imag,
    }
    lines, wanted = [], []
    for n, (name, function) in enumerate(functions.items(), 3):
        operands = 3 if name == "lerp" else 2 if n < 7 else 1
        wanted.append(function(*(x.to(torch.complex128) for x in (a, b, w)[:operands])))
        kind_of = dtype if wanted[-1].is_complex() else REAL[dtype]
        args = ", ".join(f"%{i}" for i in range(operands))
        lines.append(f"%{n} = {name}({args}) : {typed(torch.empty(5, 33, dtype=kind_of))}")
    found, executable = run([a, b, w], "\n".join(lines), ", ".join(f"%{n + 3}" for n in range(10)))
    assert len(executable.last.plan.kernels) == 1  # type: ignore[union-attr]
    for value, right in zip(found, wanted, strict=True):
        _close(value, right, dtype if right.is_complex() else REAL[dtype])


def test_comparisons_and_choices() -> None:
    a = torch.tensor([1 + 2j, 1 + 2j, complex(NAN, 0), complex(INF, 1), 0j, complex(-0.0, 0)])
    b = torch.tensor([1 + 2j, 1 - 2j, complex(NAN, 0), complex(INF, 1), complex(-0.0, 0), 1j])
    body = """%2 = eq(%0, %1) : bool[6]
%3 = ne(%0, %1) : bool[6]
%4 = where(%2, %0, %1) : c64[6]
%5 = isnan(%0) : bool[6]
%6 = isinf(%0) : bool[6]
%7 = isfinite(%0) : bool[6]
%8 = logical_not(%0) : bool[6]
%9 = logical_and(%0, %1) : bool[6]
%10 = logical_or(%0, %1) : bool[6]"""
    found, _ = run([a, b], body, ", ".join(f"%{n}" for n in range(2, 11)))
    wanted = [
        *(a == b, a != b, torch.where(a == b, a, b), a.isnan(), a.isinf(), a.isfinite()),
        *(a.logical_not(), a.logical_and(b), a.logical_or(b)),
    ]
    for value, right in zip(found, wanted, strict=True):
        same_bits(value, right)


def test_special_numbers() -> None:
    """Part by part: eager products are not repaired, its reciprocals are. (Eager torch on a CPU
    adds ``1 * b``, a complex product, and so makes NaN of infinity; a sum of parts does not.)
    """
    parts = (0.0, -0.0, 1.0, INF, -INF, NAN)
    numbers = torch.tensor([complex(x, y) for x in parts for y in parts], dtype=torch.complex128)
    a, b = (x.reshape(-1) for x in torch.meshgrid(numbers, numbers, indexing="ij"))
    a, b = a.contiguous(), b.contiguous()
    n = len(a)
    body = f"""%2 = add(%0, %1) : c128[{n}]
%3 = mul(%0, %1) : c128[{n}]
%4 = abs(%0) : f64[{n}]
%5 = reciprocal(%0) : c128[{n}]"""
    found, _ = run([a, b], body, "%2, %3, %4, %5")
    product = torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)
    total = torch.complex(a.real + b.real, a.imag + b.imag)
    for value, right in zip(found[:3], (total, product, a.abs()), strict=True):
        parts_of = torch.view_as_real if value.is_complex() else torch.clone
        one, other = parts_of(value), parts_of(right)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    odd = a.isnan() | (a.real.isinf() & a.imag.isinf())
    assert found[3][odd].isnan().all()
    assert (found[3][a.isinf() & ~odd] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts(dtype: torch.dtype) -> None:
    x, y = _values((40,), dtype, 0), torch.randn(40, dtype=torch.float64) * 50
    others = (torch.complex64, torch.complex128, torch.float32, torch.float64, torch.bfloat16)
    others = (*others, torch.int32, torch.bool)
    lines = [
        f"%{n} = cast(%0; dtype={typed(torch.empty(1, dtype=t)).split('[')[0]}, user=true) : "
        f"{typed(torch.empty(40, dtype=t))}"
        for n, t in enumerate(others, 2)
    ]
    target = typed(torch.empty(1, dtype=dtype)).split("[")[0]
    lines.append(f"%9 = cast(%1; dtype={target}, user=true) : {target}[40]")
    found, _ = run([x, y], "\n".join(lines), ", ".join(f"%{n}" for n in range(2, 10)))
    for value, t in zip(found, others, strict=False):
        source = x.real.contiguous() if not t.is_complex and t is not torch.bool else x
        same_bits(value, source.to(t))
    same_bits(found[-1], y.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 7, 64, 1000])
def test_reductions(n: int, dtype: torch.dtype) -> None:
    x = _values((3, n), dtype, n)
    small = x / x.abs() if n > 64 else x
    name = typed(x).split("[")[0]
    body = "\n".join(
        f"%{k} = {op}(%{i}; dims=[{d}]) : {name}[{3 if d else n}]"
        for k, (op, i, d) in enumerate((("sum", 0, 1), ("prod", 1, 1), ("sum", 0, 0)), 2)
    )
    found, _ = run([x, small], body, "%2, %3, %4")
    wide, narrow = x.to(torch.complex128), small.to(torch.complex128)
    for value, right in zip(found, (wide.sum(1), narrow.prod(1), wide.sum(0)), strict=True):
        scale = max(1.0, float(right.abs().max()))
        error = (value.to(torch.complex128) - right).abs().max()
        assert error <= TOLERANCE[dtype] * scale * 4


def test_a_variance() -> None:
    x = _values((4, 100), torch.complex64, 0)
    b = Builder()
    given = b.input(TensorType(DType.C64, (4, 100)))
    executable = Executable(b.finish(b.op("var_mean", (given,), VarAttrs((1,), 1.0))), "variance")
    found = executable.run([x])
    assert [s.kind for s in executable.last.plan.steps] == ["kernel"]  # type: ignore[union-attr]
    wanted = torch.var_mean(x.to(torch.complex128), 1)
    for value, right in zip(found, wanted, strict=True):
        assert isinstance(value, torch.Tensor)
        torch.testing.assert_close(value.to(right.dtype), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers(dtype: torch.dtype) -> None:
    """Numbers of a program, and those that only a call knows, which are passed in two halves."""
    b = Builder()
    ir = DType.C64 if dtype is torch.complex64 else DType.C128
    x, given = b.input(TensorType(ir, (50,))), b.input(ScalarType(DType.C128))
    plain = b.input(ScalarType(DType.F64))
    (y,) = b.op("mul", (x, b.const(0.5 - 2j)))
    (z,) = b.op("add", (y, given))
    (u,) = b.op("div", (z, plain))
    executable = Executable(b.finish((z, u)), "numbers")
    inputs = _values((50,), dtype, 0)
    found = executable.run([inputs, 1.5 + 0.25j, -3.0])
    assert [s.kind for s in executable.last.plan.steps] == ["kernel"]  # type: ignore[union-attr]
    wanted = inputs.to(torch.complex128) * (0.5 - 2j) + (1.5 + 0.25j)
    for value, right in zip(found, (wanted, wanted / -3.0), strict=True):
        assert isinstance(value, torch.Tensor)
        _close(value, right, dtype)


def test_moves() -> None:
    x, y = _values((4, 6), torch.complex64, 0), _values((3, 6), torch.complex64, 1)
    body = """%2 = cat(%0, %1; dim=0) : c64[7, 6]
%3 = const(value='0.5', dtype=f64) : f64
%4 = pad(%2, %3; low=[1, 0], high=[0, 2]) : c64[8, 8]
%5 = permute(%4; dims=[1, 0]) : c64[8, 8]
%6 = flip(%5; dims=[0]) : c64[8, 8]"""
    (found,), _ = run([x, y], body, "%6")
    wanted = torch.nn.functional.pad(torch.cat([x, y]), (0, 2, 1, 0), value=0.5).T.flip(0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_transcendental_functions_are_atens() -> None:
    x = _values((4,), torch.complex64, 0)
    executable = program([x], "%1 = exp(%0) : c64[4]", "%1")
    (found,) = executable.run([x])
    assert [s.kind for s in executable.last.plan.steps] == ["aten"]  # type: ignore[union-attr]
    assert torch.equal(found, x.exp())  # type: ignore[arg-type]
