"""The programs that people fuse, as a frontend would build them, each beside its eager function.

``build`` makes the global fusion for given sizes (integers or symbols), ``eager`` is the user's
function in the inputs' dtypes or in f64. Means divide by a ``size`` node, so that nothing in the
program is a number that stands for a shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion, Output, Use
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.ir.types import DType, TensorType

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One program: ``inputs`` are the shapes and dtypes of what it takes."""

    name: str
    inputs: Callable[..., list[TensorType]]
    build: Callable[[Builder, list[Use]], tuple[Use, ...]]
    eager: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]

    def fusion(self, *sizes: Size, dtype: DType = DType.BF16, level: str = "global") -> Fusion:
        """The program for ``sizes``."""
        b = Builder(None, level)
        uses = [b.input(t) for t in self.inputs(*sizes, dtype=dtype)]
        return b.finish(tuple(Output(u) for u in self.build(b, uses)))


def tensor(dtype: DType, *shape: Size) -> TensorType:
    return TensorType(dtype, tuple(shape))


def cast(b: Builder, x: Use, dtype: DType) -> Use:
    return x if b.tensor(x).dtype is dtype else b.op("cast", (x,), at.CastAttrs(dtype))[0]


def spread(b: Builder, x: Use, like: Use, dims: tuple[int, ...]) -> Use:
    """``x`` broadcast to the shape of ``like``; its dims become ``dims``."""
    return b.op("broadcast_in_dim", (x,), at.BroadcastAttrs(b.tensor(like).shape, dims))[0]


def back(b: Builder, reduced: Use, like: Use) -> Use:
    """A value for each row, given back to each element of the row (the last dim)."""
    return spread(b, reduced, like, tuple(range(b.tensor(like).ndim - 1)))


def last(b: Builder, x: Use, like: Use) -> Use:
    """A vector along the last dim, given to each row."""
    return spread(b, x, like, (b.tensor(like).ndim - 1,))


def reduced(b: Builder, name: str, x: Use) -> Use:
    return b.op(name, (x,), at.DimsAttrs((b.tensor(x).ndim - 1,)))[0]


def mean(b: Builder, x: Use) -> Use:
    (count,) = b.op("size", (), at.SizeAttrs(product(b.tensor(x).shape[-1:])))
    return b.op("div", (reduced(b, "sum", x), count))[0]


def rms_norm(b: Builder, x: Use, w: Use, eps: float = 1e-5) -> Use:
    dtype, wide = b.tensor(x).dtype, b.tensor(x).dtype.compute
    y = cast(b, x, wide)
    (square,) = b.op("mul", (y, y))
    (shifted,) = b.op("add", (mean(b, square), b.const(eps)))
    (scale,) = b.op("rsqrt", (shifted,))
    (normed,) = b.op("mul", (y, back(b, scale, y)))
    (result,) = b.op("mul", (normed, last(b, cast(b, w, wide), y)))
    return cast(b, result, dtype)


def layer_norm(b: Builder, x: Use, w: Use, bias: Use) -> Use:
    dtype, wide = b.tensor(x).dtype, b.tensor(x).dtype.compute
    y = cast(b, x, wide)
    dims = (b.tensor(x).ndim - 1,)
    variance, center = b.op("var_mean", (y,), at.VarAttrs(dims, 0.0))
    (shifted,) = b.op("add", (variance, b.const(1e-5)))
    (scale,) = b.op("rsqrt", (shifted,))
    (distance,) = b.op("sub", (y, back(b, center, y)))
    (normed,) = b.op("mul", (distance, back(b, scale, y)))
    (scaled,) = b.op("mul", (normed, last(b, cast(b, w, wide), y)))
    (result,) = b.op("add", (scaled, last(b, cast(b, bias, wide), y)))
    return cast(b, result, dtype)


