"""Attribute records of nodes: what an op needs to know beside its operands, one frozen class a
shape.

Every field is one of: int, float, bool, str, None, a size, a dtype, placements, or a tuple of
these, so that ``ir/text.py`` can print and read any record from its field list.
"""

from dataclasses import dataclass

from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, Placements


@dataclass(frozen=True)
class NoAttrs:
    """For ops that are told everything by their operands."""


@dataclass(frozen=True)
class InputAttrs:
    """Position in the signature: inputs are unique and ordered."""

    position: int


@dataclass(frozen=True)
class ConstAttrs:
    """A number, as its ``repr``, so that NaN equals itself and -0.0 differs from 0.0."""

    value: str
    dtype: DType


@dataclass(frozen=True)
class SizeAttrs:
    """A size as a scalar value."""

    size: Size


@dataclass(frozen=True)
class CastAttrs:
    """``user``: written by the user, so it rounds even where a promotion would not."""

    dtype: DType
    user: bool = False


@dataclass(frozen=True)
class DimsAttrs:
    """Tensor dims, each in ``range(ndim)``, ascending unless the op is a permutation."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class VarAttrs:
    dims: tuple[int, ...]
    correction: float


@dataclass(frozen=True)
class DimAttrs:
    """One tensor dim; None (argmax and argmin only) is the flattened tensor."""

    dim: int | None


@dataclass(frozen=True)
class ShapeAttrs:
    shape: tuple[Size, ...]


@dataclass(frozen=True)
class BroadcastAttrs:
    """Operand dim ``i`` becomes dim ``dims[i]`` of ``shape``; size-1 dims may grow.

    ``explicit``: the user wrote it (``expand``, ``unsqueeze``), so an eager kernel is given the
    view; else it may be the broadcasting that torch does by itself, which only result strides can
    tell.
    """

    shape: tuple[Size, ...]
    dims: tuple[int, ...]
    explicit: bool = False


@dataclass(frozen=True)
class SliceAttrs:
    starts: tuple[Size, ...]
    ends: tuple[Size, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class UnfoldAttrs:
    """Windows of ``size`` along ``dim``, each ``step`` after the last; a new last dim has them."""

    dim: int
    size: Size
    step: int


@dataclass(frozen=True)
class PadAttrs:
    """Elements added before and after each dim; negative numbers cut."""

    low: tuple[Size, ...]
    high: tuple[Size, ...]


@dataclass(frozen=True)
class FactoryAttrs:
    shape: tuple[Size, ...]
    dtype: DType


@dataclass(frozen=True)
class CopyAttrs:
    """``order``: dims from slowest to fastest in memory; None keeps the operand's (torch's
    preserve).

    ``reuse``: the operand itself, not a copy, where it has that order already (``contiguous``).
    ``apart``: tells equal copies from each other that have to be tensors of their own.
    """

    order: tuple[int, ...] | None = None
    reuse: bool = False
    apart: int = 0


@dataclass(frozen=True)
class RngAttrs:
    """The ``draw``-th advance of the device's generator in a program, by ``count`` numbers."""

    draw: int
    count: Size


@dataclass(frozen=True)
class RandintAttrs:
    """Integers in [low, high) out of torch's generator, as the ``draw``-th draw of a program."""

    draw: int
    shape: tuple[Size, ...]
    dtype: DType
    low: int
    high: int


