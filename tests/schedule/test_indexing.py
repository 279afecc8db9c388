"""Which element a view reads: against torch, which is asked with a tensor of positions."""

import itertools
import math
import random
from collections.abc import Sequence

import torch

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import Attrs
from thunder_mdfuse.ir.graph import Node
from thunder_mdfuse.ir.sizes import Size, symbol
from thunder_mdfuse.schedule.indexing import aligned_groups, reshape_index, through_view

FACTORS = (1, 2, 3, 4, 5)


def _names(ndim: int) -> tuple[Size, ...]:
    return tuple(symbol(f"d{i}") for i in range(ndim))


def _read(index: Sequence[Size], shape: Sequence[int], of: Sequence[int]) -> torch.Tensor:
    """The row-major positions in ``of`` that ``index`` names, for each element of ``shape``."""
    places = []
    for point in itertools.product(*(range(n) for n in shape)):
        values = {f"d{i}": x for i, x in enumerate(point)}
        place = 0
        for extent, size in zip(of, index, strict=True):
            at_dim = sizes.evaluate(size, values)
            assert 0 <= at_dim < extent
            place = place * extent + at_dim
        places.append(place)
    return torch.tensor(places, dtype=torch.int64).reshape(tuple(shape))


def _ranges(shape: Sequence[int]) -> dict[str, Size]:
    return {f"d{i}": n for i, n in enumerate(shape)}


def _factored(rng: random.Random, count: int) -> list[int]:
    """A random shape of ``count`` elements."""
    shape: list[int] = []
    while count > 1 and len(shape) < 4:
        divisors = [f for f in (2, 3, 4, 5, 6) if count % f == 0] or [count]
        shape.append(rng.choice(divisors))
        count //= shape[-1]
    shape.append(count)
    shape += [1] * rng.randint(0, 1)
    rng.shuffle(shape)
    return shape


def test_reshapes_read_the_same_elements() -> None:
    rng = random.Random(0)
    for _ in range(200):
        have = [rng.choice(FACTORS) for _ in range(rng.randint(0, 4))]
        want = _factored(rng, math.prod(have))
        index = reshape_index(_names(len(have)), tuple(have), tuple(want), _ranges(have))
        positions = torch.arange(math.prod(want)).reshape(want)
        assert torch.equal(_read(index, have, want), positions.reshape(have)), (have, want)


def test_a_reshape_that_undoes_another_leaves_no_division() -> None:
    """Also when sizes are symbols, as long as one shape refines the other."""
    a, b, c = symbol("a"), symbol("b"), symbol("c")
    ranges = {"d0": a, "d1": b, "d2": c}
    flat = reshape_index(_names(3), (a, b, c), (a * b * c,), ranges)
    back = reshape_index(flat, (a * b * c,), (a, b, c), ranges)
    assert back == _names(3)
    merged = reshape_index(_names(3), (a, b, c), (a, b * c), ranges)
    assert merged == (symbol("d0"), symbol("d1") * c + symbol("d2"))
    assert reshape_index(merged, (a, b * c), (a, b, c), ranges) == _names(3)


def test_dims_are_grouped_as_finely_as_products_allow() -> None:
    assert aligned_groups((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert aligned_groups((2, 6), (3, 4)) == [([0, 1], [0, 1])]
    assert aligned_groups((), (1,)) == [([], [0])]
    s = symbol("s")
    assert aligned_groups((s, 2, 3), (s, 6)) == [([0], [0]), ([1, 2], [1])]


def _through(op: str, attrs: Attrs, x: torch.Tensor, expected: torch.Tensor) -> None:
    shape = tuple(expected.shape)
    node = Node(op, (), attrs, ())
    index = through_view(node, tuple(x.shape), _names(len(shape)), _ranges(shape))
    assert torch.equal(_read(index, shape, tuple(x.shape)), expected), op


def test_other_views_read_the_same_elements() -> None:
    x = torch.arange(2 * 3 * 4).reshape(2, 3, 4)
    _through("permute", at.DimsAttrs((2, 0, 1)), x, x.permute(2, 0, 1))
    _through("flip", at.DimsAttrs((0, 2)), x, x.flip(0, 2))
    _through("slice", at.SliceAttrs((1, 0, 1), (2, 3, 4), (1, 2, 2)), x, x[1:2, ::2, 1::2])
    column = torch.arange(2 * 4).reshape(2, 1, 4)
    _through("squeeze", at.DimsAttrs((1,)), column, column.squeeze(1))
    whole = at.BroadcastAttrs((5, 2, 3, 4), (1, 2, 3))
    _through("broadcast_in_dim", whole, column, column.expand(5, 2, 3, 4))
    _through("reshape", at.ShapeAttrs((4, 6)), x, x.reshape(4, 6))
