"""The table of claimed symbols: for each id how it becomes IR, and what must hold for that.

``CLAIMS`` has a row for every prim that a region may hold; ``UNCLAIMED`` says why for all others,
so that no symbol is refused without a ``Reason``. ``refusal`` is the one question that the executor
asks. Checks look at proxies only and are cheap: Thunder asks several hundred times for one trace.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from thunder.core import dtypes
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse.thunder import builders as b
from thunder_mdfuse.thunder import builders_index as bx
from thunder_mdfuse.thunder import builders_random as br
from thunder_mdfuse.thunder import composites as cp
from thunder_mdfuse.thunder import draws
from thunder_mdfuse.thunder import dtensor as dt
from thunder_mdfuse.thunder import operators as op
from thunder_mdfuse.thunder.deciding import decided_refusal, dim_refusal
from thunder_mdfuse.thunder.dtensor_twins import PLACE, inside, is_twin
from thunder_mdfuse.thunder.reasons import Reason
from thunder_mdfuse.thunder.unclaimed import UNCLAIMED, UNCLAIMED_BY_NAME, WHOLE
from thunder_mdfuse.thunder.values import dtype_of, is_bool_with_int

Check = Callable[[BoundSymbol], Reason | None]


@dataclass(frozen=True)
class Claim:
    """One row: ``build`` makes the IR nodes; ``check`` refuses what it could not build.

    ``ops`` are the operations that do its work, where they are called otherwise than the symbol;
    "" for none, as what is built is another look at a value, or where it is stored. Without
    ``build`` the symbol becomes others (``draws.py``) before a region is translated.
    """

    build: b.Build | None
    check: Check | None = None
    ops: str | None = None


def _no_complex(bsym: BoundSymbol) -> Reason | None:
    if _of_complex(bsym):
        return Reason(f"{bsym.sym.name} of complex numbers is not in the IR")
    return None


def _no_part(bsym: BoundSymbol) -> Reason | None:
    if _of_complex(bsym):
        return Reason(f"{bsym.sym.name}: a view of another dtype; torch makes it without a kernel")
    return None


def _of_complex(bsym: BoundSymbol) -> bool:
    tensors = (p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy))
    return any(getattr(dtype_of(p.dtype), "is_complex", False) for p in tensors)


def _has_dims(bsym: BoundSymbol) -> Reason | None:
    if not bsym.args[0].ndim:
        return Reason(f"{bsym.sym.name} of a 0-dim tensor is not in the IR")
    return None


def _iota(bsym: BoundSymbol) -> Reason | None:
    if bsym.args[0] == 0 and not bsym.output.ndim:
        return Reason("Thunder types an iota of length 0 as a 0-dim tensor")
    return None


def _indexed(bsym: BoundSymbol) -> Reason | None:
    return None if bsym.args[1] else Reason("index_put without an index is not in the IR")


def _setitem(bsym: BoundSymbol) -> Reason | None:
    """Keys whose positions are known by their shapes; a mask takes one number for all places."""
    _, key, value = bsym.args
    keys = key if isinstance(key, tuple | list) else (key,)
    for k in keys:
        known = k is None or k is Ellipsis or isinstance(k, slice | NumberProxy | TensorProxy)
        if not known and type(k) is not int:
            return Reason(f"setitem: a key of type {type(k).__name__} is not in the IR")
    if any(map(bx.is_mask, keys)):
        if len(keys) > 1:
            return Reason("setitem: a mask beside other keys is not in the IR")
        if isinstance(value, TensorProxy) and value.ndim:
            return Reason("setitem: how many values a mask takes is known only at run time")
    return None


def _clone(bsym: BoundSymbol) -> Reason | None:
    changed = {k: v for k, v in bsym.kwargs.items() if v is not None}
    return Reason(f"clone with {changed} is not in the IR") if changed else None


def _dense(bsym: BoundSymbol) -> Reason | None:
    sparse = bsym.kwargs.get("sparse", False) or (len(bsym.args) == 6 and bsym.args[5])
    return Reason("sparse gradients are not in the IR") if sparse else None


def _uniform(bsym: BoundSymbol) -> Reason | None:
    if isinstance(bsym.args[1], NumberProxy) or isinstance(bsym.args[2], NumberProxy):
        return Reason("uniform numbers between bounds known only at run time are not in the IR")
    return None


def _grouped(bsym: BoundSymbol) -> Reason | None:
    """What ``torch._grouped_mm`` computes; Thunder's own type rule lets more through."""
    a, _, offsets = bsym.args
    if offsets.dtype is not dtypes.int32:
        return Reason(f"_grouped_mm: offsets are int32, found {offsets.dtype}")
    if a.dtype not in (dtypes.float32, dtypes.float16, dtypes.bfloat16):
        return Reason(f"_grouped_mm: torch multiplies groups of f32, f16 and bf16, not {a.dtype}")
    return None


