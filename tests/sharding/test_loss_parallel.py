"""Ops over a sharded class dim: what is communicated, and that the numbers are torch's."""

import pytest
import torch
from sharding.test_sharding_values import results, whole_numbers

from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.text import parse
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
