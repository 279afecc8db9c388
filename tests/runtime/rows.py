"""Calls a row of the torch-call table as a program would, and compares its results."""

import torch

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.aten import ATEN, IR_DTYPES

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def call(op, *args, attrs=at.NO_ATTRS, dtypes=None):
    """The results of ``op``; ``dtypes`` of the results where they are not the first tensor's."""
    if dtypes is None:
        like = next((a for a in args if isinstance(a, torch.Tensor)), None)
        dtypes = [IR_DTYPES[like.dtype] if like is not None else DType.F64] * OPS[op].results
    results = ATEN[op](list(args), attrs, dtypes, torch.device("cpu"))
    assert isinstance(results, tuple)
    assert len(results) == OPS[op].results
    return results[0] if len(results) == 1 else results


def same(ours, theirs):
    """Equal bit for bit, NaN and strides included."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert ours.stride() == theirs.stride()


def shares(a, b):
    """Whether two tensors are in one storage."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
