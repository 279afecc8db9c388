"""Random small programs, each as an eager torch function and as IR: what property tests draw.

A program is a list of input recipes and a list of steps. A step belongs to a family, which knows
how to draw it for the tensors so far, how a user writes it in eager torch, and which nodes a
frontend would make of it. The families never look at how the package computes anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.sizes import Size, symbol
from thunder_mdfuse.ir.types import DType, TensorType

DTYPES = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.int64: DType.I64,
    torch.bool: DType.BOOL,
}


@dataclass(frozen=True)
class Recipe:
    """One input: its elements lie ``strides`` apart from ``offset`` on in a storage of its own."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def make(self, device: str = "cpu") -> torch.Tensor:
        reach = sum(max(n - 1, 0) * s for n, s in zip(self.shape, self.strides, strict=True))
        count = self.offset + reach + 1
        values = torch.arange(count, device=device) % 7 - 3
        if self.dtype is torch.float16 or self.dtype is torch.float32:
            values = values * 0.75
        return values.to(self.dtype).as_strided(self.shape, self.strides, self.offset)


@dataclass(frozen=True)
class Step:
    family: str
    args: tuple[int, ...]
    params: tuple[Any, ...] = ()


@dataclass
class Program:
    recipes: list[Recipe]
    steps: list[Step]
    # What the steps make of the recipes: for each step its results, all kept alive.
    values: list[list[torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class Family:
    """``draw`` gives a step or None; ``eager`` and ``build`` run it on tensors and in a Builder."""

    draw: Callable[[Any, list[torch.Tensor]], Step | None]
    eager: Callable[..., Any]
    build: Callable[..., Any]


FAMILIES: dict[str, Family] = {}


def strides_of(draw: Any, shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Strides in a drawn order of dims, with gaps, zeros, and odd strides of size-1 dims."""
    plain = draw(st.integers(0, 3))
    order = list(reversed(range(len(shape))))
    if plain:
        order = draw(st.permutations(order))
    strides, step = [0] * len(shape), 1
    for d in order:
        gap = draw(st.integers(1, 2)) if plain > 1 else 1
        strides[d] = step * gap
        step *= max(shape[d], 1) * gap
        if plain > 2:
            if draw(st.integers(0, 4)) == 0:
                strides[d] = 0
            elif shape[d] == 1 and draw(st.booleans()):
                strides[d] = draw(st.integers(0, 6))
    return tuple(strides), draw(st.integers(0, 3)) if plain > 1 else 0


def recipe(
    draw: Any, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None
) -> Recipe:
    if shape is None:
        shape = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 5)), min_size=0, max_size=5))
    if dtype is None:
        dtype = draw(st.sampled_from((torch.float32, torch.float32, torch.float16, torch.int64)))
    strides, offset = strides_of(draw, shape)
    return Recipe(tuple(shape), strides, offset, dtype)


@st.composite
def programs(draw: Any, families: Sequence[str], most: int = 4, device: str = "cpu") -> Program:
    """Programs of 1 to ``most`` steps of ``families``; a step that torch refuses is left out."""
    first = recipe(draw)
    recipes = [first]
    for _ in range(draw(st.integers(0, 2))):
        recipes.append(recipe(draw, partner_shape(draw, first.shape)))
    program = Program(recipes, [])
    tensors = [r.make(device) for r in recipes]
    for _ in range(draw(st.integers(2, 2 * most))):
        if len(program.steps) == most:
            break
        name = draw(st.sampled_from(families))
        step = FAMILIES[name].draw(draw, tensors)
        if step is None:
            continue
        try:
            results = run_step(step, tensors)
        except (RuntimeError, IndexError, NotImplementedError):
            continue
        if any(r.numel() > 4000 or r.ndim > 6 for r in results):
            continue
        program.steps.append(step)
        program.values.append(results)
        tensors += results
    return program


def partner_shape(draw: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that broadcasts with ``shape``: some dims 1, some leading ones left out or added."""
    sizes = [n if draw(st.integers(0, 3)) else 1 for n in shape]
    cut = draw(st.integers(0, len(sizes)))
    extra = [draw(st.sampled_from((1, 2)))] if draw(st.integers(0, 6)) == 0 else []
    return tuple(extra + sizes) if extra else tuple(sizes[cut if draw(st.booleans()) else 0 :])


def run_step(step: Step, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    out = FAMILIES[step.family].eager(*(tensors[i] for i in step.args), *step.params)
    return list(out) if isinstance(out, tuple) else [out]


def run_eager(program: Program, device: str = "cpu") -> list[torch.Tensor]:
    """Inputs and all results of the steps, in order."""
    tensors = [r.make(device) for r in program.recipes]
    for step in program.steps:
        tensors += run_step(step, tensors)
    return tensors


def build(
    program: Program, rename: Callable[[int], Size] = lambda n: n
) -> tuple[Builder, list[Use]]:
    """The program as nodes; ``rename`` may put a symbol for an input's size."""
    builder = Builder(level="local")
    uses = [
        builder.input(TensorType(DTYPES[r.dtype], tuple(rename(n) for n in r.shape)))
        for r in program.recipes
    ]
    for step in program.steps:
        out = FAMILIES[step.family].build(builder, *(uses[i] for i in step.args), *step.params)
        uses += list(out) if isinstance(out, tuple) and not isinstance(out, Use) else [out]
    return builder, uses


def finish(builder: Builder, uses: Sequence[Use]) -> tuple[Fusion, list[Use]]:
    """A fusion of which every one of ``uses`` is an output, and where each of them is in it."""
    fusion = builder.finish(tuple(uses))
    return fusion, [o.value for o in fusion.outputs]


def sizes_of(program: Program) -> dict[str, int]:
    return {f"s{n}": n for r in program.recipes for n in r.shape}


def named(n: int) -> Size:
    """The symbol for the size ``n``; 1 stays 1, since only a literal 1 broadcasts."""
    return n if n == 1 else symbol(f"s{n}")


def broadcast(b: Builder, use: Use, shape: tuple[Size, ...], explicit: bool = False) -> Use:
    t = b.tensor(use)
    if t.shape == shape:
        return use
    dims = tuple(range(len(shape) - t.ndim, len(shape)))
    return b.op("broadcast_in_dim", (use,), at.BroadcastAttrs(shape, dims, explicit))[0]


def cast(b: Builder, use: Use, dtype: DType) -> Use:
    return use if b.type_of(use).dtype is dtype else b.op("cast", (use,), at.CastAttrs(dtype))[0]


def common_shape(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    """Torch's broadcasting on shapes that are known to fit."""
    n = max(map(len, shapes))
    padded = [(1,) * (n - len(s)) + s for s in shapes]
    return tuple(next((x for x in dims if x != 1), 1) for dims in zip(*padded, strict=True))


def promoted(b: Builder, name: str, uses: Sequence[Use], dtype: DType | None) -> Use:
    """What a frontend makes of ``name`` on tensors of several shapes and dtypes."""
    shape = common_shape([b.tensor(u).shape for u in uses])
    spread = [broadcast(b, u, shape) for u in uses]
    return b.op(name, tuple(cast(b, u, dtype) if dtype else u for u in spread))[0]


def result_dtype(*operands: Any) -> DType:
    dtype = torch.result_type(*operands) if len(operands) == 2 else operands[0].dtype
    return DTYPES[dtype]


def one_of(
    draw: Any, tensors: list[torch.Tensor], fits: Callable[[torch.Tensor], bool]
) -> int | None:
    found = [i for i, t in enumerate(tensors) if fits(t)]
    return draw(st.sampled_from(found)) if found else None


def is_float(t: torch.Tensor) -> bool:
    return t.is_floating_point()


def not_bool(t: torch.Tensor) -> bool:
    return t.dtype is not torch.bool
