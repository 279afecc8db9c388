"""The enums of the direct API, and how dtypes promote.

``DataType`` names are those of nvFuser's direct bindings, with the small integers that torch has
added. Wherever a ``DataType`` is asked for a ``torch.dtype`` does as well.
"""

from collections.abc import Sequence
from enum import Enum, auto

import torch

from thunder_mdfuse.errors import DefinitionError
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import IR_DTYPES, TORCH_DTYPES


class DataType(Enum):
    """An element type. ``Null`` stands for "not given"."""

    Double = auto()
    Float = auto()
    Half = auto()
    Int = auto()
    Int32 = auto()
    Int16 = auto()
    Int8 = auto()
    UInt8 = auto()
    UInt64 = auto()
    Index = auto()
    Bool = auto()
    BFloat16 = auto()
    Float8_e4m3fn = auto()
    Float8_e5m2 = auto()
    Float8_e8m0fnu = auto()
    Float4_e2m1fn = auto()
    Float4_e2m1fn_x2 = auto()
    ComplexFloat = auto()
    ComplexDouble = auto()
    Null = auto()


class ParallelType(Enum):
    """What an axis is spread over.

    ``mesh_x`` is the last axis of a device mesh, ``mesh_y`` the one before. The others say how a
    kernel is scheduled by hand, which is refused: kernels are scheduled here by the compiler.
    """

    mesh_x = auto()
    mesh_y = auto()
    mesh_z = auto()
    grid_x = auto()
    grid_y = auto()
    grid_z = auto()
    block_x = auto()
    block_y = auto()
    block_z = auto()
    mma = auto()
    serial = auto()
    tma = auto()
    unroll = auto()
    unswitch = auto()
    vectorize = auto()
    stream = auto()


_IR: dict[DataType, DType] = {
    DataType.Double: DType.F64,
    DataType.Float: DType.F32,
    DataType.Half: DType.F16,
    DataType.Int: DType.I64,
    DataType.Int32: DType.I32,
    DataType.Int16: DType.I16,
    DataType.Int8: DType.I8,
    DataType.UInt8: DType.U8,
    DataType.Index: DType.I64,
    DataType.Bool: DType.BOOL,
    DataType.BFloat16: DType.BF16,
    DataType.Float8_e4m3fn: DType.F8E4M3,
    DataType.Float8_e5m2: DType.F8E5M2,
    DataType.ComplexFloat: DType.C64,
    DataType.ComplexDouble: DType.C128,
}
_OURS: dict[DType, DataType] = {ir: name for name, ir in _IR.items() if name is not DataType.Index}
_RANKS = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}

AnyDType = DataType | torch.dtype


def ir_dtype(dtype: AnyDType) -> DType:
    """The IR's dtype. Raises ``DefinitionError`` for one that no kernel is generated for."""
    if not isinstance(dtype, DataType | torch.dtype):
        meant = getattr(torch, dtype, None) if isinstance(dtype, str) else None
        meant = meant if meant in IR_DTYPES else torch.float32
        raise DefinitionError(
            f"a dtype is a DataType or a torch.dtype, found {dtype!r}; give one of these, such as "
            f"DataType.{_OURS[IR_DTYPES[meant]].name} or {meant}"
        )
    found = IR_DTYPES.get(dtype) if isinstance(dtype, torch.dtype) else _IR.get(dtype)
    if found is None:
        known = ", ".join(d.name for d in _IR)
        raise DefinitionError(
            f"dtype {dtype} is not supported: kernels are generated for {known}; cast to one of "
            "these before the fusion"
        )
    return found


def wanted(dtype: AnyDType | None) -> DType | None:
    """The IR's dtype, None where none was asked for."""
    return None if dtype is None or dtype is DataType.Null else ir_dtype(dtype)


def data_type(dtype: DType | torch.dtype) -> DataType:
    """The ``DataType`` of the IR's dtype or of torch's."""
    return _OURS[ir_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype]


def rank(dtype: DType) -> int:
    """0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    return _RANKS[dtype.kind]


def is_exact(dtype: DType) -> bool:
    """Whether it is bool or an integer."""
    return rank(dtype) < 2


def promoted(
    tensors: Sequence[DType], zero_dim: Sequence[DType], numbers: Sequence[DType]
) -> DType:
    """The dtype in which tensors, 0-dim tensors and numbers meet, by torch's rule.

    A later group only counts where its kind (bool, integer, float, complex) is above the earlier
    ones'. Numbers are then of the default dtypes: i64, f32, c64.
    """
    defaults = {DType.F64: DType.F32, DType.C128: DType.C64}
    result: DType | None = None
    for group in (tensors, zero_dim, [defaults.get(n, n) for n in numbers]):
        if not group:
            continue
        found = _joined(group)
        if result is None:
            result = found
        elif rank(found) > rank(result):
            result = _complex_of(result) if found.is_complex and result.is_float else found
    assert result is not None
    return result


def _joined(group: Sequence[DType]) -> DType:
    found = group[0]
    for other in group[1:]:
        try:
            found = IR_DTYPES[torch.promote_types(TORCH_DTYPES[found], TORCH_DTYPES[other])]
        except (RuntimeError, KeyError):
            raise DefinitionError(
                f"{data_type(found).name} and {data_type(other).name} have no common dtype; cast "
                "one to the other, with fd.ops.cast"
            ) from None
    return found


def _complex_of(dtype: DType) -> DType:
    if dtype.is_low_precision:
        raise DefinitionError(
            f"a {data_type(dtype).name} tensor beside a complex number would be complex of half "
            "precision, which is not supported; cast the tensor to Float first"
        )
    return DType.C128 if dtype is DType.F64 else DType.C64