def _convolution(bsym: BoundSymbol) -> Reason | None:
    transposed, more = bsym.args[6:8]
    if transposed or any(more):
        return Reason("convolution: a transposed one is not in the IR")
    return None


# More numbers of the host than this are a copy to the device, as torch makes it.
MOST_NUMBERS = 32


def _few(bsym: BoundSymbol) -> Reason | None:
    if len(list(b.flattened(bsym.args[0]))) > MOST_NUMBERS:
        return Reason(f"tensor_from_sequence: more than {MOST_NUMBERS} numbers of the host")
    return None


def _rows(names: str, build: Callable[[str], b.Build]) -> dict[Hashable, Claim]:
    """A row for each of ``names``, where Thunder's prim and the IR's op are called the same."""
    return {PrimIDs[name.upper()]: Claim(build(name)) for name in names.split()}


CLAIMS: dict[Hashable, Claim] = {
    **_rows(
        "acos acosh asin asinh atan atanh bitwise_not ceil cos cosh digamma erf erfc erfcinv "
        "erfinv exp exp2 expm1 floor isfinite lgamma log log10 log1p log2 ndtri neg reciprocal "
        "round rsqrt signbit sin sinh sqrt tan tanh trunc abs "
        "add atan2 bitwise_and bitwise_or bitwise_xor eq fmod ge gt le lt maximum minimum mul ne "
        "nextafter pow remainder sub zeta lerp",
        b.elementwise,
    ),
    **_rows("amax amin prod sum", b.reduction),
    **_rows("argmax argmin", b.with_dim),
    PrimIDs.REAL: Claim(b.elementwise("real"), _no_part),
    PrimIDs.IMAG: Claim(b.elementwise("imag"), _no_part),
    PrimIDs.SIGN: Claim(b.elementwise("sign"), _no_complex),
    PrimIDs.PY_ABS: Claim(b.elementwise("abs"), ops="abs"),
    PrimIDs.PY_FLOORDIV: Claim(b.elementwise("floor_div"), ops="floor_div"),
    PrimIDs.BITWISE_LEFT_SHIFT: Claim(b.elementwise("shift_left"), ops="shift_left"),
    PrimIDs.BITWISE_RIGHT_SHIFT: Claim(b.elementwise("shift_right"), ops="shift_right"),
    PrimIDs.FREXP: Claim(b.frexp, ops="mantissa exponent"),
    PrimIDs.DIV: Claim(b.div, ops="div trunc_div"),
    PrimIDs.WHERE: Claim(b.where),
    PrimIDs.CONVERT_ELEMENT_TYPE: Claim(b.cast, ops="cast"),
    PrimIDs.VAR: Claim(b.variance("var")),
    PrimIDs.VAR_MEAN: Claim(b.variance("var_mean")),
    PrimIDs.STD: Claim(b.std, ops="var sqrt"),
    PrimIDs.BROADCAST_IN_DIM: Claim(b.broadcast_in_dim),
    PrimIDs.RESHAPE: Claim(b.reshape),
    PrimIDs.VIEW: Claim(b.reshape, ops="reshape"),
    PrimIDs.TRANSPOSE: Claim(b.permute, ops="permute"),
    PrimIDs.SQUEEZE: Claim(b.squeeze),
    PrimIDs.SLICE: Claim(b.slicing),
    PrimIDs.UNFOLD: Claim(b.unfold, _has_dims),
    PrimIDs.FLIP: Claim(b.flip),
    PrimIDs.CAT: Claim(b.cat),
    PrimIDs.PAD: Claim(b.pad),
    PrimIDs.SHAPE: Claim(b.shape, ops=""),
    PrimIDs.SHALLOW_COPY: Claim(b.same, ops=""),
    PrimIDs.CLONE: Claim(b.clone, _clone, ops="copy"),
    PrimIDs.STRIDE_ORDER: Claim(b.stride_order, ops="copy"),
    PrimIDs.COPY_: Claim(b.copy_, ops=""),
    PrimIDs.FULL: Claim(b.full),
    PrimIDs.EMPTY: Claim(b.empty, ops="full"),
    PrimIDs.TENSOR_FROM_SEQUENCE: Claim(b.tensor_from_sequence, _few, ops="full cat"),
    PrimIDs.IOTA: Claim(b.iota, _iota),
    PrimIDs.UNIFORM: Claim(None, _uniform, ops="rng_state uniform"),
    PrimIDs.RANDN: Claim(None, _no_complex, ops="rng_state normal"),
    PrimIDs.RANDINT: Claim(br.randint),
    PrimIDs.MULTINOMIAL: Claim(br.multinomial),
    draws.STATE: Claim(br.rng_state, ops="rng_state"),
    draws.UNIFORM: Claim(br.philox, ops="uniform"),
    draws.NORMAL: Claim(br.normal, ops="normal"),
    PrimIDs.TAKE: Claim(bx.take),
    PrimIDs.TAKE_ALONG_AXIS: Claim(bx.gather("take_along_axis"), _has_dims),
    PrimIDs.GATHER: Claim(bx.gather("gather"), _has_dims),
    PrimIDs.SCATTER: Claim(bx.scatter("scatter"), _has_dims),
    PrimIDs.SCATTER_ADD: Claim(bx.scatter("scatter_add"), _has_dims),
    PrimIDs.INDEX_ADD: Claim(bx.scatter("index_add"), _has_dims),
    PrimIDs.INDEX_COPY: Claim(bx.index_copy, _has_dims, ops="scatter"),
    PrimIDs.INDEX_PUT: Claim(bx.index_put, _indexed, ops="scatter scatter_add"),
    PrimIDs.COPY_WITH_SETITEM: Claim(bx.setitem, _setitem, ops="scatter where"),
    PrimIDs.EMBEDDING: Claim(bx.embedding, _dense),
    PrimIDs.EMBEDDING_BACKWARD: Claim(bx.embedding_backward, _dense),
    PrimIDs.MATMUL: Claim(b.matmul),
    PrimIDs.LINEAR: Claim(b.linear),
    PrimIDs._GROUPED_MM: Claim(b.grouped_mm, _grouped, ops="grouped_mm"),
    PrimIDs.CONVOLUTION: Claim(b.convolution, _convolution),
    PrimIDs.TOPK: Claim(b.topk, _has_dims),
    PrimIDs.SORT: Claim(b.sort, _has_dims),
    "torch.Tensor.expand": Claim(b.expand, ops="broadcast_in_dim"),
    "torch.unsqueeze": Claim(b.unsqueeze, ops="broadcast_in_dim"),
    "torch.detach": Claim(b.same, ops=""),
    "torch.cumsum": Claim(b.scan("cumsum"), _has_dims, ops="cumsum"),
    "torch.cumprod": Claim(b.scan("cumprod"), _has_dims, ops="cumprod"),
    "torch.argsort": Claim(b.argsort, _has_dims, ops="argsort"),
    "nll_loss_backward": Claim(bx.nll_loss_backward, ops="where"),
    op.CAST: Claim(b.user_cast, ops="cast"),
    cp.RELU: Claim(b.relu, ops="where"),
    op.SDPA: Claim(b.sdpa, ops="sdpa"),
    op.SDPA_BACKWARD: Claim(b.sdpa_backward, ops="sdpa_backward"),
    DTensorPrimIDs.ADD: Claim(b.elementwise("add")),
    DTensorPrimIDs.MUL: Claim(b.elementwise("mul")),
    DTensorPrimIDs.EXP: Claim(b.elementwise("exp")),
    DTensorPrimIDs.NEG: Claim(b.elementwise("neg")),
    DTensorPrimIDs.RECIPROCAL: Claim(b.elementwise("reciprocal")),
    DTensorPrimIDs.CONVERT_ELEMENT_TYPE: Claim(b.cast, ops="cast"),
    DTensorPrimIDs.BROADCAST_IN_DIM: Claim(b.dtensor_broadcast),
    DTensorPrimIDs.RESHAPE: Claim(b.reshape),
    DTensorPrimIDs.TRANSPOSE: Claim(b.permute, ops="permute"),
    DTensorPrimIDs.LINEAR: Claim(b.linear),
    DTensorPrimIDs._GROUPED_MM: Claim(b.grouped_mm, _grouped, ops="grouped_mm"),
    "dtensor_from_local": Claim(dt.from_local, dt.from_local_check, ops=""),
    "dtensor_to_local": Claim(dt.to_local, dt.to_local_check, ops=""),
    "dtensor_redistribute": Claim(dt.redistribute, dt.redistribute_check, ops="reshard"),
    PLACE: Claim(dt.place, ops="reshard"),
}


