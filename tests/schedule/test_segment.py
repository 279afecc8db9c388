"""Where programs are cut into kernels and other steps, and in which order the steps run."""

import random

import pytest
from schedule.programs import (
    ADD_RMS_NORM,
    RMS_NORM,
    cast,
    rms_norm,
    silu,
    swiglu,
    tensor,
)

from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.graph import Builder, Fusion, Use
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan, plan_program
from thunder_mdfuse.schedule.target import H200

BF16, F32 = DType.BF16, DType.F32


def plan(fusion: Fusion, round_all: bool = False) -> ProgramPlan:
    verify(fusion, "the test")
    classes = [InputClass(None) for _ in fusion.inputs]
    program = plan_program(fusion, classes, H200, round_all=round_all)
    check_order(program)
    return program


def steps(program: ProgramPlan) -> list[str]:
    """``kernel``, or the op of the step's node; a wait names what it waits for."""
    found = []
    for step in program.steps:
        if step.kernel is not None:
            found.append("kernel")
            continue
        node = program.fusion.nodes[step.node]
        awaited = program.fusion.nodes[node.args[0].node].op if step.kind == "wait" else ""
        found.append(f"{node.op} {awaited}".strip())
    return found


def check_order(program: ProgramPlan) -> None:
    """Each step reads only what is there, and every storage is written once."""
    there = {Use(n) for n in program.fusion.inputs}
    for step in program.steps:
        if step.kernel is not None:
            buffers = [b for b in step.kernel.buffers if b.space == "global"]
            reads = {b.value for b in buffers if not b.written}
            writes = [b.value for b in buffers if b.written]
        else:
            node = program.fusion.nodes[step.node]
            tensors = [a for a in node.args if a in program.layouts]
            reads = {program.layouts[a].base for a in tensors}
            writes = [Use(step.node, r) for r in range(len(node.types))]
        assert reads <= there, f"{reads - there} are read before they are written\n{program}"
        assert not there & set(writes), f"{writes} are written twice\n{program}"
        there |= set(writes)
    outputs = [o.value for o in program.fusion.outputs if o.value in program.layouts]
    assert {program.layouts[value].base for value in outputs} <= there


def local() -> Builder:
    return Builder(None, "local")


def test_a_linear_cuts_a_chain_and_nothing_else_does() -> None:
    """norm -> linear -> activation -> norm: one kernel before the linear, one after it."""
    b = local()
    x, w = b.input(tensor(BF16, 64, 128)), b.input(tensor(BF16, 128))
    weight, w2 = b.input(tensor(BF16, 256, 128)), b.input(tensor(BF16, 256))
    (hidden,) = b.op("linear", (rms_norm(b, x, w), weight))
    active = cast(b, silu(b, cast(b, hidden, F32)), BF16)
    program = plan(b.finish((rms_norm(b, active, w2),)))
    assert steps(program) == ["kernel", "linear", "kernel"]


def test_a_transformer_mlp_has_three_kernels() -> None:
    """Norm; SwiGLU between the linears; the residual sum with the next norm."""
    b = local()
    x, w, w2 = b.input(tensor(BF16, 64, 128)), *(b.input(tensor(BF16, 128)) for _ in "ab")
    gate, up = (b.input(tensor(BF16, 256, 128)) for _ in "ab")
    down = b.input(tensor(BF16, 128, 256))
    normed = rms_norm(b, x, w)
    ((g,), (u,)) = (b.op("linear", (normed, m)) for m in (gate, up))
    (out,) = b.op("linear", (swiglu(b, g, u), down))
    (total,) = b.op("add", (out, x))
    program = plan(b.finish((total, rms_norm(b, total, w2))))
    assert steps(program) == ["kernel", "linear", "linear", "kernel", "linear", "kernel"]


def test_a_residual_sum_is_read_by_the_norm_and_leaves() -> None:
    program = plan(ADD_RMS_NORM.fusion(64, 128, level="local"))
    (kernel,) = program.kernels
    assert len(kernel.stores) == 2
    assert [b.written for b in kernel.buffers] == [False, False, False, True, True]


def _residual_blocks(layers: int) -> Fusion:
    b = local()
    x, w = b.input(tensor(BF16, 64, 128)), b.input(tensor(BF16, 128))
    weight = b.input(tensor(BF16, 128, 128))
    for _ in range(layers):
        (hidden,) = b.op("linear", (rms_norm(b, x, w), weight))
        (x,) = b.op("add", (x, hidden))
    return b.finish((x,))


