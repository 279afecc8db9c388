"""Column reductions and tiles of csrc/device against torch.

A column reduction holds barriers of its own, which no mutation of a generated kernel's text
reaches, so the header is mutated here.
"""

from collections.abc import Iterator

import pytest
import torch
from kernels.emulated import C_TYPES, INCLUDE, launch

from thunder_mdfuse.compile.sources import csrc_root
from thunder_mdfuse.errors import EmulatorError

# (threads side by side, threads, elements a thread): columns within a warp, of one warp, of a row
# of warps, and of all threads; fewer and more columns than threads.
SHAPES = ((1, 64, 4), (4, 128, 2), (16, 64, 1), (32, 128, 8), (64, 128, 1), (128, 128, 2))


def reduction(across: int, threads: int, vector: int, op: str = "Sum", kind: str = "f32") -> str:
    """Each thread brings a vector; twice, so that a second use of the scratch is in the test."""
    c = C_TYPES[kind]
    rows = threads // max(across, 32)
    kernel = f"reduce_{across}_{threads}_{vector}"
    call = f"mdf::column_reduce<mdf::{op}, {across}, {threads}>"
    scratch = ", scratch" if rows > 1 else ""
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) {kernel}(\n'
        f"    MDF_IN({c}) x, MDF_OUT({c}) y) {{\n"
        f"  MDF_SHARED({c}, scratch, {rows * across * vector});\n"
        "  const mdf::i32 i = threadIdx.x;\n"
        f"  const auto mine = mdf::load<{vector}>(x, i * {vector});\n"
        f"  const auto first = {call}(mine{scratch});\n"
        f"  auto out = {call}(mine{scratch});\n"
        f"  for (int j = 0; j < {vector}; ++j) {{\n"
        f"    if (first.v[j] != out.v[j] && out.v[j] == out.v[j]) out.v[j] = {c}(77);\n  }}\n"
        f"  mdf::store<{vector}>(y, i * {vector}, out);\n}}\n"
    )


