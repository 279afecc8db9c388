"""The check of one random program: all local programs together against torch on the whole.

Used by the property tests and by ``hunt.py``.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from sharding import eager
from sharding.programs import MESHES, Program, programs
from sharding.simulated import assemble, concrete, coordinates, distribute, evaluate, run

from thunder_mdfuse.ir.graph import Fusion, Use, placed
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import product as size_product
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.ir.types import Partial, Placements, TensorType
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.schedule.program import InputClass, plan_program
from thunder_mdfuse.schedule.target import H200
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import check, reshard
from thunder_mdfuse.sharding.spec import commute, why_not_reduced


def staged(fusion: Fusion) -> tuple[Fusion, Fusion]:
    """The resharded and the local fusion, verified on the way."""
    placed = verify(propagate(verify(fusion, "building")), "propagate")
    explicit = check(verify(reshard(placed), "reshard"))
    return explicit, verify(localize(explicit), "localize")


def check_program(program: Program, way: str) -> None:
    """Check ``program`` in one of ``WAYS``. A failure's notes show the program."""
    if way == "eager":
        program = pinned_as_eager(program)
    try:
        local = check_values(program)
        if way == "sequence":
            check_sequence(local)
    except Exception as e:
        e.add_note(render(program.fusion))
        raise


# As drawn; with eager DTensor's placements; planned at every coordinate.
WAYS = ("drawn", "eager", "sequence")


def drawn(number: int, count: int, meshes: Sequence[tuple[int, ...]] = MESHES) -> list[Program]:
    """``count`` programs of seed ``number``, the same in every process."""
    found: list[Program] = []

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(meshes))
    def draw(program: Program) -> None:
        found.append(program)

    draw()
    return found


def check_values(program: Program) -> Fusion:
    """Raise ``AssertionError`` unless the outputs at all coordinates make up what torch computes.

    Returns the local program.
    """
    explicit, local = staged(program.fusion)
    held = [
        distribute(x, places, program.mesh, seed=7 * i)
        for i, (x, places) in enumerate(program.inputs)
    ]
    results = run(local, held, evaluate)
    for before, output, found, expected in zip(
        program.fusion.outputs, explicit.outputs, results, program.expected, strict=True
    ):
        places = explicit.tensor(output.value).placements
        pinned = program.fusion.tensor(before.value).placements
        assert pinned in (None, places)
        # What follows from numbers alone leaves as a plain tensor, the same everywhere.
        wholes = found.values() if places is None else [assemble(found, places, program.mesh)]
        assert all(torch.equal(whole, expected) for whole in wholes)
    return local


def pinned_as_eager(program: Program) -> Program:
    """``program`` with eager DTensor's placements on every value that eager makes."""
    found = eager.placements(program.fusion)
    nodes = []
    for i, node in enumerate(program.fusion.nodes):
        places = tuple(_pin(t, found.get(Use(i, r))) for r, t in enumerate(node.types))
        nodes.append(replace(node, types=placed(node.types, places)))
    return replace(program, fusion=replace(program.fusion, nodes=tuple(nodes)))


def _pin(t: object, found: Placements | None) -> Placements | None:
    own = t.placements if isinstance(t, TensorType) else None
    assert isinstance(t, TensorType) or found is None
    kinds = [p.op for p in found or () if isinstance(p, Partial)]
    # Eager lets an average of floats become one of integers, which no collective can finish.
    fits = found is not None and commute(kinds)
    fits = fits and not any(why_not_reduced(t.dtype, kind) for kind in kinds)
    return found if own is None and fits else own


def check_sequence(local: Fusion) -> int:
    """Raise ``AssertionError`` unless all coordinates start the same collectives in one order.

    Each coordinate plans for its own sizes, as a rank does. Members of a team must also agree about
    how much is sent. Returns how many collectives there are.
    """
    mesh = local.mesh
    assert mesh is not None
    lists = {c: started(local, c) for c in coordinates(mesh)}
    kinds = {tuple(kind for kind, _ in found) for found in lists.values()}
    assert len(kinds) == 1, kinds
    (kind,) = kinds
    names = [a.name for a in mesh.axes]
    for n, (_, team, *_) in enumerate(kind):
        axis = names.index(team)
        lines: dict[tuple[int, ...], set[object]] = {}
        for c, found in lists.items():
            lines.setdefault((*c[:axis], *c[axis + 1 :]), set()).add(found[n][1])
        assert all(len(sent) == 1 for sent in lines.values()), lines
    return len(kind)


def started(local: Fusion, c: tuple[int, ...]) -> list[tuple[tuple[str, str, str, str], object]]:
    """The collectives of the program planned at coordinate ``c``: kind, evaluated attributes."""
    mesh = local.mesh
    assert mesh is not None
    env = {f"@{a.name}": i for a, i in zip(mesh.axes, c, strict=True)}
    classes = []
    for n in local.inputs:
        t = local.nodes[n].types[0]
        shape = t.shape if isinstance(t, TensorType) else ()
        strides = tuple(size_product(shape[d + 1 :]) for d in range(len(shape)))
        classes.append(InputClass(strides if isinstance(t, TensorType) else None))
    found = []
    plan = plan_program(local, classes, H200, env)
    for step in plan.steps:
        if step.kind != "start":
            continue
        node = plan.fusion.nodes[step.node]
        assert row(node.op).kind == "start"
        attrs = concrete(node.attrs, env)
        kind = (node.op, attrs.team, getattr(attrs, "op", ""), str(node.types[0].dtype))
        found.append((kind, attrs))
    return found
