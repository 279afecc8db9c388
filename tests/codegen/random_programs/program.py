"""A random program while it is drawn: as IR, and as what each of its calls has to give."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from codegen.random_programs.known import Known

from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import DType

DTYPES = {
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.F64: torch.float64,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
    DType.F8E4M3: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
}
# What eager torch on a CPU can compute with; of the others it has views and casts only.
COMPUTED = set(DTYPES) - {DType.F8E4M3, DType.F8E5M2}


@dataclass(frozen=True)
class Step:
    """One op of a user's program: its family, operands by number, and what else it is told."""

    family: str
    args: tuple[int, ...]
    params: tuple[Any, ...] = ()


@dataclass
class Draft:
    """The tensors so far; ``calls``: what each is in each call. ``numbers`` are inputs too."""

    builder: Builder
    calls: list[list[Known]]
    uses: list[Use] = field(default_factory=list)
    numbers: list[tuple[Use, float | int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def pick(self, rng: random.Random, fits: Callable[[int], bool]) -> int | None:
        """The number of a random value that ``fits``; late ones are likelier, so chains grow."""
        found = [i for i in range(len(self.uses)) if fits(i)]
        if not found:
            return None
        return (
            max(rng.choice(found), rng.choice(found)) if rng.random() < 0.5 else rng.choice(found)
        )

    def dtype(self, i: int) -> DType:
        return self.builder.tensor(self.uses[i]).dtype

    def same_dtype(self, i: int, j: int) -> bool:
        return self.dtype(i) is self.dtype(j)

    def shape(self, i: int) -> tuple[Size, ...]:
        return self.builder.tensor(self.uses[i]).shape

    def ndim(self, i: int) -> int:
        return len(self.shape(i))

    def eager(self, i: int) -> list[torch.Tensor]:
        """Value ``i`` in every call."""
        return [call[i].eager for call in self.calls]

    def computes(self, i: int) -> bool:
        """Whether eager torch can compute with value ``i``."""
        return self.dtype(i) in COMPUTED

    def add(self, step: Step) -> None:
        """Append ``step`` to the program and to each call."""
        family = FAMILIES[step.family]
        results = [family.apply(*(call[i] for i in step.args), *step.params) for call in self.calls]
        use = family.build(self.builder, *(self.uses[i] for i in step.args), *step.params)
        for call, result in zip(self.calls, results, strict=True):
            call.append(result)
        self.uses.append(use)
        self.steps.append(step)


@dataclass(frozen=True)
class Family:
    """``draw`` gives a step or None; ``apply`` runs it on known values, ``build`` in a Builder."""

    draw: Callable[[random.Random, Draft], Step | None]
    apply: Callable[..., Known]
    build: Callable[..., Use]


FAMILIES: dict[str, Family] = {}


@dataclass(frozen=True)
class Call:
    """One call of a program: its inputs and, for each output, what it has to be."""

    inputs: list[torch.Tensor]
    numbers: list[float | int]
    outputs: list[Known]


@dataclass(frozen=True)
class Program:
    """``text`` is for a message; ``calls`` fit ``fusion`` in the order in which they are made.

    ``exact``: eager rounding gives it the bits of eager torch.
    """

    seed: int
    exact: bool
    fusion: Fusion
    calls: list[Call]
    text: str
