"""Rows too long for one block: shared by a cluster, read from global memory once, and right.

The oracle is eager torch in f64. The device has little shared memory, so that rows of some tens of
thousands of elements climb every rung.
"""

from dataclasses import replace

import pytest
import torch
from codegen.goldens import kernel, plan, run
from schedule.programs import LAYER_NORM, SOFTMAX, WEIGHTED, Case, back, reduced, tensor
from schedule.test_inner_outer import drawn, local

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import Launch
from thunder_mdfuse.schedule.target import A100, B200, H200, Target

F32, BF16, F64 = DType.F32, DType.BF16, DType.F64
LITTLE = replace(H200, name="little", shared_per_block=24 * 1024)


def launch(fusion: Fusion, target: Target = LITTLE) -> Launch:
    (found,) = plan(fusion, target).kernels
    return found.launch


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    tolerance = {torch.bfloat16: 2.0**-7, torch.float32: 2e-5, torch.float64: 1e-13}[found.dtype]
    torch.testing.assert_close(
        found.double(), right, rtol=tolerance, atol=tolerance * float(right.abs().mean())
    )


@pytest.mark.parametrize(
    ("case", "columns", "dtype", "cluster", "hold"),
    [
        (SOFTMAX, 33000, F32, 4, "registers"),
        (SOFTMAX, 65536, F32, 4, "registers"),
        (SOFTMAX, 65540, F32, 8, "registers"),
        (LAYER_NORM, 20000, F64, 4, "registers"),
        (LAYER_NORM, 66000, BF16, 4, "registers"),
        (WEIGHTED, 40000, F32, 8, "registers"),
    ],
)
def test_a_cluster_holds_a_row(
    case: Case, columns: int, dtype: DType, cluster: int, hold: str
) -> None:
    fusion = local(case, 2, columns, dtype=dtype)
    found = launch(fusion)
    assert (found.cluster, found.hold) == (cluster, hold)
    inputs = drawn(fusion)
    expected = case.eager(*(t.double() for t in inputs))
    assert isinstance(expected, torch.Tensor)
    (value,) = run(fusion, inputs, target=LITTLE)
    close(value, expected)


def test_a_row_is_read_once() -> None:
    """What a later phase uses is held, so each load is made in one place of the text."""
    source = kernel(local(SOFTMAX, 4096, 131072), H200).source
    assert launch(local(SOFTMAX, 4096, 131072), H200).cluster == 8
    assert source.count("mdf::load<4>(b0") == 1
    entropy = launch(local(SOFTMAX, 8, 128256, dtype=BF16), H200)
    assert (entropy.cluster, entropy.items, entropy.hold) == (4, 16, "registers")


def test_parts_in_shared_memory() -> None:
    """Two f64 matrices: a thread's part is more than registers take."""
    middle = replace(H200, name="middle", shared_per_block=150 * 1024)
    fusion = local(WEIGHTED, 2, 70000, dtype=F64)
    found = launch(fusion, middle)
    assert (found.cluster, found.hold) == (8, "shared")
    inputs = drawn(fusion)
    right = WEIGHTED.eager(*inputs)
    assert isinstance(right, torch.Tensor)
    (value,) = run(fusion, inputs, target=middle)
    close(value, right)


def test_without_clusters_a_row_is_read_again() -> None:
    old = replace(LITTLE, name="old", max_cluster=1)
    fusion = local(SOFTMAX, 2, 33000)
    found = launch(fusion, old)
    assert (found.cluster, found.hold) == (1, "none")
    (given,) = drawn(fusion)
    (value,) = run(fusion, [given], target=old)
    close(value, given.double().softmax(-1))
    assert launch(local(SOFTMAX, 2, 131072), A100).cluster == 1


def test_what_nothing_fits_is_read_again() -> None:
    fusion = local(SOFTMAX, 1, 300000)
    found = launch(fusion)
    assert (found.cluster, found.hold) == (1, "none")


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf"), -0.0])
def test_special_values_in_one_part(special: float) -> None:
    """In the last block's part: the others have to hear of it."""
    fusion = local(SOFTMAX, 3, 33000)
    (x,) = drawn(fusion)
    x[0, 32990], x[1, :] = special, special
    (found,) = run(fusion, [x], target=LITTLE)
    right = x.softmax(-1)
    assert torch.equal(found.isnan(), right.isnan())
    torch.testing.assert_close(found, right, equal_nan=True)


def test_the_place_of_the_largest_and_a_value_for_each_row() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(F32, 3, 33000))
    most = reduced(b, "amax", x)
    (place,) = b.op("argmax", (x,), at.DimAttrs(1))
    total = reduced(b, "sum", b.op("exp2", b.op("sub", (x, back(b, most, x))))[0])
    fusion: Fusion = b.finish((most, place, total))
    assert launch(fusion).cluster > 1
    (given,) = drawn(fusion)
    given[1, 5] = given[1, 32000] = 40.0
    found = run(fusion, [given], target=LITTLE)
    assert torch.equal(found[0], given.amax(1)) and torch.equal(found[1], given.argmax(1))
    torch.testing.assert_close(found[2], (given - given.amax(1, keepdim=True)).exp2().sum(1))


def test_no_rows() -> None:
    fusion = local(SOFTMAX, 0, 33000)
    (found,) = run(fusion, [torch.empty(0, 33000)], target=LITTLE)
    assert found.shape == (0, 33000)


@pytest.mark.parametrize("target", [H200, B200], ids=lambda t: t.arch)
@pytest.mark.parametrize(
    ("case", "columns", "dtype"),
    [(SOFTMAX, 131072, F32), (SOFTMAX, 128256, BF16), (LAYER_NORM, 262144, BF16)],
)
def test_nothing_spills(case: Case, columns: int, dtype: DType, target: Target) -> None:
    (made,) = plan(local(case, 4096, columns, dtype=dtype), target).kernels
    assert made.launch.cluster > 1
    text = write_kernel(made)
    usage = resource_usage(compile_cubin(text.source, text.entry, target.arch, device_headers()))
    assert (usage.spill_store_bytes, usage.local_bytes) == (0, 0)
