"""Tables with a row for each op have the same rows, and the list of gaps only ever gets shorter.

``tests/not_generated.txt`` names the ops that run as ATen steps though the design wants a kernel
for them; ``tests/ir/test_ops.py`` compares it with the generator's table. Here the steps themselves
are compared: what the segmenter does is what the tables say.
"""

from pathlib import Path

import pytest

from thunder_mdfuse.codegen.exprs import EXPRS, NotGenerated, Reduction, Template
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.ops import OPS
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.runtime.aten import ATEN
from thunder_mdfuse.schedule.segment import is_generated
from thunder_mdfuse.sharding.rules import RULES

LIST = Path(__file__).parent / "not_generated.txt"
# The gaps of the first release. Take a name away when a kernel computes it; never add one.
FIRST = {
    *("argmax", "argmin", "cumprod", "cumsum", "embedding", "embedding_backward", "gather"),
    *("imag", "index_add", "real", "scatter", "scatter_add", "take", "take_along_axis"),
}


def _listed() -> set[str]:
    lines = LIST.read_text(encoding="ascii").splitlines()
    return {line.partition(":")[0] for line in lines if line and not line.startswith("#")}


def test_the_list_may_only_shrink() -> None:
    grown = sorted(_listed() - FIRST)
    assert not grown, f"{grown} had a kernel, or are new: generate them, do not list them"
    assert _listed() == FIRST, "a gap is closed: take its name out of FIRST as well"


@pytest.mark.parametrize("table", [EXPRS, ATEN, RULES], ids=["codegen", "aten", "sharding"])
def test_every_table_has_every_op(table: dict[str, object]) -> None:
    assert set(table) == set(OPS)


def test_every_reason_is_said() -> None:
    assert all(row.reason for row in EXPRS.values() if isinstance(row, NotGenerated))


def _last(text: str) -> tuple[Fusion, int]:
    fusion = parse(f"local mesh[tp=2] digest d\n{text}")
    return fusion, fusion.outputs[0].value.node


# uniform's operands are numbers: tests/codegen/test_random_programs.py has it.
TEMPLATES = [n for n, r in EXPRS.items() if isinstance(r, Template) and n != "uniform"]


@pytest.mark.parametrize("op", TEMPLATES)
def test_what_has_a_template_is_in_a_kernel(op: str) -> None:
    row = OPS[op]
    args = ", ".join(["%0"] * row.operands[0])
    if op == "where":
        text = "%0 = input(position=0) : bool[4]\n%1 = where(%0, %0, %0) : bool[4]\nreturn %1"
    elif op == "cast":
        text = "%0 = input(position=0) : f32[4]\n%1 = cast(%0; dtype=f16) : f16[4]\nreturn %1"
    else:
        result = "bool" if row.rule.__name__ == "predicate" else "f32"
        text = f"%0 = input(position=0) : f32[4]\n%1 = {op}({args}) : {result}[4]\nreturn %1"
    fusion, node = _last(text)
    assert is_generated(fusion, fusion.nodes[node])


@pytest.mark.parametrize("op", [n for n, r in EXPRS.items() if isinstance(r, Reduction)])
def test_what_has_a_functor_is_in_a_kernel(op: str) -> None:
    fusion, node = _last(
        f"%0 = input(position=0) : f32[4]\n%1 = {op}(%0; dims=[0]) : f32[]\nreturn %1"
    )
    assert is_generated(fusion, fusion.nodes[node])


# Nodes of generated ops that are ATen steps all the same, because of their types or attributes.
EXCEPTIONS = {
    "the next half is no f32": "%0 = input(position=0) : bf16[4]\n%1 = nextafter(%0, %0) : bf16[4]",
    "complex arithmetic": "%0 = input(position=0) : c64[4]\n%1 = mul(%0, %0) : c64[4]",
    "strided chunks of unequal parts": "%0 = input(position=0) : f32[10]\n"
    "%1 = chunk(%0; team='tp', ranks=2, dim=0, split=2) : f32[2*min(3, max(0, -3*@tp + 5))]",
}


@pytest.mark.parametrize("why", EXCEPTIONS)
def test_what_types_keep_out_of_kernels(why: str) -> None:
    fusion, node = _last(f"{EXCEPTIONS[why]}\nreturn %1")
    assert not is_generated(fusion, fusion.nodes[node])


@pytest.mark.parametrize("op", sorted(FIRST))
def test_a_gap_is_no_kernel(op: str) -> None:
    assert isinstance(EXPRS[op], NotGenerated)
