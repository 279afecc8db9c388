"""Scatters in kernels, against eager torch: all modes, dtypes, layouts, computed values."""

import random

import pytest
import torch
from codegen.emulated import LAYOUTS, program, run, same_bits, strided, typed

from thunder_mdfuse.errors import EmulatorError

# Whole numbers, whose sums are exact in each: the order of adding must not matter.
DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.complex64, torch.complex128),
)
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")


def _whole(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _index(shape: tuple[int, ...], extent: int, seed: int) -> torch.Tensor:
    return torch.randint(0, extent, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("seed", range(5))
def test_sums_of_random_shapes(seed: int, kind: str) -> None:
    rng = random.Random(f"{seed} {kind}")
    ndim = rng.randint(1, 3)
    shape = tuple(rng.choice(SIZES[: 11 if ndim < 3 else 6]) for _ in range(ndim))
    dim, dtype = rng.randrange(ndim), rng.choice(DTYPES)
    few = tuple(rng.randint(1, n) for n in shape)
    few = (*few[:dim], rng.choice(SIZES[:8]), *few[dim + 1 :])
    x = strided(_whole(shape, dtype, seed), kind)
    index = strided(_index(few, shape[dim], seed), kind)
    source = strided(_whole(tuple(n + rng.randint(0, 1) for n in few), dtype, seed + 1), kind)
    rows = _index((rng.choice(SIZES[:8]),), shape[dim], seed)
    other = strided(_whole((*shape[:dim], len(rows), *shape[dim + 1 :]), dtype, seed + 2), kind)
    body = f"%5 = scatter_add(%0, %1, %2; dim={dim}) : {typed(x)}\n"
    body += f"%6 = index_add(%0, %3, %4; dim={dim}) : {typed(x)}"
    (one, two), _ = run([x, index, source, rows, other], body, "%5, %6")
    dense = x.contiguous()
    same_bits(one, dense.scatter_add(dim, index, source))
    same_bits(two, dense.index_add(dim, rows, other))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_scatters_of_distinct_places(dtype: torch.dtype) -> None:
    x, source = _whole((9, 6), dtype, 0), _whole((5, 4), dtype, 1)
    index = torch.stack([torch.randperm(9)[:5] for _ in range(4)], 1)
    (found,), _ = run([x, index, source], f"%3 = scatter(%0, %1, %2; dim=0) : {typed(x)}", "%3")
    same_bits(found, x.scatter(0, index, source))


def test_a_number_is_scattered() -> None:
    x, index = torch.randn(4, 6), _index((4, 2), 6, 0)
    body = "%2 = const(value='2.5', dtype=f64) : f64\n%3 = scatter(%0, %1, %2; dim=1) : f32[4, 6]"
    (found,), _ = run([x, index], body, "%3")
    same_bits(found, x.scatter(1, index, 2.5))


def test_of_several_values_for_one_place_one_stays() -> None:
    x, index, source = torch.zeros(3), torch.zeros(64, dtype=torch.int64), torch.arange(1.0, 65.0)
    (found,), _ = run([x, index, source], "%3 = scatter(%0, %1, %2; dim=0) : f32[3]", "%3")
    assert found[0] in source
    assert not found[1:].any()


def test_sums_of_bools_are_true_where_one_is() -> None:
    x, index = torch.tensor([True, False, False]), torch.tensor([0, 1, 1, 2])
    source = torch.tensor([False, True, False, False])
    (found,), _ = run([x, index, source], "%3 = scatter_add(%0, %1, %2; dim=0) : bool[3]", "%3")
    same_bits(found, x.scatter_add(0, index, source))


def test_special_numbers() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), 1.0, -0.0])
    index = torch.tensor([0, 1, 2, 3])
    source = torch.tensor([float("nan"), -0.0, float("-inf"), float("inf")])
    (found,), _ = run([x, index, source], "%3 = scatter_add(%0, %1, %2; dim=0) : f32[5]", "%3")
    same_bits(found, x.scatter_add(0, index, source))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_empty_tensors(shape: tuple[int, int]) -> None:
    x = torch.randn(5, 3) if shape[0] == 0 else torch.randn(4, 0)
    index, source = torch.zeros(shape, dtype=torch.int64), torch.randn(shape)
    (found,), _ = run([x, index, source], f"%3 = scatter_add(%0, %1, %2; dim=0) : {typed(x)}", "%3")
    same_bits(found, x)


def test_operands_are_computed_and_the_result_is_used() -> None:
    """What is added is computed where it is added; what is read of the sum comes after."""
    x, index, source = torch.randn(6, 7), _index((4, 5), 6, 0), torch.randn(4, 5)
    body = """%3 = exp(%0) : f32[6, 7]
%4 = sin(%2) : f32[4, 5]
%5 = scatter_add(%3, %1, %4; dim=0) : f32[6, 7]
%6 = mul(%5, %0) : f32[6, 7]
%7 = sum(%6; dims=[1]) : f32[6]"""
    (found, also), executable = run([x, index, source], body, "%7, %3")
    total = x.exp().scatter_add(0, index, source.sin())
    torch.testing.assert_close(found, (total * x).sum(1))
    torch.testing.assert_close(also, x.exp())
    assert len(executable.last.plan.kernels) == 3  # type: ignore[union-attr]


def test_a_scatter_into_a_scatter() -> None:
    x, index, source = torch.zeros(6, 7), _index((4, 7), 6, 0), _whole((4, 7), torch.float32, 1)
    body = """%3 = scatter_add(%0, %1, %2; dim=0) : f32[6, 7]
%4 = gather(%3, %1; dim=0) : f32[4, 7]
%5 = scatter_add(%3, %1, %4; dim=0) : f32[6, 7]"""
    (first, second), _ = run([x, index, source], body, "%3, %5")
    once = x.scatter_add(0, index, source)
    same_bits(first, once)
    same_bits(second, once.scatter_add(0, index, once.gather(0, index)))


