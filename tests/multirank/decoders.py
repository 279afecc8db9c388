"""Decoders cut by parallelize_module: loss, gradients and training as the whole model in eager.

Placements of gradients, and what is sent, are those of eager DTensor. Tracing takes seconds, so
each model is traced once for all that is asked of it.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from models.gpt2 import GPT2
from models.parallel import (
    sequence_parallel,
    sequence_parallel_gpt2,
    tensor_parallel_feed,
)
from models.test_decoders import Batch, batch, gradients, jit, made
from multirank.ranks import DEVICE, TOLERANCE, Case, mesh_of
from multirank.traffic import Traffic
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from thunder_mdfuse import explain
from thunder_mdfuse.bench.llama import Config, FeedForward, Llama, tensor_parallel
from thunder_mdfuse.comm.seeds import agree_on_seed

STEPS = 4
SMALL = Config(vocabulary=64, width=32, layers=1, heads=4, groups=2, hidden=48, length=8)


@dataclass
class Step:
    """One step of one side: its loss, gradients, and what was sent for each."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    forward: Traffic
    backward: Traffic


def step(model: nn.Module, call: Any, given: Batch) -> Step:
    model.zero_grad()
    with Traffic() as forward:
        loss = call(*given)
    with Traffic() as backward:
        loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return Step(whole(loss.detach()), gradients, forward, backward)


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def compare(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, g in wanted.items():
        error = (whole(found[name]) - g).norm() / g.norm()
        assert error <= TOLERANCE, f"{name}: {error}"


def curve(model: nn.Module, call: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for number in range(STEPS):
        loss = call(*texts(number))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(whole(loss.detach()).item())
    return losses


def texts(seed: int) -> Batch:
    first, second = batch(seed, SMALL.vocabulary, SMALL.length)
    return first.to(DEVICE), second.to(DEVICE)


def check(
    right: nn.Module,
    cut: Callable[[Any, DeviceMesh], nn.Module],
    mesh: DeviceMesh,
    loss_mode: Callable[[], AbstractContextManager[Any]] = nullcontext,
    reductions: int | None = None,
) -> None:
    """``reductions``: how many collectives the backward pass has."""
    model, eager = (cut(copy.deepcopy(right), mesh) for _ in range(2))
    jitted = jit(model)
    wanted = step(right, right, texts(0))
    with loss_mode():
        jitted(*texts(0))  # fake DTensors say how all is placed, and "send" while they do
        theirs, ours = step(eager, eager, texts(0)), step(model, jitted, texts(0))
        losses = curve(model, jitted)
    torch.testing.assert_close(ours.loss, wanted.loss, rtol=TOLERANCE, atol=TOLERANCE)
    compare(ours.gradients, wanted.gradients)
    for name, placed in theirs.gradients.items():
        found = ours.gradients[name]
        assert type(found) is type(placed), name
        if isinstance(found, DTensor):
            assert found.placements == placed.placements, f"{name}: {found.placements}"
    for mine, yours in ((ours.forward, theirs.forward), (ours.backward, theirs.backward)):
        assert mine.collectives <= yours.collectives, f"{mine}, eager has {yours}"
        assert mine.bytes <= yours.bytes, f"{mine}, eager has {yours}"
    assert reductions in (ours.backward.collectives, None), ours.backward
    assert losses == pytest.approx(curve(right, right), rel=2e-4)
    assert explain(jitted).unfused == ()


def on_one_axis(mesh: DeviceMesh) -> None:
    """The backward pass reduces once before the head, once for gate and up, once for q, k and v."""
    check(made(Llama, SMALL).to(DEVICE), tensor_parallel, mesh, reductions=3)


def with_sequences_cut(mesh: DeviceMesh) -> None:
    check(made(Llama, SMALL).to(DEVICE), sequence_parallel, mesh, loss_parallel)


def with_dropout(mesh: DeviceMesh) -> None:
    """The masks of one rank, though every rank has a seed of its own: loss and gradients say so."""
    alone = made(GPT2, SMALL.vocabulary, 32, 1, 4, SMALL.length, 0.25).to(DEVICE)
    model = sequence_parallel_gpt2(copy.deepcopy(alone), mesh)
    one, many = jit(alone), jit(model)
    for seed, apart in ((5, 10), (6, 10), (6, 0)):  # another seed is agreed on anew
        torch.manual_seed(seed)
        wanted = one(*texts(0))
        torch.manual_seed(seed + apart * dist.get_rank())
        found = many(*texts(0))
        torch.testing.assert_close(
            whole(found.detach()), wanted.detach(), rtol=TOLERANCE, atol=TOLERANCE
        )
        compare(gradients(model, found), gradients(alone, wanted))


def on_two_axes() -> DeviceMesh:
    return mesh_of([[0, 1], [2, 3]], ("dp", "tp"))


def data_parallel(mesh: DeviceMesh) -> None:
    """Rows of the mesh have a part of the batch each, and average what tensor-parallel gives them:
    the whole batch in eager. The gradients of gate and up are reduced as one.
    """
    right = made(FeedForward, SMALL).to(DEVICE)
    model = tensor_parallel_feed(copy.deepcopy(right), mesh["tp"])
    jitted, rows = jit(model), mesh["dp"].get_group()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (right, model)]
    for seed in range(STEPS):
        numbers = torch.Generator().manual_seed(seed)
        x = torch.randn(4, SMALL.length, SMALL.width, generator=numbers).to(DEVICE)
        wanted = gradients(right, right(x).square().mean())
        own = x.chunk(2)[mesh.get_local_rank("dp")].requires_grad_()
        loss = jitted(own).square().mean()
        with Traffic() as traffic:
            found = gradients(model, loss)
        assert traffic.collectives == 1, traffic
        for g in found.values():
            dist.all_reduce(g.to_local(), group=rows)
            g /= 2
        compare(found, wanted)
        for optimizer in optimizers:
            optimizer.step()
    assert explain(jitted).unfused == ()


def seeds(mesh: DeviceMesh) -> None:
    """Rows agree on one seed each, then all on that of the first rank; another is agreed anew."""
    cpu = torch.device("cpu")
    for seed in (7000, 7100):  # that no other check has
        torch.manual_seed(seed + dist.get_rank())
        agree_on_seed(mesh["tp"], cpu)
        assert torch.initial_seed() == seed + int(mesh["tp"].mesh[0])
        agree_on_seed(mesh, cpu)
        assert torch.initial_seed() == seed
        first = torch.rand(1)
        agree_on_seed(mesh, cpu)  # is known, and leaves the generator where it is
        assert not torch.equal(torch.rand(1), first)


ON_ONE_AXIS = (on_one_axis, with_sequences_cut, with_dropout)
CASES = [
    Case("thunder", check.__name__, lambda ranks, check=check: check(on_two_axes()), 4)
    for check in (data_parallel, seeds)
]
