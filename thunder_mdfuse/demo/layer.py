"""The demo's program in plain PyTorch, its inputs, and what makes a result right."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from thunder_mdfuse.demo.options import Sizes

DTYPE = torch.bfloat16

# For each kind of error, how much worse than eager DTensor ours may be: a factor, and a part of the
# dtype's epsilon. The order of a sum differs, and one value may round to either side.
SLACK = {"relative error (2-norm)": (1.1, 0.01), "largest error (of the largest value)": (1.1, 0.5)}


def make_mlp(mesh: DeviceMesh) -> Callable[..., DTensor]:
    """SwiGLU MLP with residual: gate and up cut by columns, down by rows, one all-reduce."""

    def mlp(x: DTensor, gate: DTensor, up: DTensor, down: DTensor) -> DTensor:
        hidden = F.silu(F.linear(x, gate)) * F.linear(x, up)
        # Partial: each rank has the sum over its columns of ``hidden``.
        partial: Any = F.linear(hidden, down)
        result: DTensor = x + partial.redistribute(mesh, [Replicate()])
        return result

    return mlp


def make_inputs(mesh: DeviceMesh, sizes: Sizes) -> tuple[list[DTensor], torch.Tensor]:
    """The arguments of ``mlp``, and its result in f64 without any sharding.

    Every rank draws the same numbers and keeps its part, so nothing is sent. No more than one whole
    weight exists at a time.
    """
    device = torch.device(mesh.device_type)
    generator = torch.Generator(device).manual_seed(0)

    def draw(rows: int, columns: int, scale: float) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=generator, device=device, dtype=DTYPE)
        return drawn.mul_(scale)

    def place(whole: torch.Tensor, placement: Placement) -> DTensor:
        return distribute_tensor(whole, mesh, [placement], src_data_rank=None)

    whole = draw(sizes.tokens, sizes.hidden, 1.0)
    inputs, x = [place(whole, Replicate())], whole.double()
    halves = []
    for _ in ("gate", "up"):
        whole = draw(sizes.ffn, sizes.hidden, sizes.hidden**-0.5)
        inputs.append(place(whole, Shard(0)))
        halves.append(x @ whole.double().T)
    whole = draw(sizes.hidden, sizes.ffn, sizes.ffn**-0.5)
    inputs.append(place(whole, Shard(1)))
    return inputs, x + (F.silu(halves[0]) * halves[1]) @ whole.double().T


def faults(ours: DTensor, eager: DTensor, reference: torch.Tensor) -> tuple[list[str], list[str]]:
    """What is wrong with ``ours``, and what was compared. Collective where eager's is sharded."""
    wrong = differences(ours, eager)
    if wrong:
        return wrong, []
    compared = [f"placements {ours.placements}, shape {tuple(ours.shape)}: as eager's"]
    mine, theirs = errors(ours, reference), errors(eager, reference)
    for kind, (factor, part) in SLACK.items():
        bound = factor * theirs[kind] + part * torch.finfo(ours.dtype).eps
        line = f"{kind} against f64: {mine[kind]:.3e}, eager {theirs[kind]:.3e}, "
        line += f"allowed {bound:.3e}"
        compared.append(line)
        if not mine[kind] <= bound:  # so that NaN is wrong
            wrong.append(line)
    return wrong, compared


def differences(ours: DTensor, eager: DTensor) -> list[str]:
    """What a user could tell the two by, other than their numbers."""
    views: dict[str, Callable[[DTensor], object]] = {
        "type": type,
        "dtype": lambda t: t.dtype,
        "shape": lambda t: tuple(t.shape),
        "stride": lambda t: t.stride(),
        "placements": lambda t: t.placements,
        "mesh object": lambda t: id(t.device_mesh),
        "local shape": lambda t: tuple(t.to_local().shape),
        "local stride": lambda t: t.to_local().stride(),
    }
    pairs = {name: (view(ours), view(eager)) for name, view in views.items()}
    return [f"{name}: {a}, eager {b}" for name, (a, b) in pairs.items() if a != b]


def errors(result: DTensor, reference: torch.Tensor) -> dict[str, float]:
    """How far ``result`` is from ``reference``, for each kind of ``SLACK``."""
    difference = result.full_tensor().double() - reference
    found = (
        difference.norm() / reference.norm(),
        difference.abs().max() / reference.abs().max(),
    )
    return {kind: error.item() for kind, error in zip(SLACK, found, strict=True)}
