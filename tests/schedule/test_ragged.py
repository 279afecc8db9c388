"""Flat kernels over any number of elements move 16 bytes at a time; what is left over is right."""

from dataclasses import replace

import pytest
import torch
from codegen.goldens import kernel, run
from schedule.programs import SWIGLU
from schedule.test_inner_outer import drawn, local

from thunder_mdfuse.executable import Executable
from thunder_mdfuse.ir.sizes import symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.schedule.target import H200, Target

# Several vectors a thread from a few hundred elements on.
TINY = replace(H200, name="tiny", sm_count=1, max_threads_per_sm=8)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32, DType.F64], ids=str)
@pytest.mark.parametrize("target", [H200, TINY], ids=lambda t: t.name)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 31, 257, 2047, 2049, 4099, 8191, 16411])
def test_any_number_of_elements(count: int, target: Target, dtype: DType) -> None:
    fusion = local(SWIGLU, 1, count, dtype=dtype)
    launch = kernel(fusion, target).plan.launch
    widest = {DType.BF16: 8, DType.F32: 4, DType.F64: 2}[dtype]
    assert launch.vector == (widest if count > 1 else 1)
    assert launch.ragged == (count % launch.vector != 0)
    inputs = drawn(fusion)
    (found,) = run(fusion, inputs, target=target)
    right = SWIGLU.eager(*(t.double() for t in inputs))
    assert isinstance(right, torch.Tensor)
    tolerance = {DType.BF16: 2.0**-7, DType.F32: 1e-5, DType.F64: 1e-13}[dtype]
    torch.testing.assert_close(found.double(), right, rtol=tolerance, atol=tolerance)


def test_a_prime_number_of_rows_of_a_thousand() -> None:
    launch = kernel(local(SWIGLU, 65521, 1001, dtype=DType.BF16)).plan.launch
    assert (launch.vector, launch.ragged, launch.items) == (8, True, 1)


def test_a_misaligned_input_leaves_the_others_their_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a 2-byte offset, with a prime number of elements."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    executable = Executable(SWIGLU.fusion(1, 2011, dtype=DType.BF16), "misaligned")
    gate, up = torch.randn(1, 2012).bfloat16(), torch.randn(1, 2011).bfloat16()
    (found,) = executable.run([gate[:, 1:], up])
    assert isinstance(found, torch.Tensor) and executable.last is not None
    (plan,) = executable.last.plan.kernels
    loads = [i.detail.access for i in plan.body if i.op == "load"]  # type: ignore[union-attr]
    assert sorted(loads) == ["across", "vector"] and plan.stores[0].access == "vector"
    right = SWIGLU.eager(gate[:, 1:].double(), up.double())
    assert isinstance(right, torch.Tensor)
    torch.testing.assert_close(found.double(), right, rtol=2.0**-7, atol=2.0**-7)


def test_one_text_serves_all_ragged_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    executable = Executable(SWIGLU.fusion(symbol("r"), symbol("n"), dtype=DType.F32), "sizes")
    seen = set()
    for rows, n in ((3, 7), (5, 41), (9, 9), (4, 7), (2, 8)):
        gate, up = torch.randn(rows, n), torch.randn(rows, n)
        (found,) = executable.run([gate, up])
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, SWIGLU.eager(gate, up))
        seen.add(*executable.kernel_sources())
    assert len(seen) <= 2
