"""Draws a program: inputs of many layouts and values, steps of all families, some results."""

import random
from collections.abc import Sequence

import torch
from codegen.random_programs import along, elementwise, moves
from codegen.random_programs.known import exactly
from codegen.random_programs.program import DTYPES, FAMILIES, Call, Draft, Program, Step

from thunder_mdfuse.ir.graph import Builder, Output
from thunder_mdfuse.ir.sizes import Size, symbol
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.ir.types import DType, ScalarType, TensorType

__all__ = ["along", "draw_program", "elementwise", "moves"]

# 0, 1, small primes, powers of two and their neighbours.
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 127, 128, 129, 256, 1000)
MOST_ELEMENTS = 6000
SPECIAL = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0)
MAIN = (DType.F32, DType.BF16, DType.F16, DType.F64)
WEIGHTS = {"unary": 4, "binary": 5, "number": 3, "reduction": 3, "back": 4, "bias": 2, "cast": 3}


def draw_program(seed: int, exact: bool = False) -> Program:
    """Program number ``seed``; ``exact``: of ops whose bits eager rounding fixes."""
    rng = random.Random(seed)
    symbolic = rng.random() < 0.3
    calls = 2 if symbolic else 1
    draft = Draft(Builder(None, "global"), [[] for _ in range(calls)])
    _draw_inputs(rng, draft, symbolic)
    count = len(draft.uses)
    names = sorted(EXACT if exact else FAMILIES)
    weights = [WEIGHTS.get(n, 1) for n in names]
    for _ in range(rng.randint(1, 9)):
        family = rng.choices(names, weights)[0]
        step = FAMILIES[family].draw(rng, draft)
        if step is not None and (not exact or _is_exact(step)):
            _add(draft, step)
    return _finish(seed, exact, rng, draft, count)


# Families of which some steps are exact; ``_is_exact`` says which.
EXACT = {
    "given number",
    *("binary", "number", "integer number", "cast", "where", "permute", "reshape", "slice"),
    *("squeeze", "unsqueeze", "expand", "copy", "flip", "pad", "cat", "bias", "unary", "select"),
}


EXACT_OPS = ("add", "sub", "mul", "div", *elementwise.COMPARISONS)


def _is_exact(step: Step) -> bool:
    if step.family in ("binary", "number", "given number"):
        # Eager CPU kernels disagree with themselves about numbers that a half type rounds.
        return 0.1 not in step.params and step.params[0] in EXACT_OPS
    if step.family == "unary":
        return step.params[0] in ("neg", "abs")
    return True


def _add(draft: Draft, step: Step) -> None:
    """Append ``step`` unless its result is too large for a test."""
    draft.add(step)
    if max(t.numel() for t in draft.eager(len(draft.uses) - 1)) > MOST_ELEMENTS:
        for call in draft.calls:
            call.pop()
        draft.uses.pop()
        draft.steps.pop()


def _draw_inputs(rng: random.Random, draft: Draft, symbolic: bool) -> None:
    ndim = rng.choice((0, 1, 2, 2, 2, 3, 3, 4))
    numbers = [[_size(rng, ndim) for _ in range(ndim)] for _ in draft.calls]
    shape: list[Size] = list(numbers[0])
    for d in range(ndim):
        if symbolic and rng.random() < 0.7:
            shape[d] = symbol(f"s{d}")
        else:
            for other in numbers:
                other[d] = numbers[0][d]
    dtype = rng.choice(MAIN)
    for _ in range(rng.randint(1, 3)):
        _add_input(rng, draft, dtype, shape, numbers)
    if ndim and rng.random() < 0.5:  # a bias or a weight
        first = rng.randrange(ndim)
        _add_input(rng, draft, dtype, shape[first:], [n[first:] for n in numbers])
    if rng.random() < 0.5:
        _add_input(rng, draft, rng.choice(list(DTYPES)), shape, numbers)
    if rng.random() < 0.3:  # numbers that only a call knows
        draft.numbers.append((draft.builder.input(ScalarType(DType.F64)), rng.choice((1.25, -3.0))))
        draft.numbers.append((draft.builder.input(ScalarType(DType.I64)), rng.choice((3, 5))))


def _size(rng: random.Random, ndim: int) -> int:
    most = {0: 1, 1: 5000, 2: 1000, 3: 33, 4: 8}[ndim]
    if rng.random() < 0.05:
        return 0
    return rng.choice([n for n in SIZES if 0 < n <= most])


def _add_input(
    rng: random.Random,
    draft: Draft,
    dtype: DType,
    shape: Sequence[Size],
    numbers: Sequence[Sequence[int]],
) -> None:
    draft.uses.append(draft.builder.input(TensorType(dtype, tuple(shape))))
    for call, sizes in zip(draft.calls, numbers, strict=True):
        call.append(exactly(_tensor(rng, DTYPES[dtype], list(sizes))))


def _tensor(rng: random.Random, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """Random values in a random layout: dense, permuted, cut out, expanded, stepped."""
    kind = rng.choice(("dense", "dense", "permuted", "cut", "expanded", "stepped"))
    ndim = len(shape)
    if kind == "permuted" and ndim > 1:
        dims = list(range(ndim))
        rng.shuffle(dims)
        inverse = [dims.index(d) for d in range(ndim)]
        return _values(rng, dtype, [shape[d] for d in dims]).permute(inverse)
    if kind == "cut" and ndim:
        return _values(rng, dtype, [n + 1 for n in shape])[(slice(1, None),) * ndim]
    if kind == "expanded" and ndim:
        d = rng.randrange(ndim)
        return _values(rng, dtype, [*shape[:d], 1, *shape[d + 1 :]]).expand(shape)
    if kind == "stepped" and ndim:
        return _values(rng, dtype, [*shape[:-1], 2 * shape[-1]])[..., ::2]
    return _values(rng, dtype, shape)


def _values(rng: random.Random, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * rng.choice(
        (1.0, 1.0, 8.0)
    )
    if dtype is torch.bool:
        return values > 0
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -20
        return torch.randint(low, 50, shape, generator=generator).to(dtype)
    if rng.random() < 0.15 and values.numel():
        for number in rng.sample(SPECIAL, 3):
            values.view(-1)[rng.randrange(values.numel())] = number
    return values.to(dtype)


def _finish(seed: int, exact: bool, rng: random.Random, draft: Draft, inputs: int) -> Program:
    last = len(draft.uses) - 1
    chosen = [i for i in range(inputs, last) if rng.random() < 0.25] + [last]
    fusion = draft.builder.finish(tuple(Output(draft.uses[i]) for i in chosen))
    calls = [
        Call(
            [k.eager for k in call[:inputs]],
            [v for _, v in draft.numbers],
            [call[i] for i in chosen],
        )
        for call in draft.calls
    ]
    listing = "\n".join(
        f"  {inputs + n}: {s.family}{list(s.args)} {s.params}" for n, s in enumerate(draft.steps)
    )
    given = "\n".join(
        f"  {i}: {t.dtype}{list(t.shape)} strides {t.stride()}"
        for i, t in enumerate(calls[0].inputs)
    )
    text = f"inputs\n{given}\nsteps\n{listing}\noutputs {chosen}\n{render(fusion)}"
    return Program(seed, exact, fusion, calls, text)
