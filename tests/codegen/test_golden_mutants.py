"""Every bound, mask, barrier and guard of the golden kernels is needed, and its loss is caught.

A mutant is run over shapes of its class in the emulator. It has to end in a fault or in a wrong
result; what survives has to be listed with the reason why that is right.
"""

import re
from collections.abc import Iterator

import pytest
from codegen.goldens import GOLDENS, Golden, kernel
from codegen.test_golden import check_values

from thunder_mdfuse.compile.emulate_mutants import mutants
from thunder_mdfuse.errors import EmulatorError

# (golden, mutation without its line): why nothing is to be found.
SURVIVORS: dict[tuple[str, str], str] = {}


def _guards(source: str) -> Iterator[tuple[str, str]]:
    """Mutants that only generated row kernels have: guards of groups, of lanes and of parts."""
    changes = {
        "no guard of a group without a row": (r"if \(live\) ", ""),
        "no guard of a group's result": (r" && live\b", ""),
        "no row for a group without one": (r"live \? mine : 0", "mine"),
        "every lane stores": (r"if \(lane == 0( && live)?\)", r"if (true\1)"),
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
def test_every_mutant_is_caught(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MDFUSE_EMULATOR_ORDERS", "2")
    source = kernel(golden.fusion(golden.sizes)).source
    found = [*mutants(source), *_guards(source)]
    survived = []
    for name, mutant in found:
        known = (golden.name, name.partition(" on line")[0])
        if not _caught(golden, mutant) and known not in SURVIVORS:
            survived.append(name)
    assert survived == []


def test_the_goldens_have_mutants_of_every_kind() -> None:
    """Otherwise a renamed macro would leave nothing to mutate, and everything would be caught."""
    kinds = set()
    for golden in GOLDENS.values():
        source = kernel(golden.fusion(golden.sizes)).source
        kinds |= {n.partition(" on line")[0] for n, _ in (*mutants(source), *_guards(source))}
    assert kinds == {
        "no bound",
        "no guard of a group without a row",
        "no guard of a group's result",
        "no row for a group without one",
        "every lane stores",
        "no wait for the other parts",
        "no masking of a load",
    }