@dataclass(frozen=True)
class MultinomialAttrs:
    """``samples`` classes of each row; ``seed``: of a generator of their own, None for torch's."""

    draw: int
    samples: Size
    replacement: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class ConvolutionAttrs:
    """One number for each dim of the window."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True)
class PhiloxAttrs:
    """Random numbers from (seed, offset) operands: uniform in [low, high), or standard normal.

    The counter is the linear index in the tensor of shape ``whole`` of which this is the block that
    begins at ``starts`` (both empty: the tensor itself), so shards draw what the whole would.
    """

    shape: tuple[Size, ...]
    dtype: DType
    low: float = 0.0
    high: float = 1.0
    whole: tuple[Size, ...] = ()
    starts: tuple[Size, ...] = ()


@dataclass(frozen=True)
class SortAttrs:
    dim: int
    descending: bool = False
    stable: bool = False


@dataclass(frozen=True)
class TopkAttrs:
    k: Size
    dim: int
    largest: bool = True
    sorted: bool = True


@dataclass(frozen=True)
class SdpaAttrs:
    """Scaled dot product attention; ``scale`` None is 1/sqrt(head dim). A mask is an operand."""

    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


@dataclass(frozen=True)
class EmbeddingAttrs:
    padding_idx: int | None = None


@dataclass(frozen=True)
class EmbeddingBackwardAttrs:
    rows: Size
    padding_idx: int | None = None
    scale_grad_by_freq: bool = False


@dataclass(frozen=True)
class LocalAttrs:
    """``from_local``: the global shape and placements of what the local tensors make up."""

    shape: tuple[Size, ...]
    placements: Placements


@dataclass(frozen=True)
class ReshardAttrs:
    placements: Placements


@dataclass(frozen=True)
class ReduceCommAttrs:
    """all_reduce over the team ``team`` (a mesh axis's name) of ``ranks`` positions."""

    team: str
    ranks: int
    op: str
    position: int | None = None  # this rank's, known when attributes are evaluated


@dataclass(frozen=True)
class GatherCommAttrs:
    """all_gather: chunks of ``dim``, whose whole size is ``size``; ``split`` > 1 for strided."""

    team: str
    ranks: int
    dim: int
    size: Size
    split: int = 1


@dataclass(frozen=True)
class ScatterCommAttrs:
    """reduce_scatter: this position's chunk of ``dim`` (whole size ``size``) of the reduction."""

    team: str
    ranks: int
    dim: int
    size: Size
    op: str


@dataclass(frozen=True)
class ExchangeCommAttrs:
    """all_to_all: gathers ``gather_dim`` and scatters ``scatter_dim``, by their whole sizes."""

    team: str
    ranks: int
    gather_dim: int
    gather_size: Size
    scatter_dim: int
    scatter_size: Size


@dataclass(frozen=True)
class SourceCommAttrs:
    """broadcast: what position ``source`` holds, which has ``size`` elements along ``dim``."""

    team: str
    ranks: int
    dim: int
    size: Size
    source: Size


@dataclass(frozen=True)
class TurnCommAttrs:
    """permute_ranks: position p's part, as even as all, goes to position ``ranks - 1 - p``."""

    team: str
    ranks: int


@dataclass(frozen=True)
class ChunkAttrs:
    """This position's chunk of ``dim``: Replicate -> Shard, never communication."""

    team: str
    ranks: int
    dim: int
    split: int = 1
    position: int | None = None  # this rank's, known when attributes are evaluated


Attrs = (
    NoAttrs
    | InputAttrs
    | ConstAttrs
    | SizeAttrs
    | CastAttrs
    | DimsAttrs
    | VarAttrs
    | DimAttrs
    | ShapeAttrs
    | BroadcastAttrs
    | SliceAttrs
    | UnfoldAttrs
    | PadAttrs
    | FactoryAttrs
    | CopyAttrs
    | RngAttrs
    | RandintAttrs
    | MultinomialAttrs
    | ConvolutionAttrs
    | PhiloxAttrs
    | SortAttrs
    | TopkAttrs
    | SdpaAttrs
    | EmbeddingAttrs
    | EmbeddingBackwardAttrs
    | LocalAttrs
    | ReshardAttrs
    | ReduceCommAttrs
    | GatherCommAttrs
    | ScatterCommAttrs
    | ExchangeCommAttrs
    | SourceCommAttrs
    | TurnCommAttrs
    | ChunkAttrs
)
NO_ATTRS = NoAttrs()
