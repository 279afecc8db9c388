"""Ops over a sharded class dim: what is communicated, and that the numbers are torch's."""

import pytest
import torch
from sharding.test_sharding_values import results, whole_numbers

from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import reshard

F = torch.nn.functional


def lowered(text: str) -> Fusion:
    return localize(reshard(propagate(parse(text))))


def collectives(text: str) -> list[str]:
    """Each collective of the program with what it moves."""
    fusion = lowered(text)
    return [f"{n.op} {n.types[0]}" for n in fusion.nodes if row(n.op).kind == "start"]


# As Thunder writes it: log_softmax, then the label's entry, negated and averaged.
CROSS_ENTROPY = """global mesh[dp=2, tp=4]
    %0 = input(position=0) : f32[6, {c}] @ [Shard(0), Shard(1)]
    %1 = input(position=1) : i64[6] @ [Shard(0), Replicate]
    %2 = amax(%0; dims=[1]) : f32[6]
    %3 = broadcast_in_dim(%2; shape=[6, {c}], dims=[0]) : f32[6, {c}]
    %4 = sub(%0, %3) : f32[6, {c}]
    %5 = exp(%4) : f32[6, {c}]
    %6 = sum(%5; dims=[1]) : f32[6]
    %7 = log(%6) : f32[6]
    %8 = broadcast_in_dim(%7; shape=[6, {c}], dims=[0]) : f32[6, {c}]
    %9 = sub(%4, %8) : f32[6, {c}]
    %10 = broadcast_in_dim(%1; shape=[6, 1], dims=[0]) : i64[6, 1]
    %11 = take_along_axis(%9, %10; dim=1) : f32[6, 1]
    %12 = squeeze(%11; dims=[1]) : f32[6]
    %13 = neg(%12) : f32[6]
    %14 = sum(%13; dims=[0]) : f32[]
    %15 = const(value='6', dtype=i64) : i64
    %16 = div(%14, %15) : f32[]
    return %16"""


@pytest.mark.parametrize("classes", [16, 13, 3])
def test_cross_entropy_over_sharded_classes(classes):
    """Uneven classes, and fewer than ranks, among them."""
    text = CROSS_ENTROPY.format(c=classes)
    logits = torch.randn(6, classes, generator=torch.Generator().manual_seed(1))
    target = torch.arange(6) % classes
    found = results(text, logits, target)[0]
    torch.testing.assert_close(found, F.cross_entropy(logits, target))


def test_cross_entropy_takes_two_small_all_reduces_over_the_classes():
    assert collectives(CROSS_ENTROPY.format(c=16)) == [
        "all_reduce f32[3]",
        "all_reduce f32[1, 6]",
    ]


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize(
    "places",
    ["Shard(1), Replicate", "Shard(1), Shard(1)", "Shard(0), Shard(1)", "Shard(1), Shard(0)"],
)
def test_argmax_over_a_sharded_dim(op, places):
    text = f"""global mesh[dp=2, tp=3]
        %0 = input(position=0) : f64[5, 7] @ [{places}]
        %1 = {op}(%0; dim=1) : i64[5]
        %2 = {op}(%0; dim=none) : i64[]
        return %1, %2"""
    x = whole_numbers(5, 7)  # with ties
    x[1, 5] = x[1, 2] = float("nan")
    x[2] = float("-inf")
    for y in (x, torch.nan_to_num(x)):
        first, second = results(text, y)
        assert torch.equal(first, getattr(torch, op)(y, 1))
        assert torch.equal(second, getattr(torch, op)(y))
    # Values and indices are reduced, never is the operand gathered.
    moved = {n.op for n in lowered(text).nodes if row(n.op).kind == "start"}
    assert moved == {"all_reduce"}


def test_a_look_up_goes_before_what_it_looks_up():
    text = """global mesh[tp=4]
        %0 = input(position=0) : f64[5, 8] @ [Shard(1)]
        %1 = input(position=1) : i64[5, 1] @ [Replicate]
        %2 = exp(%0) : f64[5, 8]
        %3 = const(value='2.0', dtype=f64) : f64
        %4 = mul(%2, %3) : f64[5, 8]
        %5 = gather(%4, %1; dim=1) : f64[5, 1] @ [Replicate]
        return %5"""
    assert collectives(text) == ["all_reduce f64[5, 1]"]
    x, index = whole_numbers(5, 8), torch.tensor([[3], [0], [7], [5], [2]])
    assert torch.equal(results(text, x, index)[0], torch.gather(x.exp() * 2, 1, index))


