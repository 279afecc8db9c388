"""Why the prims that no region takes are not claimed: one row for each of them."""

from collections.abc import Hashable

from thunder.core.prims import PrimIDs
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse.thunder.reasons import Reason

_HOST = "belongs to the host program around the regions"
_PROLOGUE = "runs in the prologue, before any region"
_BY_TEXT: dict[str, str] = {
    _PROLOGUE: (
        "ASSERT_TENSOR_METADATA CHECK_TENSOR_SHAPE_AND_METADATA CHECK_NONE CHECK_EMPTY "
        "CHECK_LITERAL_LIKE CHECK_TYPE CHECK_INSTANCE CHECK_NUMBER_TYPE_AND_VALUE "
        "CHECK_BOOL_CONVERSION CHECK_STRING_VALUE CHECK_SLICE_VALUE CHECK_LEN ASSERT_COMPARE "
        "PYTHON_VARS"
    ),
    _HOST: (
        "UNPACK_FUNCTION_OBJ UNPACK_CACHE_INFO UNPACK_ATTR UNPACK_GETITEM UNPACK_EMPTY_DICT "
        "UNPACK_ITER UNPACK_NEXT UNPACK_KEY UNPACK_SEQUENCE UNPACK_TRIVIAL UNPACK_TUPLE "
        "UNPACK_LIST UNPACK_DICT_KEY UNPACK_PARAMETER UNPACK_BUFFER UNPACK_SUBMODULE "
        "UNPACK_THUNDER_MODULE CONSTRUCT_TUPLE PACK_LIST PACK_BUFFER PACK_ATTR PACK_SETITEM "
        "DATACLASS_NEW COMMENT DEL PRINT RETURN SINK"
    ),
    "marks where a gradient comes from or goes to; differentiation replaces it": (
        "GET_GRAD PUT_GRAD EXOGENOUS_LIKE"
    ),
    "makes a tensor of an array of the host": "NUMPY_ARRAY_TO_TORCH_TENSOR",
    "reads and sets torch's generator on the host": "GET_AND_UPDATE_RNG_STATE",
    "its numbers are those of torch's own kernel after a seed and an offset": "UNIFORM_PHILOX",
    "a view of another dtype; torch makes it without a kernel": "BITCAST",
    "moves data between devices, which a region on one device does not": "DEVICE_PUT",
    "waits for the device and gives the host a number": "ITEM",
    "is a barrier for the storages that it names": "UPDATE_ALIASES",
}
UNCLAIMED: dict[Hashable, Reason] = {
    PrimIDs[name]: Reason(f"{name.lower()}: {text}")
    for text, names in _BY_TEXT.items()
    for name in names.split()
} | {
    DTensorPrimIDs.CHECK_DTENSOR_SPEC_REPR: Reason(f"check_dtensor_spec_repr: {_PROLOGUE}"),
}

UNCLAIMED_BY_NAME = {
    id.name.lower(): reason for id, reason in UNCLAIMED.items() if isinstance(id, PrimIDs)
}

# Functions, by name, that are composed of what a region takes, and that torch has a kernel for that
# computes something better: Thunder's pooling is a convolution with ones and zeros, where an
# infinity that pads becomes NaN; its baddbmm rounds the product before it is added.
WHOLE = {
    **{f"max_pool{n}d": Reason(f"max_pool{n}d: torch's kernel is taken") for n in (1, 2, 3)},
    "baddbmm": Reason("baddbmm: torch's kernel is taken, which rounds once"),
}