def softmax(b: Builder, x: Use) -> Use:
    dtype, wide = b.tensor(x).dtype, b.tensor(x).dtype.compute
    y = cast(b, x, wide)
    (shifted,) = b.op("sub", (y, back(b, reduced(b, "amax", y), y)))
    (grown,) = b.op("exp", (shifted,))
    (result,) = b.op("div", (grown, back(b, reduced(b, "sum", grown), y)))
    return cast(b, result, dtype)


def silu(b: Builder, x: Use) -> Use:
    (negative,) = b.op("neg", (x,))
    (grown,) = b.op("exp", (negative,))
    (below,) = b.op("add", (grown, b.const(1.0)))
    return b.op("div", (x, below))[0]


def swiglu(b: Builder, gate: Use, up: Use) -> Use:
    dtype, wide = b.tensor(gate).dtype, b.tensor(gate).dtype.compute
    (product_,) = b.op("mul", (silu(b, cast(b, gate, wide)), cast(b, up, wide)))
    return cast(b, product_, dtype)


def gelu(b: Builder, x: Use) -> Use:
    (scaled,) = b.op("mul", (x, b.const(0.5**0.5)))
    (curve,) = b.op("erf", (scaled,))
    (above,) = b.op("add", (curve, b.const(1.0)))
    (half,) = b.op("mul", (x, b.const(0.5)))
    return b.op("mul", (half, above))[0]


def bias_gelu(b: Builder, x: Use, bias: Use) -> Use:
    dtype, wide = b.tensor(x).dtype, b.tensor(x).dtype.compute
    y = cast(b, x, wide)
    (shifted,) = b.op("add", (y, last(b, cast(b, bias, wide), y)))
    return cast(b, gelu(b, shifted), dtype)


def _eager_rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


def _eager_bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + bias)


def _eager_layer_norm(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, bias)


