"""What random programs are drawn with: placements, whole numbers, and a pool of values to read."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Use
from thunder_mdfuse.ir.types import (
    REPLICATE,
    DType,
    Mesh,
    Partial,
    Placement,
    Placements,
    Shard,
    StridedShard,
    TensorType,
)

SIZES = [1, 2, 3, 4, 5, 6, 8]


@dataclass
class Pool:
    """A program being built: its tensor values, each with its oracle."""

    draw: Callable
    builder: Builder
    inputs: list[tuple[torch.Tensor, Placements]] = field(default_factory=list)
    values: list[tuple[Use, torch.Tensor]] = field(default_factory=list)

    def pick(self, good: Callable[[torch.Tensor], bool] = lambda x: True):
        """A value that is ``good``, or None. Late ones are preferred, so that chains get long."""
        found = [v for v in self.values if good(v[1])]
        if len(found) > 2 and self.draw(st.booleans()):
            found = found[-2:]
        return self.draw(st.sampled_from(found)) if found else None

    def partner(self, x: torch.Tensor):
        """A float value of the shape of ``x``."""
        return self.pick(lambda y: y.shape == x.shape and y.dtype == x.dtype)

    def emit(self, name, args, attrs=at.NO_ATTRS, oracle=()):
        """Append an op whose results must be ``oracle``; sometimes pin its placements."""
        types = self.builder.op(name, args, attrs)
        placements = None
        if self.draw(st.integers(0, 3)) == 0:
            placements = tuple(self.placements(x, partial=False) for x in oracle)
            types = self.builder.op(name, args, attrs, placements)
        for use, x in zip(types, oracle, strict=True):
            self.values.append((use, x))
        return types

    def placements(self, x: torch.Tensor, partial: bool = True) -> Placements:
        return placements_for(
            self.draw, self.builder.mesh, x.ndim, partial and x.is_floating_point()
        )

    def fresh(self, shape) -> tuple[Use, torch.Tensor]:
        """A new input of ``shape``."""
        x = numbers(self.draw, shape)
        return self.input(x), x

    def leaves(self) -> list[tuple[Use, torch.Tensor]]:
        """The values that nothing reads, the latest first."""
        read = {a for node in self.builder.nodes for a in node.args}
        return [v for v in reversed(self.values) if v[0] not in read]

    def input(self, x: torch.Tensor) -> Use:
        places = self.placements(x)
        dtype = {torch.float64: DType.F64, torch.int64: DType.I64}[x.dtype]
        use = self.builder.input(TensorType(dtype, tuple(x.shape), places))
        self.inputs.append((x, places))
        self.values.append((use, x))
        return use


def placements_for(draw, mesh: Mesh, ndim: int, partial: bool) -> Placements:
    """One placement an axis; pending reductions of kinds that commute. Often one dim has all."""
    options: list[Placement] = [REPLICATE]
    dims = range(ndim)
    if ndim > 1 and draw(st.booleans()):
        dims = [draw(st.sampled_from(dims))]
    for d in dims:
        options += [Shard(d), Shard(d), StridedShard(d, 2), StridedShard(d, 3)]
    kinds = draw(st.sampled_from([["sum"], ["sum", "avg"], ["max"], ["min"], ["product"]]))
    if partial:
        options += [Partial(kind) for kind in kinds for _ in range(2)]
    return tuple(draw(st.sampled_from(options)) for _ in mesh.axes)


def numbers(draw, shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return torch.randint(-5, 6, tuple(shape), generator=generator).double()
