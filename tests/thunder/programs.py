"""Small programs over everything that is claimed, by name: a function and how to make its inputs.

``GRADIENTS``: programs whose every step Thunder 0.2.6 can differentiate; ``FORWARD``: the rest.
Shapes are small and odd, so that vectors have tails and rows do not fill a block.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Make = Callable[[], tuple[Any, ...]]
Program = tuple[Callable[..., Any], Make]


def normal(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    made = torch.Generator().manual_seed(sum(shape) + len(shape))
    x = torch.randn(shape, generator=made).to(dtype)
    return x.requires_grad_(grad)


def positive(*shape: int, grad: bool = True) -> torch.Tensor:
    return normal(*shape, grad=False).abs().add_(0.25).requires_grad_(grad)


def integers(*shape: int, low: int = 0, high: int = 5) -> torch.Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=made)


def each(names: str, scale: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """All unary functions of torch in ``names``, on an input brought into their domain."""
    functions = [getattr(torch, name) for name in names.split()]
    return lambda x: [f(scale(x)) for f in functions]


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(width).detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Attention by softmax, written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).split(c, 2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        scores = scores.masked_fill(torch.ones(t, t).tril() == 0, -torch.inf)
        y = torch.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A GPT block without dropout."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Classifier(nn.Module):
    """Embedding, a linear layer, cross-entropy."""

    def __init__(self, words: int = 11, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embedding(index))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked_attention(q: Any, k: Any, v: Any, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.5)


GRADIENTS: dict[str, Program] = {
    "scale and add": (lambda x, y: x * 2 + y, lambda: (normal(4, 9), normal(9))),
    "alpha": (lambda x, y: torch.add(x, y, alpha=3), lambda: (normal(4, 9), normal(4, 1))),
    "numbers first": (lambda x: 1 - 2 / (3 + x * x), lambda: (normal(4, 9),)),
    "transcendental": (
        each("exp exp2 expm1 sin cos tan tanh atan asinh erf sinh cosh", lambda x: x * 0.5),
        lambda: (normal(3, 7),),
    ),
    "on positive numbers": (
        each("log log2 log10 log1p sqrt rsqrt reciprocal lgamma", lambda x: x),
        lambda: (positive(3, 7),),
    ),
    "on (-1, 1)": (each("asin acos atanh erfinv", lambda x: x.tanh() * 0.9), lambda: (normal(5),)),
    "above one": (each("acosh", lambda x: x + 1), lambda: (positive(5),)),
    "absolute": (lambda x: (x.abs(), torch.neg(x)), lambda: (normal(3, 7),)),
    "activations": (
        lambda x: (F.relu(x), F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), x.sigmoid()),
        lambda: (normal(4, 9),),
    ),
    "powers": (lambda x: (x**2, x**3, x**0.5, 2**x), lambda: (positive(4, 9),)),
    "two tensors": (
        lambda x, y: (torch.atan2(x, y), x / y, torch.maximum(x, y), x**y),
        lambda: (positive(4, 9), positive(1, 9)),
    ),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), lambda: (normal(4, 9), normal(4, 9))),
    "clamp": (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.1)), lambda: (normal(4, 9),)),
    "triangles": (lambda x: x.tril() + x.triu(1).masked_fill(x > 1, 0.0), lambda: (normal(5, 5),)),
    "sums": (
        lambda x: (x.sum(), x.sum(0), x.mean((0, 2)), x.mean(-1, keepdim=True)),
        lambda: (normal(3, 4, 5),),
    ),
    "extremes": (lambda x: (x.amax(1), x.amin((0, 1)), x.prod(1)), lambda: (normal(3, 4, 5),)),
    "variance": (
        lambda x: (x.var(1), x.std(0), torch.var_mean(x, 1, correction=0)[1]),
        lambda: (normal(4, 9),),
    ),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), lambda: (normal(4, 9),)),
    "a permuted input": (
        lambda x, y: (x * 2, x + y, x.exp().sum(1)),
        lambda: (normal(4, 5, 3, grad=False).permute(2, 0, 1).requires_grad_(), normal(5)),
    ),
    "shapes": (
        lambda x: (
            x.t() * 2,
            x.reshape(2, 18),
            x[1:3, ::2] * 2,
            x.permute(1, 0).unsqueeze(0) + 1,
            x.expand(3, 4, 9) * 2,
            x.view(4, 3, 3).squeeze(0),
        ),
        lambda: (normal(4, 9),),
    ),
    "cat and pad": (
        lambda x, y: (torch.cat([x, y * 2], 1), F.pad(x, (1, 2)), torch.stack([x, x]), x[0]),
        lambda: (normal(4, 9), normal(4, 3)),
    ),
    "split": (
        lambda x: [y * i for i, y in enumerate(x.split(3, 1))] + list(x.chunk(2, 0)),
        lambda: (normal(4, 9),),
    ),
    "contiguous": (lambda x: x.t().contiguous() * 2, lambda: (normal(4, 9),)),
    "indices": (
        lambda x, i: (
            torch.gather(x, 1, i),
            x.index_select(0, i[0]),
            torch.take_along_dim(x, i, 1),
        ),
        lambda: (normal(4, 9), integers(4, 3, high=4)),
    ),
    # What Thunder has no gradient for, or a wrong one.
    "steps": (
        lambda x: (x.round() * x, x.trunc() + x, x + (x.round() - x).detach(), x * x.argmin(0)),
        lambda: (normal(4, 9),),
    ),
    "remainder": (
        lambda x, y: (x % 0.7, torch.remainder(x, y)),
        lambda: (normal(4, 9), positive(9)),
    ),
    "minimum and lerp": (
        lambda x, y: (
            torch.minimum(x, y),
            torch.minimum(x, x * 1),
            torch.lerp(x, y, 0.3),
            torch.lerp(x, y, x),
        ),
        lambda: (normal(4, 9), normal(4, 9)),
    ),
    "flip and windows": (
        lambda x: (x.flip(0, 1) * x, x.unfold(1, 3, 2) * 2, (x * 2).unfold(0, 2, 1).sin()),
        lambda: (normal(4, 9),),
    ),
    "stores": (
        lambda x, y: (
            x.index_put((torch.tensor([0, 2]),), y[:2, :9] * 3),
            x.index_put((torch.tensor([[0], [3]]), torch.tensor([1, 4])), y[0, :2]),
            x.index_put((torch.tensor([1, 1]),), y[:2, :1], accumulate=True),
            x.index_add(1, torch.tensor([0, 1, 1]), y[:, :3]),
        ),
        lambda: (normal(4, 9), normal(4, 10)),
    ),
    "scatter": (
        lambda x, i, y: x.scatter_add(1, i, y * 2),
        lambda: (normal(4, 9), integers(4, 3), normal(4, 3)),
    ),
    "sorted": (
        lambda x: (x.topk(3, 1)[0], x.sort(1)[0], x.argsort(1), x.argmax(0)),
        lambda: (normal(4, 9),),
    ),
    "cumulative": (lambda x: x.cumsum(1) * 2, lambda: (normal(4, 9),)),
    "matmul": (
        lambda x, y, z: (x @ y, x[0] @ y, F.linear(x[0], z)),
        lambda: (normal(2, 4, 5), normal(2, 5, 3), normal(6, 5)),
    ),
    "convolutions": (
        lambda x, w, b, s, u: (
            F.conv2d(x * 2, w, b, stride=2, padding=1, groups=2).relu(),
            F.conv1d(s, u, dilation=2) + 1,
        ),
        lambda: (
            *(normal(2, 4, 5, 6), normal(6, 2, 3, 3), normal(6)),
            *(normal(2, 3, 8), normal(5, 3, 2)),
        ),
    ),
    "attention": (attention, lambda: (normal(2, 3, 4, 8), normal(2, 3, 4, 8), normal(2, 3, 4, 8))),
    "masked attention": (
        masked_attention,
        lambda: (*(normal(2, 3, 4, 8) for _ in range(3)), normal(4, 4, grad=False)),
    ),
    "losses": (
        lambda x, t: (
            F.cross_entropy(x, t, label_smoothing=0.1),
            F.cross_entropy(x, t, ignore_index=2, reduction="sum"),
            F.mse_loss(x, x * 0.5),
        ),
        lambda: (normal(6, 5), integers(6)),
    ),
    "bfloat16": (
        lambda x, y: (x * y + x, (x * y).sum(-1)),
        lambda: (normal(4, 9, dtype=torch.bfloat16), normal(4, 9, dtype=torch.bfloat16)),
    ),
    "half and float": (
        lambda x, y: x * y + 1,
        lambda: (normal(4, 9, dtype=torch.float16), normal(4, 9)),
    ),
    "double": (lambda x: (x * 2).exp().mean(), lambda: (normal(4, 9, dtype=torch.float64),)),
    "factories": (
        lambda x: x + torch.arange(9) + torch.zeros(9) + torch.full((4, 9), 2.0),
        lambda: (normal(4, 9),),
    ),
    "an input twice": (lambda x: (x, x * 2, x), lambda: (normal(4, 9),)),
    "a 0-dim tensor": (lambda x, s: x * s + s, lambda: (normal(4, 9), normal())),
    "no elements": (lambda x: x * 2 + 1, lambda: (normal(0, 9),)),
}

FORWARD: dict[str, Program] = {
    "rounding": (each("ceil floor round trunc sign", lambda x: x * 3), lambda: (normal(4, 9),)),
    "predicates": (
        lambda x, y: (x > y, x <= 0.0, x == y, x != y, torch.isfinite(x / 0), torch.signbit(x)),
        lambda: (normal(4, 9), normal(4, 9)),
    ),
    "digamma and erfc": (each("digamma erfc", lambda x: x), lambda: (positive(4, 9),)),
    "remainders": (
        lambda x, y: (torch.fmod(x, y), torch.remainder(x, y)),
        lambda: (normal(4, 9), positive(4, 9)),
    ),
    "integers": (
        lambda i, j: (i // j, i / j, i & j, i | j, i ^ j, i << 1, i * j - i, i.sum(0), ~i),
        lambda: (integers(4, 5, low=-9, high=9), integers(4, 5, low=1)),
    ),
    "int32 and bool": (
        lambda i, b: (i + 1, i * 2.5, b & (i > 2), b.sum(), torch.where(b, i, 0)),
        lambda: (integers(4, 5).int(), integers(4, 5) > 2),
    ),
    "choices of numbers": (
        lambda x: (torch.where(x > 0, 1.0, 0.0), torch.where(x > 0, 1, 2)),
        lambda: (normal(4, 9, grad=False),),
    ),
    "grouped products": (  # of 2, 0 and 6 rows, then as many columns; rows of 5 are padded
        lambda x, w, v, u, ends: (
            torch._grouped_mm(x * 2, w, ends) + 1,
            torch._grouped_mm(w, v, ends),
            torch._grouped_mm(x, u.transpose(1, 2), ends),
            torch._grouped_mm(x, u.transpose(1, 2), ends) * 2,
        ),
        lambda: (
            *(normal(*s, grad=False) for s in ((8, 4), (3, 4, 8), (8, 8), (3, 5, 4))),
            torch.tensor([2, 2, 8], dtype=torch.int32),
        ),
    ),
    "mantissas and exponents": (
        lambda x, h: (torch.frexp(x * 4)[0] + 1, torch.frexp(x)[1] * 2, *torch.frexp(h)),
        lambda: (normal(4, 9), normal(3, dtype=torch.bfloat16)),
    ),
    "windows": (
        lambda x: ((x * 2).unfold(1, 3, 2) + 1, x.unfold(0, 2, 1), x.unfold(1, 0, 1) * 2),
        lambda: (normal(4, 9),),
    ),
    "channels last": (
        lambda x, w, u: (F.conv2d(x, w) * 2, F.conv2d(x.contiguous(), w), F.conv3d(u, u) + 1),
        lambda: (
            normal(2, 4, 5, 6).to(memory_format=torch.channels_last),
            normal(3, 4, 3, 3),
            normal(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d),
        ),
    ),
    "numbers of the host": (
        lambda x: (
            x[:, :3] * torch.tensor([[1.0, 2.5, -3.0]]),
            torch.tensor([True, False]) | (x[0, :2] > 0),
            torch.tensor([[1, 2], [3, 4]]) + x[0, 0],
            torch.zeros_like(torch.empty(4, 9)) + x,
        ),
        lambda: (normal(4, 9),),
    ),
    "running products": (
        lambda x, i: (x.cumprod(1) * 2, torch.cumprod(x, dim=0), i.cumprod(0)),
        lambda: (normal(4, 9), integers(3, 4)),
    ),
    "flip": (lambda x: (x.flip(0), x.flip(1, 0)), lambda: (normal(4, 9, grad=False),)),
    "complex": (
        lambda z: (z * 2 + 1, z * z, z.abs(), z == z, (z - 1).sum(0)),
        lambda: (torch.complex(normal(4, 9).detach(), normal(4, 9).detach()),),
    ),
    "narrow integers": (
        lambda i, j: (i + j, i * 2, i.to(torch.int8)),
        lambda: (integers(4, 5).short(), integers(4, 5).short()),
    ),
    "a dim of a 0-dim tensor": (
        lambda x: (x.argmax(0), x.sum(0), x.amax(0), x.var(0, correction=0), x.argmin()),
        lambda: (normal(grad=False),),
    ),
    "all of a kind": (
        lambda x: (x.argmin(1), x.argmax(), (x > 0).any(), (x > -9).all()),
        lambda: (normal(4, 9, grad=False),),
    ),
}

MODULES: dict[str, tuple[Callable[[], nn.Module], Make]] = {
    "LayerNorm": (lambda: nn.LayerNorm(9), lambda: (normal(4, 9),)),
    "RMSNorm": (lambda: RMSNorm(9), lambda: (normal(4, 9),)),
    "torch's RMSNorm": (lambda: nn.RMSNorm(9), lambda: (normal(4, 9),)),
    "MLP": (
        lambda: nn.Sequential(nn.Linear(9, 16), nn.GELU(), nn.Linear(16, 4)),
        lambda: (normal(4, 9),),
    ),
    "attention": (lambda: Attention(16, 2), lambda: (normal(2, 5, 16),)),
    "GPT block": (Block, lambda: (normal(2, 5, 16),)),
    "classifier": (Classifier, lambda: (integers(2, 3), integers(2, 3))),
    "convolution": (
        lambda: nn.Sequential(nn.Conv1d(3, 3, 3), nn.ReLU(), nn.Flatten()),
        lambda: (normal(2, 3, 9),),
    ),
    "BatchNorm": (lambda: nn.BatchNorm1d(9), lambda: (normal(4, 9),)),
}
