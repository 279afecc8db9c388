"""What the benchmark runs, in plain PyTorch: the users' functions, and checks where no formula in
f32 is the answer.

Every function takes and returns tensors only, so that each provider can be given it as it is.
"""

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]
EPS = 1e-5
DROPPED = 0.1


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMSNorm over the last dim."""
    return F.rms_norm(x, (x.shape[-1],), w, EPS)


def add_rms_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Tensors:
    """The residual stream ``x + r`` and its RMSNorm."""
    h = x + r
    return h, F.rms_norm(h, (h.shape[-1],), w, EPS)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """LayerNorm over the last dim."""
    return F.layer_norm(x, (x.shape[-1],), w, b, EPS)


def dropout_add_layer_norm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> Tensors:
    """The residual stream ``dropout(x) + r`` and its LayerNorm."""
    h = F.dropout(x, DROPPED) + r
    return h, F.layer_norm(h, (h.shape[-1],), w, b, EPS)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dim."""
    return F.softmax(x, -1)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    return F.silu(gate) * up


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias), the exact (erf) form."""
    return F.gelu(x + bias)


def bias_gelu_add(x: torch.Tensor, bias: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias) + r, the tanh form."""
    return F.gelu(x + bias, approximate="tanh") + r


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the last dim, in f32."""
    return F.cross_entropy(logits.float(), target)


HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def rope(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    """Rotary embedding of q and k out of packed ``qkv`` [B, S, (Hq + 2 Hkv) D]; they leave as
    [B, H, S, D]. ``cos``, ``sin``: [S, D].
    """
    b, s, _ = qkv.shape
    q_width, k_width = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    q = qkv[..., :q_width].view(b, s, HEADS, HEAD_DIM).transpose(1, 2)
    k = qkv[..., q_width : q_width + k_width].view(b, s, KV_HEADS, HEAD_DIM).transpose(1, 2)
    return _turned(q, cos, sin).contiguous(), _turned(k, cos, sin).contiguous()


def transpose(x: torch.Tensor) -> torch.Tensor:
    """The transposed matrix in memory of its own."""
    return x.t().contiguous()


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] as [B, H, S, D] in memory of its own."""
    return x.transpose(1, 2).contiguous()


def column_sum(x: torch.Tensor) -> torch.Tensor:
    """The gradient of a bias: the sum over rows in f32."""
    return x.sum(0, dtype=torch.float32)


def scaled_fp8(x: torch.Tensor) -> Tensors:
    """Each row scaled to f8e4m3's range by its largest magnitude: the quantised rows and scales."""
    scale = x.abs().amax(-1, keepdim=True).float() / 448.0
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


# Checks. Each returns the largest relative error (2-norm) over the outputs.


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error of ``found`` in the 2-norm."""
    expected = expected.float()
    return float((found.float() - expected).norm() / expected.norm().clamp_min(1e-30))


def dropped_out(inputs: Tensors, outputs: Tensors) -> float:
    """For ``dropout_add_layer_norm``, whose mask is the provider's own: infinity for a wrong share
    of dropped elements, else the error of the rest.
    """
    x, r, w, b = (t.float() for t in inputs)
    h, y = outputs
    kept, clear = _kept(x, r, h), _is_clear(x, r)
    share = kept[clear].float().mean().item()
    if abs(share - (1 - DROPPED)) > 5 * (DROPPED * (1 - DROPPED) / int(clear.sum())) ** 0.5:
        return float("inf")
    expected = kept * x / (1 - DROPPED) + r
    normed = F.layer_norm(h.float(), (h.shape[-1],), w, b, EPS)
    return max(relative(h, expected), relative(y, normed))


def _kept(x: torch.Tensor, r: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """The mask that leads from ``x`` and ``r`` to ``h``: whichever of the two is nearer."""
    whole, none = x / (1 - DROPPED) + r, r
    return (h.float() - whole).abs() < (h.float() - none).abs()


def _is_clear(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Where ``x`` cannot drown in the rounding of its sum with ``r``, so that its mask is told."""
    return x.abs() > 0.1 * r.abs()


def dropped_out_gradients(
    inputs: Tensors, outputs: Tensors, cotangents: Tensors, gradients: Tensors
) -> float:
    """The same for the gradients of all four inputs."""
    x, r, w, b = (t.detach().float() for t in inputs)
    stream = outputs[0].detach().float().requires_grad_()
    w.requires_grad_()
    b.requires_grad_()
    normed = F.layer_norm(stream, (x.shape[-1],), w, b, EPS)
    dh, dy = (c.float() for c in cotangents)
    d_stream, dw, db = torch.autograd.grad(normed, (stream, w, b), dy)
    d_stream = d_stream + dh
    h = outputs[0].detach().float()
    # Both passes have one mask; where it cannot be told from h, the gradient tells it.
    kept = torch.where(_is_clear(x, r), _kept(x, r, h), gradients[0] != 0)
    dx = kept * d_stream / (1 - DROPPED)
    expected = (dx, d_stream, dw, db)
    return max(relative(g, e) for g, e in zip(gradients, expected, strict=True))
