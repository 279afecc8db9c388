"""Drawings say what the program says: every value once, above its readers, in its step's colour."""

import io
import itertools
import subprocess
import sys

import pytest

from thunder_mdfuse import knobs, pipeline
from thunder_mdfuse.drawing import ATEN, COLLECTIVE, draw, graph_of, label, layered, steps_by_node
from thunder_mdfuse.dump import Dump
from thunder_mdfuse.errors import MdfuseError
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.text import parse
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan
from thunder_mdfuse.schedule.target import H200

MLP = """
global mesh[tp=2]
%0 = input(position=0) : f32[8, 64] @ [Replicate]
%1 = input(position=1) : f32[128, 64] @ [Shard(0)]
%2 = input(position=2) : f32[64, 128] @ [Shard(1)]
%3 = linear(%0, %1) : f32[8, 128]
%4 = exp(%3) : f32[8, 128]
%5 = linear(%4, %2) : f32[8, 64]
%6 = reshard(%5; placements=[Replicate]) : f32[8, 64]
%7 = const(value='2.0', dtype=f64) : f64
%8 = mul(%6, %7) : f32[8, 64]
%9 = add(%0, %8) : f32[8, 64]
return %9
"""


@pytest.fixture(scope="module")
def program() -> tuple[Fusion, ProgramPlan]:
    dump = Dump("mlp")
    local = pipeline.lower(parse(MLP), dump).local
    classes = [InputClass((64, 1)), InputClass((64, 1)), InputClass((64, 1))]
    plan, _ = pipeline.plan(local, classes, H200, {"@tp": 0}, "cuda", dump)
    return local, plan


def test_each_node_has_its_step(program: tuple[Fusion, ProgramPlan]) -> None:
    local, plan = program
    by_op = {local.nodes[n].op: step for n, step in steps_by_node(plan).items()}
    assert by_op == {
        "linear": "aten",
        "exp": "kernel 0",
        "all_reduce": "collective",
        "wait": "collective",
        "mul": "kernel 1",
        "add": "kernel 1",
    }


def test_what_two_kernels_compute_names_both() -> None:
    text = """
    local
    %0 = input(position=0) : f32[8, 64]
    %1 = exp(%0) : f32[8, 64]
    %2 = sum(%1; dims=[1]) : f32[8]
    %3 = digamma(%2) : f32[8]
    %4 = broadcast_in_dim(%3; shape=[8, 64], dims=[0]) : f32[8, 64]
    %5 = mul(%1, %4) : f32[8, 64]
    return %5
    """
    fusion = parse(text)
    plan, _ = pipeline.plan(fusion, [InputClass((64, 1))], H200, {}, "cuda", Dump("two"))
    steps = steps_by_node(plan)
    assert steps[1] == "kernel 0 and 1"
    assert steps[3] == "aten"


def test_values_stand_above_their_readers_and_apart(program: tuple[Fusion, ProgramPlan]) -> None:
    graph = graph_of(program[0])
    places = layered(graph)
    assert set(places) == set(graph)
    assert all(places[a][1] > places[b][1] for a, b in graph.edges)
    for (x0, y0), (x1, y1) in itertools.combinations(places.values(), 2):
        assert y0 != y1 or abs(x0 - x1) >= 1


def test_a_box_says_operands_numbers_type_and_placements() -> None:
    fusion = parse(MLP)
    assert label(fusion, 8) == "%8 mul(%6, 2.0)\nf32[8, 64]"
    assert label(fusion, 1) == "%1 input\nf32[128, 64]\n[Shard(0)]"


def test_a_drawing_has_a_box_for_each_value(program: tuple[Fusion, ProgramPlan]) -> None:
    local, plan = program
    figure = draw(local, plan, "an MLP")
    (axes,) = figure.axes
    boxes = {t.get_text(): t.get_bbox_patch() for t in axes.texts if t.get_text()}
    drawn = [n for n, node in enumerate(local.nodes) if node.op != "const"]
    assert set(boxes) == {label(local, n) for n in drawn}
    (legend,) = figure.legends
    shown = {t.get_text(): p for t, p in zip(legend.texts, legend.get_patches(), strict=True)}
    assert set(shown) == {"input", "aten", "kernel 0", "kernel 1", "collective"}
    hues = {"aten": ATEN, "collective": COLLECTIVE}
    for name, colour in hues.items():
        red, green, blue, _ = shown[name].get_facecolor()
        assert f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}" == colour
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    assert picture.getvalue().startswith(b"\x89PNG")


def test_a_plan_alone_is_drawn_with_its_steps(program: tuple[Fusion, ProgramPlan]) -> None:
    local, plan = program
    alone, both = draw(plan, title="MLP"), draw(local, plan, "MLP")
    texts = [[t.get_text() for t in figure.axes[0].texts] for figure in (alone, both)]
    assert texts[0] == texts[1] and alone.legends
    with pytest.raises(MdfuseError, match=r"found str: draw\(explain\(fused\)\.regions"):
        draw("mdFusion0")  # type: ignore[arg-type]


def test_missing_packages_are_named_with_the_extra() -> None:
    """In an interpreter of its own, in which matplotlib cannot be imported."""
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "try: import thunder_mdfuse.drawing\n"
        "except ImportError as e: print(e)"
    )
    env = knobs.child_environment(PYTHONPATH=":".join(filter(None, sys.path)))
    shown = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120
    ).stdout
    assert "needs matplotlib and networkx" in shown and "thunder_mdfuse[notebooks]" in shown


def test_a_fusion_needs_no_plan_to_be_drawn() -> None:
    figure = draw(parse(MLP))
    assert not figure.legends


def test_a_plan_of_another_fusion_is_refused(program: tuple[Fusion, ProgramPlan]) -> None:
    with pytest.raises(MdfuseError, match="another fusion"):
        draw(parse(MLP), program[1])
