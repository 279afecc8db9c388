"""Factor rules of ops that move elements or make them: views, indexing, factories."""

from math import gcd
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import TensorType
from thunder_mdfuse.sharding.factors import Factor, Label, Site, Traits, from_labels


def _attrs(site: Site) -> Any:
    """The attribute record; which one it is the op's row in ``ir/ops.py`` says."""
    return site.attrs


def _dims_but(ndim: int, *hidden: int) -> list[Label | None]:
    return [None if d in hidden else d for d in range(ndim)]


def broadcast_in_dim(site: Site) -> tuple[Factor, ...]:
    """A dim that grows from 1 has no factor in the operand, so the result alone is sharded."""
    attrs = _attrs(site)
    operand: list[Label | None] = []
    for n, d in zip(site.shape(0), attrs.dims if site.tensors else (), strict=True):
        operand.append(d if n == attrs.shape[d] else None)
    return from_labels(site, [operand], [range(len(attrs.shape))])


def permute(site: Site) -> tuple[Factor, ...]:
    return from_labels(site, [range(len(site.shape(0)))], [_attrs(site).dims])


def squeeze(site: Site) -> tuple[Factor, ...]:
    labels = _dims_but(len(site.shape(0)), *_attrs(site).dims)
    return from_labels(site, [labels], [[label for label in labels if label is not None]])


def slicing(site: Site) -> tuple[Factor, ...]:
    """A dim that is cut could keep its shards only by moving elements between ranks."""
    a = _attrs(site)
    spans = zip(a.starts, a.ends, a.steps, site.shape(0), strict=True)
    labels = [d if (s, e, step) == (0, n, 1) else None for d, (s, e, step, n) in enumerate(spans)]
    return from_labels(site, [labels], [labels])


def unfold(site: Site) -> tuple[Factor, ...]:
    """Every dim but the one that windows slide along, and theirs."""
    labels = _dims_but(len(site.shape(0)), _attrs(site).dim)
    return from_labels(site, [labels], [[*labels, None]])


def pad(site: Site) -> tuple[Factor, ...]:
    ends = zip(_attrs(site).low, _attrs(site).high, strict=True)
    labels = [d if pair == (0, 0) else None for d, pair in enumerate(ends)]
    return from_labels(site, [labels, ()], [labels])


def flip(site: Site) -> tuple[Factor, ...]:
    """Even shards of a flipped dim trade places; uneven ones would have to be cut anew."""
    labels = range(len(site.shape(0)))
    traits: dict[Label, Traits] = dict.fromkeys(_attrs(site).dims, Traits(exact=True))
    return from_labels(site, [labels], [labels], traits)


def along_dim(site: Site) -> tuple[Factor, ...]:
    """cat, scans, sort, topk: every dim but the one that the op works along."""
    dim = _attrs(site).dim
    labels = [_dims_but(len(site.shape(i)), dim) for i in range(len(site.operands))]
    return from_labels(site, labels, [labels[0]] * len(site.results))


def factory(site: Site) -> tuple[Factor, ...]:
    """full: any dim may be sharded."""
    return _made(site, block=False)


def numbered(site: Site) -> tuple[Factor, ...]:
    """iota and random numbers: any dim, in blocks, as values follow from the index in the whole."""
    return _made(site, block=True)


def _made(site: Site, block: bool) -> tuple[Factor, ...]:
    result = site.results[0]
    assert isinstance(result, TensorType)
    operands = [[None] * len(site.shape(i)) for i in range(len(site.operands))]
    traits: dict[Label, Traits] = {d: Traits(block=block) for d in range(result.ndim)}
    return from_labels(site, operands, [range(result.ndim)], traits)


def reshape(site: Site) -> tuple[Factor, ...]:
    """Dims are grouped so that the groups of both shapes have equal products.

    A dim alone in its group is kept whole. In any other group only the factor that is outermost
    on both sides may be sharded, and evenly, so that a shard's elements are one run of the
    flattened group.
    """
    before, after = site.shape(0), _attrs(site).shape
    if before == after:
        return from_labels(site, [range(len(before))], [range(len(before))])
    if 0 in before or 0 in after:
        return ()
    found = []
    for left, right in _groups(before, after):
        d, e = left[0], right[0]
        if len(left) == len(right) == 1:
            found.append(Factor(before[d], (d,), (e,)))
            continue
        common = _common(before[d], after[e])
        if common is not None and common != 1:
            found.append(Factor(common, (d,), (e,), exact=True))
    return tuple(found)


Shape = tuple[Size, ...]