@pytest.mark.parametrize(("classes", "moved"), [(8, "all_reduce f64[5, 1]"), (7, None)])
def test_a_look_up_behind_a_pad_leaves_the_padding_out(classes, moved):
    """As Thunder ignores a target: it looks it up in a class more, which is 0."""
    text = f"""global mesh[tp=4]
        %0 = input(position=0) : f64[5, {classes}] @ [Shard(1)]
        %1 = input(position=1) : i64[5, 1] @ [Replicate]
        %2 = neg(%0) : f64[5, {classes}]
        %3 = const(value='0.5', dtype=f64) : f64
        %4 = pad(%2, %3; low=[0, 0], high=[0, 1]) : f64[5, {classes + 1}]
        %5 = take_along_axis(%4, %1; dim=1) : f64[5, 1] @ [Replicate]
        return %5"""
    assert moved is None or collectives(text) == [moved]
    x, index = whole_numbers(5, classes), torch.tensor([[3], [0], [classes], [5], [2]])
    wanted = torch.gather(F.pad(-x, (0, 1), value=0.5), 1, index)
    assert torch.equal(results(text, x, index)[0], wanted)


def test_the_gradient_of_a_look_up_is_made_in_blocks():
    """As Thunder differentiates a look-up: no rank makes more than its block, nothing is moved."""
    text = """global mesh[tp=4]
        %0 = input(position=0) : f64[5, 1] @ [Replicate]
        %1 = input(position=1) : i64[5, 1] @ [Replicate]
        %2 = input(position=2) : f64[5, 8] @ [Shard(1)]
        %3 = const(value='0.0', dtype=f64) : f64
        %4 = full(%3; shape=[5, 8], dtype=f64) : f64[5, 8]
        %5 = scatter_add(%4, %1, %0; dim=1) : f64[5, 8] @ [Shard(1)]
        %6 = add(%5, %2) : f64[5, 8]
        return %6"""
    assert collectives(text) == []
    matrices = [t for n in lowered(text).nodes for t in n.types if "5, " in str(t)]
    assert {t.shape[-1] for t in matrices} == {1, 2}
    grad, x = whole_numbers(5, 1), whole_numbers(5, 8)
    index = torch.tensor([[3], [0], [7], [5], [2]])
    expected = torch.zeros(5, 8).double().scatter_add(1, index, grad) + x
    assert torch.equal(results(text, grad, index, x)[0], expected)


@pytest.mark.parametrize(
    "places", ["Shard(0), Replicate", "Shard(0), Shard(0)", "Shard(1), Shard(0)"]
)
def test_rows_are_added_into_a_sharded_table(places):
    text = f"""global mesh[dp=2, tp=2]
        %0 = input(position=0) : f64[8, 4] @ [{places}]
        %1 = input(position=1) : i64[6] @ [Replicate, Replicate]
        %2 = input(position=2) : f64[6, 4] @ [Replicate, Replicate]
        %3 = index_add(%0, %1, %2; dim=0) : f64[8, 4]
        return %3"""
    assert collectives(text) == []
    x, rows = whole_numbers(8, 4), whole_numbers(6, 4)
    index = torch.tensor([7, 0, 3, 3, 5, 0])
    assert torch.equal(results(text, x, index, rows)[0], x.index_add(0, index, rows))


def test_independent_kernels_run_while_a_collective_is_in_flight():
    """Start, what needs nothing of it, wait: in this order, in the plan that every rank makes."""
    text = """global mesh[tp=2]
        %0 = input(position=0) : f32[64, 512] @ [Partial(sum)]
        %1 = input(position=1) : f32[64, 512] @ [Replicate]
        %2 = exp(%0) : f32[64, 512]
        %3 = exp(%1) : f32[64, 512]
        %4 = sum(%3; dims=[1]) : f32[64]
        return %2, %4"""
    local = lowered(text)
    plan = plan_program(local, [InputClass((512, 1))] * 2, H200, {"@tp": 0})
    kinds = [step.kind for step in plan.steps]
    assert kinds == ["start", "kernel", "wait", "kernel"]


def test_a_look_up_in_a_choice_looks_up_its_condition():
    text = """global mesh[tp=4]
        %0 = input(position=0) : f64[5, 8] @ [Shard(1)]
        %1 = input(position=1) : i64[5, 1] @ [Replicate]
        %2 = const(value='1.0', dtype=f64) : f64
        %3 = lt(%0, %2) : bool[5, 8]
        %4 = where(%3, %0, %2) : f64[5, 8]
        %5 = gather(%4, %1; dim=1) : f64[5, 1]
        %6 = gather(%3, %1; dim=1) : bool[5, 1] @ [Replicate]
        return %5, %6"""
    x, index = whole_numbers(5, 8), torch.tensor([[3], [0], [7], [5], [2]])
    first, second = results(text, x, index)
    assert torch.equal(first, torch.gather(torch.where(x < 1, x, 1.0), 1, index))
    assert torch.equal(second, torch.gather(x < 1, 1, index))
    assert not [c for c in collectives(text) if not c.startswith("all_reduce")]
