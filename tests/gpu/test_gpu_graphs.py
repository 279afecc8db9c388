"""CUDAGraphTransform on GPUs: plain tensors on one, DTensors over NCCL on the ranks of a launcher.

One GPU: ``python -m pytest tests/gpu/test_gpu_graphs.py``. DTensors are case ``graphs`` of the
multi-rank suite: ``mpirun -np 2 python -m pytest -m multigpu -k graphs``.
"""

import pytest
import thunder
import torch
import torch.nn.functional as F
from torch import nn

from thunder_mdfuse import CUDAGraphTransform, mdfuse_executor

pytestmark = pytest.mark.gpu


def captures(transform: CUDAGraphTransform) -> int:
    return len(transform.cuda_graph_runner.cuda_graph_cache)


def add_rms_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x + r, (x.shape[-1],), w, 1e-5)


def test_a_region_is_captured_and_follows_its_inputs() -> None:
    transform = CUDAGraphTransform()
    jitted = thunder.jit(add_rms_norm, executors=[mdfuse_executor], transforms=[transform])
    plain = thunder.jit(add_rms_norm, executors=[mdfuse_executor])
    for _ in range(4):
        x, r = (torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
        assert torch.equal(jitted(x, r, w), plain(x, r, w))
    assert captures(transform) == 1


def test_training_follows_eager() -> None:
    torch.manual_seed(0)
    make = lambda: nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)
    ).cuda()
    eager, mine = make(), make()
    mine.load_state_dict(eager.state_dict())
    transform = CUDAGraphTransform()
    jitted = thunder.jit(mine, executors=[mdfuse_executor], transforms=[transform])
    losses: dict[str, list[float]] = {"eager": [], "graphs": []}
    for name, model, own in (("eager", eager, eager), ("graphs", jitted, mine)):
        optimizer = torch.optim.AdamW(own.parameters(), 1e-3)
        for step in range(10):
            x = torch.randn(33, 64, generator=torch.Generator().manual_seed(step)).cuda()
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    torch.testing.assert_close(losses["graphs"], losses["eager"], rtol=1e-3, atol=1e-4)
    assert captures(transform) == 2


def test_replays_draw_anew_and_the_backward_pass_has_the_same_mask() -> None:
    transform = CUDAGraphTransform()
    jitted = thunder.jit(
        lambda x: F.dropout(x, 0.5) * 3, executors=[mdfuse_executor], transforms=[transform]
    )
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    masks = []
    for _ in range(3):
        y = jitted(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(gradient, y.detach())
        masks.append(y.detach().clone())
    assert not torch.equal(masks[1], masks[2])


def test_integers_and_classes_are_drawn_in_a_capture() -> None:
    transform = CUDAGraphTransform()

    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.randint(0, 1000, (64,), device="cuda")
        return x * whole, torch.multinomial(x, 16), torch.multinomial(x, 16, replacement=True)

    jitted = thunder.jit(drawn, executors=[mdfuse_executor], transforms=[transform])
    x = torch.rand(64, device="cuda") + 0.1
    first = [t.clone() for t in jitted(x)]
    second = jitted(x)
    assert captures(transform) == 1
    assert all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[1].unique().numel() == 16


def test_convolutions_are_captured() -> None:
    transform = CUDAGraphTransform()
    function = lambda x, w: F.conv2d(x, w, padding=1).relu() * 2
    jitted = thunder.jit(function, executors=[mdfuse_executor], transforms=[transform])
    w = torch.randn(8, 4, 3, 3, device="cuda")
    for _ in range(3):
        x = torch.randn(2, 4, 16, 16, device="cuda").to(memory_format=torch.channels_last)
        found, wanted = jitted(x, w), function(x, w)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
