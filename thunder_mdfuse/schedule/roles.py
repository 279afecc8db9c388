"""What the reductions of one kernel run over: its *rows* (inner), or all rows of the grid (outer).

A kernel's domain has inner dims, which make up a row, and outer dims, which count the rows. An
inner reduction gives a value for each row, that the rest of the row may use; an outer one gives a
value for each column when all rows have been walked. The gradient of a norm needs both.
"""

from collections.abc import Sequence
from typing import Any

from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.attrs import DimAttrs
from thunder_mdfuse.ir.graph import Fusion, Node
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.schedule.indexing import Indices
from thunder_mdfuse.schedule.plan import Instr, Load

# Reductions that are their operand, or 0, where every reduced dim has size 1.
PLAIN = ("sum", "prod", "amax", "amin", "argmax", "argmin")


def reduces(fusion: Fusion, node: Node) -> bool:
    """Whether ``node`` is a reduction that combines elements, so that a kernel has to loop.

    A frontend reduces dims of size 1, too, where it undoes a broadcast that kept them.
    """
    if row(node.op).kind not in ("reduction", "arg_reduction"):
        return False
    if node.op not in PLAIN:
        return True
    return bool(moving_dims(fusion.tensor(node.args[0]).shape, reduced_dims(fusion, node)))


def scanned_dim(fusion: Fusion, node: Node) -> int | None:
    """The dim along which ``node`` combines elements one after the other, if it does."""
    if row(node.op).kind != "scan":
        return None
    assert isinstance(node.attrs, DimAttrs) and node.attrs.dim is not None
    return None if fusion.tensor(node.args[0]).shape[node.attrs.dim] == 1 else node.attrs.dim


def reduced_dims(fusion: Fusion, node: Node) -> tuple[int, ...]:
    """The dims of its operand that reduction ``node`` reduces."""
    attrs: Any = node.attrs
    if row(node.op).kind == "reduction":
        dims: tuple[int, ...] = attrs.dims
        return dims
    return tuple(range(fusion.tensor(node.args[0]).ndim)) if attrs.dim is None else (attrs.dim,)


def moving_dims(shape: Sequence[Size], dims: Sequence[int]) -> tuple[int, ...]:
    """Those of ``dims`` along which there is more than one element, or may be."""
    return tuple(d for d in sorted(dims) if shape[d] != 1)


def same_dims(shape: Sequence[Size], domain: Sequence[Size]) -> list[int] | None:
    """For each dim of ``shape`` the dim of ``domain`` that it is, -1 where its size is 1.

    None unless both have the same sizes, those of 1 aside.
    """
    ours, theirs = (moving_dims(s, range(len(s))) for s in (shape, domain))
    if [shape[d] for d in ours] != [domain[d] for d in theirs]:
        return None
    found = [-1] * len(shape)
    for mine, its in zip(ours, theirs, strict=True):
        found[mine] = its
    return found


def kept(point: Indices, dims: Sequence[int]) -> Indices:
    """``point`` without ``dims``: where the result of a reduction over ``dims`` lies."""
    return tuple(p for d, p in enumerate(point) if d not in dims)


def inner_and_outer(
    shape: Sequence[Size], one: tuple[int, ...], other: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Two sets of dims as (inner, outer), or None where no kernel has reductions over both.

    Together they have to be all dims. The row is where memory usually runs: the last dim.
    """
    moving = moving_dims(shape, range(len(shape)))
    if not one or not other or tuple(sorted((*one, *other))) != moving:
        return None
    return (one, other) if moving[-1] in one else (other, one)


def runs_along(body: Sequence[Instr], name: str) -> bool:
    """Whether something is loaded that moves along other symbols, and along ``name`` by ones."""
    for instr in body:
        if isinstance(instr.detail, Load) and len(instr.depends) > 1:
            step = sizes.coefficient(instr.detail.offset, name)
            if step is not None and step[0] == 1:
                return True
    return False
