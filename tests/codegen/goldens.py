"""The programs whose CUDA text is kept in ``tests/golden``, and how to plan, write and run them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from codegen.column_cases import (
    BOTH_WAYS,
    COLUMN_SOFTMAX,
    COLUMN_SUMS,
    MIDDLE_SUMS,
    PRODUCT_SUMS,
    SCALED_TRANSPOSE,
)
from schedule.programs import (
    ADD_RMS_NORM,
    LAYER_NORM,
    LAYER_NORM_GRADIENT,
    RMS_NORM,
    RMS_NORM_GRADIENT,
    SOFTMAX,
    SWIGLU,
    Case,
    last,
    tensor,
)

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.dtypes import TORCH_DTYPES
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan, plan_program
from thunder_mdfuse.schedule.target import H200, Target


@dataclass(frozen=True)
class Golden:
    """``sizes``: those of the kept text; ``others``: more of the same class, to be run too."""

    name: str
    case: Case
    dtype: DType
    sizes: tuple[int, ...]
    others: tuple[tuple[int, ...], ...]
    target: Target = H200

    def kernel(self, sizes: Sequence[int]) -> KernelText:
        """The kernel for ``sizes``."""
        return kernel(self.fusion(sizes), self.target)

    def fusion(self, sizes: Sequence[int]) -> Fusion:
        """The local program for ``sizes``."""
        return decompose(self.case.fusion(*sizes, dtype=self.dtype, level="local"))

    def inputs(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(sum(sizes))
        return [
            torch.randn(tuple(t.shape), generator=generator).to(TORCH_DTYPES[t.dtype])  # type: ignore[arg-type]
            for t in self.case.inputs(*sizes, dtype=self.dtype)
        ]


def plan(fusion: Fusion, target: Target = H200) -> ProgramPlan:
    """The program for contiguous, aligned inputs."""
    return plan_program(fusion, [InputClass(None) for _ in fusion.inputs], target, {}, "cpu")


def kernel(fusion: Fusion, target: Target = H200) -> KernelText:
    """The only kernel of ``fusion``."""
    program = plan(fusion, target)
    (step,) = program.steps
    assert step.kernel is not None
    return write_kernel(step.kernel)


def run(
    fusion: Fusion,
    inputs: Sequence[torch.Tensor],
    change: Callable[[str], str] = str,
    target: Target = H200,
) -> list[torch.Tensor]:
    """The outputs in the emulator; the kernels' texts are put through ``change`` first."""
    program = plan(fusion, target)
    texts = [write_kernel(k) for k in program.kernels]
    texts = [replace(t, source=change(t.source)) for t in texts]
    bound = BoundProgram(program, texts, {}, "emulate", torch.device("cpu"), "")
    found = bound.run(list(inputs), None)
    assert all(isinstance(x, torch.Tensor) for x in found)
    return found  # type: ignore[return-value]


