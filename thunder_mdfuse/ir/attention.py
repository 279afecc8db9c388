"""Strides of scaled dot product attention and its gradients, by the kernel that torch would pick.

Checked against eager torch on CPU. On CUDA they are what torch's own meta functions of the kernels
say: flash and cuDNN attention (half types) lay results out like their operands, the
memory-efficient kernel (f32) gives [batch, sequence, head, dim] in memory, and the rest is matrix
products. A kernel picked otherwise (by ``torch.nn.attention.sdpa_kernel``, an old GPU) costs a copy
into these strides.
"""

from collections.abc import Sequence

from thunder_mdfuse.ir.attrs import SdpaAttrs
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.geometry import (
    Sizes,
    Strided,
    contiguous_strides,
    fresh_strides,
    is_empty,
    preserved_strides,
)
from thunder_mdfuse.ir.types import DType

_SEQUENCE_FIRST = (0, 2, 1, 3)


def attention_strides(
    operands: Sequence[Strided], dtype: DType, attrs: SdpaAttrs, device: str, decide: Decider
) -> Sizes:
    """Strides of the result for q, k, v (and a mask)."""
    q, v = operands[0], operands[2]
    shape = (*q.shape[:-1], v.shape[-1])
    kernel = _kernel(operands, dtype, attrs, device, decide)
    if kernel == "flash":
        return _like(q, decide)
    if kernel == "efficient":
        return fresh_strides(shape, _SEQUENCE_FIRST, decide)
    return contiguous_strides(shape, decide)


def gradient_strides(
    operands: Sequence[Strided],
    result: int,
    dtype: DType,
    attrs: SdpaAttrs,
    device: str,
    decide: Decider,
) -> Sizes:
    """Strides of the gradient of ``operands[result]``; ``operands`` are q, k, v (and a mask)."""
    x = operands[result]
    kernel = _kernel(operands, dtype, attrs, device, decide)
    if kernel == "flash" and device == "cuda":
        return _like(x, decide)
    if kernel != "products":
        return fresh_strides(x.shape, _SEQUENCE_FIRST, decide)
    if result == 1:  # k is transposed for its product, and so its gradient comes transposed
        rest = range(len(x.shape) - 2)
        return fresh_strides(x.shape, (*rest, len(x.shape) - 1, len(x.shape) - 2), decide)
    return contiguous_strides(x.shape, decide)


def _like(x: Strided, decide: Decider) -> Sizes:
    """``empty_like`` of ``x`` with heads behind the sequence, seen with heads in front."""
    swapped = Strided(*(tuple(v[d] for d in _SEQUENCE_FIRST) for v in (x.shape, x.strides)))
    strides = preserved_strides(swapped, decide)
    return tuple(strides[d] for d in _SEQUENCE_FIRST)


def _kernel(
    operands: Sequence[Strided], dtype: DType, attrs: SdpaAttrs, device: str, decide: Decider
) -> str:
    """ "flash", "efficient" or "products" (``select_sdp_backend``, its default order)."""
    q, k, v = operands[:3]
    whole = all(len(x.shape) == 4 for x in (q, k, v))
    if not whole or any(is_empty(x.shape, decide) for x in (q, k, v)):
        return "products"
    if not all(decide.equal(x.strides[-1], 1) for x in (q, k, v)):
        return "products"
    same_heads = all(decide.equal(q.shape[-1], x.shape[-1]) for x in (k, v))
    if device == "cpu":
        return "flash" if same_heads and not attrs.dropout_p else "products"
    if dtype.is_low_precision and same_heads and decide.at_most(q.shape[-1], 256):
        return "flash"
    if dtype is DType.F64 or not decide.equal(q.shape[-1], k.shape[-1]):
        return "products"
    aligned = (x % (8 if dtype.is_low_precision else 4) for x in (q.shape[-1], v.shape[-1]))
    return "efficient" if all(decide.equal(rest, 0) for rest in aligned) else "products"