def _unknown(bsym: BoundSymbol) -> Reason:
    """For symbols outside of both tables: another executor's, or a composite's own name."""
    if bsym.sym.executor is None:
        return Reason(f"{bsym.sym.name}: no claim for a symbol with id {bsym.sym.id!r}")
    taken = Reason(f"{bsym.sym.name}: taken as a whole by the executor {bsym.sym.executor.name!r}")
    return UNCLAIMED_BY_NAME.get(bsym.sym.name, taken)


def ops_of(id: Hashable) -> tuple[str, ...]:
    """The names of the IR's operations that do the work of a claimed symbol."""
    ops = CLAIMS[id].ops
    name = id.name if isinstance(id, PrimIDs | DTensorPrimIDs) else str(id)
    return (name.lower(),) if ops is None else tuple(ops.split())


def leaf_refusal(bsym: BoundSymbol) -> Reason | None:
    """Why the symbol itself, not what it is composed of, cannot be in a region; None if it can."""
    claim = CLAIMS.get(bsym.sym.id)
    if claim is None:
        return UNCLAIMED.get(bsym.sym.id) or _unknown(bsym)
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    tensors = [p for p in proxies if isinstance(p, TensorProxy)]
    for p in tensors:
        if dtype_of(p.dtype) is None:
            return Reason(f"{bsym.sym.name}: {p.name} has the dtype {p.dtype}, which the IR lacks")
    for p in proxies:
        if not isinstance(p, TensorProxy | NumberProxy):
            return Reason(f"{bsym.sym.name}: {p.name} is neither a tensor nor a number")
    kinds = {is_bool_with_int(p.true_dtype) for p in tensors if p.dtype is dtypes.int8}
    if len(kinds) > 1:
        return Reason(f"{bsym.sym.name}: an i8 tensor beside a bool tensor with an int")
    found = _placement_refusal(bsym, tensors) or _device_refusal(bsym, tensors)
    found = found or dim_refusal(bsym)
    return found or (claim.check(bsym) if claim.check else None)


