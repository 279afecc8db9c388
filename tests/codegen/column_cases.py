"""Programs that reduce over the first dims or turn matrices, whose CUDA text is kept in
``tests/golden``.
"""

import torch
from schedule.programs import Case, spread, tensor

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Use


def _reduced(b: Builder, name: str, x: Use, *dims: int) -> Use:
    return b.op(name, (x,), at.DimsAttrs(dims or (0,)))[0]


def _product_sums(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """A product that leaves, and its sum: the gradients of a scaled value and of its bias."""
    (product,) = b.op("mul", tuple(uses))
    return product, _reduced(b, "sum", product)


def _softmax(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    (x,) = uses
    (shifted,) = b.op("sub", (x, spread(b, _reduced(b, "amax", x), x, (1,))))
    (grown,) = b.op("exp", (shifted,))
    return (b.op("div", (grown, spread(b, _reduced(b, "sum", grown), x, (1,))))[0],)


def _weighted(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """Sums over the middle dim, each times a weight."""
    x, weight = uses
    total = _reduced(b, "sum", x, 1)
    return (b.op("mul", (total, spread(b, weight, total, (1,))))[0],)


def _turned(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    (twice,) = b.op("mul", (uses[0], b.const(2.0)))
    (turned,) = b.op("permute", (twice,), at.DimsAttrs((1, 0)))
    return (b.op("copy", (turned,), at.CopyAttrs((0, 1), True))[0],)


def _both_ways(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """A sum of what lies across, which leaves in both orders."""
    x, y = uses
    (total,) = b.op("add", (x, b.op("permute", (y,), at.DimsAttrs((1, 0)))[0]))
    return total, b.op("copy", (total,), at.CopyAttrs((1, 0)))[0]


SCALED_TRANSPOSE = Case(
    "scaled_transpose",
    lambda rows, n, dtype: [tensor(dtype, rows, n)],
    _turned,
    lambda x: (x * 2).t(),
)
BOTH_WAYS = Case(
    "both_ways",
    lambda rows, n, dtype: [tensor(dtype, rows, n), tensor(dtype, n, rows)],
    _both_ways,
    lambda x, y: (x + y.t(), x + y.t()),
)
COLUMN_SUMS = Case(
    "column_sums",
    lambda rows, n, dtype: [tensor(dtype, rows, n)],
    lambda b, uses: (_reduced(b, "sum", uses[0]),),
    lambda x: x.sum(0),
)
PRODUCT_SUMS = Case(
    "product_sums",
    lambda rows, n, dtype: [tensor(dtype, rows, n)] * 2,
    _product_sums,
    lambda x, y: (x * y, (x * y).sum(0)),
)
COLUMN_SOFTMAX = Case(
    "column_softmax",
    lambda rows, n, dtype: [tensor(dtype, rows, n)],
    _softmax,
    lambda x: torch.softmax(x, 0),
)
MIDDLE_SUMS = Case(
    "middle_sums",
    lambda a, rows, n, dtype: [tensor(dtype, a, rows, n), tensor(dtype, n)],
    _weighted,
    lambda x, w: x.sum(1) * w,
)
