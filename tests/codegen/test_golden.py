"""The kept CUDA texts: unchanged, independent of shapes and of numbering, right, and compilable."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from codegen.goldens import GOLDENS, Golden, kernel, run

from thunder_mdfuse.compile.nvrtc import compile_cubin, resource_usage
from thunder_mdfuse.compile.sources import device_headers
from thunder_mdfuse.ir.graph import Builder, Fusion, Output, Use
from thunder_mdfuse.schedule.target import A100, B200, H200, Target

FOLDER = Path(__file__).parent.parent / "golden"
ALL = pytest.mark.parametrize("golden", GOLDENS.values(), ids=lambda g: g.name)


@ALL
def test_the_text_is_the_kept_one(golden: Golden, update_golden: bool) -> None:
    source = golden.kernel(golden.sizes).source
    path = FOLDER / f"{golden.name}.cu"
    if update_golden:
        path.write_text(source, encoding="ascii")
    assert path.exists(), f"{path} is missing; run pytest --update-golden and read what it wrote"
    kept = path.read_text(encoding="ascii")
    assert source == kept, "the CUDA text changed; if that is meant, run pytest --update-golden"


def test_every_kept_file_has_a_program() -> None:
    assert {p.stem for p in FOLDER.glob("*.cu")} == GOLDENS.keys() | {"mailbox_rms_norm"}


@ALL
def test_another_shape_of_the_class_has_the_same_text(golden: Golden) -> None:
    source = golden.kernel(golden.sizes).source
    for sizes in golden.others:
        assert golden.kernel(sizes).source == source, sizes


@ALL
def test_the_text_does_not_depend_on_numbering(golden: Golden) -> None:
    fusion = golden.fusion(golden.sizes)
    text = golden.kernel(golden.sizes)
    rng = random.Random(golden.name)
    for _ in range(3):
        order = _another_order(fusion, rng)
        assert kernel(_rebuilt(fusion, order), golden.target) == text
        if len(fusion.outputs) == 1:  # several outputs are stored in the order of their nodes
            assert kernel(_renumbered(fusion, order), golden.target).source == text.source


def _another_order(fusion: Fusion, rng: random.Random) -> list[int]:
    """All nodes, inputs first, each after its operands."""
    order = list(fusion.inputs)
    left = [i for i in range(len(fusion.nodes)) if i not in order]
    while left:
        ready = [i for i in left if all(a.node in order for a in fusion.nodes[i].args)]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return order


def _rebuilt(fusion: Fusion, order: list[int]) -> Fusion:
    """The same program built in another order."""
    builder = Builder(fusion.mesh, fusion.level)
    moved: dict[Use, Use] = {}
    for i in order:
        node = fusion.nodes[i]
        if node.op == "input":
            results: tuple[Use, ...] = (builder.input(node.types[0]),)
        else:
            results = builder.node(replace(node, args=tuple(moved[a] for a in node.args)))
        moved |= {Use(i, r): result for r, result in enumerate(results)}
    return builder.finish(tuple(Output(moved[o.value]) for o in fusion.outputs))


def _renumbered(fusion: Fusion, order: list[int]) -> Fusion:
    """The same program with its nodes in another order, which no canonical form undoes."""
    place = {old: new for new, old in enumerate(order)}

    def move(use: Use) -> Use:
        return Use(place[use.node], use.result)

    nodes = tuple(
        replace(fusion.nodes[i], args=tuple(move(a) for a in fusion.nodes[i].args)) for i in order
    )
    return replace(
        fusion, nodes=nodes, outputs=tuple(Output(move(o.value)) for o in fusion.outputs)
    )


@ALL
def test_the_kernel_is_right(golden: Golden) -> None:
    for sizes in (golden.sizes, *golden.others):
        check_values(golden, sizes)


def check_values(golden: Golden, sizes: tuple[int, ...], change: object = str) -> None:
    """Runs the kernel and compares with eager torch in f64."""
    inputs = golden.inputs(sizes)
    expected = golden.case.eager(*(t.double() for t in inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = run(golden.fusion(sizes), inputs, change, golden.target)  # type: ignore[arg-type]
    for value, right in zip(found, expected, strict=True):
        tolerance = 2.0**-7 if value.dtype is torch.bfloat16 else 1e-5
        scale = right.abs().mean() + right.abs()
        assert bool(((value.double() - right).abs() <= tolerance * scale).all())


@pytest.mark.parametrize("target", [A100, H200, B200], ids=lambda t: t.arch)
@ALL
def test_it_compiles_without_spills(golden: Golden, target: Target) -> None:
    """Planned for the target and compiled for its architecture, which needs no GPU."""
    text = kernel(golden.fusion(golden.sizes), target)
    cubin = compile_cubin(text.source, text.entry, target.arch, device_headers())
    usage = resource_usage(cubin)
    assert (usage.spill_store_bytes, usage.spill_load_bytes, usage.local_bytes) == (0, 0, 0)
    threads = text.plan.launch.threads
    shared = usage.static_shared + text.shared
    assert target.blocks_per_sm(threads, usage.registers, shared) >= 1
