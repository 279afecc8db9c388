"""Memory layouts: where each tensor value lives, and with which strides, as in eager torch.

In: a fusion, the strides of its inputs, and a ``Decider`` for what sizes leave open. Out: a
``Layout`` for every tensor value. A view lives in its operand's storage; a fresh value has the
strides that torch would allocate, so that what leaves a region looks as if each op had run by
itself. Which rule an op follows is the ``strides`` field of its row in ``ir/ops.py``; the rules
themselves are in ``ir/geometry.py``.

Broadcasts are nodes here, while an eager kernel gets the operand as it was. So a
``broadcast_in_dim`` that could be torch's implicit one is looked through where an elementwise op
reads it (unless its ``explicit`` attribute says that the user wrote it), and so is the cast of a
promotion.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attention import attention_strides, gradient_strides
from thunder_mdfuse.ir.attrs import (
    BroadcastAttrs,
    CastAttrs,
    ChunkAttrs,
    ConvolutionAttrs,
    CopyAttrs,
    DimsAttrs,
    PadAttrs,
    SdpaAttrs,
    ShapeAttrs,
    SliceAttrs,
    UnfoldAttrs,
)
from thunder_mdfuse.ir.decide import Decider as Decider
from thunder_mdfuse.ir.decide import holds as holds
from thunder_mdfuse.ir.geometry import (
    Sizes,
    Strided,
    contiguous_strides,
    dense_like,
    expanded_strides,
    format_strides,
    fresh_strides,
    has_order,
    is_contiguous,
    iterator_strides,
    preserved_strides,
    reshaped_strides,
    suggests_channels_last,
)
from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.infer import broadcast_shapes
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType, TensorType


@dataclass(frozen=True)
class Layout:
    """The value is in the storage of ``base`` (itself when fresh), ``offset`` elements into it.

    ``base`` is an input or a value that no view rule applies to; offsets are relative to where
    ``base`` begins, which for an input is the tensor's own first element.
    """

    base: Use
    offset: Size
    strides: tuple[Size, ...]


def layouts(
    fusion: Fusion,
    input_strides: Sequence[tuple[Size, ...] | None],
    decide: Decider,
    device: str = "cuda",
) -> dict[Use, Layout]:
    """The layout of every tensor value of ``fusion``; None among ``input_strides`` is row-major.

    ``device``: "cuda" or "cpu", whose eager kernels differ in a few rules (promotion makes copies
    on CPU).
    """
    if len(input_strides) != len(fusion.inputs):
        raise IRError(
            f"strides for {len(fusion.inputs)} inputs are needed, found {len(input_strides)}"
        )
    walk = _Walk(fusion, input_strides, decide, device)
    for i, node in enumerate(fusion.nodes):
        for result, t in enumerate(node.types):
            if isinstance(t, TensorType):
                walk.add(Use(i, result), node, t)
    return walk.found


class _Walk:
    """One walk over a fusion; ``found`` fills up in node order."""

    def __init__(
        self,
        fusion: Fusion,
        input_strides: Sequence[tuple[Size, ...] | None],
        decide: Decider,
        device: str,
    ) -> None:
        self.fusion, self.input_strides = fusion, input_strides
        self.decide, self.device = decide, device
        self.found: dict[Use, Layout] = {}

    def add(self, use: Use, node: Node, t: TensorType) -> None:
        """Find the layout of result ``use`` of ``node``; those of its operands are known."""
        found = _RULES[row(node.op).strides](self, use, node, t)
        self.found[use] = found if isinstance(found, Layout) else Layout(use, 0, found)

    def operand(self, use: Use) -> Strided:
        """Shape and strides of the tensor ``use``, as it is in this program."""
        return Strided(self.fusion.tensor(use).shape, self.found[use].strides)

    def tensors(self, node: Node) -> list[Strided]:
        """The operands of ``node`` that have dims."""
        known = [a for a in node.args if a in self.found]
        return [self.operand(a) for a in known if self.fusion.tensor(a).ndim]

    def eager_operand(self, use: Use, copies: bool, cast: bool = True) -> Strided | None:
        """What an eager elementwise kernel gets for ``use``; None for a number or a 0-dim tensor.

        ``copies``: a promoted operand is first copied to the common dtype, else read as it is.
        """
        t = self.fusion.type_of(use)
        if not isinstance(t, TensorType) or not t.ndim:
            return None
        node = self.fusion.nodes[use.node]
        if isinstance(node.attrs, BroadcastAttrs) and _may_be_implicit(node.attrs):
            return self.eager_operand(node.args[0], copies, cast)
        if cast and isinstance(node.attrs, CastAttrs) and not node.attrs.user:
            inner = self.eager_operand(node.args[0], copies, cast=False)
            if inner is None or not copies:
                return inner
            return Strided(inner.shape, preserved_strides(inner, self.decide))
        return self.operand(use)

    def alias(self, of: Use, offset: Size, strides: Sizes) -> Layout:
        """A view of ``of``, ``offset`` elements into it."""
        whole = self.found[of]
        return Layout(whole.base, sizes.add(whole.offset, offset), strides)


# A rule gives strides (of a fresh value) or a whole layout (of a view).
_Rule = Callable[[_Walk, Use, Node, TensorType], Layout | Sizes]


def _may_be_implicit(attrs: BroadcastAttrs) -> bool:
    """Whether torch's own broadcasting could do it: the operand's dims are the last ones."""
    first = len(attrs.shape) - len(attrs.dims)
    return not attrs.explicit and attrs.dims == tuple(range(first, len(attrs.shape)))


def _input(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    strides = walk.input_strides[use.node]
    if strides is None:
        return contiguous_strides(t.shape, walk.decide)
    if len(strides) != t.ndim:
        raise IRError(f"input {use} of type {t} needs {t.ndim} strides, found {strides}")
    return strides


def _contiguous(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    return contiguous_strides(t.shape, walk.decide)


def _padded_rows(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    """Row-major with rows of whole 16 bytes, which CUTLASS asks for (grouped_mm)."""
    step = 16 // t.dtype.itemsize
    width = sizes.ceildiv(t.shape[-1], step) * step
    return contiguous_strides((*t.shape[:-1], width), walk.decide)


def _preserve(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    return preserved_strides(walk.operand(node.args[0]), walk.decide)


def _dense(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    """Another shape in the operand's order of dims: what DTensor does for global strides."""
    x = walk.operand(node.args[0])
    return dense_like(Strided(t.shape, x.strides), walk.decide)


