"""Every bound, mask, barrier and guard of the golden kernels is needed, and its loss is caught.

A mutant is run over shapes of its class in the emulator. It has to end in a fault or in a wrong
result; what survives has to be listed with the reason why that is right.
"""

import re
from collections.abc import Iterator

import pytest
from codegen.goldens import GOLDENS, Golden
from codegen.test_golden import check_values

from thunder_mdfuse.compile.emulate_mutants import mutants
from thunder_mdfuse.errors import EmulatorError

ROW_0_AGAIN = "a group without a row computes row 0, and would store row 0's own values once more"
SAME_VALUE = "every lane has the group's result, so all would store the same"
OUTER = ("outer_shared_bf16", "outer_products", "outer_middle", "outer_held", "outer_read_again")
COLUMN_0_AGAIN = "a thread without columns would walk column 0, and stores nothing"
NOTHING_READ = "a thread without columns reads nothing for them"
AHEAD = "what a row needs was loaded ahead, under a bound of its own"
# Whole mutations, and single lines of goldens, that leave nothing to be found.
SURVIVORS: dict[tuple[str, str], str] = {
    ("inner_outer_short", "no row for a group without one"): AHEAD,
    ("row_softmax_f32", "no guard of a group without a row"): ROW_0_AGAIN,
    ("row_layer_norm_short", "no guard of a group without a row"): ROW_0_AGAIN,
    ("row_sums_short", "no guard of a group's result"): ROW_0_AGAIN,
    ("scan_of_short_rows", "no guard of a group without a row"): ROW_0_AGAIN,
    ("row_sums_short", "every lane stores"): SAME_VALUE,
    ("row_shared_by_blocks", "every lane stores"): SAME_VALUE,
    **{(name, "every thread of a column stores"): SAME_VALUE for name in OUTER[:3]},
    **{(name, "no guard of a walk"): COLUMN_0_AGAIN for name in OUTER},
    **{(name, "no row for a group without one"): NOTHING_READ for name in OUTER},
}
# The loop over registers that hold a row: past the row's end they hold what the thread's stack
# held, which is 0 in the emulator, and 0 changes neither a sum nor the shift of a softmax.
UNWRITTEN_REGISTERS = {
    *(("row_softmax_f32", 2), ("row_layer_norm_short", 2), ("row_in_cluster", 4)),
    *(("outer_held", 2), ("outer_read_again", 2), ("outer_middle", 2)),
}
# A block's first row exists unless there are no rows, and has another row behind it to read unless
# it is the last: tests/schedule/test_inner_outer.py has such counts of rows, whose texts differ.
FIRST_ROW = {
    *(("inner_outer_rms_norm", 0), ("inner_outer_staged", 0)),
    *(("inner_outer_shared", 0), ("inner_outer_shared", 1)),
}


def _guards(source: str) -> Iterator[tuple[str, str]]:
    """Mutants that only generated row kernels have: guards of groups, of lanes and of parts."""
    changes = {
        "no guard of a group without a row": (r"if \(live\) ", ""),
        "no guard of a group's result": (r" && live\b", ""),
        "no row for a group without one": (r"live \? mine : 0", "mine"),
        "every lane stores": (r"if \(lane == 0( && live)?\)", r"if (true\1)"),
        "no guard of a walk": (r"live && (?=[kqc] )", ""),
        "no guard of a column's result": (r"live && (?=y )", ""),
        "every thread of a column stores": (r" && y == 0", ""),
        "no wait for the other parts": (r"if \(!mdf::counter_arrive\([^;]*\)\) return;", ""),
        "no masking of a load": (r"MDF_IN_BOUNDS\([^?;]*\) \? ", "true ? "),
    }
    for name, (pattern, replacement) in changes.items():
        for found in re.finditer(pattern, source):
            line = source.count("\n", 0, found.start()) + 1
            text = source[: found.start()] + found.expand(replacement) + source[found.end() :]
            yield f"{name} on line {line}", text


def _caught(golden: Golden, mutant: str) -> bool:
    for sizes in (*golden.others, golden.sizes):
        try:
            check_values(golden, sizes, lambda _: mutant)
        except (EmulatorError, AssertionError):
            return True
    return False


@pytest.mark.parametrize("golden", GOLDENS.values(), ids=lambda g: g.name)
def test_every_mutant_is_caught(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Every third, beginning at another one in each kernel; all of them with ``--all-mutants``."""
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    source = golden.kernel(golden.sizes).source
    found = list(enumerate([*mutants(source), *_guards(source)]))
    every = request.config.getoption("--all-mutants")
    survived, listed = [], set()
    for at, (name, mutant) in found if every else found[len(golden.name) % 3 :: 3]:
        if _caught(golden, mutant):
            continue
        known = (golden.name, name.partition(" on line")[0])
        if known in SURVIVORS:
            listed.add(known)
        elif (golden.name, at) not in UNWRITTEN_REGISTERS | FIRST_ROW:
            survived.append((at, name))
    assert survived == []
    known_here = {k for k in SURVIVORS if k[0] == golden.name}
    assert listed == known_here or not every, "a listed survivor is caught"


def test_the_goldens_have_mutants_of_every_kind() -> None:
    """Otherwise a renamed macro would leave nothing to mutate, and everything would be caught."""
    kinds = set()
    for golden in GOLDENS.values():
        source = golden.kernel(golden.sizes).source
        kinds |= {n.partition(" on line")[0] for n, _ in (*mutants(source), *_guards(source))}
    assert kinds == {
        "no barrier",
        "no cluster_barrier",
        "no bound",
        "no guard of a group without a row",
        "no guard of a group's result",
        "no row for a group without one",
        "every lane stores",
        "no guard of a walk",
        "no guard of a column's result",
        "every thread of a column stores",
        "no wait for the other parts",
        "no masking of a load",
    }
