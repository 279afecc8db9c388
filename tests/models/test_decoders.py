"""Whole decoders through thunder.jit: loss, every gradient and twenty steps of training as eager.

A model is traced once for all that is asked of it, since tracing takes seconds.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import thunder
import torch
from models.gpt2 import GPT2
from thunder.core.module import ThunderModule
from torch import nn

from thunder_mdfuse import explain, mdfuse_executor
from thunder_mdfuse.bench.llama import Config, Llama
from thunder_mdfuse.codegen.cuda import write_kernel

STEPS = 20
Batch = tuple[torch.Tensor, torch.Tensor]


def batch(seed: int = 0, vocabulary: int = 96, length: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(vocabulary, (2, length + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def made(model: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """A model whose loss begins near that of a guess."""
    torch.manual_seed(0)
    found = model(*args, **kwargs)
    for parameter in found.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.05)
    return found


def jit(model: nn.Module) -> ThunderModule:
    return thunder.jit(model, executors=[mdfuse_executor])


def gradients(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    # A shared parameter has one name here, and two in a ThunderModule.
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def losses(model: nn.Module, call: Any) -> Iterator[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        loss = call(*batch(step % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def check_training(model: nn.Module) -> ThunderModule:
    """Loss and gradients of one batch, then the loss of twenty steps."""
    eager = copy.deepcopy(model)
    jitted = jit(model)
    found, expected = jitted(*batch()), eager(*batch())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = gradients(model, found), gradients(eager, expected)
    assert ours.keys() == theirs.keys()
    for name, right in theirs.items():
        error = (ours[name] - right).norm() / right.norm()
        assert error <= 1e-5, f"{name}: {error}"
    curve, right_curve = list(losses(model, jitted)), list(losses(eager, eager))
    assert right_curve[-1] < 0.8 * right_curve[0]
    assert curve == pytest.approx(right_curve, rel=2e-4)
    return jitted


def test_llama() -> None:
    """Also: few kernels a layer, equal ones for equal layers, torch's steps where they belong."""
    jitted = check_training(made(Llama, Config(layers=3)))
    (forward,) = [r for r in explain(jitted).regions if r.part == "forward"]
    names = [s.name for s in forward.steps]
    first, second, third = (n for n, name in enumerate(names) if name == "sdpa")
    layers = [forward.steps[a:b] for a, b in ((first, second), (second, third))]
    kernels = [[s for s in layer if s.kind == "kernel"] for layer in layers]
    assert len(kernels[0]) == len(kernels[1]) <= 6
    others = [s.name for s in layers[0] if s.kind != "kernel"]
    assert others == ["sdpa", *["linear"] * 7]
    texts = [write_kernel(plan).source for plan in forward.plan.kernels]
    by_name = dict(zip((s.name for s in forward.kernels), texts, strict=True))
    once, again = ([by_name[k.name] for k in layer] for layer in kernels)
    assert once == again


def test_llama_with_one_matrix_for_tokens_in_and_out() -> None:
    check_training(made(Llama, Config(layers=1, tied=True)))


def test_llama_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated kernels, whose error against f32 is at most eager's and a half."""
    monkeypatch.setenv("MDFUSE_BACKEND", "emulate")
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "1")
    right = made(Llama, Config(layers=1))
    models = [copy.deepcopy(right).bfloat16() for _ in range(2)]
    exact = gradients(right, right(*batch()))
    jitted = jit(models[0])
    ours = gradients(models[0], jitted(*batch()))
    eager = gradients(models[1], models[1](*batch()))
    for name, wanted in exact.items():
        error, usual = ((found[name].float() - wanted).norm() for found in (ours, eager))
        assert error <= 1.5 * usual, name


def test_gpt2() -> None:
    check_training(made(GPT2, layers=1, dropout=0.0))


def test_gpt2_with_dropout() -> None:
    """The gradient is that of the masks that the loss saw: it agrees with a difference quotient."""
    model = made(GPT2, layers=1, dropout=0.1).double()
    jitted = jit(model)

    def loss(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return jitted(*batch())

    assert torch.equal(loss(1), loss(1))
    assert not torch.equal(loss(1), loss(2))
    found = gradients(model, loss(1))
    way = {name: torch.randn_like(g) for name, g in found.items()}
    slope = sum(float((way[name] * g).sum()) for name, g in found.items())
    step, ends = 1e-5, []
    for sign in (1, -2):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter += sign * step * way[name]
        ends.append(loss(1).item())
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)