def _bias(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    x, bias = uses
    return (b.op("tanh", (b.op("add", (x, last(b, bias, x)))[0],))[0],)


def _transposed(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    x, y = uses
    (turned,) = b.op("permute", (y,), at.DimsAttrs((1, 0)))
    return (b.op("sub", (x, turned))[0],)


def _joined(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    """A ``cat`` of a product and a padded tensor."""
    x, y = uses
    (twice,) = b.op("mul", (x, b.const(2.0)))
    (padded,) = b.op("pad", (y, b.const(1.5)), at.PadAttrs((0, 1), (0, 2)))
    return (b.op("cat", (twice, padded), at.DimAttrs(1))[0],)


def _sums(b: Builder, uses: list[Use]) -> tuple[Use, ...]:
    return (b.op("sum", (uses[0],), at.DimsAttrs((1,)))[0],)


BIAS = Case(
    "bias",
    lambda rows, n, dtype: [tensor(dtype, rows, n), tensor(dtype, n)],
    _bias,
    lambda x, bias: (x + bias).tanh(),
)
TRANSPOSED = Case(
    "transposed",
    lambda rows, n, dtype: [tensor(dtype, rows, n), tensor(dtype, n, rows)],
    _transposed,
    lambda x, y: x - y.t(),
)
JOINED = Case(
    "joined",
    lambda rows, n, m, dtype: [tensor(dtype, rows, n), tensor(dtype, rows, m)],
    _joined,
    lambda x, y: torch.cat([x * 2, torch.nn.functional.pad(y, (1, 2), value=1.5)], 1),
)
SCANNED = Case(
    "scanned",
    lambda rows, n, dtype: [tensor(dtype, rows, n)],
    lambda b, uses: (b.op("cumsum", (b.op("tanh", tuple(uses))[0],), at.DimAttrs(1))[0],),
    lambda x: x.tanh().cumsum(1),
)
SUMS = Case("sums", lambda rows, n, dtype: [tensor(dtype, rows, n)], _sums, lambda x: x.sum(1))

# So few that each block walks several rows, and that blocks are combined in groups.
THREE_SMS = replace(H200, name="three SMs", sm_count=3)
LITTLE_SHARED = replace(H200, name="little shared memory", shared_per_block=24 * 1024)
GOLDENS = {
    g.name: g
    for g in (
        *(
            Golden(f"inner_outer_{name}", case, dtype, sizes, others, THREE_SMS)
            for name, case, dtype, sizes, others in (
                ("rms_norm", RMS_NORM_GRADIENT, DType.BF16, (31, 2048), ((20, 2048),)),
                ("short", LAYER_NORM_GRADIENT, DType.F32, (430, 24), ((330, 20), (390, 28))),
                ("staged", RMS_NORM_GRADIENT, DType.BF16, (12, 8192), ((7, 8192),)),
                ("shared", LAYER_NORM_GRADIENT, DType.F64, (5, 5000), ((7, 4200),)),
            )
        ),
        Golden("pointwise_contiguous", SWIGLU, DType.BF16, (300, 40), ((5, 48), (1000, 8))),
        Golden("pointwise_ragged", SWIGLU, DType.BF16, (61, 41), ((1, 13), (19, 109))),
        Golden("pointwise_bias", BIAS, DType.F32, (96, 40), ((5, 44), (33, 128))),
        Golden("pointwise_transposed", TRANSPOSED, DType.F32, (12, 40), ((8, 20), (4, 132))),
        Golden("transpose_f32", TRANSPOSED, DType.F32, (24, 40), ((36, 20), (64, 52))),
        Golden("transpose_bf16", SCALED_TRANSPOSE, DType.BF16, (200, 264), ((264, 136), (72, 400))),
        Golden("transpose_odd", SCALED_TRANSPOSE, DType.BF16, (129, 67), ((65, 131), (193, 65))),
        Golden("transpose_both_ways", BOTH_WAYS, DType.BF16, (40, 56), ((64, 24), (16, 48))),
        Golden("pointwise_cat", JOINED, DType.F32, (7, 23, 10), ((5, 3, 30), (9, 41, 4))),
        Golden("pointwise_cat_whole", JOINED, DType.F32, (7, 24, 9), ((5, 4, 29), (9, 40, 5))),
        Golden("row_rms_norm_bf16", RMS_NORM, DType.BF16, (6, 4096), ((3, 4096),)),
        Golden("row_softmax_f32", SOFTMAX, DType.F32, (6, 1000), ((3, 996), (9, 780))),
        Golden("row_layer_norm_short", LAYER_NORM, DType.F32, (40, 24), ((33, 20), (7, 28))),
        Golden("row_held_in_shared", ADD_RMS_NORM, DType.BF16, (2, 57336), ((3, 57320),)),
        Golden("row_in_cluster", SOFTMAX, DType.F32, (3, 33000), ((2, 33996),), LITTLE_SHARED),
        Golden("row_sums_short", SUMS, DType.F32, (40, 24), ((33, 20), (7, 28))),
        Golden("scan_of_rows", SCANNED, DType.F32, (3, 5000), ((2, 4500), (5, 6004))),
        Golden("scan_of_short_rows", SCANNED, DType.F32, (40, 24), ((33, 20), (7, 28))),
        Golden("outer_shared_bf16", COLUMN_SUMS, DType.BF16, (300, 264), ((270, 272), (400, 504))),
        Golden("outer_products", PRODUCT_SUMS, DType.F32, (40, 36), ((50, 44), (60, 52))),
        Golden("outer_held", COLUMN_SOFTMAX, DType.F32, (500, 36), ((300, 20), (512, 60))),
        Golden("outer_read_again", COLUMN_SOFTMAX, DType.F32, (2200, 36), ((3000, 20),)),
        Golden("outer_middle", MIDDLE_SUMS, DType.F32, (5, 7, 12), ((3, 6, 20), (4, 5, 16))),
        Golden("row_shared_by_blocks", SUMS, DType.F32, (3, 40000), ((2, 33000), (5, 66000))),
    )
}
