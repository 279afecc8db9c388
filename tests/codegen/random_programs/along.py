"""Steps along one dim that keep it: scans, and elements taken by an index that is computed."""

import random
from collections.abc import Callable

import torch
from codegen.random_programs import known
from codegen.random_programs.known import Known
from codegen.random_programs.program import FAMILIES, Draft, Family, Step

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.types import DType

SCANS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "cumsum": lambda x, d: torch.cumsum(x, d, dtype=x.dtype),
    "cummax": lambda x, d: torch.cummax(x, d).values,
    "cummin": lambda x, d: torch.cummin(x, d).values,
}


def _draw_scan(rng: random.Random, draft: Draft) -> Step | None:
    i = draft.pick(
        rng,
        lambda k: draft.computes(k) and draft.dtype(k) is not DType.BOOL and draft.ndim(k) > 0,
    )
    if i is None:
        return None
    return Step("scan", (i,), (rng.choice(sorted(SCANS)), rng.randrange(draft.ndim(i))))


def _scan(x: Known, name: str, dim: int) -> Known:
    eager = SCANS[name](x.eager, dim)
    if not x.is_float:
        doubt = x.doubt.cumsum(dim)
        return Known(eager, SCANS[name](x.value, dim), torch.where(doubt > 0, torch.inf, 0.0))
    value = SCANS[name](x.value, dim)
    if name != "cumsum":
        ends = [SCANS[name](x.value + s * x.doubt, dim) for s in (-1, 1)]
        doubt = torch.maximum(known.distance(ends[0], value), known.distance(ends[1], value))
    else:
        unit = known.unit(torch.float64 if eager.dtype is torch.float64 else torch.float32)
        doubt = x.doubt.cumsum(dim) + x.value.shape[dim] * unit * x.value.abs().cumsum(dim)
        doubt = torch.where(value.isfinite(), doubt, 0.0)
    unclear = x.doubt.isinf().double().cumsum(dim) > 0
    doubt = torch.where(unclear | doubt.isnan(), torch.inf, doubt)
    return known.settled(value, doubt, eager)


def _build_scan(b: Builder, x: Use, name: str, dim: int) -> Use:
    return b.op(name, (x,), at.DimAttrs(dim))[0]


FAMILIES["scan"] = Family(_draw_scan, _scan, _build_scan)


def _draw_take(rng: random.Random, draft: Draft) -> Step | None:
    def fits(k: int) -> bool:
        return draft.ndim(k) > 0 and all(0 not in t.shape for t in draft.eager(k))

    i = draft.pick(rng, fits)
    if i is None:
        return None
    dim = rng.randrange(draft.ndim(i))
    return Step("take", (i,), (dim, rng.choice((1, 2, 5, 9)), rng.choice((1, 3, 7))))


def _take(x: Known, dim: int, count: int, step: int) -> Known:
    index = torch.arange(count) * step % x.eager.shape[dim]
    return x.moved(lambda t: t.index_select(dim, index))


def _build_take(b: Builder, x: Use, dim: int, count: int, step: int) -> Use:
    (size,) = b.op("size", (), at.SizeAttrs(b.tensor(x).shape[dim]))
    numbers = (b.const(0), b.const(step))
    (steps,) = b.op("iota", numbers, at.FactoryAttrs((count,), DType.I64))
    (index,) = b.op("remainder", (steps, size))
    return b.op("take", (x, index), at.DimAttrs(dim))[0]


FAMILIES["take"] = Family(_draw_take, _take, _build_take)
