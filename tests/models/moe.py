"""A Llama-4-style feed-forward layer: a router, experts in grouped products, a shared expert."""

import torch
import torch.nn.functional as F
from torch import nn

from thunder_mdfuse.bench.llama import Config, FeedForward


class Grouped(nn.Module):
    """One matrix for each expert: rows [n, inputs], of which expert e has those up to ends[e]."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, outputs, inputs) / inputs**0.5)

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(rows, self.weight.transpose(-2, -1), ends)


class Experts(nn.Module):
    """SwiGLU of each row by the expert that it is sorted to."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (Grouped(experts, width, hidden) for _ in range(2))
        self.down = Grouped(experts, hidden, width)

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(rows, ends)) * self.up(rows, ends), ends)


class Moe(nn.Module):
    """[batch, length, width] -> the same. ``top``: how many experts a token goes to, each with the
    sigmoid of its score.
    """

    def __init__(self, config: Config, experts: int = 4, top: int = 2) -> None:
        super().__init__()
        self.top = top
        self.router = nn.Linear(config.width, experts, bias=False)
        self.experts = Experts(experts, config.width, config.hidden)
        self.shared = FeedForward(config)
        self.register_buffer("numbers", torch.arange(experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).topk(self.top, -1)
        order = chosen.flatten().argsort(stable=True)
        rows = (tokens[:, None] * scores.sigmoid()[..., None]).flatten(0, 1)[order]
        counts = (chosen.flatten()[:, None] == self.numbers).sum(0)
        found = self.experts(rows, counts.cumsum(0).to(torch.int32))
        found = found[order.argsort()].unflatten(0, (-1, self.top)).sum(1)
        return self.shared(x) + found.view_as(x)