def _placement_refusal(bsym: BoundSymbol, tensors: list[TensorProxy]) -> Reason | None:
    on_mesh = [p for p in tensors if isinstance(p, DTensorProxy)]
    if not on_mesh:
        return None
    crossing = bsym.sym.id in (PLACE, "dtensor_from_local", "dtensor_to_local")
    if len(on_mesh) < len(tensors) and not crossing:
        plain = next(p for p in tensors if not isinstance(p, DTensorProxy))
        return Reason(
            f"{bsym.sym.name}: {plain.name} is a plain tensor beside the DTensor "
            f"{on_mesh[0].name}; "
            "use DTensor.from_local or distribute_tensor on it"
        )
    for p in on_mesh:
        found = dt.spec_refusal(p)
        if found:
            return found
    first = on_mesh[0].spec._o.mesh
    for p in on_mesh[1:]:
        if p.spec._o.mesh != first:
            return Reason(
                f"{bsym.sym.name}: {on_mesh[0].name} is on {first}, {p.name} on "
                f"{p.spec._o.mesh}; one region works on one mesh"
            )
    return None


def _device_refusal(bsym: BoundSymbol, tensors: list[TensorProxy]) -> Reason | None:
    devices = {str(p.device.device_str()) for p in tensors if not _host_scalar(p, tensors)}
    if len(devices) > 1:
        return Reason(f"{bsym.sym.name}: tensors on {', '.join(sorted(devices))}; one is needed")
    for device in devices:
        if device.split(":")[0] not in ("cpu", "cuda"):
            return Reason(f"{bsym.sym.name}: tensors on {device}; cpu and cuda are supported")
    return None


