"""Math of csrc/device against torch in f64, on special and random values."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from kernels.emulated import INCLUDE, apply, table_kernel, ulps

Oracle = Callable[..., torch.Tensor]
NAN, INF = float("nan"), float("inf")
DTYPES = {"f32": torch.float32, "f64": torch.float64}

# Name -> oracle on f64 tensors, largest distance in ulps of f32 and of f64 (against torch, whose
# own results are not always correctly rounded), scale of the random values.
UNARY: dict[str, tuple[Oracle, float, float, float]] = {
    "neg": (torch.neg, 0, 0, 10),
    "abs": (torch.abs, 0, 0, 10),
    "exp": (torch.exp, 1, 2, 20),
    "exp2": (torch.exp2, 1, 2, 30),
    "expm1": (torch.expm1, 1, 2, 5),
    "log": (torch.log, 1, 2, 1e3),
    "log2": (torch.log2, 1, 2, 1e3),
    "log10": (torch.log10, 2, 2, 1e3),
    "log1p": (torch.log1p, 1, 2, 5),
    "sqrt": (torch.sqrt, 0.5, 1, 1e3),
    "rsqrt": (torch.rsqrt, 1, 2, 1e3),
    "reciprocal": (torch.reciprocal, 0.5, 1, 10),
    "sin": (torch.sin, 1, 2, 50),
    "cos": (torch.cos, 1, 2, 50),
    "tan": (torch.tan, 1, 3, 50),
    "asin": (torch.asin, 1, 3, 0.6),
    "acos": (torch.acos, 1, 3, 0.6),
    "atan": (torch.atan, 1, 3, 5),
    "sinh": (torch.sinh, 2, 3, 10),
    "cosh": (torch.cosh, 2, 3, 10),
    "tanh": (torch.tanh, 2, 3, 3),
    "asinh": (torch.asinh, 2, 3, 10),
    "acosh": (torch.acosh, 2, 3, 10),
    "atanh": (torch.atanh, 2, 3, 0.6),
    "erf": (torch.erf, 1, 3, 2),
    "erfc": (torch.erfc, 3, 5, 2),
    "erfinv": (torch.erfinv, 1, 8, 0.6),
    "lgamma": (torch.lgamma, 8, 20, 20),
    "floor": (torch.floor, 0, 0, 10),
    "ceil": (torch.ceil, 0, 0, 10),
    "round": (torch.round, 0, 0, 10),
    "trunc": (torch.trunc, 0, 0, 10),
    "frac": (torch.frac, 0, 0, 10),
    "sign": (torch.sign, 0, 0, 10),
    "signbit": (torch.signbit, 0, 0, 10),
    "isfinite": (torch.isfinite, 0, 0, 10),
    "isinf": (torch.isinf, 0, 0, 10),
    "isnan": (torch.isnan, 0, 0, 10),
}
BINARY: dict[str, tuple[Oracle, float, float]] = {
    "add": (torch.add, 0.5, 0),
    "sub": (torch.sub, 0.5, 0),
    "mul": (torch.mul, 0.5, 0),
    "div": (torch.div, 0.5, 0),
    "fmod": (torch.fmod, 0, 0),
    "pow": (torch.pow, 1, 2),
    "atan2": (torch.atan2, 1, 3),
    "copysign": (torch.copysign, 0, 0),
    "hypot": (torch.hypot, 1, 2),
    "minimum": (torch.minimum, 0, 0),
    "maximum": (torch.maximum, 0, 0),
}
# Compared with torch in the same type: the result depends on how that type rounds on the way.
BINARY_SAME: dict[str, Oracle] = {
    "remainder": torch.remainder,
    "nextafter": torch.nextafter,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}
TERNARY: dict[str, Oracle] = {
    "clamp": torch.clamp,
    "lerp": torch.lerp,
    "fma": lambda a, b, c: a * b + c,
}


def _kernels(kind: str) -> str:
    unary = table_kernel(f"unary_{kind}", 1, [f"mdf::{op}(x)" for op in UNARY], kind, kind)
    names = (*BINARY, *BINARY_SAME)
    binary = table_kernel(f"binary_{kind}", 2, [f"mdf::{op}(x, y)" for op in names], kind, kind)
    ternary = [f"mdf::{op}(x, y, z)" for op in TERNARY]
    extra = ["mdf::erfcinv(x)"]
    return (
        unary
        + binary
        + table_kernel(f"ternary_{kind}", 3, ternary, kind, kind)
        + table_kernel(f"extra_{kind}", 1, extra, kind, kind)
    )


def _complex(kind: str) -> str:
    real = "f32" if kind == "c64" else "f64"
    names = ("add", "sub", "mul", "div")
    parts = ("mdf::abs(x)", "mdf::real(x)", "mdf::imag(x)", "mdf::isnan(x)", "mdf::equal(x, x)")
    return (
        table_kernel(f"binary_{kind}", 2, [f"mdf::{op}(x, y)" for op in names], kind, kind)
        + table_kernel(f"unary_{kind}", 1, ["mdf::neg(x)", "mdf::conj(x)"], kind, kind)
        + table_kernel(f"parts_{kind}", 1, parts, kind, real)
    )


SOURCE = INCLUDE + "".join(map(_kernels, DTYPES)) + "".join(map(_complex, ("c64", "c128")))

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0, 3.0, -3.0, 1e-3, 88.0, -104.0, 1e-30,
    INF, -INF, NAN, 1e-42, -1e-42, 1e20, -1e20, 3e38, 0.9999999, -0.9999999, 16777217.0, 1e-8,
]  # fmt: skip


def _apply(kind: str, name: str, op: int, *inputs: torch.Tensor) -> torch.Tensor:
    out = torch.empty(inputs[0].shape, dtype=DTYPES[kind])
    apply(SOURCE, f"{name}_{kind}", op, inputs, out)
    return out


def _random(n: int, scale: float, kind: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, generator=generator, dtype=torch.float64) * scale).to(DTYPES[kind])


def _assert_close(
    found: torch.Tensor, exact: torch.Tensor, bound: float, *inputs: torch.Tensor
) -> None:
    distance = ulps(found.numpy(), exact.double().numpy())
    worst = int(distance.argmax())
    at = [float(x[worst]) for x in inputs]
    assert distance[worst] <= bound, (
        f"at {at}: {found[worst]} for {exact[worst]}, {distance[worst]} ulps"
    )


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("kind", DTYPES)
def test_unary(kind: str, op: str) -> None:
    oracle, bound32, bound64, scale = UNARY[op]
    special = torch.tensor(SPECIAL, dtype=DTYPES[kind])
    # torch loses digits in trigonometry of huge numbers, and one ulp in the root of some f64.
    x = torch.cat([special, _random(2000, scale, kind)])
    if op in ("sin", "cos", "tan"):
        x = x[~(x.abs() >= 1e19)]
    found = _apply(kind, "unary", list(UNARY).index(op), x)
    _assert_close(found, oracle(x.double()), bound32 if kind == "f32" else bound64, x)


def _pairs(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    special = torch.tensor(SPECIAL, dtype=DTYPES[kind])
    a = torch.cat([special.repeat_interleave(len(SPECIAL)), _random(1000, 10, kind)])
    b = torch.cat([special.repeat(len(SPECIAL)), _random(1000, 3, kind, seed=1)])
    return a, b


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("kind", DTYPES)
def test_binary(kind: str, op: str) -> None:
    oracle, bound32, bound64 = BINARY[op]
    a, b = _pairs(kind)
    found = _apply(kind, "binary", list(BINARY).index(op), a, b)
    exact = oracle(a.double(), b.double())
    if op in ("minimum", "maximum"):
        # The sign of zero is ours to choose: see the test below.
        found = found + 0.0
        exact = exact + 0.0
    _assert_close(found, exact, bound32 if kind == "f32" else bound64, a, b)


@pytest.mark.parametrize("op", BINARY_SAME)
@pytest.mark.parametrize("kind", DTYPES)
def test_binary_that_depends_on_the_type(kind: str, op: str) -> None:
    a, b = _pairs(kind)
    # Where a / b overflows, torch's vector code returns NaN and its scalar code is right.
    keep = (b == 0) | ~a.isfinite() | ~(a / b).isinf()
    a, b = a[keep], b[keep]
    found = _apply(kind, "binary", len(BINARY) + list(BINARY_SAME).index(op), a, b)
    _assert_close(found, BINARY_SAME[op](a, b), 0, a, b)
    expected = BINARY_SAME[op](a, b)
    assert torch.equal(found.signbit() & (found == 0), expected.signbit() & (expected == 0))


@pytest.mark.parametrize("kind", DTYPES)
def test_minimum_and_maximum_do_not_depend_on_the_order(kind: str) -> None:
    a, b = _pairs(kind)
    for op in ("minimum", "maximum"):
        one = _apply(kind, "binary", list(BINARY).index(op), a, b)
        other = _apply(kind, "binary", list(BINARY).index(op), b, a)
        assert torch.equal(one.isnan(), a.isnan() | b.isnan())
        keep = ~one.isnan()
        assert torch.equal(one[keep].view(torch.uint8), other[keep].view(torch.uint8))


@pytest.mark.parametrize("op", TERNARY)
@pytest.mark.parametrize("kind", DTYPES)
def test_ternary(kind: str, op: str) -> None:
    values = [0.0, 1.0, -2.5, 0.25, 0.75, NAN, INF]
    grid = torch.cartesian_prod(*[torch.tensor(values, dtype=DTYPES[kind])] * 3)
    if op == "clamp":
        # torch leaves low > high to the order of its comparisons; ours is min(max(x, low), high).
        grid = grid[~(grid[:, 1] > grid[:, 2])]
    random = torch.stack([_random(500, 1, kind, seed) for seed in range(3)], 1)
    if op == "clamp":
        random = random.sort(1).values[:, [1, 0, 2]]
    x, y, z = (column.contiguous() for column in torch.cat([grid, random]).T)
    found = _apply(kind, "ternary", list(TERNARY).index(op), x, y, z)
    if op == "fma":
        exact = x.double() * y.double() + z.double()
        if kind == "f32":  # in f64 the product of two random numbers is not exact
            _assert_close(found, exact, 0.5001, x, y, z)
        else:
            torch.testing.assert_close(found, exact, equal_nan=True)
        return
    # torch contracts lerp into fma where the CPU can; we do not.
    _assert_close(found, TERNARY[op](x, y, z), 0 if op == "clamp" else 16, x, y, z)


@pytest.mark.parametrize("kind", DTYPES)
def test_fma_rounds_once(kind: str) -> None:
    step = torch.tensor([torch.finfo(DTYPES[kind]).eps], dtype=DTYPES[kind])
    x, y, z = 1 + step, 1 - step, torch.full_like(step, -1.0)
    found = _apply(kind, "ternary", list(TERNARY).index("fma"), x, y, z)
    assert found.item() == -(step.item() ** 2)


@pytest.mark.parametrize("kind", DTYPES)
def test_erfcinv_inverts_erfc(kind: str) -> None:
    finest = [1e-300, 1e-100] if kind == "f64" else [1e-37]
    z = torch.cat(
        [torch.linspace(0.001, 1.999, 997), torch.tensor([1e-30, 1e-10, 0.5, 1.5])]
    ).double()
    z = torch.cat([z, torch.tensor(finest, dtype=torch.float64)]).to(DTYPES[kind])
    y = _apply(kind, "extra", 0, z).double()
    # erfc is steep: an error of one ulp in y is up to 2 y^2 ulps in erfc(y).
    tolerance = (2 + 4 * y * y) * torch.finfo(DTYPES[kind]).eps
    assert (((torch.erfc(y) - z) / z.double()).abs() <= tolerance + 1e-15).all()
    edges = torch.tensor([0.0, 2.0, -0.1, 2.1, NAN, 1.0], dtype=DTYPES[kind])
    expected = torch.tensor([INF, -INF, NAN, NAN, NAN, 0.0], dtype=DTYPES[kind])
    torch.testing.assert_close(
        _apply(kind, "extra", 0, edges), expected, equal_nan=True, rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", ["c64", "c128"])
def test_complex(kind: str) -> None:
    dtype = torch.complex64 if kind == "c64" else torch.complex128
    real = torch.float32 if kind == "c64" else torch.float64
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(500, generator=generator, dtype=dtype) for _ in range(2))
    for op, oracle in enumerate((torch.add, torch.sub, torch.mul, torch.div)):
        out = torch.empty_like(a)
        apply(SOURCE, f"binary_{kind}", op, [a, b], out)
        torch.testing.assert_close(out, oracle(a, b))
    for op, oracle in enumerate((torch.neg, torch.conj_physical)):
        out = torch.empty_like(a)
        apply(SOURCE, f"unary_{kind}", op, [a], out)
        assert torch.equal(out, oracle(a))
    a[7] = complex(NAN, 1)
    parts = (torch.abs, torch.real, torch.imag, torch.isnan, lambda t: t == t)
    for op, oracle in enumerate(parts):
        part = torch.empty(a.shape, dtype=real)
        apply(SOURCE, f"parts_{kind}", op, [a], part)
        torch.testing.assert_close(part, oracle(a).to(real), equal_nan=True)


def test_complex_division_does_not_overflow_on_the_way() -> None:
    a = torch.tensor([1e38 + 1e38j, 1 + 1j, 0j])
    b = torch.tensor([1e38 + 1e38j, 1e-30 + 0j, 1 + 0j])
    out = torch.empty_like(a)
    apply(SOURCE, "binary_c64", 3, [a, b], out)
    torch.testing.assert_close(out, torch.tensor([1 + 0j, 1e30 + 1e30j, 0j]))


def test_ulps_counts_as_numpy_does() -> None:
    one = np.float32(1)
    found = np.array([one, np.nextafter(one, np.float32(2)), NAN, INF], np.float32)
    assert ulps(found, np.array([1.0, 1.0, NAN, 1.0])).tolist() == [0.0, 1.0, 0.0, INF]
