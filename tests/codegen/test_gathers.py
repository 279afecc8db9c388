"""Gathers in kernels, against eager torch: shapes, strides, dtypes, computed tables and indices."""

import random

import pytest
import torch
from codegen.emulated import LAYOUTS, run, same_bits, strided, typed

from thunder_mdfuse.errors import EmulatorError

DTYPES = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn),
    *(torch.bool, torch.uint8, torch.int16, torch.int64, torch.complex64, torch.complex128),
)
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 65)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")


def _values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    x = torch.randn(shape, generator=generator) * 8
    if dtype.is_floating_point:
        flat = x.view(-1)
        for i, special in enumerate((float("nan"), float("inf"), -0.0)):
            if flat.numel() > 4 * i:
                flat[4 * i] = special
    else:
        x = x.nan_to_num()
    return x > 0 if dtype is torch.bool else x.abs().to(dtype)


def _index(shape: tuple[int, ...], extent: int, seed: int) -> torch.Tensor:
    return torch.randint(0, extent, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings(dtype: torch.dtype) -> None:
    for shape, rows, columns in (((3, 5), 11, 64), ((), 4, 7), ((130,), 17, 16), ((2, 3), 1, 1)):
        index, weight = _index(shape, rows, 1), _values((rows, columns), dtype, 2)
        body = f"%2 = embedding(%0, %1) : {typed(torch.empty(*shape, columns, dtype=dtype))}"
        (found,), _ = run([index, weight], body, "%2")
        same_bits(found, weight[index])


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("seed", range(6))
def test_takes_and_gathers_of_random_shapes(seed: int, kind: str) -> None:
    rng = random.Random(f"{seed} {kind}")
    ndim = rng.randint(1, 3)
    shape = tuple(rng.choice(SIZES[: 14 if ndim < 3 else 8]) for _ in range(ndim))
    # Eager torch has no gather of 8-bit floats.
    dim, dtype = rng.randrange(ndim), rng.choice([d for d in DTYPES if "float8" not in str(d)])
    x = strided(_values(shape, dtype, seed), kind)
    picked = strided(
        _index(tuple(rng.choice(SIZES[:6]) for _ in range(rng.randint(0, 2))), shape[dim], seed),
        kind,
    )
    few = tuple(n if d == dim else rng.randint(1, n) for d, n in enumerate(shape))
    few = (*few[:dim], rng.choice(SIZES[:9]), *few[dim + 1 :])
    along = strided(_index(few, shape[dim], seed + 1), kind)
    taken = x.index_select(dim, picked.reshape(-1))
    taken = taken.reshape([*shape[:dim], *picked.shape, *shape[dim + 1 :]])
    gathered = x.gather(dim, along)
    body = f"%3 = take(%0, %1; dim={dim}) : {typed(taken)}\n"
    body += f"%4 = gather(%0, %2; dim={dim}) : {typed(gathered)}"
    (one, other), _ = run([x, picked, along], body, "%3, %4")
    same_bits(one, taken.contiguous())
    same_bits(other, gathered.contiguous())


def test_a_table_is_broadcast_along_the_other_dims() -> None:
    x, index = torch.randn(1, 7), _index((5, 3), 7, 0)
    (found,), _ = run([x, index], "%2 = take_along_axis(%0, %1; dim=1) : f32[5, 3]", "%2")
    same_bits(found, x.take_along_dim(index, 1))


@pytest.mark.parametrize("integer", [torch.int32, torch.uint8, torch.int16])
def test_indices_of_other_integers(integer: torch.dtype) -> None:
    x, index = torch.randn(9, 8), _index((6,), 9, 0).to(integer)
    (found,), _ = run([x, index], "%2 = take(%0, %1; dim=0) : f32[6, 8]", "%2")
    same_bits(found, x[index.long()])


@pytest.mark.parametrize("shapes", [((0, 4), (3, 0)), ((4, 0), (3,)), ((5, 3), (0,))])
def test_empty_tensors(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    weight, index = torch.randn(shapes[0]), torch.zeros(shapes[1], dtype=torch.int64)
    wanted = torch.empty(*index.shape, weight.shape[1])
    (found,), _ = run([index, weight], f"%2 = embedding(%0, %1) : {typed(wanted)}", "%2")
    same_bits(found, wanted)


def test_computed_tables_and_indices_are_one_kernel() -> None:
    x, y, index = torch.randn(6, 10), torch.randn(10, 6), _index((4, 7), 5, 3)
    body = """%3 = permute(%1; dims=[1, 0]) : f32[6, 10]
%4 = add(%0, %3) : f32[6, 10]
%5 = reshape(%4; shape=[60]) : f32[60]
%6 = const(value='11', dtype=i64) : i64
%7 = mul(%2, %6) : i64[4, 7]
%8 = take(%5, %7; dim=0) : f32[4, 7]
%9 = exp(%8) : f32[4, 7]"""
    (found,), executable = run([x, y, index], body, "%9")
    torch.testing.assert_close(found, (x + y.T).reshape(-1)[index * 11].exp())
    assert len(executable.last.plan.kernels) == 1  # type: ignore[union-attr]


def test_a_gather_of_a_gather() -> None:
    x, first, second = torch.randn(9, 16), _index((8,), 9, 0), _index((3, 4), 8, 1)
    body = "%3 = take(%1, %2; dim=0) : i64[3, 4]\n%4 = embedding(%3, %0) : f32[3, 4, 16]"
    (found,), executable = run([x, first, second], body, "%4")
    same_bits(found, x[first[second]])
    assert len(executable.last.plan.kernels) == 1  # type: ignore[union-attr]


def test_where_a_pad_or_another_part_is_meant_nothing_is_looked_up() -> None:
    """The indices of the second half of a ``cat`` are out of range for the first table."""
    a, b = torch.randn(3, 4), torch.randn(9, 4)
    index = torch.tensor([0, 2, 1, 8, 7, 3])
    body = """%3 = slice(%2; starts=[0], ends=[3], steps=[1]) : i64[3]
%4 = slice(%2; starts=[3], ends=[6], steps=[1]) : i64[3]
%5 = embedding(%3, %0) : f32[3, 4]
%6 = embedding(%4, %1) : f32[3, 4]
%7 = cat(%5, %6; dim=0) : f32[6, 4]
%8 = const(value='0.5', dtype=f64) : f64
%9 = pad(%7, %8; low=[2, 0], high=[1, 3]) : f32[9, 7]"""
    (found,), executable = run([a, b, index], body, "%9")
    whole = torch.cat([a[index[:3]], b[index[3:]]])
    same_bits(found, torch.nn.functional.pad(whole, (0, 3, 2, 1), value=0.5))
    assert len(executable.last.plan.kernels) == 1  # type: ignore[union-attr]


def test_rows_that_are_looked_up_are_reduced_and_read_once() -> None:
    """An embedding and the norm of its rows: one kernel, with 16-byte loads held for two phases."""
    index, weight = _index((5, 3), 50, 0), torch.randn(50, 1024)
    body = """%2 = embedding(%0, %1) : f32[5, 3, 1024]
%3 = mul(%2, %2) : f32[5, 3, 1024]
%4 = sum(%3; dims=[2]) : f32[5, 3]
%5 = rsqrt(%4) : f32[5, 3]
%6 = broadcast_in_dim(%5; shape=[5, 3, 1024], dims=[0, 1], explicit=false) : f32[5, 3, 1024]
%7 = mul(%2, %6) : f32[5, 3, 1024]"""
    (found,), executable = run([index, weight], body, "%7")
    rows = weight.double()[index]
    torch.testing.assert_close(
        found.double(), rows / rows.norm(dim=-1, keepdim=True), rtol=1e-5, atol=1e-6
    )
    (source,) = executable.kernel_sources().values()
    assert source.count("mdf::load<4>(b1,") == 1


def test_looked_up_vectors_of_several_items_are_fetched_first() -> None:
    index, weight = _index((4000,), 7, 0), torch.randn(7, 1024)
    (found,), executable = run([index, weight], "%2 = embedding(%0, %1) : f32[4000, 1024]", "%2")
    same_bits(found, weight[index])
    (kernel,) = executable.last.plan.kernels  # type: ignore[union-attr]
    assert kernel.launch.items > 1


@pytest.mark.parametrize("wrong", [-1, 7, 1 << 40])
def test_an_index_out_of_range_is_an_error(wrong: int) -> None:
    index = torch.tensor([0, 3, wrong, 1])
    with pytest.raises(EmulatorError, match=f"index {wrong} is out of range for a dim of 7"):
        run([index, torch.randn(7, 8)], "%2 = embedding(%0, %1) : f32[4, 8]", "%2")


def test_an_embedding_reads_its_rows_alone() -> None:
    index, weight = _index((8,), 1000, 0), torch.randn(1000, 16)
    _, executable = run([index, weight], "%2 = embedding(%0, %1) : f32[8, 16]", "%2")
    (report,) = executable.report()
    assert (report.kind, report.bytes_read, report.bytes_written) == ("kernel", 8 * 8 + 512, 512)


def test_looked_up_rows_are_stored_turned() -> None:
    """What is looked up runs along the columns, what is stored along the index."""
    index, weight, x = _index((33,), 40, 0), torch.randn(40, 64), torch.randn(64, 33)
    body = """%3 = embedding(%0, %1) : f32[33, 64]
%4 = permute(%3; dims=[1, 0]) : f32[64, 33]
%5 = add(%4, %2) : f32[64, 33]
%6 = permute(%2; dims=[1, 0]) : f32[33, 64]
%7 = mul(%3, %6) : f32[33, 64]"""
    found, _ = run([index, weight, x], body, "%5, %7")
    same_bits(found[0], weight[index].T + x)
    same_bits(found[1], weight[index] * x.T)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("columns", [3, 64])
def test_looked_up_rows_are_scanned(dim: int, columns: int) -> None:
    index, weight = _index((9,), 40, 0), _values((40, columns), torch.int64, 1)
    shape = f"i64[9, {columns}]"
    body = f"%2 = embedding(%0, %1) : {shape}\n%3 = cumsum(%2; dim={dim}) : {shape}"
    (found,), _ = run([index, weight], body, "%3")
    same_bits(found, weight[index].cumsum(dim))


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_looked_up_rows_are_reduced_along_each_dim(dims: tuple[int, ...]) -> None:
    index, weight = _index((300,), 40, 0), torch.randn(40, 64)
    wanted = weight.double()[index].sum(dims)
    body = f"%2 = embedding(%0, %1) : f32[300, 64]\n%3 = sum(%2; dims={list(dims)}) : "
    (found,), _ = run([index, weight], f"{body}{typed(wanted.float())}", "%3")
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_rows_and_columns_of_what_is_looked_up_are_reduced() -> None:
    """Both kinds of sums of one gather, as the gradient of a norm behind an embedding has them."""
    index, weight, x = _index((40,), 9, 0), torch.randn(9, 128), torch.randn(40, 128)
    body = """%3 = embedding(%0, %1) : f32[40, 128]
%4 = mul(%3, %2) : f32[40, 128]
%5 = sum(%4; dims=[1]) : f32[40]
%6 = broadcast_in_dim(%5; shape=[40, 128], dims=[0], explicit=false) : f32[40, 128]
%7 = mul(%6, %2) : f32[40, 128]
%8 = sum(%7; dims=[0]) : f32[128]"""
    found, _ = run([index, weight, x], body, "%5, %7, %8")
    product = weight.double()[index] * x.double()
    spread = product.sum(1, keepdim=True) * x.double()
    for value, right in zip(found, (product.sum(1), spread, spread.sum(0)), strict=True):
        torch.testing.assert_close(value.double(), right, rtol=1e-4, atol=1e-3)
