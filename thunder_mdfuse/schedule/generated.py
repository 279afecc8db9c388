"""Which nodes kernels compute, as opposed to ATen and collectives: by op, and by their types."""

from thunder_mdfuse.ir.attrs import ChunkAttrs, DimAttrs
from thunder_mdfuse.ir.graph import Fusion, Node
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import exact_quotient
from thunder_mdfuse.ir.types import TensorType
from thunder_mdfuse.schedule.roles import reduced_dims

GENERATED_KINDS = (
    "elementwise",
    "view",
    "copy",
    "rearrange",
    "chunk",
    "factory",
    "random",
    "reduction",
    "arg_reduction",
    "scan",
    "index",
    "scatter",
)
# Ops of generated kinds that no kernel computes: special functions without a device version.
ATEN_ELEMENTWISE = ("digamma", "ndtri", "zeta")
# What kernels compute of complex numbers. Their transcendental functions are ATen's.
COMPLEX_KINDS = ("view", "copy", "rearrange", "chunk", "index", "scatter")
COMPLEX_OPS = {
    *("add", "sub", "mul", "div", "neg", "reciprocal", "lerp", "abs", "real", "imag", "eq", "ne"),
    *("logical_not", "logical_and", "logical_or", "isnan", "isinf", "isfinite", "where", "cast"),
    *("sum", "prod", "full", "cumsum", "cumprod"),
}


def is_generated(fusion: Fusion, node: Node, deterministic: bool = False) -> bool:
    """Whether kernels compute the node, as opposed to ATen or a collective.

    ``deterministic``: results may not depend on the order of threads, as those of scatters do.
    """
    kind = row(node.op).kind
    if kind not in GENERATED_KINDS or node.op in ATEN_ELEMENTWISE:
        return False
    if node.op == "nextafter" and node.types[0].dtype.is_low_precision:
        return False  # kernels compute in f32, whose next number is another one
    if isinstance(node.attrs, ChunkAttrs) and not _divides(fusion.tensor(node.args[0]), node.attrs):
        return False
    if kind == "scatter" and (deterministic or _is_scalar_target(fusion, node)):
        return False
    if kind == "arg_reduction":
        shape = fusion.tensor(node.args[0]).shape
        if any(shape[d] == 0 for d in reduced_dims(fusion, node)):
            return False  # torch's own error says that there is no largest element
    return _has_complex_version(fusion, node)


def _has_complex_version(fusion: Fusion, node: Node) -> bool:
    types = [fusion.type_of(a) for a in node.args] + list(node.types)
    if not any(isinstance(t, TensorType) and t.dtype.is_complex for t in types):
        return node.op != "imag"  # which a real number has not, says torch
    return row(node.op).kind in COMPLEX_KINDS or node.op in COMPLEX_OPS


def _divides(x: TensorType, attrs: ChunkAttrs) -> bool:
    """Whether a strided chunk's parts are of one size. A chunk that is not strided is a range."""
    parts = attrs.ranks * attrs.split
    return attrs.split == 1 or exact_quotient(x.shape[attrs.dim], parts) is not None


def _is_scalar_target(fusion: Fusion, node: Node) -> bool:
    """Whether something is scattered into a tensor without dims."""
    return isinstance(node.attrs, DimAttrs) and not fusion.tensor(node.args[0]).ndim
