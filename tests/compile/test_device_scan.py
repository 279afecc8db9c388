"""Scans of csrc/device/scan.cuh against numpy, for every operation, type and group size."""

import numpy as np
import pytest
import torch
from kernels.emulated import C_TYPES, INCLUDE, launch

DTYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64}
OPS = {
    "Sum": np.add.accumulate,
    "Prod": np.multiply.accumulate,
    "Max": np.maximum.accumulate,
    "Min": np.minimum.accumulate,
}
# (group, threads, vector): one thread, within a warp, two warps, an odd number, a whole block.
SHAPES = ((1, 64, 4), (4, 64, 2), (32, 64, 1), (64, 128, 4), (96, 192, 1), (160, 160, 2))
CHUNKS = 3


def _kernel(kind: str, op: str, group: int, threads: int, vector: int) -> str:
    c = C_TYPES[kind]
    scratch = f"  MDF_SHARED({c}, scratch, {threads // 32});\n" if group > 32 else ""
    call = f"mdf::{op}, {group}" + (f", {threads}" if group > 32 else "")
    argument = ", scratch" if group > 32 else ""
    return (
        f'extern "C" __global__ void __launch_bounds__({threads}) {op}_{kind}_{group}(\n'
        f"    MDF_IN({c}) x, MDF_OUT({c}) y) {{\n{scratch}"
        f"  {c} carry = mdf::{op}::identity<{c}>();\n"
        f"  const int row = threadIdx.x / {group};\n"
        f"  for (int t = 0; t < {CHUNKS}; ++t) {{\n"
        f"    const int i = ((row * {CHUNKS} + t) * {group} + threadIdx.x % {group}) * {vector};\n"
        f"    const auto v = mdf::group_scan<{call}>(\n"
        f"        mdf::load<{vector}>(x, i), carry{argument});\n"
        f"    mdf::store<{vector}>(y, i, v);\n  }}\n}}\n"
    )


SOURCE = INCLUDE + "".join(
    _kernel(kind, op, *shape) for kind in DTYPES for op in OPS for shape in SHAPES
)


def _run(kind: str, op: str, shape: tuple[int, int, int], x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    launch(SOURCE, f"{op}_{kind}_{shape[0]}", inputs=[x], outputs=[y], block=shape[1])
    return y


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_are_scanned_in_order(kind: str, op: str, shape: tuple[int, int, int]) -> None:
    group, threads, vector = shape
    rows, length = threads // group, CHUNKS * group * vector
    generator = torch.Generator().manual_seed(group)
    x = torch.randint(-3, 4, (rows, length), generator=generator).to(DTYPES[kind])
    if op == "Prod":
        x = torch.where(x.abs() > 1, 1, torch.where(x == 0, -1, x)).to(DTYPES[kind])
    expected = OPS[op](x.numpy(), axis=1)
    np.testing.assert_array_equal(_run(kind, op, shape, x).numpy(), expected)


def test_what_is_not_a_number_stays_from_where_it_stands() -> None:
    x = torch.zeros(1, CHUNKS * 160 * 2)
    x[0, 500] = float("nan")
    found = _run("f32", "Max", (160, 160, 2), x)
    assert not found[0, :500].isnan().any() and found[0, 500:].isnan().all()
