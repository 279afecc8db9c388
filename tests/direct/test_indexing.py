"""``fd.ops``: by index, sorted, filled and random, against eager torch."""

from typing import Any

import pytest
import torch
from direct.checks import check, compare, defined
from torch.nn import functional

from thunder_mdfuse import DataType, FusionDefinition
from thunder_mdfuse.errors import DefinitionError

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "reference")
    monkeypatch.setenv("MDFUSE_VERIFY", "1")
    torch.manual_seed(3)


X = torch.randn(4, 6, 5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select(dim: int, dtype: torch.dtype) -> None:
    index = torch.tensor([3, 0, 3, 1, 2]).to(dtype)
    for at in (index, index[0]):
        check(
            lambda fd, x, i: fd.ops.index_select(x, i, dim),
            lambda x, i: torch.index_select(x, dim, i),
            [X, at],
        )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_select(dim: int) -> None:
    check(
        lambda fd, x: (fd.ops.select(x, 2, dim), fd.ops.select(x, -1, dim)),
        lambda x: (x.select(dim, 2), x.select(dim, -1)),
        [X],
    )
    for i in (0, 3, -2):
        check(
            lambda fd, x, i: fd.ops.select(x, i, dim),
            lambda x, i: x.select(dim, i).contiguous(),
            [X, i],
        )
    check(lambda fd, x: fd.ops.select(x, x.size(0) - 1, 0), lambda x: x[-1], [X])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gather_and_scatter(dim: int) -> None:
    index = torch.randint(0, 4, (3, 4, 2))
    check(
        lambda fd, x, i: fd.ops.gather(x, i, dim), lambda x, i: torch.gather(x, dim, i), [X, index]
    )
    unique = torch.stack([torch.stack([torch.randperm(4)] * 4)] * 4)
    unique = unique.movedim(-1, dim)
    source = torch.randn(4, 4, 4)
    check(
        lambda fd, x, i, y: (fd.ops.scatter(x, i, y, dim), fd.ops.scatter(x, i, 2.5, dim)),
        lambda x, i, y: (torch.scatter(x, dim, i, y), torch.scatter(x, dim, i, 2.5)),
        [X, unique, source],
    )
    check(
        lambda fd, x, i, n: fd.ops.scatter(x, i, n, dim),
        lambda x, i, n: torch.scatter(x, dim, i, n),
        [X, unique, 1.5],
    )


def test_take_along_axis() -> None:
    for shape, dim in (((4, 2, 5), 1), ((1, 2, 5), 1), ((4, 1, 1), 1), ((7, 6, 1), 0)):
        index = torch.randint(0, 4, shape)
        check(
            lambda fd, x, i, d=dim: fd.ops.take_along_axis(x, i, d),
            lambda x, i, d=dim: torch.take_along_dim(x, i, d),
            [X, index],
        )


@pytest.mark.parametrize("dim", [0, -1])
def test_sorted(dim: int) -> None:
    for largest in (True, False):
        check(
            lambda fd, x, m=largest: fd.ops.topk(x, 3, dim, m, True),
            lambda x, m=largest: torch.topk(x, 3, dim, m, True),
            [X],
        )
        check(
            lambda fd, x, m=largest: fd.ops.argsort(x, dim, m, stable=True),
            lambda x, m=largest: torch.argsort(x, dim=dim, descending=m, stable=True),
            [X],
        )


def test_topk_of_a_number_that_is_given() -> None:
    fd = defined(lambda fd, x, k: fd.ops.topk(x, k, sorted=True), [X, 1])
    for k in (1, 4):
        compare(fd.execute([X, k]), list(torch.topk(X, k, sorted=True)))


def test_embedding() -> None:
    index, weight = torch.randint(0, 9, (3, 4)), torch.randn(9, 5)
    check(lambda fd, i, w: fd.ops.embedding_fwd(i, w), functional.embedding, [index, weight])
    check(
        lambda fd, i, w: fd.ops.embedding_fwd(i, w, padding_idx=2, norm_type=2.0, sparse=False),
        lambda i, w: functional.embedding(i, w, padding_idx=2),
        [index, weight],
    )


def test_factories() -> None:
    check(
        lambda fd: (
            fd.ops.iota(7),
            fd.ops.iota(4, 3, -2, DataType.Int32),
            fd.ops.iota(5, 0.5, 0.25, DataType.Float),
            fd.ops.full([2, 3], 2.5, DataType.BFloat16),
            fd.ops.full((2,), True, DataType.Bool),
            fd.ops.full([], -1, torch.int64),
        ),
        lambda: (
            torch.arange(7),
            torch.arange(3, -5, -2, dtype=torch.int32),
            torch.arange(0.5, 1.75, 0.25),
            torch.full((2, 3), 2.5, dtype=torch.bfloat16),
            torch.full((2,), True),
            torch.tensor(-1),
        ),
        [],
    )
    check(
        lambda fd, x, n, v: (fd.ops.iota(n, 0, 2), fd.ops.full([n, x.size(1)], v, DataType.Float)),
        lambda x, n, v: (torch.arange(0, 2 * n, 2), torch.full((n, x.shape[1]), v)),
        [X, 3, 1.5],
    )


def test_a_fusion_without_tensors_runs_where_it_is_told() -> None:
    fd = defined(lambda fd: fd.ops.iota(3), [])
    (found,) = fd.execute([], device="cpu")
    assert found.device == torch.device("cpu")


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_numbers(dtype: torch.dtype) -> None:
    n = 20000

    def define(fd: FusionDefinition, x: Any, low: Any) -> Any:
        return (
            fd.ops.uniform(-1, 3, [n], dtype=dtype),
            fd.ops.uniform(low, 3.0, [n], dtype=dtype),
            fd.ops.normal(2.0, 0.5, [n], dtype=dtype),
            fd.ops.normal(low, 0.5, [n], dtype=dtype),
            fd.ops.rand_like(x),
            fd.ops.randn_like(x),
        )

    x = torch.zeros(n, dtype=dtype)
    fd = defined(define, [x, -1.0])
    found = fd.execute([x, -1.0])
    wanted = [(1, 16 / 12), (1, 16 / 12), (2, 0.25), (-1, 0.25), (0.5, 1 / 12), (0, 1)]
    for value, (mean, variance) in zip(found, wanted, strict=True):
        assert (value.dtype, value.shape) == (dtype, (n,))
        assert abs(value.double().mean() - mean) < 0.05
        assert abs(value.double().var() - variance) < 0.06
    for value in found[:2]:
        assert -1 <= value.min() < -0.99
        assert 2.98 < value.max() <= 3
    again = fd.execute([x, -1.0])
    assert not any(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    torch.manual_seed(5)
    first = fd.execute([x, -1.0])
    torch.manual_seed(5)
    compare(fd.execute([x, -1.0]), first, 0)


def test_seeds_that_are_given() -> None:
    def define(fd: FusionDefinition, seed: Any, word: Any) -> Any:
        return (
            fd.ops.uniform(0, 1, [64], rng_seed=seed, rng_offset=0),
            fd.ops.normal(0, 1, [64], rng_seed=word, rng_offset=4),
        )

    fd = defined(define, [1, torch.tensor(7)])
    first = fd.execute([1, torch.tensor(7)])
    compare(fd.execute([1, torch.tensor(7)]), first, 0)
    other = fd.execute([2, torch.tensor(8)])
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


INDEX = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda fd, x, i: fd.ops.index_select(x, x, 0), "the index must be Int or Int32"),
        (lambda fd, x, i: fd.ops.index_select(x, fd.ops.reshape(i, [2, 2]), 0), "one dim"),
        (lambda fd, x, i: fd.ops.gather(x, i, 0), "an index of 3 dims is needed"),
        (lambda fd, x, i: fd.ops.select(x, 0.5, 0), "must be an integer"),
        (lambda fd, x, i: fd.ops.embedding_fwd(i, x, max_norm=1.0), "max_norm would rescale"),
        (lambda fd, x, i: fd.ops.uniform(0, 1, [4], rng_seed=1), "needed together"),
        (lambda fd, x, i: fd.ops.uniform(0, 1, [4], dtype=DataType.Int), "random numbers are"),
        (lambda fd, x, i: fd.ops.rand_like(i), "random numbers are floats"),
        (lambda fd, x, i: fd.ops.topk(x, 2.5), "cannot be a size"),
        (lambda fd, x, i: fd.ops.argsort(x, 3), "no such dim"),
        (lambda fd, x, i: fd.ops.embedding_fwd(i, x), "the weight must have 2 dims"),
    ],
)
def test_what_is_refused(define: Any, message: str) -> None:
    with pytest.raises(DefinitionError) as e:
        defined(define, [X, INDEX])
    assert message in str(e.value)
