"""The functions of dtensor_functions.py on meshes of two and of three axes, with uneven shards."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from multirank.dtensor_functions import (
    Function,
    changed,
    check,
    d,
    index,
    shaped,
    under_autocast,
    without_grad,
)
from multirank.ranks import DEVICE, Case, mesh_of
from torch.distributed.tensor import Partial, Replicate, Shard

R, S = Replicate(), Shard
# On a mesh of 2 x 2, where no axis has equal parts.
BOTH = d([S(0), S(1)], 5, 7)
NESTED = d([S(0), S(0)], 7, 6)
ROWS_2 = d([S(0), R], 5, 8)


def on_two_axes() -> Iterator[Function]:
    yield from pointwise_on_two()
    yield from reductions_on_two()
    yield from views_on_two()
    yield from products_on_two()
    yield from of_dtensors_on_two()


def pointwise_on_two() -> Iterator[Function]:
    several = lambda a, b: (a + b * 2.0, 1 - (a - b), a / (b * b + 1.0), 2.0 * (a * b))
    yield Function("elementwise, 2-D", several, (BOTH, d([S(0), R], 5, 7)))
    yield Function("axes exchanged", lambda a, b: a * b, (BOTH, d([S(1), S(0)], 5, 7)))
    yield Function("one dim on both", lambda a: (torch.exp(a), F.gelu(a) * a), (NESTED,))
    yield Function("a row for all", lambda a, b: 2.0 * (a * b), (BOTH, d([R, S(0)], 7)))
    chosen = lambda a, b: (torch.where(a > 0, a, b), a.masked_fill(b > 0, 2.0), a.clamp(-0.5, 0.5))
    yield Function("where, 2-D", chosen, (BOTH, BOTH))
    yield Function("empty shards", lambda a: torch.exp(a) * 2, (d([S(0), S(1)], 1, 3),))


def reductions_on_two() -> Iterator[Function]:
    yield Function("sums, 2-D", lambda a: (a.sum(), a.sum(0), a.sum(1)), (BOTH,))
    yield Function("sums of one dim on both", lambda a: (a.sum(), a.mean(1)), (NESTED,))
    yield Function("extremes", lambda a: (torch.amax(a, 1), torch.amax(a, 0)), (BOTH,))
    yield Function("an index", lambda a: torch.argmax(a, 1), (d([S(0), S(1)], 5, 7, grad=False),))
    yield Function("softmax, 2-D", lambda a: (F.softmax(a, 1), F.log_softmax(a, 1)), (BOTH,))
    yield Function("softmax of one dim on both", lambda a: F.softmax(a, 1), (NESTED,))
    norms = lambda a, w, b: (F.layer_norm(a, (8,), w, b), F.rms_norm(a, (8,), w), torch.var(a, 1))
    yield Function("norms", norms, (ROWS_2, d([R, R], 8), d([R, R], 8)))
    few = d([S(0), S(0)], 2, 6)
    yield Function(
        "a norm of empty shards", lambda a, w: F.rms_norm(a, (6,), w), (few, d([R, R], 6))
    )
    yield Function("cross_entropy", F.cross_entropy, (d([S(0), R], 4, 8), index([S(0), R], 8, 4)))


def views_on_two() -> Iterator[Function]:
    turned = lambda a: (a.T, a.permute(1, 0), a.unsqueeze(0), a.t().contiguous() * 2)
    yield Function("turned", turned, (BOTH,))
    yield Function("views, 2-D", shaped, (ROWS_2,))
    yield Function("a cut dim divided", lambda a: a.view(5, 4, 2), (d([S(0), S(1)], 5, 8),))
    yield Function(
        "cat, 2-D", lambda a, b: (torch.cat([a, b], 1), torch.stack([a, b])), (BOTH,) * 2
    )
    yield Function("slices", lambda a: (a[1:3], a[0], a[:, 2:5]), (BOTH,))


def products_on_two() -> Iterator[Function]:
    yield Function("matmul, 2-D", lambda a, b: a @ b, (ROWS_2, d([R, S(1)], 8, 7)))
    yield Function("inner dim on one axis", lambda a, b: a @ b, (BOTH, d([R, S(0)], 7, 6)))
    batches = (d([S(0), R], 3, 5, 7), d([S(0), S(2)], 3, 7, 5))
    yield Function("batches", lambda a, b: a @ b, batches)
    column = (ROWS_2, d([R, S(0)], 7, 8), d([R, S(0)], 7))
    yield Function("column-parallel, 2-D", F.linear, column)
    yield Function("row-parallel, 2-D", F.linear, (BOTH, d([R, S(1)], 6, 7)))
    yield Function(
        "data- and tensor-parallel MLP",
        lambda x, u, w: F.linear(F.gelu(F.linear(x, u)), w).redistribute(placements=[S(0), R]) + x,
        (ROWS_2, d([R, S(0)], 7, 8), d([R, S(1)], 8, 7)),
    )
    words = index([S(0), R], 15, 5)
    yield Function("columns of a table", F.embedding, (words, d([R, S(1)], 15, 7)))
    yield Function("rows of a sharded table", F.embedding, (words, d([R, S(0)], 15, 8)))


def of_dtensors_on_two() -> Iterator[Function]:
    yield Function(
        "redistribute, 2-D",
        lambda a: tuple((a * 2.0).redistribute(placements=p) for p in ([R, R], [S(1), S(0)])),
        (BOTH,),
    )
    yield Function(
        "redistribute of one dim on both",
        lambda a: tuple(a.redistribute(placements=p) for p in ([R, R], [S(0), S(1)])),
        (NESTED,),
    )
    yield Function("to_local, 2-D", lambda a: a.to_local() * 2, (NESTED,))
    pending = d([Partial(), S(0)], 5, 8, grad=False)
    yield Function("sums of sums", lambda a, b: (a + b, torch.exp(a)), (pending, pending))
    yield Function("detach, 2-D", lambda a: a.detach() * a + without_grad(a), (NESTED,))
    yield Function("in place, 2-D", changed, (BOTH, BOTH), left=3)
    yield Function("autocast, 2-D", under_autocast, (ROWS_2, d([R, S(0)], 7, 8)))


def three_axes(ranks: int) -> None:
    """A block of a decoder on a mesh of 2 x 1 x 2, of which the second axis is for rows, too."""

    def block(x: Any, w: Any, u: Any, v: Any) -> Any:
        y = F.linear(F.silu(F.linear(F.rms_norm(x, (8,), w), u)), v)
        return y.redistribute(placements=[S(0), S(0), R]) + x

    weights = (d([R, R, R], 8), d([R, R, S(0)], 7, 8), d([R, R, S(1)], 8, 7))
    function = Function("a block, 3-D", block, (d([S(0), S(0), R], 7, 8), *weights))
    check(function, mesh_of([[[0, 1]], [[2, 3]]], ("dp", "cp", "tp")))


def two_axes(ranks: int) -> None:
    """On the CPU every third function: dtensor_ranks.py has all on four ranks."""
    mesh = mesh_of([[0, 1], [2, 3]], ("dp", "tp"))
    for function in list(on_two_axes())[:: 1 if DEVICE == "cuda" else 3]:
        check(function, mesh)


CASES = [
    Case("thunder", "functions_two_axes", two_axes, 4),
    Case("thunder", "functions_three_axes", three_axes, 4),
]
