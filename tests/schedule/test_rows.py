"""Rows that begin anywhere in memory are read and written in whole vectors all the same.

The oracle is eager torch in f64. The emulator refuses a misaligned vector and any access outside of
a tensor's memory.
"""

from dataclasses import replace

import pytest
import torch
from codegen.goldens import kernel, plan, run
from schedule.programs import ADD_RMS_NORM, LAYER_NORM, SOFTMAX, Case, reduced, tensor
from schedule.test_inner_outer import drawn, local
from schedule.test_online import LITTLE as FEW
from schedule.test_online import logsumexp

from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.graph import Builder, Fusion
from thunder_mdfuse.ir.sizes import symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.plan import KernelPlan, Load
from thunder_mdfuse.schedule.target import A100, H200, Target

F32, F64, BF16, I8 = DType.F32, DType.F64, DType.BF16, DType.I8
LITTLE = replace(H200, name="little", shared_per_block=24 * 1024)


def only(fusion: Fusion, target: Target = H200) -> KernelPlan:
    (found,) = plan(fusion, target).kernels
    return found


def accesses(found: KernelPlan) -> list[str]:
    """Those of loads, then of stores."""
    loads = [i.detail.access for i in found.body if isinstance(i.detail, Load)]
    return [*loads, *(s.access for s in found.stores)]


def check(case: Case, fusion: Fusion, target: Target = H200) -> None:
    inputs = drawn(fusion)
    right = case.eager(*(t.double() for t in inputs))
    expected = right if isinstance(right, tuple) else (right,)
    for value, exact in zip(run(fusion, inputs, target=target), expected, strict=True):
        close = {torch.bfloat16: 2.0**-7, torch.float32: 2e-5, torch.float64: 1e-12}[value.dtype]
        torch.testing.assert_close(value.double(), exact, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("dtype", "columns"), [(F32, 1003), (F64, 257), (BF16, 257), (BF16, 1003)], ids=str
)
@pytest.mark.parametrize("case", [SOFTMAX, ADD_RMS_NORM, LAYER_NORM], ids=lambda c: c.name)
def test_odd_rows(case: Case, dtype: DType, columns: int) -> None:
    fusion = local(case, 19, columns, dtype=dtype)
    found = only(fusion)
    assert found.launch.vector == 16 // dtype.itemsize
    assert found.launch.shift is not None
    assert "lane" not in accesses(found)
    check(case, fusion)


def test_a_row_in_shared_memory_and_in_a_cluster() -> None:
    for columns, hold, cluster in ((3001, "registers", 1), (33001, "registers", 4)):
        fusion = local(SOFTMAX, 3, columns)
        launch = only(fusion, LITTLE).launch
        assert (launch.hold, launch.cluster, launch.shift is None) == (hold, cluster, False)
        check(SOFTMAX, fusion, LITTLE)
    alone = replace(A100, name="alone", shared_per_block=200 * 1024)
    fusion = local(ADD_RMS_NORM, 2, 18_001, dtype=F32)
    assert only(fusion, alone).launch.hold == "shared"
    check(ADD_RMS_NORM, fusion, alone)


def test_parts_of_few_long_rows() -> None:
    b = Builder(None, "local")
    x = b.input(tensor(F32, 3, 40_003))
    fusion = b.finish((logsumexp(b, x), reduced(b, "sum", x)))
    found = only(fusion, FEW)
    assert found.launch.parts != 1 and found.launch.shift is not None
    (given,) = drawn(fusion)
    lse, total = run(fusion, [given], target=FEW)
    torch.testing.assert_close(lse, given.logsumexp(1))
    torch.testing.assert_close(total, given.sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("vectors", [9, 10, 11])
def test_a_row_of_vectors_that_are_no_whole_chunks(vectors: int) -> None:
    """Four vectors are fetched at once, and then those that are left."""
    b = Builder(None, "local")
    x = b.input(tensor(F64, vectors * 256))
    fusion = b.finish((reduced(b, "sum", x),))
    found = only(fusion)
    assert (found.launch.items, found.launch.exact) == (vectors, True)
    (given,) = drawn(fusion)
    torch.testing.assert_close(run(fusion, [given])[0], given.sum())


@pytest.mark.parametrize(
    ("dtype", "offset"),
    [(torch.bfloat16, n) for n in (1, 2, 7, 8)] + [(torch.float32, 3), (torch.float64, 1)],
    ids=str,
)
def test_a_misaligned_base(
    dtype: torch.dtype, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 512 elements of a tensor that begins between two pieces of memory."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    kind = {torch.bfloat16: BF16, torch.float32: F32, torch.float64: F64}[dtype]
    executable = Executable(SOFTMAX.fusion(symbol("r"), symbol("n"), dtype=kind), "misaligned")
    x = torch.randn(5 * 512 + offset, dtype=dtype)[offset:].view(5, 512)
    (found,) = executable.run([x])
    assert isinstance(found, torch.Tensor) and executable.last is not None
    (used,) = executable.last.plan.kernels
    aligned = x.data_ptr() % 16 == 0
    assert accesses(used) == ["vector" if aligned else "across", "vector"]
    torch.testing.assert_close(found, x.softmax(-1))


def test_one_text_serves_all_odd_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    executable = Executable(SOFTMAX.fusion(symbol("r"), symbol("n"), dtype=BF16), "odd")
    entries = set()
    for rows, columns in ((3, 1003), (5, 1009), (2, 1005)):
        x = torch.randn(rows, columns).bfloat16()
        (found,) = executable.run([x])
        assert isinstance(found, torch.Tensor) and executable.last is not None
        entries |= {t.entry for t in executable.last.texts}
        torch.testing.assert_close(found, x.softmax(-1), rtol=2.0**-7, atol=2.0**-7)
    assert len(entries) == 1


def test_bytes() -> None:
    """8 to a vector, and sums that wrap."""
    b = Builder(None, "local")
    x = b.input(tensor(I8, 7, 1001))
    fusion = b.finish((reduced(b, "amax", x), reduced(b, "sum", x)))
    assert only(fusion).launch.vector == 8
    given = torch.randint(-128, 128, (7, 1001), dtype=torch.int8)
    most, total = run(fusion, [given])
    assert torch.equal(most, given.amax(1)) and torch.equal(total, given.sum(1).to(torch.int8))


@pytest.mark.parametrize("case", [SOFTMAX, ADD_RMS_NORM, LAYER_NORM], ids=lambda c: c.name)
def test_nothing_spills(case: Case) -> None:
    text = kernel(local(case, 16383, 3001, dtype=BF16), H200)
    usage = resource_usage(compile_cubin(text.source, text.entry, H200.arch, device_headers()))
    assert (usage.spill_store_bytes, usage.local_bytes) == (0, 0)
