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
FIRST: set[str] = set()


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


# Operands of these are numbers; tests/codegen/test_random_programs.py and test_normal.py have them.
DRAWN = ("uniform", "normal")
TEMPLATES = [n for n, r in EXPRS.items() if isinstance(r, Template) and n not in DRAWN]


@pytest.mark.parametrize("op", TEMPLATES)
def test_what_has_a_template_is_in_a_kernel(op: str) -> None:
    row = OPS[op]
    args = ", ".join(["%0"] * row.operands[0])
    if op == "where":
        text = "%0 = input(position=0) : bool[4]\n%1 = where(%0, %0, %0) : bool[4]\nreturn %1"
    elif op in ("real", "imag"):
        text = f"%0 = input(position=0) : c64[4]\n%1 = {op}(%0) : f32[4]\nreturn %1"
    elif op == "cast":
        text = "%0 = input(position=0) : f32[4]\n%1 = cast(%0; dtype=f16) : f16[4]\nreturn %1"
    elif op == "exponent":
        text = f"%0 = input(position=0) : f32[4]\n%1 = {op}(%0) : i32[4]\nreturn %1"
    else:
        result = "bool" if row.rule.__name__ == "predicate" else "f32"
        text = f"%0 = input(position=0) : f32[4]\n%1 = {op}({args}) : {result}[4]\nreturn %1"
    fusion, node = _last(text)
    assert is_generated(fusion, fusion.nodes[node])


@pytest.mark.parametrize("op", [n for n, r in EXPRS.items() if isinstance(r, Reduction)])
def test_what_has_a_functor_is_in_a_kernel(op: str) -> None:
    along = "dim=0) : i64" if op.startswith("arg") else "dims=[0]) : f32"
    fusion, node = _last(f"%0 = input(position=0) : f32[4]\n%1 = {op}(%0; {along}[]\nreturn %1")
    assert is_generated(fusion, fusion.nodes[node])


# Nodes of generated ops that are ATen steps all the same, because of their types or attributes.
EXCEPTIONS = {
    "the next half is no f32": "%0 = input(position=0) : bf16[4]\n%1 = nextafter(%0, %0) : bf16[4]",
    "complex transcendentals": "%0 = input(position=0) : c64[4]\n%1 = exp(%0) : c64[4]",
    "a real number has no imaginary part": "%0 = input(position=0) : f32[4]\n"
    "%1 = imag(%0) : f32[4]",
    "no element is the largest of none": "%0 = input(position=0) : f32[3, 0]\n"
    "%1 = argmax(%0; dim=1) : i64[3]",
    "strided chunks of unequal parts": "%0 = input(position=0) : f32[10]\n"
    "%1 = chunk(%0; team='tp', ranks=2, dim=0, split=2) : f32[2*min(3, max(0, -3*@tp + 5))]",
}


@pytest.mark.parametrize("why", EXCEPTIONS)
def test_what_types_keep_out_of_kernels(why: str) -> None:
    fusion, node = _last(f"{EXCEPTIONS[why]}\nreturn %1")
    assert not is_generated(fusion, fusion.nodes[node])


LOOKED_UP = {
    "take": "take(%0, %1; dim=0) : f32[2, 5]",
    "gather": "gather(%0, %2; dim=1) : f32[4, 3]",
    "take_along_axis": "take_along_axis(%0, %2; dim=1) : f32[4, 3]",
    "embedding": "embedding(%1, %0) : f32[2, 5]",
}
SCATTERED = {
    "scatter": "scatter(%0, %2, %3; dim=1) : f32[4, 5]",
    "scatter_add": "scatter_add(%0, %2, %3; dim=1) : f32[4, 5]",
    "index_add": "index_add(%0, %4, %3; dim=1) : f32[4, 5]",
    "embedding_backward": "embedding_backward(%3, %5; rows=9, padding_idx=none, "
    "scale_grad_by_freq=false) : f32[9, 3]",
}
OPERANDS = """%0 = input(position=0) : f32[4, 5]
%1 = input(position=1) : i64[2]
%2 = input(position=2) : i64[4, 3]
%3 = input(position=3) : f32[4, 3]
%4 = input(position=4) : i64[3]
%5 = input(position=5) : i64[4]
"""


def test_index_and_scatter_ops_are_all_tried() -> None:
    kinds = {name: op.kind for name, op in OPS.items() if op.kind in ("index", "scatter")}
    assert kinds == dict.fromkeys(LOOKED_UP, "index") | dict.fromkeys(SCATTERED, "scatter")


@pytest.mark.parametrize("op", [*LOOKED_UP, *SCATTERED])
def test_what_looks_up_or_scatters_is_in_a_kernel(op: str) -> None:
    fusion, node = _last(f"{OPERANDS}%6 = {(LOOKED_UP | SCATTERED)[op]}\nreturn %6")
    assert is_generated(fusion, fusion.nodes[node])
    assert is_generated(fusion, fusion.nodes[node], deterministic=True) == (op in LOOKED_UP)
