"""Which values are kept in memory for later kernels, and which are computed again from what they
come from.

A step that is no kernel (a matmul, a collective) cuts a program into levels: what reads its result
runs in a later kernel. A value that a later level reads too can be stored by the kernel that has it
anyway, or be computed again. Whatever moves fewer bytes is done; where both move as many, the value
is stored, so that a residual stream does not read all the layers before it.
"""

from collections.abc import Callable

from thunder_mdfuse.ir.graph import Fusion, Node, Use
from thunder_mdfuse.ir.layout import Layout
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size, product
from thunder_mdfuse.ir.types import ScalarType
from thunder_mdfuse.schedule.roles import reduces


def kept_values(
    fusion: Fusion,
    layouts: dict[Use, Layout],
    generated: list[bool],
    roots: set[Use],
    measure: Callable[[Size], int],
) -> set[Use]:
    """The values to store though nothing outside of kernels needs them.

    ``roots``: those that are stored anyway. ``measure``: about how large a size is; nothing but
    speed depends on it.
    """
    return _Walk(fusion, layouts, generated, roots, measure).kept()


class _Walk:
    def __init__(
        self,
        fusion: Fusion,
        layouts: dict[Use, Layout],
        generated: list[bool],
        roots: set[Use],
        measure: Callable[[Size], int],
    ) -> None:
        self.fusion, self.layouts, self.generated = fusion, layouts, generated
        self.stored = set(roots)
        self.measure = measure
        self.levels: list[int] = []
        for i, node in enumerate(fusion.nodes):
            below = max((self.levels[a.node] for a in self._operands(node)), default=0)
            # A scatter is finished by a kernel of its own.
            stays = (generated[i] and row(node.op).kind != "scatter") or node.op == "input"
            self.levels.append(below if stays else below + 1)
        # For each storage the later levels at which kernels read it.
        self.later: dict[Use, set[int]] = {}
        for i, node in enumerate(fusion.nodes):
            if generated[i]:
                for base in {layouts[a].base for a in self._operands(node)}:
                    if self.levels[i] > self.levels[base.node]:
                        self.later.setdefault(base, set()).add(self.levels[i])

    def _operands(self, node: Node) -> list[Use]:
        return [a for a in node.args if not isinstance(self.fusion.type_of(a), ScalarType)]

    def kept(self) -> set[Use]:
        found = set()
        computed = self._computed_at_own_level()
        sources: list[frozenset[Use]] = []
        for i, node in enumerate(self.fusion.nodes):
            sources.append(self._sources(node, sources))
            use = Use(i)
            later = len(self.later.get(use, ()))
            if not later or not self.generated[i] or use in self.stored:
                continue
            read, size = sum(map(self._nbytes, sources[i])), self._nbytes(use)
            if (computed[i] + later - 1) * read >= (1 + later) * size:
                found.add(use)
                self.stored.add(use)
        return found

    def _sources(self, node: Node, known: list[frozenset[Use]]) -> frozenset[Use]:
        """The storages that a kernel reads to compute ``node``."""
        found: set[Use] = set()
        for arg in self._operands(node):
            base = self.layouts[arg].base
            stored = base in self.stored or not self.generated[base.node]
            found |= {base} if stored else known[arg.node]
        return frozenset(found)

    def _computed_at_own_level(self) -> list[bool]:
        """Whether a kernel of the value's own level computes it for something else."""
        found = [False] * len(self.fusion.nodes)
        for i in range(len(self.fusion.nodes) - 1, -1, -1):
            node = self.fusion.nodes[i]
            if not self.generated[i]:
                continue
            if not (found[i] or reduces(self.fusion, node) or Use(i) in self.stored):
                continue
            for arg in self._operands(node):
                found[arg.node] |= self.levels[arg.node] == self.levels[i]
        return found

    def _nbytes(self, use: Use) -> int:
        t = self.fusion.tensor(use)
        return self.measure(product(t.shape)) * t.dtype.itemsize
