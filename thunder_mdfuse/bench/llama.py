"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU; and it cut
over ranks by ``parallelize_module``.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)


@dataclass(frozen=True)
class Config:
    """``tied``: the embedding's weight is the head's as well."""

    vocabulary: int = 96
    width: int = 64
    layers: int = 2
    heads: int = 4
    groups: int = 2
    hidden: int = 160
    length: int = 16
    tied: bool = False

    @property
    def head(self) -> int:
        return self.width // self.heads


def rotations(config: Config, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, both [length, head]."""
    steps = torch.arange(0, config.head, 2, dtype=torch.float64) / config.head
    angles = torch.outer(torch.arange(config.length, dtype=torch.float64), 1e4**-steps)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """``x`` [batch, heads, length, head] turned by its position."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        inner = config.groups * config.head
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, inner, bias=False)
        self.v = nn.Linear(config.width, inner, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        head = self.config.head
        q = self.q(x).view(batch, length, -1, head).transpose(1, 2)
        k = self.k(x).view(batch, length, -1, head).transpose(1, 2)
        v = self.v(x).view(batch, length, -1, head).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        repeats = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(repeats, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.feed_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.feed = FeedForward(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = x + self.attention(self.attention_norm(x), cos, sin)
        out: torch.Tensor = h + self.feed(self.feed_norm(h))
        return out


class Llama(nn.Module):
    """Token numbers [batch, length] and the next ones -> the mean cross-entropy."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        cos, sin = rotations(config, torch.float32)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


COLUMNS = ("attention.q", "attention.k", "attention.v", "feed.gate", "feed.up")


def tensor_parallel(model: Llama, mesh: DeviceMesh) -> Llama:
    """Heads, hidden units and tokens cut; activations between the layers whole."""
    plan: dict[str, ParallelStyle] = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    for layer in model.layers:
        plan = {name: ColwiseParallel() for name in COLUMNS}
        plan |= {name: RowwiseParallel() for name in ("attention.out", "feed.down")}
        parallelize_module(layer, mesh, plan)
    if model.config.tied:  # each of the two has been given its own
        model.head.weight = model.tokens.weight
    return model