def _host_scalar(p: TensorProxy, tensors: list[TensorProxy]) -> bool:
    """Whether ``p`` is a 0-dim CPU tensor beside tensors of another device: like a number."""
    on_host = p.ndim == 0 and p.device.device_str() == "cpu"
    return on_host and any(q.device.device_str() != "cpu" for q in tensors)


def refusal(bsym: BoundSymbol) -> Reason | None:
    """Why a symbol cannot be in a region, as a whole; None when it can."""
    if bsym.sym.is_fusion:
        return Reason(f"{bsym.sym.name} is a fusion already")
    if is_twin(bsym):
        return twin_refusal(bsym) or _OTHER_HALF
    found = WHOLE.get(bsym.sym.name) or _inner_refusal(bsym)
    if found is None and _writes_its_own(bsym, set()):
        return Reason(
            f"{bsym.sym.name} writes in place to a tensor that it makes; a region writes to its "
            "inputs only"
        )
    return found


_OTHER_HALF = Reason("its gradient, or what it is the gradient of, is not in a region")


def twin_refusal(bsym: BoundSymbol) -> Reason | None:
    """Why a function of DTensors cannot be expanded into what a region takes."""
    return next(filter(None, map(refusal, inside(bsym))), None)


def _inner_refusal(bsym: BoundSymbol) -> Reason | None:
    found = leaf_refusal(bsym)
    if found is None or not bsym.subsymbols or dim_refusal(bsym):
        return found
    decided = decided_refusal(bsym)
    if decided is not None:
        return decided
    for inner in bsym.subsymbols:
        inside = _inner_refusal(inner)
        if inside is not None:
            return inside
    return None


def _writes_its_own(bsym: BoundSymbol, made: set[str]) -> bool:
    """Whether a ``copy_`` inside has a target among ``made``, the names made inside so far."""
    if bsym.sym.id is PrimIDs.COPY_ and bsym.args[1].name in made:
        return True
    if any(_writes_its_own(inner, made) for inner in bsym.subsymbols):
        return True
    made.update(p.name for p in bsym.flat_proxy_outs)
    return False


def is_leaf(bsym: BoundSymbol) -> bool:
    """Whether the table itself has a row that takes the symbol."""
    return bsym.sym.id in CLAIMS and leaf_refusal(bsym) is None
