"""Decoders cut by parallelize_module: loss, gradients and training as the whole model in eager.

Placements of gradients, and what is sent, are those of eager DTensor. Tracing takes seconds, so
each model is traced once for all that is asked of it.
"""

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models.gpt2 import GPT2
from models.parallel import (
    on_all_axes,
    sequence_parallel,
    sequence_parallel_gpt2,
)
from models.test_decoders import Batch, batch, gradients, jit, made
from multirank.ranks import DEVICE, TOLERANCE, Case, mesh_of
from multirank.traffic import Traffic
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

from thunder_mdfuse import explain
from thunder_mdfuse.bench.llama import Config, Llama, tensor_parallel
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
    with Traffic() as backward, warnings.catch_warnings():
        # Of the hooks that CommDebugMode gives modules: token numbers have no gradient.
        warnings.filterwarnings("ignore", message="Full backward hook")
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


def no_more(ours: Step, theirs: Step, small: int = 0) -> None:
    """Assert that ours sends no more than eager; ``small``: so many collectives more forward."""
    pairs = ((ours.forward, theirs.forward, small), (ours.backward, theirs.backward, 0))
    for mine, yours, more in pairs:
        assert mine.collectives <= yours.collectives + more, f"{mine}, eager has {yours}"
        assert mine.bytes <= yours.bytes, f"{mine}, eager has {yours}"


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
    no_more(ours, theirs)
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


def rows_of_texts(seed: int) -> Batch:
    """Four texts, for two rows of a mesh."""
    first, second = zip(texts(seed), texts(seed + 100), strict=True)
    return torch.cat(first), torch.cat(second)


def data_parallel(mesh: DeviceMesh) -> None:
    """Rows of the mesh have a part of the batch each, and average what tensor-parallel gives them:
    the whole batch in eager. One matrix is for tokens in and out.
    """
    right = made(Llama, replace(SMALL, tied=True)).to(DEVICE)
    model, eager = (tensor_parallel(copy.deepcopy(right), mesh["tp"]) for _ in range(2))
    jitted, rows, row = jit(model), mesh["dp"].get_group(), mesh.get_local_rank("dp")
    optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (right, model)]

    def averaged(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x.to_local() if isinstance(x, DTensor) else x, group=rows)
        return x / 2

    for seed in range(STEPS):
        tokens, following = rows_of_texts(seed)
        own = tokens.chunk(2)[row].contiguous(), following.chunk(2)[row].contiguous()
        if not seed:
            jitted(*own)  # see ``check``
            ours = step(model, jitted, own)
            no_more(ours, step(eager, eager, own))
            assert ours.backward.collectives == 3, ours.backward  # as ``on_one_axis``
        wanted, found = step(right, right, (tokens, following)), step(model, jitted, own)
        torch.testing.assert_close(averaged(found.loss), wanted.loss, rtol=2e-5, atol=2e-5)
        for p in model.parameters():
            p.grad = averaged(p.grad)
        if not seed:
            compare({n: p.grad for n, p in model.named_parameters()}, wanted.gradients)
        for optimizer in optimizers:
            optimizer.step()
    assert explain(jitted).unfused == ()


_attend = F.scaled_dot_product_attention


def attended(q: Any, k: Any, v: Any, **kwargs: Any) -> Any:
    """For eager DTensor on the CPU, which has no rule: each rank attends to its own heads."""
    found = _attend(*(x.to_local() for x in (q, k, v)), **kwargs)
    return DTensor.from_local(found, q.device_mesh, q.placements, run_check=False)


def all_dtensors(mesh: DeviceMesh) -> None:
    """Texts cut along one axis of the mesh and parameters along the other.

    The loss reduces a few numbers a token, twice, where eager gathers the logits: fewer bytes.
    """
    right = made(Llama, SMALL).to(DEVICE)
    model, eager = (on_all_axes(copy.deepcopy(right), mesh) for _ in range(2))
    jitted = jit(model)
    places = [Shard(0), *[Replicate()] * (mesh.ndim - 1)]
    whole_texts = rows_of_texts(0)
    given = tuple(distribute_tensor(x, mesh, places) for x in whole_texts)
    jitted(*given)
    ours, wanted = step(model, jitted, given), step(right, right, whole_texts)
    with patch.object(F, "scaled_dot_product_attention", attended):
        theirs = step(eager, eager, given)
    torch.testing.assert_close(ours.loss, wanted.loss, rtol=TOLERANCE, atol=TOLERANCE)
    compare(ours.gradients, wanted.gradients)
    assert {n: g.placements for n, g in ours.gradients.items()} == {
        n: g.placements for n, g in theirs.gradients.items()
    }
    no_more(ours, theirs, small=2)
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


def on_two_axes() -> DeviceMesh:
    return mesh_of([[0, 1], [2, 3]], ("dp", "tp"))


ON_ONE_AXIS = (on_one_axis, with_sequences_cut, with_dropout)
ON_TWO_AXES = (data_parallel, all_dtensors)
CASES = [
    Case("thunder", check.__name__, lambda ranks, check=check: check(on_two_axes()), 4)
    for check in (seeds, *(ON_TWO_AXES if DEVICE == "cuda" else ON_TWO_AXES[:1]))
]
