"""Malformed programs, one for each rule of ``verify`` and of the type rules, and what is said."""

import pytest

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.attrs import NO_ATTRS, DimsAttrs, InputAttrs
from thunder_mdfuse.ir.graph import Fusion, Node, Output, Use
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.ir.types import DType, TensorType
from thunder_mdfuse.ir.verify import verify

X = TensorType(DType.F32, (4,))
INPUT = Node("input", (), InputAttrs(0), (X,))


def refused(fusion, says):
    with pytest.raises(IRError, match=says) as caught:
        verify(fusion, "a stage")
    assert str(caught.value).startswith("after a stage: ")
    return str(caught.value)


def test_a_well_formed_program_comes_back():
    fusion = Fusion((INPUT, Node("neg", (Use(0),), NO_ATTRS, (X,))), (Output(Use(1)),))
    assert verify(fusion, "a stage") is fusion


def test_a_failure_shows_the_nodes_around_it():
    nodes = [INPUT, *(Node("neg", (Use(i),), NO_ATTRS, (X,)) for i in range(30))]
    nodes[15] = Node("neg", (Use(99),), NO_ATTRS, (X,))
    message = refused(Fusion(tuple(nodes), (Output(Use(30)),)), "%15 reads %99")
    assert "-> %15 = neg(%99)" in message
    assert "   %5 = neg(%4)" in message
    assert "   %25 = neg(%24)" in message
    assert "%4 = " not in message
    assert "%26 = " not in message


@pytest.mark.parametrize("use", [Use(1), Use(2), Use(0, 1), Use(0, -1), Use(-1)])
def test_operands_are_results_of_earlier_nodes(use):
    nodes = (INPUT, Node("neg", (use,), NO_ATTRS, (X,)), INPUT)
    refused(Fusion(nodes, (Output(Use(1)),)), "not a result of an earlier node")


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_operands(count):
    node = Node("add", (Use(0),) * count, NO_ATTRS, (X,))
    refused(Fusion((INPUT, node), (Output(Use(1)),)), rf"takes \(2, 2\) operands, found {count}")


def test_the_class_of_attributes():
    node = Node("neg", (Use(0),), DimsAttrs(()), (X,))
    refused(Fusion((INPUT, node), (Output(Use(1)),)), "neg needs NoAttrs, found DimsAttrs")


def test_an_unknown_op():
    node = Node("negate", (Use(0),), NO_ATTRS, (X,))
    refused(Fusion((INPUT, node), (Output(Use(1)),)), "unknown op 'negate'")


@pytest.mark.parametrize("position", [1, -1])
def test_inputs_come_first_and_in_order(position):
    node = Node("input", (), InputAttrs(position), (X,))
    refused(Fusion((node,), (Output(Use(0)),)), f"inputs come first and in order.*{position}")


def test_an_input_behind_other_nodes():
    nodes = (INPUT, Node("neg", (Use(0),), NO_ATTRS, (X,)), Node("input", (), InputAttrs(1), (X,)))
    refused(Fusion(nodes, (Output(Use(1)),)), "inputs come first and in order")


