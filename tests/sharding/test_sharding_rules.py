"""The rule table: one row an op, and what some rows offer."""

import pytest

from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.sharding.factors import Factor
from thunder_mdfuse.sharding.propagate import site_of
from thunder_mdfuse.sharding.rules import RULES, Rule, Unsupported


def test_every_op_has_a_row():
    assert RULES.keys() == OPS.keys()
    assert all(row.reason for row in RULES.values() if isinstance(row, Unsupported))


def node_of(types: str, op: str) -> Fusion:
    """A program of inputs of ``types`` (separated by ';') and one op."""
    lines = [f"%{i} = input(position={i}) : {t}" for i, t in enumerate(types.split(";"))]
    n = len(lines)
    return parse("\n".join(["global", *lines, f"%{n} = {op}", f"return %{n}"]))


def factors(types: str, op: str) -> list[Factor]:
    fusion = node_of(types, op)
    node = fusion.nodes[-1]
    rule = RULES[node.op]
    assert isinstance(rule, Rule)
    return list(rule.factors(site_of(fusion, node)))


def dims(found: list[Factor]) -> list[tuple]:
    return [(f.operands, f.results) for f in found]


RESHAPES = [
    # (before, after, [(dim before, dim after, exact)])
    ("[6, 4]", "[6, 4]", [(0, 0, False), (1, 1, False)]),
    ("[6, 4]", "[24]", [(0, 0, True)]),
    ("[24]", "[6, 4]", [(0, 0, True)]),
    ("[4, 6]", "[6, 4]", [(0, 0, True)]),
    ("[2, 6]", "[4, 3]", [(0, 0, True)]),
    ("[3, 4]", "[2, 6]", []),
    ("[2, 12, 5]", "[2, 3, 4, 5]", [(0, 0, False), (1, 1, True), (2, 3, False)]),
    ("[1, 6, 1]", "[6]", [(1, 0, False)]),
    ("[0, 4]", "[4, 0]", []),
    ("[s0, s1]", "[s0*s1]", [(0, 0, True)]),
    ("[s0*s1, 3]", "[s0, s1, 3]", [(0, 0, True), (1, 2, False)]),
    ("[s0, s1]", "[s1, s0]", []),
    ("[s0 + s1, 4]", "[s0 + s1, 2, 2]", [(0, 0, False), (1, 1, True)]),
]


@pytest.mark.parametrize(("before", "after", "expected"), RESHAPES)
def test_reshape_keeps_whole_dims_and_common_outermost_factors(before, after, expected):
    found = factors(f"f32{before}", f"reshape(%0; shape={after}) : f32{after}")
    assert [(f.operands[0], f.results[0], f.exact) for f in found] == expected


def test_matmul_batch_dims_broadcast_from_the_right():
    found = factors("f32[7, 1, 2, 3];f32[5, 3, 4]", "matmul(%0, %1) : f32[7, 5, 2, 4]")
    # Batch 7, m, the contraction, batch 5 (which the first operand repeats), n.
    assert dims(found) == [
        ((0, None), (0,)),
        ((2, None), (2,)),
        ((3, 1), (None,)),
        ((None, 0), (1,)),
        ((None, 2), (3,)),
    ]
    assert [f.reduces for f in found] == [None, None, "sum", None, None]


def test_matmul_of_vectors():
    assert dims(factors("f32[3];f32[3]", "matmul(%0, %1) : f32[]")) == [((0, 0), (None,))]
    found = factors("f32[5, 3, 4];f32[4]", "matmul(%0, %1) : f32[5, 3]")
    assert dims(found) == [((0, None), (0,)), ((1, None), (1,)), ((2, 0), (None,))]


SDPA = "sdpa(%0, %1, %2; {}) : f32[2, 8, 6, 4]"
HEADS = "f32[2, 8, 6, 4];f32[2, 8, 5, 4];f32[2, 8, 5, 4]"
GROUPS = "f32[2, 8, 6, 4];f32[2, 2, 5, 4];f32[2, 2, 5, 4]"


def test_attention_shards_batch_heads_rows_and_value_columns():
    assert dims(factors(HEADS, SDPA.format("is_causal=false"))) == [
        ((0, 0, 0), (0,)),
        ((1, 1, 1), (1,)),
        ((2, None, None), (2,)),
        ((None, None, 3), (3,)),
    ]


def test_causal_attention_keeps_rows_whole():
    found = factors(HEADS, SDPA.format("is_causal=true"))
    assert [f.operands[0] for f in found] == [0, 1, None]


def test_grouped_heads_are_sharded_by_whole_groups():
    found = factors(GROUPS, SDPA.format("enable_gqa=true"))
    assert [(f.operands, f.size, f.exact) for f in found[:2]] == [
        ((0, 0, 0), 2, False),
        ((1, 1, 1), 2, True),
    ]
    assert len(factors(GROUPS.replace("2, 5", "1, 5"), SDPA.format("is_causal=false"))) == 3


def test_a_mask_that_broadcasts_does_not_hinder():
    mask = f"{HEADS};f32[8, 1, 5]"
    op = "sdpa(%0, %1, %2, %3) : f32[2, 8, 6, 4]"
    assert [f.operands for f in factors(mask, op)] == [
        (0, 0, 0, None),
        (1, 1, 1, 0),
        (2, None, None, None),
        (None, None, 3, None),
    ]


def test_dropout_inside_attention_is_not_sharded():
    assert factors(HEADS, SDPA.format("dropout_p=0.5")) == []


def test_indexing_rows():
    found = factors("f32[8, 4];i64[3]", "take(%0, %1; dim=0) : f32[3, 4]")
    assert [(f.operands, f.results, f.reduces, f.block) for f in found] == [
        ((0, None), (None,), "sum", True),
        ((1, None), (1,), None, False),
        ((None, 0), (0,), None, False),
    ]