def test_a_residual_stream_does_not_read_all_layers_before_it() -> None:
    """Each kernel reads the stream, what the last linear gave, and the norm's weight."""
    program = plan(_residual_blocks(6))
    assert steps(program) == ["kernel", "linear"] * 6 + ["kernel"]
    for kernel in program.kernels[1:-1]:
        assert [b.written for b in kernel.buffers] == [False] * 3 + [True] * 2
    assert len(program.kernels[-1].buffers) == 3


def test_what_is_cheap_to_read_again_is_not_stored_for_a_later_kernel() -> None:
    """A scaled input is computed in both kernels: a store of it would move more bytes."""
    b = local()
    x, weight = b.input(tensor(BF16, 64, 128)), b.input(tensor(BF16, 128, 128))
    (scaled,) = b.op("mul", (x, b.const(2.0)))
    (hidden,) = b.op("linear", (b.op("tanh", (scaled,))[0], weight))
    program = plan(b.finish((b.op("add", (hidden, scaled))[0],)))
    assert steps(program) == ["kernel", "linear", "kernel"]
    assert [len(k.buffers) for k in program.kernels] == [2, 3]
    assert [b.value.node for b in program.kernels[1].buffers if not b.written] == [5, 0]


def test_a_sum_that_only_a_later_kernel_needs_is_made_there() -> None:
    b = local()
    x, y, weight = (b.input(tensor(F32, 16, 16)) for _ in "xyw")
    (hidden,) = b.op("linear", (x, weight))
    (total,) = b.op("add", (x, y))
    program = plan(b.finish((b.op("add", (hidden, total))[0],)))
    assert steps(program) == ["linear", "kernel"]


def test_a_view_of_what_a_linear_gives_is_read_in_place() -> None:
    b = local()
    x, w = b.input(tensor(F32, 8, 16)), b.input(tensor(F32, 16, 16))
    (y,) = b.op("linear", (x, w))
    (heads,) = b.op("reshape", (y,), at.ShapeAttrs((8, 4, 4)))
    (turned,) = b.op("permute", (heads,), at.DimsAttrs((1, 0, 2)))
    program = plan(b.finish((b.op("tanh", (turned,))[0],)))
    assert steps(program) == ["linear", "kernel"]


def test_rows_and_columns_share_a_kernel_and_the_total_has_another() -> None:
    b = local()
    x = b.input(tensor(F32, 8, 16))
    outputs = tuple(b.op("sum", (x,), at.DimsAttrs(dims))[0] for dims in ((0,), (1,), (0, 1)))
    assert steps(plan(b.finish(outputs))) == ["kernel"] * 2


def test_what_a_later_kernel_reads_is_not_computed_twice() -> None:
    """The total reads the exponentials that the kernel of the rows has to write anyway."""
    b = local()
    x = b.input(tensor(F32, 8, 16))
    (grown,) = b.op("exp", (x,))
    (rows,) = b.op("sum", (grown,), at.DimsAttrs((1,)))
    (total,) = b.op("sum", (grown,), at.DimsAttrs((0, 1)))
    program = plan(b.finish((grown, rows, total)))
    assert steps(program) == ["kernel", "kernel"]
    exponentials = [sum(i.op == "exp" for i in k.body) for k in program.kernels]
    assert exponentials == [1, 0]


def test_views_of_complex_tensors_are_no_steps() -> None:
    b = local()
    x, y = (b.input(tensor(DType.C64, 4, 6)) for _ in "xy")
    (turned,) = b.op("permute", (x,), at.DimsAttrs((1, 0)))
    (flat,) = b.op("reshape", (turned,), at.ShapeAttrs((24,)))
    (other,) = b.op("reshape", (y,), at.ShapeAttrs((24,)))
    program = plan(b.finish((b.op("pow", (flat, other))[0], turned)))
    assert steps(program) == ["kernel", "pow"]  # the first reshape copies, the second does not


OVERLAP = """
local mesh[tp=2] digest d
%0 = input(position=0) : f32[8, 16]
%1 = input(position=1) : f32[8, 16]
%2 = tanh(%0) : f32[8, 16]
%3 = all_reduce(%2; team='tp', ranks=2, op='sum') : f32[8, 16]
%4 = wait(%3) : f32[8, 16]
%5 = exp(%1) : f32[8, 16]
%6 = sum(%5; dims=[0]) : f32[16]
%7 = add(%4, %1) : f32[8, 16]
return %7, %6
"""


