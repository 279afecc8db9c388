"""Strides as torch computes them: what is dense, what a reshape shares, what iterators allocate.

Each function re-derives one rule of ATen for sizes that may be symbolic; the name of the C++
function that it follows is given with it. A question that the sizes leave open goes to the
``Decider``. Strides count elements. Size-1 and empty tensors get the strides that torch shows,
though no address depends on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.sizes import Size

Sizes = tuple[Size, ...]
_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


@dataclass(frozen=True)
class Strided:
    """Shape and strides of one operand, as an eager kernel is given it."""

    shape: Sizes
    strides: Sizes


def contiguous_strides(shape: Sizes, decide: Decider) -> Sizes:
    """Row-major strides; an empty dim counts as 1 (``c10::contiguous_strides``)."""
    strides: list[Size] = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        inner = shape[d + 1]
        strides[d] = strides[d + 1] if decide.equal(inner, 0) else strides[d + 1] * inner
    return tuple(strides)


def ordered_strides(shape: Sizes, order: Sequence[int]) -> Sizes:
    """Dense strides with dims from slowest to fastest in ``order``; an empty dim counts as 0."""
    strides: list[Size] = [1] * len(shape)
    step: Size = 1
    for d in reversed(order):
        strides[d] = step
        step = step * shape[d]
    return tuple(strides)


def fresh_strides(shape: Sizes, order: Sequence[int], decide: Decider) -> Sizes:
    """Strides of a new tensor whose dims go from slowest to fastest in ``order``."""
    if tuple(order) == _CHANNELS_LAST.get(len(shape)):
        return ordered_strides(shape, order)
    inner = contiguous_strides(tuple(shape[d] for d in order), decide)
    return tuple(inner[order.index(d)] for d in range(len(shape)))


def has_order(x: Strided, order: Sequence[int], decide: Decider) -> bool:
    """Whether ``x`` is dense with its dims in ``order``, dims of size 1 aside."""
    expected: Size = 1
    for d in reversed(order):
        fits = decide.surely_equal(x.strides[d], expected)
        if fits is not True:
            if decide.equal(x.shape[d], 1):
                continue
            if not decide.equal(x.strides[d], expected):
                return False
        expected = expected * x.shape[d]
    return True


def is_contiguous(x: Strided, decide: Decider) -> bool:
    """``TensorImpl::compute_contiguous``: row-major, or empty."""
    if _surely_has_order(x, range(len(x.shape)), decide):
        return True
    return is_empty(x.shape, decide) or has_order(x, range(len(x.shape)), decide)


def _surely_has_order(x: Strided, order: Sequence[int], decide: Decider) -> bool:
    expected: Size = 1
    for d in reversed(order):
        if decide.surely_equal(x.shape[d], 1):
            continue
        if not decide.surely_equal(x.strides[d], expected):
            return False
        expected = expected * x.shape[d]
    return True


def is_empty(shape: Sizes, decide: Decider) -> bool:
    """Whether some dim has no elements."""
    if any(size == 0 for size in shape):
        return True
    return any(decide.equal(size, 0) for size in shape if not isinstance(size, int))


def is_channels_last(x: Strided, decide: Decider) -> bool:
    """``compute_channels_last_contiguous_2d`` and ``_3d``: dense with dim 1 innermost."""
    order = _CHANNELS_LAST.get(len(x.shape))
    return order is not None and has_order(x, order, decide)


def is_dense(x: Strided, decide: Decider) -> bool:
    """``is_non_overlapping_and_dense``: some order of the dims is row-major."""
    if is_contiguous(x, decide) or is_channels_last(x, decide):
        return True
    left = [d for d in range(len(x.shape)) if decide.less(1, x.shape[d])]
    expected: Size = 1
    while left:
        # Where strides repeat, one of their dims stays behind and fits nowhere: not dense.
        fit = next((d for d in left if decide.surely_equal(x.strides[d], expected)), None)
        if fit is None:
            fit = next((d for d in left if decide.equal(x.strides[d], expected)), None)
        if fit is None:
            return False
        left.remove(fit)
        expected = expected * x.shape[fit]
    return True


def dense_like(x: Strided, decide: Decider) -> Sizes:
    """``infer_dense_strides``: dense, with the dims in the order of their strides."""
    strides: list[Size] = [1] * len(x.shape)
    step: Size = 1
    for d in fastest_first(x.shape, [x.strides], decide):
        strides[d] = step
        if decide.less(1, x.shape[d]):
            step = step * x.shape[d]
    return tuple(strides)


def preserved_strides(x: Strided, decide: Decider) -> Sizes:
    """What ``empty_like``, ``clone`` and ``to`` give under ``torch.preserve_format``."""
    return x.strides if is_dense(x, decide) else dense_like(x, decide)


def fastest_first(shape: Sizes, strides: Sequence[Sizes], decide: Decider) -> list[int]:
    """The dims from smallest to largest stride (``TensorIteratorBase::reorder_dimensions``).

    An insertion sort, because comparisons may be ambiguous: a stride of 0 says nothing, and of
    equal strides only a larger dim moves behind a smaller one.
    """
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            comparison = _compare(order[before], order[at], shape, strides, decide)
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif comparison < 0:
                break
    return order


def _compare(a: int, b: int, shape: Sizes, strides: Sequence[Sizes], decide: Decider) -> int:
    for of in strides:
        if decide.surely_less(of[a], of[b]) and decide.surely_less(0, of[a]):
            return -1
        if decide.equal(of[a], 0) or decide.equal(of[b], 0):
            continue
        if decide.less(of[a], of[b]):
            return -1
        if decide.less(of[b], of[a]):
            return 1
        if decide.less(shape[b], shape[a]):
            return 1
    return 0


def iterator_strides(
    shape: Sizes, operands: Sequence[Strided], others: bool, decide: Decider
) -> Sizes:
    """What ``TensorIterator`` allocates for a result of ``shape``.

    ``operands`` as they are before broadcasting, 0-dim ones left out; ``others`` says that a number
    or a 0-dim tensor takes part, which rules out its fast paths.
    """
    if not shape:
        return ()
    if not others and all(_same_shape(x.shape, shape, decide) for x in operands):
        if all(is_contiguous(x, decide) for x in operands):
            return contiguous_strides(shape, decide)
        if len(shape) == 4 and all(is_channels_last(x, decide) for x in operands):
            return ordered_strides(shape, _CHANNELS_LAST[4])
        first = operands[0]
        same = all(_same_shape(x.strides, first.strides, decide) for x in operands[1:])
        if same and is_dense(first, decide):
            return first.strides
    order = fastest_first(shape, [_spread(x, shape, decide) for x in operands], decide)
    if order == list(reversed(range(len(shape)))):
        return contiguous_strides(shape, decide)
    return ordered_strides(shape, order[::-1])


def _same_shape(a: Sizes, b: Sizes, decide: Decider) -> bool:
    return len(a) == len(b) and all(decide.equal(x, y) for x, y in zip(a, b, strict=True))


def _spread(x: Strided, shape: Sizes, decide: Decider) -> Sizes:
    """Strides of ``x`` broadcast to ``shape`` (``TensorIteratorBase::compute_strides``)."""
    missing = len(shape) - len(x.shape)
    strides: list[Size] = [0] * missing
    for size, stride, whole in zip(x.shape, x.strides, shape[missing:], strict=True):
        grows = size == 1 and not decide.equal(whole, 1)
        strides.append(0 if grows else stride)
    return tuple(strides)


def expanded_strides(x: Strided, shape: Sizes, dims: Sequence[int], decide: Decider) -> Sizes:
    """Strides of ``x`` with its dim ``i`` at dim ``dims[i]`` of ``shape``.

    A new dim further in is an ``unsqueeze`` (it steps over what follows it in ``x``) and then an
    ``expand``; new dims at the front are ``expand``'s own (``inferExpandGeometry``). Of a 0-dim
    tensor
    ``expand`` makes strides of 0 only; where nothing grows it is taken for an ``unsqueeze``.
    """
    if not x.shape:
        grows = not all(decide.equal(size, 1) for size in shape)
        return (0 if grows else 1,) * len(shape)
    front = dims[0] if dims else len(shape)
    strides: list[Size] = [0] * len(shape)
    unsqueezed: Size = 1
    of = dict(zip(dims, zip(x.shape, x.strides, strict=True), strict=True))
    for d in range(len(shape) - 1, -1, -1):
        if d in of:
            size, stride = of[d]
            unsqueezed = size * stride
            grows = size == 1 and not decide.equal(shape[d], 1)
        else:
            inner = d + 1 < len(shape)
            stride = shape[d + 1] * strides[d + 1] if inner and d < front else unsqueezed
            grows = not decide.equal(shape[d], 1)
        strides[d] = 0 if grows else stride
    return tuple(strides)


def reshaped_strides(x: Strided, shape: Sizes, decide: Decider) -> Sizes | None:
    """Strides with which ``x`` shows as ``shape``, or None: ``at::detail::computeStride``.

    ``shape`` has as many elements as ``x``.
    Runs of dims of ``x`` that step evenly must each hold whole dims of the new shape.
    """
    if not x.shape:
        return (1,) * len(shape)
    rows = zip(x.strides, ordered_strides(x.shape, range(len(x.shape))), strict=True)
    empty = any(decide.surely_equal(size, 0) for size in x.shape)
    if not empty and all(decide.surely_equal(a, b) for a, b in rows):
        # Row-major to the last size-1 dim: what follows would find this, with more questions.
        return contiguous_strides(shape, decide)
    if is_empty(x.shape, decide):
        same = _same_shape(x.shape, shape, decide)
        return x.strides if same else contiguous_strides(shape, decide)
    strides: list[Size] = [0] * len(shape)
    d = len(shape) - 1
    for run_size, step in _even_runs(x, decide):
        done: Size = 1
        while d >= 0 and (decide.less(done, run_size) or decide.equal(shape[d], 1)):
            strides[d] = done * step
            done = done * shape[d]
            d -= 1
        if not decide.equal(done, run_size):
            return None
    return tuple(strides) if d == -1 else None


def _even_runs(x: Strided, decide: Decider) -> list[tuple[Size, Size]]:
    """From the last dim: sizes of the runs of dims that step evenly, and the stride of each."""
    runs: list[tuple[Size, Size]] = []
    size, step = x.shape[-1], x.strides[-1]
    for d in range(len(x.shape) - 2, -1, -1):
        expected = size * step
        even = decide.surely_equal(x.strides[d], expected) is True
        if not (even or decide.equal(x.shape[d], 1) or decide.equal(x.strides[d], expected)):
            runs.append((size, step))
            size, step = 1, x.strides[d]
        size = size * x.shape[d]
    return [*runs, (size, step)]


def suggests_channels_last(x: Strided, decide: Decider) -> bool:
    """``is_channels_last_strides_2d`` and ``_3d``: strides that look so, gaps allowed."""
    order = _CHANNELS_LAST.get(len(x.shape))
    if order is None or decide.equal(x.strides[1], 0):
        return False
    least: Size = 0
    for d in reversed(order):
        if decide.equal(x.shape[d], 0) or decide.less(x.strides[d], least):
            return False
        if d == 0 and decide.equal(least, x.strides[1]):
            return False
        least = x.strides[d]
        if decide.less(1, x.shape[d]):
            least = sizes.multiply(least, x.shape[d])
    return True


def format_strides(shape: Sizes, parts: Sequence[Strided], decide: Decider) -> Sizes:
    """Channels last when all ``parts`` suggest it, else row-major (``cat``, ``pad``)."""
    if parts and all(suggests_channels_last(x, decide) for x in parts):
        return ordered_strides(shape, _CHANNELS_LAST[len(shape)])
    return contiguous_strides(shape, decide)
