"""Runs kernels in the emulator on numpy arrays and torch tensors, for the tests one folder up."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from thunder_mdfuse.compile.emulate import Allocation, Report, build, poison

KERNELS = Path(__file__).parent
Array = np.ndarray | torch.Tensor

INCLUDE = '#include "mdfuse.cuh"\n'
C_TYPES = {
    "f32": "float",
    "f64": "double",
    "bool": "bool",
    **{
        name: f"mdf::{name}"
        for name in (
            *("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
            *("bf16", "f16", "f8e4m3", "f8e5m2", "c64", "c128"),
        )
    },
}


def address(array: Array) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


def allocation(array: Array, writable: bool, name: str, fresh: bool = False) -> Allocation:
    return Allocation(address(array), array.nbytes, writable, name, fresh)


def launch(
    source: str,
    entry: str,
    *,
    inputs: Sequence[Array] = (),
    outputs: Sequence[Array] = (),
    updated: Sequence[Array] = (),
    scalars: Sequence[int | float] = (),
    grid: int | tuple[int, int, int] = 1,
    block: int | tuple[int, int, int] = 32,
    cluster: int = 1,
    shared_bytes: int = 0,
    orders: int | None = None,
    exact: bool = True,
    step_limit: int = 200_000_000,
    timeout: float = 20.0,
) -> Report:
    """Poisons ``outputs``, runs ``entry(*inputs, *outputs, *updated, *scalars)`` in all orders."""
    for array in outputs:
        poison(address(array), array.nbytes)
    allocations = [allocation(a, False, f"input {k}") for k, a in enumerate(inputs)]
    allocations += [allocation(a, True, f"output {k}", True) for k, a in enumerate(outputs)]
    allocations += [allocation(a, True, f"updated {k}") for k, a in enumerate(updated)]
    pointers = [address(a) for a in (*inputs, *outputs, *updated)]
    return build(source, entry).launch_checked(
        grid=(grid, 1, 1) if isinstance(grid, int) else grid,
        block=(block, 1, 1) if isinstance(block, int) else block,
        args=[*pointers, *scalars],
        allocations=allocations,
        cluster=cluster,
        shared_bytes=shared_bytes,
        orders=orders,
        exact=exact,
        step_limit=step_limit,
        timeout=timeout,
    )


def table_kernel(name: str, operands: int, expressions: Sequence[str], kind: str, out: str) -> str:
    """A kernel that applies expression number ``op`` to elements x, y, z of type ``kind``."""
    c, result = C_TYPES[kind], C_TYPES[out]
    pointers = "".join(f"MDF_IN({c}) in{k}, " for k in range(operands))
    loads = "".join(
        f"    const {c} {v} = mdf::load1(in{k}, i);\n" for k, v in enumerate("xyz"[:operands])
    )
    cases = "".join(
        f"      case {k}: r = mdf::cast<{result}>({text}); break;\n"
        for k, text in enumerate(expressions)
    )
    return (
        f'extern "C" __global__ void {name}(\n'
        f"    {pointers}MDF_OUT({result}) out, mdf::i64 n, mdf::i32 op) {{\n"
        "  for (mdf::i64 i = blockIdx.x * blockDim.x + threadIdx.x; i < n;\n"
        "       i += gridDim.x * blockDim.x) {\n"
        f"{loads}    {result} r = {result}();\n    switch (op) {{\n{cases}    }}\n"
        "    mdf::store1(out, i, r);\n  }\n}\n"
    )


def apply(source: str, name: str, op: int, inputs: Sequence[Array], out: Array) -> None:
    """Runs a ``table_kernel`` in one order; elements do not see each other."""
    scalars = [len(out), op]
    launch(source, name, inputs=inputs, outputs=[out], scalars=scalars, orders=1, grid=4)


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of ``found``'s type; NaN and infinity have to agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        step = np.spacing(np.minimum(np.abs(rounded), np.finfo(found.dtype).max)).astype(np.float64)
        distance = np.abs(found.astype(exact.dtype) - exact).astype(np.float64) / step
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    finite = np.isfinite(found) & np.isfinite(rounded)
    return np.where(same, 0.0, np.where(finite, distance, np.inf))
