"""The op table, and that every table with a row for each op has just those rows."""

from pathlib import Path

import pytest

from thunder_mdfuse.codegen.exprs import EXPRS, NotGenerated
from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir.ops import OPS, row
from thunder_mdfuse.runtime.aten import ATEN, NotCalled


def test_every_op_has_a_torch_call_or_a_reason():
    assert set(ATEN) == set(OPS)
    reasons = {name: call.reason for name, call in ATEN.items() if isinstance(call, NotCalled)}
    assert all(reasons.values())
    # Whatever else a region holds must run, so this list only grows with the kinds of collectives.
    assert set(reasons) == {
        "input",
        "from_local",
        "to_local",
        "reshard",
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "permute_ranks",
        "wait",
    }


def test_rows_are_named_as_they_are_found():
    assert all(op.name == name == row(name).name for name, op in OPS.items())
    with pytest.raises(IRError, match="unknown op 'relu'"):
        row("relu")


def test_levels_and_kinds_are_known():
    assert {op.level for op in OPS.values()} == {"any", "global", "local"}
    starts = {name for name, op in OPS.items() if op.kind == "start"}
    assert starts == {
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "permute_ranks",
    }
    assert all(op.operands[0] <= op.operands[1] and op.results >= 1 for op in OPS.values())


# Those of DESIGN section 4 that the IR has: libraries do them, or they are too rare for a kernel.
CLOSED = {"matmul", "linear", "grouped_mm", "sdpa", "sdpa_backward", "sort", "argsort", "topk"}
CLOSED |= {"digamma", "ndtri", "zeta", "convolution", "randint", "multinomial"}
# Instructions of a kernel without a text of their own, numbers of the host, what the program does.
NEVER_A_STEP = {"view", "copy", "rearrange", "factory", "scalar", "rng_state"}
NEVER_A_STEP |= {"chunk", "start", "wait", "placement", "input", "index", "scatter"}


def test_the_list_of_gaps_is_what_the_generator_leaves():
    lines = (Path(__file__).parent.parent / "not_generated.txt").read_text().splitlines()
    rows = [line.split(": ", 1) for line in lines if not line.startswith("#")]
    listed = [name for name, _ in rows]
    assert listed == sorted(set(listed))
    assert all(waits_for for _, waits_for in rows)
    left = {name for name, expr in EXPRS.items() if isinstance(expr, NotGenerated)}
    composites = {"var", "var_mean"}  # gone before the generator, see ir/decompose.py
    steps = {name for name in left if OPS[name].kind not in NEVER_A_STEP} - composites
    assert set(listed) == steps - CLOSED