# Each program's text, and what the refusal says.
TEXTS = {
    "global op in a local program": (
        """local mesh[tp=2]
        %0 = input(position=0) : f32[8]
        %1 = reshard(%0; placements=[Replicate]) : f32[8]
        return %1""",
        "reshard stands in global programs only",
    ),
    "local op in a global program": (
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Replicate]
        %1 = chunk(%0; team='tp', ranks=2, dim=0) : f32[4]
        return %1""",
        "chunk stands in local programs only",
    ),
    "a type that the rule does not give": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = exp(%0) : f32[9]
        return %1""",
        "exp gives",
    ),
    "a dtype that the rule does not give": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = isnan(%0) : f32[8]
        return %1""",
        "isnan gives",
    ),
    "too few results": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = topk(%0; k=2, dim=0) : f32[2]
        return %1""",
        "topk gives",
    ),
    "placements after localize": (
        """local mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Replicate]
        return %0""",
        "placements end with localize",
    ),
    "placements without a mesh": (
        """global
        %0 = input(position=0) : f32[8] @ [Replicate]
        return %0""",
        "has placements, but the program has no mesh",
    ),
    "a placement too few": (
        """global mesh[dp=2, tp=2]
        %0 = input(position=0) : f32[8] @ [Shard(0)]
        return %0""",
        "needs one placement for each axis",
    ),
    "a shard of a dim that is not there": (
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Shard(1)]
        return %0""",
        r"mesh axis 'tp': Shard\(1\) names no dim",
    ),
    "a strided shard of a dim that is not there": (
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [StridedShard(1, 2)]
        return %0""",
        r"mesh axis 'tp': StridedShard\(1, 2\) names no dim",
    ),
    "an output that is no node": (
        """global
        %0 = input(position=0) : f32[8]
        return %3""",
        "the output %3 is no value",
    ),
    "an output that is no result": (
        """global
        %0 = input(position=0) : f32[8]
        return %0.1""",
        "the output %0.1 is no value",
    ),
    "a write to something computed": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = exp(%0) : f32[8]
        return %0 -> %1""",
        "%1 is written but is no input",
    ),
    "two writes to one input": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = exp(%0) : f32[8]
        return %1 -> %0, %0 -> %0""",
        "the input %0 is written twice",
    ),
    "a write of another shape": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = sum(%0; dims=[0]) : f32[]
        return %1 -> %0""",
        "cannot be written into %0 of type f32",
    ),
    "a write of another dtype": (
        """global
        %0 = input(position=0) : f32[8]
        %1 = isnan(%0) : bool[8]
        return %1 -> %0""",
        "cast, broadcast or reshard it first",
    ),
    "a write of another placement": (
        """global mesh[tp=2]
        %0 = input(position=0) : f32[8] @ [Shard(0)]
        %1 = exp(%0) : f32[8] @ [Replicate]
        return %1 -> %0""",
        "cannot be written into",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_refused(name):
    text, says = TEXTS[name]
    refused(parse(text), says)


# Operand types, op with attributes, and what the type rule says.
RULES = [
    ("f32[2] f16[2]", "add(%0, %1)", "one dtype and shape"),
    ("f32[2] f32[3]", "add(%0, %1)", "one dtype and shape"),
    ("f32[2] f32[2] f32[2]", "where(%0, %1, %2)", "the condition must be bool"),
    ("bool[3] f32[2] f32[2]", "where(%0, %1, %2)", "the condition is"),
    ("f64", "sum(%0; dims=[])", "must be a tensor"),
    ("f32[2]", "sum(%0; dims=[1])", "must be distinct and in range"),
    ("f32[2]", "amax(%0; dims=[0, 0])", "must be distinct and in range"),
    ("f32[2]", "argmax(%0; dim=2)", "must be distinct and in range"),
    ("f32[2, 3]", "broadcast_in_dim(%0; shape=[2, 3], dims=[1, 0])", "must ascend"),
    ("f32[2]", "broadcast_in_dim(%0; shape=[3], dims=[0])", "does not broadcast"),
    ("f32[s0]", "broadcast_in_dim(%0; shape=[s1], dims=[0])", "does not broadcast"),
    ("f32[2]", "broadcast_in_dim(%0; shape=[2], dims=[1])", "does not broadcast"),
    ("f32[2, 3]", "reshape(%0; shape=[5])", "has 6 elements"),
    ("f32[2, 3]", "permute(%0; dims=[0, 0])", "not a permutation"),
    ("f32[2, 1]", "squeeze(%0; dims=[0])", r"dims \[0\] .* not of size 1"),
    ("f32[2]", "slice(%0; starts=[], ends=[], steps=[])", "a start, an end and a step"),
    ("f32[2]", "slice(%0; starts=[0], ends=[2], steps=[0])", "at least 1"),
    ("f32[2] f64", "pad(%0, %1; low=[], high=[])", "a low and a high padding"),
    ("f32[2, 3] f32[2, 4]", "cat(%0, %1; dim=0)", "does not fit"),
    ("f32[2, 3] f16[2, 3]", "cat(%0, %1; dim=0)", "does not fit"),
    ("f32[2, 3] i64[2]", "gather(%0, %1; dim=0)", "equally many dims"),
    ("i64[2] f32[2]", "embedding(%0, %1)", "must have 2 dims"),
    ("f32[2, 3] f32[4, 5]", "matmul(%0, %1)", "inner sizes"),
    ("f32[2, 2, 3] f32[3, 3, 5]", "matmul(%0, %1)", "do not broadcast"),
    ("f32[2, 3] f16[3, 5]", "matmul(%0, %1)", "one dtype"),
    ("f32[2, 3] f32[3, 4]", "linear(%0, %1)", r"w\[out, in\]"),
    ("f32[2, 3] f32[4, 3] f32[3]", "linear(%0, %1, %2)", "must have shape"),
]


@pytest.mark.parametrize(("types", "call", "says"), RULES)
def test_the_type_rules_refuse(types, call, says):
    kinds = types.replace("] ", "]|").replace("f64 ", "f64|").split("|")
    lines = [f"%{i} = input(position={i}) : {t}" for i, t in enumerate(kinds)]
    n = len(lines)
    text = "\n".join(["global", *lines, f"%{n} = {call} : f32[1]", f"return %{n}"])
    refused(parse(text), says)
