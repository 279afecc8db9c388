"""Building: canonical order, shared nodes, dead nodes, keys."""

import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ir.drawn import elementwise, others, shapes
from ir.drawn.core import FAMILIES, build, programs

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.attrs import DimsAttrs, FactoryAttrs
from thunder_mdfuse.ir.graph import Builder, Output, Use
from thunder_mdfuse.ir.text import parse, render
from thunder_mdfuse.ir.types import DType, TensorType
from thunder_mdfuse.ir.verify import verify

FILES = (elementwise, others, shapes)
X = TensorType(DType.F32, (4,))


def rebuilt(fusion, order, outputs):
    """``fusion`` with its nodes appended in another order that keeps operands first."""
    builder, moved = Builder(fusion.mesh, fusion.level), {}
    for i in order:
        node = fusion.nodes[i]
        args = tuple(Use(moved[a.node], a.result) for a in node.args)
        if node.op == "input":
            moved[i] = builder.input(node.types[0]).node
        else:
            moved[i] = builder.node(type(node)(node.op, args, node.attrs, node.types))[0].node
    return builder.finish(tuple(Output(Use(moved[o.value.node], o.value.result)) for o in outputs))


def another_order(fusion, seed):
    left, done, order = list(range(len(fusion.nodes))), set(), []
    chooser = random.Random(seed)
    while left:
        ready = [i for i in left if all(a.node in done for a in fusion.nodes[i].args)]
        inputs = [i for i in ready if fusion.nodes[i].op == "input"][:1]
        others = [i for i in ready if fusion.nodes[i].op != "input"]
        pick = chooser.choice(inputs + others)
        left.remove(pick)
        done.add(pick)
        order.append(pick)
    return order


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(sorted(FAMILIES)), st.integers(0, 1 << 30))
def test_equal_programs_are_equal_however_they_were_built(program, seed):
    builder, uses = build(program)
    fusion = verify(builder.finish(tuple(uses)), "build")
    again = rebuilt(fusion, another_order(fusion, seed), fusion.outputs)
    assert again == fusion
    assert again.key == fusion.key
    assert hash(again) == hash(fusion)


def test_equal_nodes_are_one():
    b = Builder()
    x, y = b.input(X), b.input(X)
    assert x != y
    (first,), (second,), (other,) = (b.op("add", args) for args in ((x, y), (x, y), (y, x)))
    assert first == second
    assert first != other


def test_dead_nodes_go_and_unused_inputs_stay():
    b = Builder()
    x, _ = b.input(X), b.input(X)
    b.op("exp", (x,))
    (y,) = b.op("neg", (x,))
    fusion = b.finish((y,))
    assert [n.op for n in fusion.nodes] == ["input", "input", "neg"]
    assert fusion.inputs == (0, 1)
    assert fusion.users == {Use(0): (2,)}


def test_users_list_a_node_once():
    b = Builder()
    x = b.input(X)
    (square,) = b.op("mul", (x, x))
    fusion = b.finish(b.op("add", (x, square)))
    assert fusion.users == {Use(0): (1, 2), Use(1): (2,)}


def test_deep_programs_do_not_overflow_the_stack():
    b = Builder()
    use = b.input(X)
    for _ in range(5000):
        (use,) = b.op("neg", (use,))
    assert len(b.finish((use,)).nodes) == 5001


def test_the_key_is_the_same_in_another_process():
    b = Builder()
    (y,) = b.op("sum", (b.input(X),), DimsAttrs((0,)))
    fusion = b.finish((y,))
    script = (
        "import sys; from thunder_mdfuse.ir.text import parse; "
        "print(parse(sys.stdin.read()).key, end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=render(fusion),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p) + ":.", "PYTHONHASHSEED": "7"},
    )
    assert done.stdout == fusion.key


def test_keys_tell_programs_apart():
    texts = [
        "global\n%0 = input(position=0) : f32[4]\nreturn %0\n",
        "global\n%0 = input(position=0) : f32[5]\nreturn %0\n",
        "global\n%0 = input(position=0) : f32[s0]\nreturn %0\n",
        "local\n%0 = input(position=0) : f32[4]\nreturn %0\n",
        "global mesh[tp=2] digest a\n%0 = input(position=0) : f32[4] @ [Shard(0)]\nreturn %0\n",
        "global mesh[tp=2] digest b\n%0 = input(position=0) : f32[4] @ [Shard(0)]\nreturn %0\n",
        "global mesh[tp=2] digest b\n%0 = input(position=0) : f32[4] @ [Partial(sum)]\nreturn %0\n",
        "global\n%0 = input(position=0) : f32[4]\nreturn %0 -> %0\n",
        "global\n%0 = input(position=0) : f32[4]\nreturn %0, %0\n",
    ]
    assert len({parse(text).key for text in texts}) == len(texts)


def test_building_refuses_what_does_not_fit():
    b = Builder()
    x = b.input(X)
    with pytest.raises(IRError, match=r"add: 1 operands found, \(2, 2\)"):
        b.op("add", (x,))
    with pytest.raises(IRError, match="NoAttrs needed"):
        b.op("neg", (x,), DimsAttrs(()))
    with pytest.raises(IRError, match="unknown op 'plus'"):
        b.op("plus", (x, x))


def test_writes_follow_their_input():
    b = Builder()
    x, y = b.input(X), b.input(X)
    (zero,) = b.op("full", (b.const(0.0),), FactoryAttrs((4,), DType.F32))
    fusion = b.finish((Output(zero, writes=y.node), x))
    assert fusion.outputs == (Output(Use(3), writes=1), Output(Use(0)))
    verify(fusion, "build")