def test_an_independent_kernel_runs_between_start_and_wait() -> None:
    program = plan(parse(OVERLAP))
    assert steps(program) == ["kernel", "all_reduce", "kernel", "wait all_reduce", "kernel"]
    first, between, last = program.kernels
    assert [b.value.node for b in first.buffers] == [0, 2]
    assert [b.value.node for b in between.buffers] == [1, 6]
    assert [b.value.node for b in last.buffers if b.written] == [7]


def test_a_kernel_that_a_collective_waits_for_runs_before_others() -> None:
    """Even when the others come first in the program."""
    text = """
    local mesh[tp=2] digest d
    %0 = input(position=0) : f32[8, 16]
    %1 = input(position=1) : f32[4, 16]
    %2 = exp(%1) : f32[4, 16]
    %3 = tanh(%0) : f32[8, 16]
    %4 = all_reduce(%3; team='tp', ranks=2, op='sum') : f32[8, 16]
    %5 = wait(%4) : f32[8, 16]
    return %2, %5
    """
    program = plan(parse(text))
    assert steps(program) == ["kernel", "all_reduce", "kernel", "wait all_reduce"]
    assert [b.value.node for b in program.kernels[0].buffers] == [0, 3]


def test_starts_keep_the_order_of_the_program() -> None:
    """The second collective's operand is there at once, the first one's is not: it has to wait.

    Ranks with other strides may have other kernels; the collectives have to meet all the same.
    """
    text = """
    local mesh[tp=2] digest d
    %0 = input(position=0) : f32[8, 16]
    %1 = input(position=1) : f32[16, 16]
    %2 = linear(%0, %1) : f32[8, 16]
    %3 = all_reduce(%2; team='tp', ranks=2, op='sum') : f32[8, 16]
    %4 = wait(%3) : f32[8, 16]
    %5 = all_reduce(%0; team='tp', ranks=2, op='max') : f32[8, 16]
    %6 = wait(%5) : f32[8, 16]
    return %4, %6
    """
    program = plan(parse(text))
    assert steps(program) == ["linear", *["all_reduce"] * 2, *["wait all_reduce"] * 2]
    assert [s.node for s in program.steps if s.kind == "start"] == [3, 5]


def _random_graph(seed: int, mesh: bool) -> Fusion:
    """A random program of elementwise ops, reductions given back, linears and collectives."""
    rng = random.Random(seed)
    text = "local mesh[tp=2] digest d\n%0 = input(position=0) : f32[8, 16]\nreturn %0"
    b = Builder(parse(text).mesh if mesh else None, "local")
    square = b.input(tensor(F32, 16, 16))
    values = [b.input(tensor(F32, 8, 16)) for _ in range(rng.randint(1, 3))]
    team = at.ReduceCommAttrs("tp", 2, "sum")
    for _ in range(rng.randint(3, 25)):
        x, y = rng.choice(values), rng.choice(values)
        kind = rng.choice(("unary", "binary", "binary", "back", "linear", *(("comm",) * mesh)))
        if kind == "unary":
            new = b.op(rng.choice(("tanh", "sin", "neg")), (x,))
        elif kind == "binary":
            new = b.op(rng.choice(("add", "mul")), (x, y))
        elif kind == "linear":
            new = b.op("linear", (x, square))
        elif kind == "comm":
            new = b.op("wait", b.op("all_reduce", (x,), team))
        else:
            dim = rng.randrange(2)
            (total,) = b.op("sum", (x,), at.DimsAttrs((dim,)))
            (whole,) = b.op("broadcast_in_dim", (total,), at.BroadcastAttrs((8, 16), (1 - dim,)))
            new = b.op("sub", (y, whole))
        values += new
    chosen = [values[-1], *(v for v in values if rng.random() < 0.2)]
    return b.finish(tuple(chosen))


@pytest.mark.parametrize("mesh", [False, True], ids=["alone", "mesh"])
def test_random_graphs_have_no_cycles(mesh: bool) -> None:
    for seed in range(150):
        fusion = _random_graph(seed, mesh)
        program = plan(fusion)
        found = [s.node for s in program.steps if s.kind == "start"]
        assert found == sorted(found), f"seed {seed}\n{program}"
        reductions = sum(n.op == "sum" for n in fusion.nodes)
        reduced = sum(i.op == "reduce_sum" for k in program.kernels for i in k.body)
        assert reduced == reductions, f"seed {seed}: a reduction is computed {reduced} times"


def test_a_norm_alone_is_what_the_segmenter_gives() -> None:
    """Rounding every intermediate changes what kernels compute, not where programs are cut."""
    fusion = RMS_NORM.fusion(64, 128, level="local")
    assert steps(plan(fusion, round_all=True)) == steps(plan(fusion)) == ["kernel"]
