"""All-reduce, residual and RMSNorm in one kernel that reads its peers' mailboxes: plan and text.

No runtime owns mailboxes yet. The plan is made by hand, its text is kept and compiled, and it runs
in the emulator over the mailboxes of two ranks in one process.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.emulate import Allocation, build, poison
from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.errors import CodegenError, EmulatorError, ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.sizes import symbol
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.launch import PreparedEmulated, size_arguments
from thunder_mdfuse.schedule.plan import (
    Axis,
    Buffer,
    Const,
    Instr,
    KernelPlan,
    Launch,
    Load,
    Scalar,
    Store,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "mailbox_rms_norm.cu"
RANKS = 2
F32, BF16 = DType.F32, DType.BF16
NOT_YET = -0.0


def plan(tokens: sizes.Size, hidden: int, launch: Launch) -> KernelPlan:
    """h = residual + sum over the team of partial; y = rms_norm(h) * weight.

    Buffers: the mailboxes, the residual, the weight, the slot to be cleared, h, y.
    """
    row, column = symbol("d0"), symbol("d1")
    at = row * hidden + column
    both, rows = frozenset(("d0", "d1")), frozenset(("d0",))
    buffers = (
        Buffer(Use(0), BF16, space="symmetric(tp)", extent=symbol("ranks")),
        Buffer(Use(1), BF16),
        Buffer(Use(2), BF16),
        Buffer(Use(3), BF16, written=True),
        Buffer(Use(4), BF16, written=True),
        Buffer(Use(5), BF16, written=True),
    )
    body = (
        Instr("load", (), F32, Load(0, at, access="vector"), both),
        Instr("load", (), BF16, Load(1, at, access="vector"), both),
        Instr("add", (0, 1), BF16, None, both, rounds=True),
        Instr("mul", (2, 2), F32, None, both),
        Instr("reduce_sum", (3,), F32, None, rows, 1),
        Instr("scalar", (), F32, Scalar(Use(6), F32)),
        Instr("div", (4, 5), F32, None, rows, 1),
        Instr("const", (), F32, Const("1e-05")),
        Instr("add", (6, 7), F32, None, rows, 1),
        Instr("rsqrt", (8,), F32, None, rows, 1),
        Instr("mul", (2, 9), F32, None, both, 1),
        Instr("load", (), BF16, Load(2, column, access="vector"), frozenset(("d1",))),
        Instr("mul", (10, 11), BF16, None, both, 1),
        Instr("const", (), F32, Const(repr(NOT_YET))),
    )
    stores = (
        Store(4, at, 2, "vector"),
        Store(5, at, 12, "vector"),
        Store(3, at, 13, "vector"),
    )
    axes = (Axis("d0", tokens), Axis("d1", hidden))
    return KernelPlan("row", axes[:1], axes[1:], buffers, body, stores, launch)


# 8192 elements a row: 512 threads x 2 vectors of 8, as in the measured prototype.
LAUNCH = Launch(512, 8, 2, 512, True, "registers")
SMALL = Launch(64, 8, 1, 64, False, "registers")


def test_the_text_is_the_kept_one(update_golden: bool) -> None:
    source = write_kernel(plan(symbol("tokens"), 8192, LAUNCH)).source
    if update_golden:
        GOLDEN.write_text(source, encoding="ascii")
    assert GOLDEN.exists(), "run pytest --update-golden and read what it wrote"
    assert source == GOLDEN.read_text(encoding="ascii")


def test_what_waits_is_loaded_last() -> None:
    """The residual is on its way before the kernel waits for another rank."""
    source = write_kernel(plan(symbol("tokens"), 8192, LAUNCH)).source
    assert source.index("h1[t] = mdf::load<8>") < source.index("load_relaxed_sys<8>")
    assert source.count("load_relaxed_sys") == 1  # the row is held, not waited for twice


def test_it_compiles_without_spills() -> None:
    text = write_kernel(plan(symbol("tokens"), 8192, LAUNCH))
    cubin = compile_cubin(text.source, text.entry, "sm_90", device_headers())
    usage = resource_usage(cubin)
    assert (usage.spill_store_bytes, usage.spill_load_bytes, usage.local_bytes) == (0, 0, 0)


class Team:
    """The mailboxes of two ranks and what one of them launches."""

    def __init__(self, tokens: int, hidden: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).bfloat16()

        # What is put into a mailbox has no -0.0.
        self.boxes = [draw(tokens, hidden) + 0.0 for _ in range(RANKS)]
        self.table = torch.tensor([b.data_ptr() for b in self.boxes])
        self.residual, self.weight = draw(tokens, hidden), draw(hidden)
        self.outputs = [torch.empty_like(self.residual) for _ in range(3)]
        self.text = write_kernel(plan(tokens, hidden, SMALL))

    def launch(self, timeout: float = 30) -> None:
        used = [self.table, self.residual, self.weight, *self.outputs]
        allocations = [Allocation(b.data_ptr(), b.nbytes, True, "mailbox") for b in self.boxes]
        for k, x in enumerate(used):
            fresh = k > 2
            if fresh:
                poison(x.data_ptr(), x.nbytes)
            allocations.append(Allocation(x.data_ptr(), x.nbytes, fresh, f"b{k}", fresh))
        tokens, hidden = self.residual.shape
        values = {"ranks": RANKS}
        arguments = size_arguments(self.text, values)
        build(self.text.source, self.text.entry).launch_checked(
            grid=(sizes.evaluate(self.text.blocks, values), 1, 1),
            block=(SMALL.threads, 1, 1),
            args=[*(x.data_ptr() for x in used), *arguments, float(hidden)],
            allocations=allocations,
            timeout=timeout,
        )
        assert tokens == self.text.blocks


def test_every_rank_sums_all_mailboxes() -> None:
    team = Team(3, 200)
    team.launch()
    cleared, h, y = team.outputs
    partial = team.boxes[0].float() + team.boxes[1].float()
    expected = (partial + team.residual.float()).bfloat16()
    assert torch.equal(h, expected)
    wide = expected.double()
    normed = wide * torch.rsqrt((wide * wide).mean(1, keepdim=True) + 1e-5) * team.weight.double()
    torch.testing.assert_close(y.double(), normed, rtol=2**-8, atol=1e-6)
    assert torch.equal(cleared.view(torch.int16), torch.full((3, 200), -32768, dtype=torch.int16))


def test_it_waits_for_what_is_not_there() -> None:
    """The emulator has no other rank that could fill the mailbox, so it ends the wait."""
    team = Team(3, 200)
    team.boxes[1][2, 77] = NOT_YET
    with pytest.raises(EmulatorError):
        team.launch(timeout=1)


def test_a_zero_is_no_mark() -> None:
    team = Team(2, 64)
    team.boxes[0].zero_()
    team.launch()
    expected = (team.boxes[1].float() + team.residual.float()).bfloat16()
    assert torch.equal(team.outputs[1], expected)


def _changed(index: int, **changes: object) -> KernelPlan:
    made = plan(8, 8192, LAUNCH)
    buffers = list(made.buffers)
    buffers[index] = replace(buffers[index], **changes)  # type: ignore[arg-type]
    return replace(made, buffers=tuple(buffers))


def test_what_no_device_function_reads_is_refused() -> None:
    with pytest.raises(CodegenError, match="8 elements of f64 at a time; needed are f16, bf16"):
        write_kernel(_changed(0, dtype=DType.F64))
    with pytest.raises(CodegenError, match="filled by the runtime"):
        write_kernel(_changed(0, written=True))
    with pytest.raises(CodegenError, match="unknown space 'elsewhere'"):
        write_kernel(_changed(1, space="elsewhere"))
    made = plan(8, 8192, LAUNCH)
    lanes = replace(made.body[0], detail=replace(made.body[0].detail, access="lane"))  # type: ignore[type-var]
    with pytest.raises(CodegenError, match="whole vectors"):
        write_kernel(replace(made, body=(lanes, *made.body[1:])))


def test_no_program_launches_it_yet() -> None:
    text: KernelText = write_kernel(plan(8, 8192, LAUNCH))
    with pytest.raises(ProgramError, match=r"needs memory in symmetric\(tp\)"):
        PreparedEmulated(text, {"ranks": RANKS})