def _groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """Dims (those of size 1 left out) in groups of equal products, as far as that can be proved."""
    lefts = [d for d, n in enumerate(before) if n != 1]
    rights = [d for d, n in enumerate(after) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while lefts and rights:
        left, right = [lefts.pop(0)], [rights.pop(0)]
        a, b = before[left[0]], after[right[0]]
        while a != b:
            take_right = sizes.exact_quotient(a, b) is not None
            if isinstance(a, int) and isinstance(b, int):
                take_right = b < a
            if take_right and rights:
                right.append(rights.pop(0))
                b = sizes.multiply(b, after[right[-1]])
            elif not take_right and lefts:
                left.append(lefts.pop(0))
                a = sizes.multiply(a, before[left[-1]])
            else:
                return groups
        groups.append((left, right))
    return groups


def _common(a: Size, b: Size) -> Size | None:
    """The largest factor that both sizes are seen to have."""
    if isinstance(a, int) and isinstance(b, int):
        return gcd(a, b)
    if sizes.exact_quotient(a, b) is not None:
        return b
    return a if sizes.exact_quotient(b, a) is not None else None


# A table that is looked up in blocks: each position answers what lies in its block and 0 for the
# rest, so the answers are a pending sum. No empty block, which has no row to read instead.
_LOOKED_UP = Traits(reduces="sum", block=True)


def take(site: Site) -> tuple[Factor, ...]:
    """take(x, index) along ``dim``: the other dims of x, the dims of the index, and ``dim``."""
    dim = _attrs(site).dim
    x: list[Label | None] = [("x", d) for d in range(len(site.shape(0)))]
    index = [("index", d) for d in range(len(site.shape(1)))]
    result = [*x[:dim], *index, *x[dim + 1 :]]
    return from_labels(site, [x, index], [result], {x[dim]: _LOOKED_UP})


def gather(site: Site) -> tuple[Factor, ...]:
    """gather(x, index): the dims that x and index have in common; along ``dim`` the index's."""
    dim = _attrs(site).dim
    same = [a == b for a, b in zip(site.shape(0), site.shape(1), strict=True)]
    index = [d if d == dim or same[d] else None for d in range(len(same))]
    x: list[Label | None] = list(index)
    x[dim] = "row"
    return from_labels(site, [x, index], [index], {"row": _LOOKED_UP})


def embedding(site: Site) -> tuple[Factor, ...]:
    """embedding(index, weight): positions, columns, and the rows of the weight."""
    index = list(range(len(site.shape(0))))
    weight = ["row", "column"]
    return from_labels(site, [index, weight], [[*index, "column"]], {"row": _LOOKED_UP})


def embedding_backward(site: Site) -> tuple[Factor, ...]:
    """Sharded positions leave a pending sum; a block of rows takes what falls into it.

    Neither where each row is scaled by its frequency, which all positions would have to count.
    """
    index = list(range(len(site.shape(1))))
    operands: list[list[Label | None]] = [[*index, "column"], [*index]]
    if _attrs(site).scale_grad_by_freq:
        return from_labels(site, operands, [[None, "column"]])
    traits: dict[Label, Traits] = {d: Traits(reduces="sum") for d in index}
    traits["row"] = Traits(block=True)
    return from_labels(site, operands, [["row", "column"]], traits)


def scatter(site: Site) -> tuple[Factor, ...]:
    """Dims along which x, index and source agree, but not the one that is scattered along."""
    return from_labels(site, *_scattered(site))


# Where sources are added into a block, each position adds those that fall into its own, and 0 at
# its first row for the rest: no empty block, as above.
_ADDED_INTO = Traits(block=True)


def scatter_add(site: Site) -> tuple[Factor, ...]:
    """As ``scatter``; along ``dim`` sources may be sharded too: each position then adds its own.
    Or x is sharded along ``dim``: each position adds what falls into its block.
    """
    dim = _attrs(site).dim
    operands, results = _scattered(site)
    if site.shape(1) == site.shape(2):
        operands[0][dim] = results[0][dim] = "block"
    if site.shape(1)[dim] == site.shape(2)[dim]:
        operands[1][dim] = operands[2][dim] = "source"
    traits: dict[Label, Traits] = {"block": _ADDED_INTO}
    traits["source"] = Traits("sum", pending=(0,))
    return from_labels(site, operands, results, traits)


def _scattered(site: Site) -> tuple[list[list[Label | None]], list[list[Label | None]]]:
    dim, ndim = _attrs(site).dim, len(site.shape(0))
    operands = [i for i in (0, 1, 2) if i in site.tensors]
    labels: list[Label | None] = [
        d if d != dim and len({site.shape(i)[d] for i in operands}) == 1 else None
        for d in range(ndim)
    ]
    return [list(labels) if i in operands else [] for i in (0, 1, 2)], [labels]


def index_add(site: Site) -> tuple[Factor, ...]:
    """index_add(x, index, source): the other dims; sharded sources leave a pending sum; a block of
    x along ``dim`` takes what falls into it.
    """
    dim = _attrs(site).dim
    x = _dims_but(len(site.shape(0)), dim)
    source: list[Label | None] = list(x)
    x[dim], source[dim] = "block", "source"
    traits: dict[Label, Traits] = {"block": _ADDED_INTO}
    traits["source"] = Traits("sum", pending=(0,))
    return from_labels(site, [x, ["source"], source], [x], traits)
