"""The workloads of the benchmark: a function, how to draw its inputs, what is timed, and the bytes
that it must move.

Bytes are the model's: each input read once, each output written once. The names B01 to B14 are
those of the project's performance targets; A are the first release's. ``small`` sizes keep every
property of a workload that matters to its correctness.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from thunder_mdfuse.bench import functions as fn

Tensors = tuple[torch.Tensor, ...]
Make = Callable[..., Tensors]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """``make(device, *sizes)`` draws the inputs of ``function``; ``nbytes(*sizes)`` is what one
    timed call moves.

    ``timed``: ``forward``, ``backward`` (gradients of ``wanted`` inputs for given cotangents, after
    an untimed forward) or ``both``. ``check``: for outputs that the function in f32 does not
    determine, (inputs, outputs) or (inputs, outputs, cotangents, gradients) -> error.
    ``tolerance``: the largest relative error. ``host``: host time and first call are reported too.
    """

    name: str
    title: str
    function: Callable[..., torch.Tensor | Tensors]
    make: Make
    sizes: Sizes
    small: Sizes
    nbytes: Callable[..., int]
    timed: str = "forward"
    wanted: tuple[int, ...] = ()
    check: Callable[..., float] | None = None
    tolerance: float = 6e-3
    host: bool = False

    @property
    def moved(self) -> int:
        """Bytes that one timed call moves."""
        return self.nbytes(*self.sizes)


def _randn(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def _matrices(count: int, *vectors: int, dtype: torch.dtype = torch.bfloat16) -> Make:
    """``count`` matrices [rows, n] and, behind each position in ``vectors``, a vector [n]."""

    def make(device: torch.device, rows: int, n: int) -> Tensors:
        drawn = [_randn(device, rows, n, dtype=dtype) for _ in range(count)]
        for position in vectors:
            drawn.insert(position, _randn(device, n, dtype=dtype))
        return tuple(drawn)

    return make


def _tensor(device: torch.device, *sizes: int) -> Tensors:
    return (_randn(device, *sizes),)


def _classes(device: torch.device, rows: int, n: int) -> Tensors:
    return _randn(device, rows, n), torch.randint(0, n, (rows,), device=device)


def _packed_heads(device: torch.device, batch: int, length: int) -> Tensors:
    width = (fn.HEADS + 2 * fn.KV_HEADS) * fn.HEAD_DIM
    angles = (_randn(device, length, fn.HEAD_DIM) for _ in range(2))
    return (_randn(device, batch, length, width), *angles)


def _misaligned(device: torch.device, rows: int, n: int) -> Tensors:
    """Rows 8 elements further apart than they are long, from an address 2 bytes off."""

    def rows_of(shape: Sizes) -> torch.Tensor:
        whole = torch.randn(shape[0] * (n + 8) + 1, device=device, dtype=torch.bfloat16)
        return whole[1:].view(shape[0], n + 8)[:, :n]

    return rows_of((rows, n)), rows_of((rows, n)), _randn(device, n)


def _times(factor: float) -> Callable[..., int]:
    """Bytes for ``factor`` bytes an element of [rows, n]."""
    return lambda *sizes: int(factor * torch.Size(sizes).numel())


def _rope_bytes(batch: int, length: int) -> int:
    heads = fn.HEADS + fn.KV_HEADS
    return 4 * batch * length * heads * fn.HEAD_DIM + 4 * length * fn.HEAD_DIM


SMALL = (6, 64)
ODD = (7, 37)
_LIST = (
    Workload(
        "B01",
        "bias+GELU(tanh)+add",
        fn.bias_gelu_add,
        _matrices(2, 1),
        (16384, 8192),
        SMALL,
        _times(6),
    ),
    Workload("B02f", "SwiGLU", fn.swiglu, _matrices(2), (8192, 14336), SMALL, _times(6)),
    Workload(
        "B02b",
        "SwiGLU backward",
        fn.swiglu,
        _matrices(2),
        (8192, 14336),
        SMALL,
        _times(10),
        "backward",
        (0, 1),
        tolerance=1e-2,
    ),
    Workload(
        "B03",
        "RoPE of packed QKV",
        fn.rope,
        _packed_heads,
        (2, 8192),
        (1, 6),
        _rope_bytes,
        tolerance=1e-2,
    ),
    Workload("B04a", "RMSNorm", fn.rms_norm, _matrices(1, 1), (16384, 4096), SMALL, _times(4)),
    Workload("B04b", "RMSNorm", fn.rms_norm, _matrices(1, 1), (16384, 8192), SMALL, _times(4)),
    Workload(
        "B05a", "add+RMSNorm", fn.add_rms_norm, _matrices(2, 2), (16384, 4096), SMALL, _times(8)
    ),
    Workload(
        "B05b", "add+RMSNorm", fn.add_rms_norm, _matrices(2, 2), (16384, 8192), SMALL, _times(8)
    ),
    Workload(
        "B06a",
        "RMSNorm backward",
        fn.rms_norm,
        _matrices(1, 1),
        (16384, 4096),
        SMALL,
        _times(6),
        "backward",
        (0, 1),
        tolerance=1e-2,
    ),
    Workload(
        "B06b",
        "RMSNorm backward",
        fn.rms_norm,
        _matrices(1, 1),
        (16384, 8192),
        SMALL,
        _times(6),
        "backward",
        (0, 1),
        tolerance=1e-2,
    ),
    Workload(
        "B06c",
        "LayerNorm backward",
        fn.layer_norm,
        _matrices(1, 1, 2),
        (16384, 4096),
        SMALL,
        _times(6),
        "backward",
        (0, 1, 2),
        tolerance=1e-2,
    ),
    Workload(
        "B06d",
        "RMSNorm forward+backward",
        fn.rms_norm,
        _matrices(1, 1),
        (16384, 4096),
        SMALL,
        _times(10),
        "both",
        (0, 1),
        tolerance=1e-2,
    ),
    Workload(
        "B07f",
        "dropout+add+LayerNorm",
        fn.dropout_add_layer_norm,
        _matrices(2, 2, 3),
        (16384, 4096),
        (64, 64),
        _times(8),
        check=fn.dropped_out,
    ),
    Workload(
        "B07b",
        "dropout+add+LayerNorm backward",
        fn.dropout_add_layer_norm,
        _matrices(2, 2, 3),
        (16384, 4096),
        (64, 64),
        _times(10),
        "backward",
        (0, 1, 2, 3),
        check=fn.dropped_out_gradients,
        tolerance=1e-2,
    ),
    Workload("B08a", "softmax", fn.softmax, _matrices(1), (32768, 8192), SMALL, _times(4)),
    Workload(
        "B08b",
        "softmax f32",
        fn.softmax,
        _matrices(1, dtype=torch.float32),
        (4096, 131072),
        SMALL,
        _times(8),
        tolerance=1e-5,
    ),
    Workload("B09a", "cross-entropy", fn.cross_entropy, _classes, (8192, 128256), SMALL, _times(2)),
    Workload("B09b", "cross-entropy", fn.cross_entropy, _classes, (16384, 32000), SMALL, _times(2)),
    Workload(
        "B09c",
        "cross-entropy forward+backward",
        fn.cross_entropy,
        _classes,
        (8192, 128256),
        SMALL,
        _times(4),
        "both",
        (0,),
        tolerance=1e-2,
    ),
    Workload(
        "B09d",
        "cross-entropy forward+backward",
        fn.cross_entropy,
        _classes,
        (16384, 32000),
        SMALL,
        _times(4),
        "both",
        (0,),
        tolerance=1e-2,
    ),
    Workload("B10a", "transpose", fn.transpose, _tensor, (16384, 8192), (40, 72), _times(4)),
    Workload(
        "B10b",
        "BSHD to BHSD",
        fn.heads_first,
        _tensor,
        (4, 8192, 32, 128),
        (2, 6, 3, 16),
        _times(4),
    ),
    Workload(
        "B11",
        "column sum to f32",
        fn.column_sum,
        _tensor,
        (16384, 14336),
        (50, 24),
        _times(2),
        tolerance=1e-5,
    ),
    Workload(
        "B12",
        "row-scaled f8e4m3 cast",
        fn.scaled_fp8,
        _tensor,
        (16384, 8192),
        SMALL,
        _times(3),
        tolerance=4e-2,
    ),
    Workload(
        "B13a",
        "add+RMSNorm, odd rows",
        fn.add_rms_norm,
        _matrices(2, 2),
        (16383, 3001),
        ODD,
        _times(8),
    ),
    Workload(
        "B13b",
        "bias+GELU(tanh)+add, odd",
        fn.bias_gelu_add,
        _matrices(2, 1),
        (65521, 1000),
        (7, 40),
        _times(6),
    ),
    Workload("B13c", "softmax, odd rows", fn.softmax, _matrices(1), (32749, 3001), ODD, _times(4)),
    Workload(
        "B13d", "cross-entropy, odd rows", fn.cross_entropy, _classes, (8192, 50257), ODD, _times(2)
    ),
    Workload("B13e", "transpose, odd", fn.transpose, _tensor, (8191, 6007), (41, 67), _times(4)),
    Workload(
        "B13f",
        "add+RMSNorm, misaligned rows",
        fn.add_rms_norm,
        _misaligned,
        (16384, 4096),
        SMALL,
        _times(8),
    ),
    *(
        Workload(f"B14{letter}", title, function, make, sizes, SMALL, nbytes, host=True)
        for letter, title, function, make, sizes, nbytes in (
            ("a", "add+RMSNorm", fn.add_rms_norm, _matrices(2, 2), (1, 8192), _times(8)),
            ("b", "add+RMSNorm", fn.add_rms_norm, _matrices(2, 2), (32, 8192), _times(8)),
            ("c", "add+RMSNorm", fn.add_rms_norm, _matrices(2, 2), (256, 4096), _times(8)),
            ("d", "SwiGLU", fn.swiglu, _matrices(2), (32, 14336), _times(6)),
            ("e", "cross-entropy", fn.cross_entropy, _classes, (32, 128256), _times(2)),
        )
    ),
    Workload("A1", "softmax", fn.softmax, _matrices(1), (16384, 4096), SMALL, _times(4)),
    Workload("A2", "LayerNorm", fn.layer_norm, _matrices(1, 1, 2), (16384, 4096), SMALL, _times(4)),
    Workload("A3", "SwiGLU", fn.swiglu, _matrices(2), (16384, 14336), SMALL, _times(6)),
    Workload("A4", "bias+GELU", fn.bias_gelu, _matrices(1, 1), (16384, 16384), SMALL, _times(4)),
)
WORKLOADS = {w.name: w for w in _LIST}