def _iterator(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    copies = walk.device == "cpu" or node.op == "where"
    seen = [walk.eager_operand(a, copies) for a in node.args]
    tensors = [x for x in seen if x is not None]
    if _common_shape(tensors) != t.shape:
        # Nothing implicit could give this shape: the broadcasts are the user's own.
        tensors = walk.tensors(node)
    numbers = [not isinstance(walk.fusion.type_of(a), TensorType) for a in node.args]
    if not tensors or (node.op == "pow" and numbers[0]):
        return contiguous_strides(t.shape, walk.decide)
    # Torch gives these their number beside the iterator instead of among its operands.
    aside = node.op in ("pow", "lerp") and numbers[-1]
    others = len(tensors) + aside < len(node.args)
    strides = iterator_strides(t.shape, tensors, others, walk.decide)
    if node.op in ("isinf", "isfinite"):
        return _classified(walk, node, strides)
    return strides


def _classified(walk: _Walk, node: Node, plain: Sizes) -> Sizes:
    """Torch has ``abs(x) == inf`` for isinf, ``(x == x) * (abs(x) != inf)`` for isfinite."""
    if not walk.fusion.type_of(node.args[0]).dtype.is_float:
        return preserved_strides(walk.operand(node.args[0]), walk.decide)
    x = Strided(walk.fusion.tensor(node.args[0]).shape, plain)
    compared = iterator_strides(x.shape, [x], True, walk.decide)
    if node.op == "isinf":
        return compared
    return iterator_strides(x.shape, [x, Strided(x.shape, compared)], False, walk.decide)


def _common_shape(operands: Sequence[Strided]) -> Sizes:
    shape: Sizes = ()
    for x in operands:
        shape = broadcast_shapes("layout", shape, x.shape)
    return shape


def _copy(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, CopyAttrs)
    order, (arg,) = node.attrs.order, node.args
    x = walk.operand(arg)
    if order is None:
        return preserved_strides(x, walk.decide)
    reuse = node.attrs.reuse and _fits(x, order, walk.decide)
    if reuse and all(_fits(here, order, walk.decide) for (here,) in _everywhere(walk, x)):
        return walk.found[arg]
    return fresh_strides(t.shape, order, walk.decide)


def _fits(x: Strided, order: tuple[int, ...], decide: Decider) -> bool:
    """``Tensor.is_contiguous(memory_format=...)``."""
    row_major = order == tuple(range(len(order)))
    return is_contiguous(x, decide) if row_major else has_order(x, order, decide)


def _format(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    parts = walk.tensors(node)
    amounts = (*node.attrs.low, *node.attrs.high) if isinstance(node.attrs, PadAttrs) else (1,)
    if all(walk.decide.at_most(amount, 0) for amount in amounts):
        # A pad that only cuts is a clone of a slice.
        return preserved_strides(Strided(t.shape, parts[0].strides if parts else ()), walk.decide)
    return format_strides(t.shape, parts, walk.decide)


def _window(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    """A convolution's: channels last where x or w suggests it and torch's library has that."""
    parts = [walk.operand(a) for a in node.args[:2]]
    some = [x for x in parts if suggests_channels_last(x, walk.decide)]
    return format_strides(t.shape, some if _has_channels_last(walk, node, t) else [], walk.decide)


def _has_channels_last(walk: _Walk, node: Node, t: TensorType) -> bool:
    """cuDNN has it but for f64. On the CPU windows of three dims are oneDNN's in f32 only, and
    another kernel's where one sample is convolved with one group.
    """
    if walk.device == "cuda":
        return t.dtype is not DType.F64
    assert isinstance(node.attrs, ConvolutionAttrs)
    several = node.attrs.groups > 1 or walk.decide.less(1, t.shape[0])
    return t.ndim == 4 or (t.dtype is DType.F32 and several)


def _chunk(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    """DTensor clones a slice, or concatenates the slices of a strided shard."""
    assert isinstance(node.attrs, ChunkAttrs)
    part = Strided(t.shape, walk.operand(node.args[0]).strides)
    if node.attrs.split > 1:
        return format_strides(t.shape, [part], walk.decide)
    return preserved_strides(part, walk.decide)


def _broadcast(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, BroadcastAttrs)
    (arg,) = node.args
    if arg not in walk.found:  # a number becomes a 0-dim tensor of its own
        return expanded_strides(Strided((), ()), t.shape, (), walk.decide)
    strides = expanded_strides(walk.operand(arg), t.shape, node.attrs.dims, walk.decide)
    return walk.alias(arg, 0, strides)


def _permute(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, DimsAttrs)
    strides = walk.found[node.args[0]].strides
    return walk.alias(node.args[0], 0, tuple(strides[d] for d in node.attrs.dims))


def _squeeze(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, DimsAttrs)
    strides = walk.found[node.args[0]].strides
    kept = tuple(s for d, s in enumerate(strides) if d not in node.attrs.dims)
    return walk.alias(node.args[0], 0, kept)


def _slice(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, SliceAttrs)
    strides = walk.found[node.args[0]].strides
    offset: Size = 0
    for start, stride in zip(node.attrs.starts, strides, strict=True):
        offset = sizes.add(offset, sizes.multiply(start, stride))
    stepped = zip(strides, node.attrs.steps, strict=True)
    return walk.alias(node.args[0], offset, tuple(sizes.multiply(s, k) for s, k in stepped))


def _unfold(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, UnfoldAttrs)
    strides = list(walk.found[node.args[0]].strides)
    within = strides[node.attrs.dim]
    strides[node.attrs.dim] = sizes.multiply(within, node.attrs.step)
    return walk.alias(node.args[0], 0, (*strides, within))


def _reshape(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, ShapeAttrs)
    x = walk.operand(node.args[0])
    if not walk.decide.equal(sizes.product(x.shape), sizes.product(t.shape)):
        raise IRError(f"{use}: {x.shape} and {t.shape} have different numbers of elements")
    strides = reshaped_strides(x, t.shape, walk.decide)
    if strides is not None:
        places = _everywhere(walk, x, Strided(t.shape, strides))
        if all(_shows(here, shown, walk.decide) for here, shown in places):
            return walk.alias(node.args[0], 0, strides)
    return contiguous_strides(t.shape, walk.decide)


def _everywhere(walk: _Walk, *values: Strided) -> list[list[Strided]]:
    """``values`` as they are at each position, where ranks may see other sizes; else nothing.

    A view must be one on every rank, while fresh strides may differ from a rank's own.
    """
    numbers = [size for x in values for size in (*x.shape, *x.strides)]
    if not any(name.startswith("@") for size in numbers for name in sizes.symbols(size)):
        return []
    places = walk.decide.places()
    return [[Strided(_at(x.shape, p), _at(x.strides, p)) for x in values] for p in places]


def _at(many: Sizes, place: Mapping[str, int]) -> Sizes:
    return tuple(sizes.evaluate(size, place) for size in many)


def _shows(x: Strided, shown: Strided, decide: Decider) -> bool:
    """Whether ``shown`` is ``x`` with another shape, all of their sizes known."""
    right = reshaped_strides(x, shown.shape, decide)
    if right is None:
        return False
    triples = zip(shown.shape, shown.strides, right, strict=True)
    return 0 in shown.shape or all(size == 1 or a == b for size, a, b in triples)


def _attention(walk: _Walk, use: Use, node: Node, t: TensorType) -> Layout | Sizes:
    assert isinstance(node.attrs, SdpaAttrs)
    operands = [walk.operand(a) for a in node.args]
    if node.op == "sdpa":
        return attention_strides(operands, t.dtype, node.attrs, walk.device, walk.decide)
    which = use.result  # the first operand is the gradient of the result
    return gradient_strides(operands[1:], which, t.dtype, node.attrs, walk.device, walk.decide)


_VIEWS: dict[str, _Rule] = {
    "broadcast_in_dim": _broadcast,
    "permute": _permute,
    "squeeze": _squeeze,
    "slice": _slice,
    "unfold": _unfold,
}
_RULES: dict[str, _Rule] = {
    "input": _input,
    "view": lambda walk, use, node, t: _VIEWS[node.op](walk, use, node, t),
    "reshape": _reshape,
    "copy": _copy,
    "iterator": _iterator,
    "contiguous": _contiguous,
    "padded rows": _padded_rows,
    "preserve": _preserve,
    "format": _format,
    "window": _window,
    "chunk": _chunk,
    "sdpa": _attention,
    "global": _dense,
}
