"""The known faults of eager DTensor in torch 2.11, and that this package has none of them.

Each fault is a function of DTensors, what eager makes of it (``raises`` on some rank, ``wrong``
numbers, or ``right`` where a fault that was reported is not seen), and the same as a program here,
whose results must be torch's on the full tensors. ``multirank/test_eager_faults_multirank.py`` runs
all of them on four ranks, eager's side too, so that a fault which torch mends is noticed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

F = torch.nn.functional


@dataclass(frozen=True)
class Fault:
    """``places``: of each input, one text an axis; ``expected``: from the full inputs."""

    name: str
    why: str
    eager: str
    function: Callable[..., Any]
    mesh: tuple[int, ...]
    places: tuple[str, ...]
    inputs: tuple[torch.Tensor, ...]
    program: str


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _gathered_linear(x: Any, w: Any) -> Any:
    if isinstance(x, DTensor):
        x = x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)
    return F.linear(x, w)


def _weighted_nll(logits: Any, target: Any, weight: Any) -> Any:
    return F.nll_loss(F.log_softmax(logits, 1), target, weight=weight)


_LABELS = torch.arange(8) % 6

FAULTS = (
    Fault(
        "argmax of a whole sharded tensor",
        "indices within shards are typed Partial(max), and gathered with a shape they have not",
        "raises",
        lambda x: x.argmax(),
        (4,),
        ("Shard(0)",),
        (numbers(8, 6),),
        "%1 = argmax(%0; dim=none) : i64[] @ [Replicate]\nreturn %1",
    ),
    Fault(
        "amax with an empty shard",
        "the rank that has nothing reduces nothing, which torch refuses, on that rank alone",
        "raises",
        lambda x: x.amax(0),
        (4,),
        ("Shard(0)",),
        (numbers(3, 6) - 9,),
        "%1 = amax(%0; dims=[0]) : f32[6] @ [Replicate]\nreturn %1",
    ),
    Fault(
        "Partial + 0-d tensor",
        "each position adding the number would add it as often as there are positions",
        "right",
        lambda x, y: x + y,
        (2, 2),
        ("Partial(sum), Partial(sum)", "Replicate, Replicate"),
        (numbers(4), torch.tensor(3.0)),
        """%2 = broadcast_in_dim(%1; shape=[4], dims=[]) : f32[4]
        %3 = add(%0, %2) : f32[4]
        return %3""",
    ),
    Fault(
        "weighted NLL over a sharded batch",
        "the sum of the weights is that of a rank's own labels, so unequal means are added",
        "wrong",
        _weighted_nll,
        (4,),
        ("Shard(0)", "Shard(0)", "Replicate"),
        (numbers(8, 6), _LABELS, numbers(6).abs() + 0.5),
        """%3 = amax(%0; dims=[1]) : f32[8]
        %4 = broadcast_in_dim(%3; shape=[8, 6], dims=[0]) : f32[8, 6]
        %5 = sub(%0, %4) : f32[8, 6]
        %6 = exp(%5) : f32[8, 6]
        %7 = sum(%6; dims=[1]) : f32[8]
        %8 = log(%7) : f32[8]
        %9 = broadcast_in_dim(%8; shape=[8, 6], dims=[0]) : f32[8, 6]
        %10 = sub(%5, %9) : f32[8, 6]
        %11 = broadcast_in_dim(%1; shape=[8, 1], dims=[0]) : i64[8, 1]
        %12 = gather(%10, %11; dim=1) : f32[8, 1]
        %13 = squeeze(%12; dims=[1]) : f32[8]
        %14 = take(%2, %1; dim=0) : f32[8]
        %15 = mul(%13, %14) : f32[8]
        %16 = sum(%15; dims=[0]) : f32[]
        %17 = sum(%14; dims=[0]) : f32[]
        %18 = div(%16, %17) : f32[]
        %19 = neg(%18) : f32[]
        return %19""",
    ),
    Fault(
        "linear after an uneven gather",
        "the gathered tensor has the strides of the padded buffer, and linear makes a view of it",
        "raises",
        _gathered_linear,
        (4,),
        ("Shard(1)", "Replicate"),
        (numbers(2, 5, 8), numbers(6, 8)),
        """%2 = reshard(%0; placements=[Replicate]) : f32[2, 5, 8] @ [Replicate]
        %3 = linear(%2, %1) : f32[2, 5, 6]
        return %3""",
    ),
    Fault(
        "pad on a mesh of two axes",
        "the result is given one placement, whatever the number of axes",
        "raises",
        lambda x: F.pad(x, [1, 1]),
        (2, 2),
        ("Shard(0), Replicate",),
        (numbers(4, 6),),
        """%1 = const(value='0.0', dtype=f64) : f64
        %2 = pad(%0, %1; low=[0, 1], high=[0, 1]) : f32[4, 8]
        return %2""",
    ),
)


def text(fault: Fault) -> str:
    """The program of ``fault`` as text."""
    kinds = {torch.float32: "f32", torch.int64: "i64"}
    axes = ", ".join(f"{n}={k}" for n, k in zip(("dp", "tp"), fault.mesh, strict=False))
    lines = [f"global mesh[{axes}]"]
    for i, (x, places) in enumerate(zip(fault.inputs, fault.places, strict=True)):
        shape = ", ".join(map(str, x.shape))
        lines.append(f"%{i} = input(position={i}) : {kinds[x.dtype]}[{shape}] @ [{places}]")
    return "\n".join([*lines, fault.program])
