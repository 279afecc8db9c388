"""``fd.ops``: reductions, variances and scans, against eager torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from direct.checks import check, defined

from thunder_mdfuse import DataType
from thunder_mdfuse.errors import DefinitionError

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = (F32, BF16, F64, torch.int32, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 3, shape).to(dtype)


def product(x: torch.Tensor, dims: Any, keepdim: bool) -> torch.Tensor:
    """``torch.prod`` over several dims."""
    listed = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    for d in sorted((d % x.ndim for d in listed), reverse=True):
        x = torch.prod(x, d, keepdim)
    return x


def over(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of torch, for which no dims are all dims."""
    return lambda x, dims, keepdim: function(x, () if dims is None else dims, keepdim)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, dims, keepdim: torch.sum(x, dims, keepdim),
    "prod": product,
    "max": over(torch.amax),
    "min": over(torch.amin),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dims", [None, 0, -1, [0, 2], [-1, -2], [0, 1, 2]])
def test_reductions(name: str, dims: Any) -> None:
    for dtype in DTYPES:
        x = numbers(dtype, 3, 4, 5)
        for layout in (x, x.permute(2, 0, 1)):
            for keepdim in (False, True):
                check(
                    lambda fd, x, k=keepdim: getattr(fd.ops, name)(x, dims, k),
                    lambda x, k=keepdim: REDUCTIONS[name](x, dims, k),
                    [layout],
                    strides=dtype is F32,
                )


def test_a_reduction_in_another_dtype() -> None:
    x = numbers(F16, 3, 4)
    check(
        lambda fd, x: (
            fd.ops.sum(x, DataType.Float),
            fd.ops.sum(x, 1, dtype=DataType.Double),
            fd.ops.max(x, [0], False, DataType.Float),
            fd.ops.prod(x, dims=0, dtype=torch.float32),
        ),
        lambda x: (x.float().sum(), x.double().sum(1), x.float().amax(0), x.float().prod(0)),
        [x],
    )
    check(lambda fd, x: fd.ops.sum(x, dtype=DataType.Int32), lambda x: x.sum(dtype=torch.int32), [
        numbers(torch.int64, 3, 4)
    ])  # fmt: skip


def test_reductions_of_one_number() -> None:
    x = torch.tensor(2.5)
    check(lambda fd, x: fd.ops.sum(x), torch.sum, [x])
    check(lambda fd, x: fd.ops.max(x, 0), lambda x: x.amax(0), [x])


@pytest.mark.parametrize("dims", [0, -1, [0, 2], [0, 1, 2]])
def test_variances(dims: Any) -> None:
    for dtype in (F32, BF16, F64):
        x = numbers(dtype, 3, 4, 5)
        for correction in (0, 1, 2):
            check(
                lambda fd, x, c=correction: (
                    fd.ops.var(x, dims, c),
                    fd.ops.var(x, dims, correction=c, keepdim=True),
                    *fd.ops.var_mean(x, dims, c),
                    *fd.ops.var_mean(x, dims, c, True),
                ),
                lambda x, c=correction: (
                    torch.var(x, dims, correction=c),
                    torch.var(x, dims, correction=c, keepdim=True),
                    *torch.var_mean(x, dims, correction=c),
                    *torch.var_mean(x, dims, correction=c, keepdim=True),
                ),
                [x],
            )


def test_welford() -> None:
    for dtype in (F32, BF16, F64):
        for dims in ([0], [1, 2], [0, 1, 2]):

            def wanted(x: torch.Tensor, dims: list[int] = dims) -> tuple[torch.Tensor, ...]:
                wide = x.double()
                squares = torch.var(wide, dims, correction=0)
                count = x.numel() // max(squares.numel(), 1)
                number = torch.full(squares.shape, count)
                return wide.mean(dims).to(x.dtype), (squares * count).to(x.dtype), number

            check(
                lambda fd, x, dims=dims: fd.ops.welford(x, dims), wanted, [numbers(dtype, 3, 4, 5)]
            )


SCANS: dict[str, tuple[Any, Any]] = {
    "cumsum": (torch.cumsum, torch.add),
    "cumprod": (torch.cumprod, torch.mul),
    "cummax": (lambda x, d: torch.cummax(x, d).values, torch.maximum),
    "cummin": (lambda x, d: torch.cummin(x, d).values, torch.minimum),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str) -> None:
    eager, combine = SCANS[name]
    for dtype in DTYPES:
        if name.startswith("cumm") and dtype is torch.bool:
            continue
        x = numbers(dtype, 4, 5)
        for dim in (0, -1):
            check(
                lambda fd, x, d=dim: getattr(fd.ops, name)(x, d),
                lambda x, d=dim: eager(x, d),
                [x],
                strides=False,
            )
        if dtype is not torch.bool:
            check(
                lambda fd, x: getattr(fd.ops, name)(x, 1, 2),
                lambda x: combine(eager(x, 1), torch.tensor(2)),
                [x],
                strides=False,
            )


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd, x: fd.ops.sum(x, 2), "dim 2 found, a tensor of 2 dims has no such dim"),
        (lambda fd, x: fd.ops.sum(x, [0, -2]), "name a dim twice"),
        (lambda fd, x: fd.ops.var(fd.ops.gt(x, 0), 1), "a tensor of floats is needed"),
        (lambda fd, x: fd.ops.welford(fd.ops.gt(x, 0), 1), "a tensor of floats is needed"),
        (lambda fd, x: fd.ops.sum(1.0), "must be a tensor of the fusion"),
    ],
)
def test_what_is_refused(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as e:
        defined(define, [torch.ones(3, 4)])
    assert message in str(e.value)
