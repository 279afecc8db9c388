"""The workloads of the benchmark: functions in plain PyTorch, their inputs, and the bytes they must
move.

Bytes are the model's: each input read once, each output written once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Workload:
    """``make(device)`` draws inputs; ``function`` maps them to one tensor or a tuple.

    ``tolerance``: the largest allowed relative error (2-norm) against the function in f32.
    """

    name: str
    title: str
    function: Callable[..., torch.Tensor]
    make: Callable[[torch.device], Tensors]
    nbytes: int
    tolerance: float = 6e-3


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm over the last dim."""
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dim."""
    return F.softmax(x, -1)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias), the exact (erf) form."""
    return F.gelu(x + bias)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """LayerNorm over the last dim."""
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _random(*shapes: tuple[int, ...]) -> Callable[[torch.device], Tensors]:
    def make(device: torch.device) -> Tensors:
        return tuple(torch.randn(s, device=device, dtype=torch.bfloat16) for s in shapes)

    return make


def _rows(
    name: str, title: str, function: Callable[..., torch.Tensor], rows: int, n: int
) -> Workload:
    extra = {"rmsnorm": 1, "layernorm": 2}.get(name, 0)
    make = _random((rows, n), *(((n,),) * extra))
    return Workload(name, f"{title} {rows}x{n}", function, make, 2 * (2 * rows * n + extra * n))


WORKLOADS = {
    w.name: w
    for w in (
        _rows("rmsnorm", "RMSNorm", rms_norm, 16384, 4096),
        _rows("layernorm", "LayerNorm", layer_norm, 16384, 4096),
        _rows("softmax", "softmax", softmax, 16384, 4096),
        Workload(
            "swiglu",
            "SwiGLU 16384x14336",
            swiglu,
            _random((16384, 14336), (16384, 14336)),
            3 * 2 * 16384 * 14336,
        ),
        Workload(
            "bias_gelu",
            "bias+GELU 16384x16384",
            bias_gelu,
            _random((16384, 16384), (16384,)),
            2 * (2 * 16384 * 16384 + 16384),
        ),
    )
}