def _add_rms_norm(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    x, residual, w = uses
    (total,) = b.op("add", (x, residual))
    return total, rms_norm(b, total, w)


def _eager_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return x + residual, _eager_rms_norm(x + residual, w)


def _rows(count: int) -> Callable[..., list[TensorType]]:
    """``count`` matrices of one shape."""
    return lambda rows, n, dtype: [tensor(dtype, rows, n)] * count


def _row_and_vectors(count: int) -> Callable[..., list[TensorType]]:
    """A matrix and ``count`` vectors along its rows."""
    return lambda rows, n, dtype: [tensor(dtype, rows, n), *[tensor(dtype, n)] * count]


RMS_NORM = Case(
    "rms_norm", _row_and_vectors(1), lambda b, u: (rms_norm(b, u[0], u[1]),), _eager_rms_norm
)
LAYER_NORM = Case(
    "layer_norm", _row_and_vectors(2), lambda b, u: (layer_norm(b, *u),), _eager_layer_norm
)
SOFTMAX = Case("softmax", _rows(1), lambda b, u: (softmax(b, *u),), lambda x: torch.softmax(x, -1))
SWIGLU = Case(
    "swiglu",
    _rows(2),
    lambda b, u: (swiglu(b, *u),),
    lambda gate, up: torch.nn.functional.silu(gate) * up,
)
BIAS_GELU = Case(
    "bias_gelu", _row_and_vectors(1), lambda b, u: (bias_gelu(b, *u),), _eager_bias_gelu
)
ADD_RMS_NORM = Case(
    "add_rms_norm",
    lambda rows, n, dtype: [tensor(dtype, rows, n), tensor(dtype, rows, n), tensor(dtype, n)],
    _add_rms_norm,
    _eager_add_rms_norm,
)


def _weighted(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """A softmax whose terms are weighted before they are summed."""
    x, w = uses
    (shifted,) = b.op("sub", (x, back(b, reduced(b, "amax", x), x)))
    (grown,) = b.op("exp", (shifted,))
    (term,) = b.op("mul", (grown, w))
    return (b.op("div", (term, back(b, reduced(b, "sum", term), x)))[0],)


def _eager_weighted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    term = (x - x.amax(-1, keepdim=True)).exp() * w
    return term / term.sum(-1, keepdim=True)


WEIGHTED = Case("weighted_softmax", _rows(2), _weighted, _eager_weighted)


def column_sum(b: Builder, x: Use) -> Use:
    """The sum over all dims but the last."""
    return b.op("sum", (x,), at.DimsAttrs(tuple(range(b.tensor(x).ndim - 1))))[0]


def _rms_norm_gradient(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """dx and dw of RMSNorm, from x, w, the rows' scales and dy."""
    x, w, scale, dy = uses
    dtype, wide = b.tensor(x).dtype, b.tensor(x).dtype.compute
    y, g = cast(b, x, wide), cast(b, dy, wide)
    (normed,) = b.op("mul", (y, back(b, scale, y)))
    (weighted,) = b.op("mul", (g, last(b, cast(b, w, wide), y)))
    dw = column_sum(b, b.op("mul", (g, normed))[0])
    shared = mean(b, b.op("mul", (weighted, normed))[0])
    (less,) = b.op("mul", (normed, back(b, shared, y)))
    (left,) = b.op("sub", (weighted, less))
    (dx,) = b.op("mul", (left, back(b, scale, y)))
    return cast(b, dx, dtype), cast(b, dw, dtype)


def _eager_rms_norm_gradient(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    normed, weighted = x * scale[:, None], dy * w
    shared = (weighted * normed).mean(-1, keepdim=True)
    return (weighted - normed * shared) * scale[:, None], (dy * normed).sum(0)


def _layer_norm_gradient(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """dx, dw and db of LayerNorm, from x, w, the rows' means and scales, and dy."""
    x, w, center, scale, dy = uses
    dtype, wide = b.tensor(x).dtype, b.tensor(x).dtype.compute
    y, g = cast(b, x, wide), cast(b, dy, wide)
    db = column_sum(b, g)
    (distance,) = b.op("sub", (y, back(b, center, y)))
    (normed,) = b.op("mul", (distance, back(b, scale, y)))
    dw = column_sum(b, b.op("mul", (g, normed))[0])
    (weighted,) = b.op("mul", (g, last(b, cast(b, w, wide), y)))
    first, second = mean(b, weighted), mean(b, b.op("mul", (weighted, normed))[0])
    (less,) = b.op("mul", (normed, back(b, second, y)))
    (left,) = b.op("sub", (b.op("sub", (weighted, back(b, first, y)))[0], less))
    (dx,) = b.op("mul", (left, back(b, scale, y)))
    return cast(b, dx, dtype), cast(b, dw, dtype), cast(b, db, dtype)


def _eager_layer_norm_gradient(
    x: torch.Tensor, w: torch.Tensor, center: torch.Tensor, scale: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    normed, weighted = (x - center[:, None]) * scale[:, None], dy * w
    first = weighted.mean(-1, keepdim=True)
    second = (weighted * normed).mean(-1, keepdim=True)
    dx = (weighted - first - normed * second) * scale[:, None]
    return dx, (dy * normed).sum(0), dy.sum(0)


def _gradient_inputs(numbers: int) -> Callable[..., list[TensorType]]:
    """A matrix, a vector along its rows, f32 numbers for each row, and a matrix again."""
    return lambda rows, n, dtype: [
        tensor(dtype, rows, n),
        tensor(dtype, n),
        *[tensor(dtype.compute, rows)] * numbers,
        tensor(dtype, rows, n),
    ]


RMS_NORM_GRADIENT = Case(
    "rms_norm_gradient", _gradient_inputs(1), _rms_norm_gradient, _eager_rms_norm_gradient
)
LAYER_NORM_GRADIENT = Case(
    "layer_norm_gradient", _gradient_inputs(2), _layer_norm_gradient, _eager_layer_norm_gradient
)