def check_reduction(source: str, shape: tuple[int, int, int]) -> None:
    across, threads, vector = shape
    # Small integers, so that sums are exact in any order.
    x = torch.arange(threads * vector).remainder(17).float()
    y = torch.empty_like(x)
    launch(source, f"reduce_{across}_{threads}_{vector}", inputs=[x], outputs=[y], block=threads)
    total = x.reshape(threads // across, across * vector).sum(0)
    assert torch.equal(y, total.repeat(threads // across))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_columns_are_reduced(shape: tuple[int, int, int]) -> None:
    check_reduction(INCLUDE + reduction(*shape), shape)


@pytest.mark.parametrize("op", ["Max", "Min", "Prod"])
def test_every_thread_gets_nan(op: str) -> None:
    x = torch.linspace(1, 2, 128)
    x[70] = float("nan")
    y = torch.empty_like(x)
    launch(
        INCLUDE + reduction(64, 128, 1, op), "reduce_64_128_1", inputs=[x], outputs=[y], block=128
    )
    assert y.isnan().nonzero().flatten().tolist() == [6, 70]


# (element, rows and columns of the tile, depth, grain, lanes, elements of a vector along a row)
TILES = (
    *(("bf16", 64, 64, 8, 4, 8, 8), ("bf16", 32, 64, 1, 1, 8, 8), ("bf16", 32, 64, 1, 1, 32, 1)),
    *(("i8", 64, 128, 8, 4, 16, 8), ("f32", 32, 64, 4, 4, 8, 8), ("f32", 32, 32, 1, 1, 8, 4)),
    *(("f64", 16, 32, 2, 2, 8, 2), ("f64", 32, 64, 1, 1, 8, 8), ("c128", 32, 16, 1, 1, 8, 1)),
)
BYTES = {"i8": 1, "bf16": 2, "f32": 4, "f64": 8, "c128": 16}
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def turning(
    kind: str, down: int, across: int, depth: int, grain: int, lanes: int, vector: int
) -> str:
    """Fills a tile down its rows and reads it along them, then the other way round."""
    c = C_TYPES[kind]
    side = max(1, min(4 // BYTES[kind], vector))
    pieces = f"u / {down // depth} * {side}"
    return (
        f'extern "C" __global__ void __launch_bounds__(64) turn(MDF_IN({c}) x, MDF_OUT({c}) y,\n'
        f"    MDF_OUT({c}) z) {{\n"
        f"  using T = mdf::Tile<{c}, {across}, {depth}, {grain}, {lanes}>;\n"
        f"  MDF_SHARED({c}, tile, {down * across});\n"
        f"  for (mdf::i32 u = threadIdx.x; u < {down * across // (depth * side)}; u += 64) {{\n"
        f"    const mdf::i32 b = u % {down // depth} * {depth}, a = {pieces};\n"
        f"    mdf::Vec<{c}, {depth}> in[{side}];\n"
        f"    for (int p = 0; p < {side}; ++p) {{\n"
        f"      in[p] = mdf::load<{depth}>(x, (a + p) * {down} + b);\n    }}\n"
        "    T::set_columns(tile, b, a, in);\n  }\n  mdf::barrier();\n"
        f"  for (mdf::i32 u = threadIdx.x; u < {down * across // vector}; u += 64) {{\n"
        f"    const mdf::i32 b = u / {across // vector}, a = u % {across // vector} * {vector};\n"
        f"    const auto out = T::row<{vector}>(tile, b, a);\n"
        f"    mdf::store<{vector}>(y, b * {across} + a, out);\n"
        "    T::set_row(tile, b, a, out);\n  }\n  mdf::barrier();\n"
        f"  for (mdf::i32 u = threadIdx.x; u < {down * across // (depth * side)}; u += 64) {{\n"
        f"    const mdf::i32 b = u % {down // depth} * {depth}, a = {pieces};\n"
        f"    mdf::Vec<{c}, {depth}> out[{side}];\n"
        "    T::columns(tile, b, a, out);\n"
        f"    for (int p = 0; p < {side}; ++p) {{\n"
        f"      mdf::store<{depth}>(z, (a + p) * {down} + b, out[p]);\n    }}\n  }}\n}}\n"
    )


def check_turning(source: str, tile: tuple[str, int, int, int, int, int, int]) -> None:
    kind, down, across = tile[:3]
    x = torch.arange(down * across).to(WORDS[BYTES[kind]])
    y, z = torch.empty_like(x), torch.empty_like(x)
    launch(source, "turn", inputs=[x], outputs=[y, z], block=64)
    assert torch.equal(y.reshape(down, across), x.reshape(across, down).t())
    assert torch.equal(z, x)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_turn_what_they_hold(tile: tuple[str, int, int, int, int, int, int]) -> None:
    check_turning(INCLUDE + turning(*tile), tile)


# --- Mutants of the header -----------------------------------------------------------------------


def _own(text: str) -> str:
    """The header ``text`` in a source of its own, beside the one that is included."""
    moved = text.replace("#pragma once", "").replace("column_reduce", "own_reduce")
    return INCLUDE + moved.replace("identities", "own_identities")


def _without(text: str, piece: str) -> Iterator[str]:
    """``text`` with each occurrence of ``piece`` gone in turn."""
    at = text.find(piece)
    while at >= 0:
        yield text[:at] + text[at + len(piece) :]
        at = text.find(piece, at + 1)


def _caught(source: str, shapes: tuple[tuple[int, int, int], ...]) -> bool:
    for shape in shapes:
        kernel = reduction(*shape).replace("column_reduce", "own_reduce")
        try:
            check_reduction(source + kernel, shape)
        except (AssertionError, EmulatorError):
            return True
    return False


def test_every_barrier_and_bound_of_a_column_reduction_is_needed() -> None:
    text = (csrc_root() / "device" / "columns.cuh").read_text()
    assert not _caught(_own(text), SHAPES)
    mutants = list(_without(text, "hw::barrier(MDF_PASS0);"))
    assert len(mutants) == 3
    for bound in ("if (thread % ROW < ACROSS)", "if (k + thread < COLUMNS)"):
        assert text.count(bound) == 1
        mutants.append(text.replace(bound, "if (true)"))
    for mutant in mutants:
        assert _caught(_own(mutant), SHAPES), mutant
