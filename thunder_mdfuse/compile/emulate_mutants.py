"""Mutation of kernels: each barrier, fence, bound and shuffle mask taken away in turn.

In: the text of a kernel. Out: its mutants, each with one fault that a kernel writer could make. A
test shows that the emulator catches them, or that the result is wrong: what survives is either not
needed or not checked.
"""

import re
from collections.abc import Iterator

_BARRIER = re.compile(r"\bmdf::(barrier|warp_barrier|cluster_barrier|fence|fence_sys)\s*\(")
_BOUND = re.compile(r"\bMDF_IN_BOUNDS\s*\(")
_MASKED = re.compile(r"\bmdf::(shfl_xor|shfl_down|shfl_up|shfl_idx|ballot|warp_barrier)\s*\(")
# The position of the mask among the arguments, for calls that leave it out.
_MASK_POSITION = {"warp_barrier": 0, "ballot": 1}
_HALF_MASK = "0x0000ffffu"


def mutants(source: str) -> list[tuple[str, str]]:
    """Every mutant of ``source`` as (name, text); the name says what was done and on which line."""
    return [*_without_barriers(source), *_without_bounds(source), *_with_half_masks(source)]


def _line(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def _closing(source: str, opening: int) -> int:
    """The position of the parenthesis that closes the one at ``opening``."""
    depth = 0
    for k in range(opening, len(source)):
        depth += {"(": 1, ")": -1}.get(source[k], 0)
        if depth == 0:
            return k
    raise ValueError(f"line {_line(source, opening)}: a parenthesis is not closed")


def _arguments(text: str) -> list[str]:
    """The arguments of a call, cut at commas outside parentheses, brackets and braces."""
    parts, depth = [""], 0
    for character in text:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts if text.strip() else []


def _without_barriers(source: str) -> Iterator[tuple[str, str]]:
    for found in _BARRIER.finditer(source):
        end = _closing(source, found.end() - 1) + 1
        name = f"no {found.group(1)} on line {_line(source, found.start())}"
        yield name, source[: found.start()] + "(void)0" + source[end:]


def _without_bounds(source: str) -> Iterator[tuple[str, str]]:
    for found in _BOUND.finditer(source):
        end = _closing(source, found.end() - 1) + 1
        name = f"no bound on line {_line(source, found.start())}"
        yield name, source[: found.start()] + "(true)" + source[end:]


def _with_half_masks(source: str) -> Iterator[tuple[str, str]]:
    for found in _MASKED.finditer(source):
        call = found.group(1)
        end = _closing(source, found.end() - 1)
        arguments = _arguments(source[found.end() : end])
        position = _MASK_POSITION.get(call, 2)
        if position > len(arguments):
            continue
        arguments[position : position + 1] = [f" {_HALF_MASK}" if position else _HALF_MASK]
        name = f"half the mask of {call} on line {_line(source, found.start())}"
        yield name, source[: found.end()] + ",".join(arguments) + source[end:]
