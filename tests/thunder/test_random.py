"""Random numbers inside of regions: distribution, seeds, and one mask for forward and backward."""

import pytest
import torch
import torch.nn.functional as F
from against_eager import jit, regions


def test_dropout_has_one_mask_for_both_directions() -> None:
    jitted = jit(lambda x: F.dropout(x, 0.25) * 3)
    x = torch.ones(64, 64, requires_grad=True)
    y = jitted(x)
    y.sum().backward()
    assert len(regions(jitted)) == 2
    assert set(y.unique().tolist()) == {0.0, 4.0}
    # 4096 draws: five standard deviations are 0.034.
    assert abs((y == 0).float().mean().item() - 0.25) < 0.034
    assert torch.equal(x.grad, y.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.003])
def test_the_chance_is_not_rounded_to_the_dtype(dtype: torch.dtype, p: float) -> None:
    x = torch.ones(600, 600, dtype=dtype)
    torch.manual_seed(2)
    dropped = (jit(lambda x: F.dropout(x, p))(x) == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / x.numel()) ** 0.5


def test_draws_follow_the_generator() -> None:
    jitted = jit(lambda x: F.dropout(x, 0.5))
    x = torch.ones(64, 64)
    torch.manual_seed(0)
    first, second = jitted(x), jitted(x)
    torch.manual_seed(0)
    assert torch.equal(jitted(x), first) and not torch.equal(first, second)


def test_two_draws_in_a_region_differ() -> None:
    jitted = jit(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5)))
    a, b = jitted(torch.ones(64, 64))
    assert len(regions(jitted)) == 1 and not torch.equal(a, b)


def test_uniform_numbers_lie_between_their_bounds() -> None:
    jitted = jit(lambda x: torch.rand_like(x) * 2 + x)
    x = torch.zeros(100, 100)
    y = jitted(x)
    assert regions(jitted)
    assert y.min() >= 0 and y.max() < 2
    assert abs(y.mean().item() - 1) < 0.03  # five standard deviations


def test_normal_numbers_are_drawn_in_a_region() -> None:
    jitted = jit(lambda x: torch.randn_like(x) * 2 + x)
    x = torch.zeros(100, 100, requires_grad=True)
    torch.manual_seed(1)
    y = jitted(x)
    assert len(regions(jitted)) == 1
    assert abs(y.mean().item()) < 0.1 and abs(y.std().item() - 2) < 0.1  # five deviations
    torch.manual_seed(1)
    assert torch.equal(jitted(x), y) and not torch.equal(jitted(x), y)
