"""What of a global fusion must be the same on all ranks of its mesh.

That is what its placed tensors are computed from. Plain tensors are a rank's own, and so may be the
numbers that a rank computes them with.
"""

from dataclasses import replace

from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.text import render_node
from thunder_mdfuse.ir.types import TensorType


def mesh_part(fusion: Fusion) -> dict[str, str]:
    """The lines that make placed tensors, by number, numbered among themselves.

    ``fusion``: propagated, so that a tensor without placements is a plain one; without a mesh there
    are no lines. A plain tensor that comes onto the mesh is a line of its type alone.
    """
    needed = _needed(fusion)
    numbers: dict[int, int] = {}
    found: dict[str, str] = {}
    for i, node in enumerate(fusion.nodes):
        if i not in needed:
            continue
        args = () if _is_plain(fusion, i) else node.args
        known = tuple(Use(numbers[a.node], a.result) for a in args)
        line = render_node(len(numbers), replace(node, args=known))
        if _is_plain(fusion, i):
            line = f"%{len(numbers)} = plain : {' | '.join(map(str, node.types))}"
        numbers[i] = len(numbers)
        found[f"%{numbers[i]}"] = line
    return found


def _needed(fusion: Fusion) -> set[int]:
    """The numbers of nodes with placed results and of what these are computed from."""
    needed: set[int] = set()
    for i, node in reversed(list(enumerate(fusion.nodes))):
        placed = any(isinstance(t, TensorType) and t.placements is not None for t in node.types)
        if placed or i in needed:
            needed.add(i)
            if not _is_plain(fusion, i):
                needed |= {a.node for a in node.args}
    return needed


def _is_plain(fusion: Fusion, i: int) -> bool:
    """Whether node ``i`` gives plain tensors of a rank's own."""
    tensors = [t for t in fusion.nodes[i].types if isinstance(t, TensorType)]
    return any(t.placements is None for t in tensors)
