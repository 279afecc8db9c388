"""The IR's dtypes and torch's, both ways."""

import torch

from thunder_mdfuse.ir.types import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.F8E4M3: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
    DType.C64: torch.complex64,
    DType.C128: torch.complex128,
}
IR_DTYPES: dict[torch.dtype, DType] = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}