def _gradient(
    grad: torch.Tensor, index: torch.Tensor, rows: int, padding: int | None, scaled: bool
) -> torch.Tensor:
    """Of eager torch, in f64 for floats: what a sum that is rounded once should be."""
    place = -1 if padding is None else padding
    wide = grad.double()
    return torch.ops.aten.embedding_dense_backward(wide, index, rows, place, scaled)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
def test_gradients_of_embeddings(dtype: torch.dtype, padding: int | None, scaled: bool) -> None:
    for shape, columns in (((6, 5), 16), ((37,), 3), ((), 8)):
        generator = torch.Generator().manual_seed(columns)
        grad = torch.randn(*shape, columns, generator=generator).to(dtype)
        index = _index(shape, 5, 1)
        attrs = f"rows=7, padding_idx={'none' if padding is None else padding}"
        attrs += f", scale_grad_by_freq={str(scaled).lower()}"
        wanted = _gradient(grad, index, 7, padding, scaled)
        result = torch.empty(7, columns, dtype=dtype)
        body = f"%2 = embedding_backward(%0, %1; {attrs}) : {typed(result)}"
        (found,), _ = run([grad, index], body, "%2")
        assert found.dtype == dtype
        assert found.stride() == wanted.stride()
        error = (found.double() - wanted).abs()
        # One rounding, of sums in f32 (f64 for f64).
        unit = torch.finfo(dtype).eps
        wide = torch.finfo(torch.float32 if unit > 1e-10 else torch.float64).eps
        assert (error <= wanted.abs() * unit * 0.51 + 64 * wide).all()


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("rows", [24, 25, 1000])
def test_gradients_of_few_rows_of_many(rows: int, padding: int | None) -> None:
    """Sums of 16-bit gradients have memory for the rows that occur, not for all rows."""
    grad, index = torch.randn(3, 4, 16).bfloat16(), _index((3, 4), 6, 1)
    attrs = f"rows={rows}, padding_idx={'none' if padding is None else padding}"
    body = f"%2 = embedding_backward(%0, %1; {attrs}, scale_grad_by_freq=false) : bf16[{rows}, 16]"
    (found,), executable = run([grad, index], body, "%2")
    wanted = _gradient(grad, index, rows, padding, False)
    assert ((found.double() - wanted).abs() <= wanted.abs() * 2.0**-8 + 1e-6).all()
    written = sum(step.bytes_written for step in executable.report())
    assert written <= rows * (16 * 2 + 8) + 12 * (2 * 16 * 4 + 2 * 8)


def test_padding_alone_adds_nothing() -> None:
    grad = torch.full((4, 3), float("nan"))
    index = torch.full((4,), 2)
    body = "%2 = embedding_backward(%0, %1; rows=5, padding_idx=2, scale_grad_by_freq=false)"
    (found,), executable = run([grad, index], f"{body} : f32[5, 3]", "%2")
    same_bits(found, torch.zeros(5, 3))
    assert len(executable.last.plan.kernels) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("op", ["scatter_add", "index_add", "scatter"])
def test_deterministic_algorithms_are_atens(op: str) -> None:
    """The switch is part of what a program is specialised for."""
    x, source = torch.zeros(5, 4), torch.randn(3, 4)
    index = (
        torch.tensor([0, 2, 4])
        if op == "index_add"
        else torch.tensor([[0, 2, 4, 1]]).repeat(3, 1) % 5
    )
    index = index if op != "scatter" else torch.stack([torch.randperm(5)[:3] for _ in range(4)], 1)
    executable = program([x, index, source], f"%3 = {op}(%0, %1, %2; dim=0) : f32[5, 4]", "%3")
    wanted = getattr(x, op)(0, index, source)

    def kinds() -> list[str]:
        (found,) = executable.run([x, index, source])
        torch.testing.assert_close(found, wanted)
        return [s.kind for s in executable.last.plan.steps]  # type: ignore[union-attr]

    assert kinds() == ["kernel", "kernel"]
    torch.use_deterministic_algorithms(True)
    try:
        assert kinds() == ["aten"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert kinds() == ["kernel", "kernel"]


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_index_out_of_range_is_an_error(wrong: int) -> None:
    index = torch.tensor([0, wrong, 1])
    with pytest.raises(EmulatorError, match=f"index {wrong} is out of range for a dim of 5"):
        run(
            [torch.zeros(5, 4), index, torch.ones(3, 4)],
            "%3 = index_add(%0, %1, %2; dim=0) : f32[5, 4]",
            "%3",
        )


def test_turned_values_are_scattered() -> None:
    x, index, source = (
        torch.zeros(40, 64),
        _index((33, 64), 40, 0),
        _whole((64, 33), torch.float32, 1),
    )
    body = """%3 = permute(%2; dims=[1, 0]) : f32[33, 64]
%4 = scatter_add(%0, %1, %3; dim=0) : f32[40, 64]"""
    (found,), _ = run([x, index, source], body, "%4")
    same_bits(found, x.scatter_add(0, index, source.T.contiguous()))


def test_an_expanded_index() -> None:
    """As gradients of gathers of whole rows have it: one index for all columns."""
    x, index, source = torch.zeros(9, 16), _index((5,), 9, 0), _whole((5, 16), torch.float32, 1)
    body = """%3 = broadcast_in_dim(%1; shape=[5, 16], dims=[0], explicit=true) : i64[5, 16]
%4 = scatter_add(%0, %3, %2; dim=0) : f32[9, 16]"""
    (found,), _ = run([x, index, source], body, "%4")
    same_bits(found, x.index_add(0, index, source))
