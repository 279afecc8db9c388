"""The op table, and that every table with a row for each op has just those rows."""

import pytest

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
        "wait",
    }


def test_rows_are_named_as_they_are_found():
    assert all(op.name == name == row(name).name for name, op in OPS.items())
    with pytest.raises(IRError, match="unknown op 'relu'"):
        row("relu")


def test_levels_and_kinds_are_known():
    assert {op.level for op in OPS.values()} == {"any", "global", "local"}
    starts = {name for name, op in OPS.items() if op.kind == "start"}
    assert starts == {"all_gather", "all_reduce", "reduce_scatter", "all_to_all"}
    assert all(op.operands[0] <= op.operands[1] and op.results >= 1 for op in OPS.values())
