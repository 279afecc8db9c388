"""Random numbers inside of regions: distribution, seeds, and one mask for forward and backward."""

import shutil

import pytest
import thunder
import torch
import torch.nn.functional as F
from against_eager import jit, regions

from thunder_mdfuse import explain


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


def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    chances = x.abs() + 0.1
    first = torch.randint(0, 100, (4, 9))
    second = torch.multinomial(chances, 3)
    third = torch.randint(-5, 100, (6,), dtype=torch.int32)
    # Not in the order in which they were drawn.
    return third * 2, torch.multinomial(chances, 20, True), x + second.sum(), x * first


@pytest.mark.parametrize("backend", ["reference", "emulate"])
def test_integers_and_classes_are_eager_s_own(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "emulate" and shutil.which("g++") is None:
        pytest.skip("the emulator needs a C++ compiler")
    monkeypatch.setenv("MDFUSE_BACKEND", backend)
    x = torch.linspace(-1, 2, 36).view(4, 9)
    jitted = jit(drawn)
    torch.manual_seed(5)
    wanted = [drawn(x), drawn(x)]
    torch.manual_seed(5)
    found = [jitted(x), jitted(x)]
    for ours, eager in zip(found, wanted, strict=True):
        for a, b in zip(ours, eager, strict=True):
            assert torch.equal(a, b) and a.dtype is b.dtype
    assert len(regions(jitted)) == 1 and not explain(jitted).unfused, explain(jitted)


def test_the_backward_pass_does_not_draw_integers_again() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.randint(1, 100, (64, 64)).float()).sin()

    x = torch.linspace(0, 0.1, 4096).view(64, 64).requires_grad_()
    torch.manual_seed(7)
    noisy(x).sum().backward()
    wanted, x.grad = x.grad, None
    jitted = jit(noisy)
    torch.manual_seed(7)
    y = jitted(x)
    y.sum().backward()
    assert len(regions(jitted)) == 2 and not explain(jitted).unfused
    torch.testing.assert_close(x.grad, wanted)


def test_the_backward_pass_does_not_sample_again() -> None:
    def picked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.take_along_dim(torch.multinomial(w, 4), 1) * 3).exp()

    x, w = torch.linspace(0, 1, 32).view(4, 8).requires_grad_(), torch.ones(4, 8)
    torch.manual_seed(7)
    picked(x, w).sum().backward()
    wanted, x.grad = x.grad, None
    torch.manual_seed(7)
    jit(picked)(x, w).sum().backward()
    torch.testing.assert_close(x.grad, wanted)


def test_a_seed_of_its_own_leaves_torch_s_generator_alone() -> None:
    jitted = jit(lambda x: thunder.prims.multinomial(x, 3, True, 11) * 2)
    x, state = torch.rand(4, 9), torch.get_rng_state()
    own = torch.Generator().manual_seed(11)
    assert torch.equal(jitted(x), torch.multinomial(x, 3, True, generator=own) * 2)
    assert torch.equal(torch.get_rng_state(), state) and regions(jitted)
