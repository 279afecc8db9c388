"""The cheap functions of loose.cuh against f64 torch, in the emulator."""

import pytest
import torch

from thunder_mdfuse.compile.emulate import build

SOURCE = """#include "mdfuse.cuh"
extern "C" __global__ void __launch_bounds__(256) loose(
    MDF_IN(float) x, MDF_OUT(float) erf, MDF_OUT(float) exp, MDF_OUT(float) div, mdf::i32 n) {
  const mdf::i32 i = blockIdx.x * 256 + threadIdx.x;
  if (MDF_IN_BOUNDS(i < n)) {
    const float v = mdf::load1(x, i);
    mdf::store1(erf, i, mdf::loose_erf(v));
    mdf::store1(exp, i, mdf::loose_exp(v));
    mdf::store1(div, i, mdf::loose_div(v, 3.0f));
  }
}
"""


@pytest.fixture(scope="module")
def points() -> torch.Tensor:
    near, far = torch.linspace(-1.0, 1.0, 4001), torch.linspace(-30.0, 30.0, 4001)
    tiny = torch.logspace(-30, -1, 200)
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 0.3, -0.3])
    return torch.cat([near, far, tiny, -tiny, special])


@pytest.fixture(scope="module")
def results(points: torch.Tensor) -> dict[str, torch.Tensor]:
    outs = {name: torch.empty_like(points) for name in ("erf", "exp", "div")}
    tensors = [points, *outs.values()]
    build(SOURCE, "loose").launch(
        grid=(-(-points.numel() // 256), 1, 1),
        block=(256, 1, 1),
        args=[*(t.data_ptr() for t in tensors), points.numel()],
        allocations=[(t.data_ptr(), t.nbytes, t is not points) for t in tensors],
    )
    return outs


def test_erf_is_far_inside_half_an_ulp_of_16_bit_floats(
    points: torch.Tensor, results: dict[str, torch.Tensor]
) -> None:
    expected = torch.erf(points.double())
    error = (results["erf"].double() - expected).abs()
    known = ~expected.isnan()
    assert error[known].max() < 3e-7
    large = known & (expected != 0)
    assert (error[large] / expected[large].abs()).max() < 3e-6
    assert results["erf"][~known].isnan().all()


def test_the_sign_of_zero_and_the_limits_are_kept(
    points: torch.Tensor, results: dict[str, torch.Tensor]
) -> None:
    zeros = points == 0
    assert torch.equal(results["erf"][zeros].signbit(), points[zeros].signbit())
    assert torch.equal(results["erf"][points.isinf()], torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize(
    ("name", "function"), [("exp", torch.exp), ("div", lambda x: x / 3.0)], ids=["exp", "div"]
)
def test_exp_and_div_are_exact_to_a_few_ulp(name, function, points, results) -> None:
    expected = function(points.double()).float()
    torch.testing.assert_close(results[name], expected, rtol=5e-7, atol=1e-38, equal_nan=True)
