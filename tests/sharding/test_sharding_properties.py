"""Random programs on simulated meshes: all local programs together against torch on the whole."""

import torch
from hypothesis import HealthCheck, given, settings
from sharding.programs import Program, programs
from sharding.simulated import assemble, distribute, evaluate, run

from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import check, reshard


def staged(fusion: Fusion) -> tuple[Fusion, Fusion]:
    """The resharded and the local fusion, verified on the way."""
    placed = verify(propagate(verify(fusion, "building")), "propagate")
    explicit = check(verify(reshard(placed), "reshard"))
    return explicit, verify(localize(explicit), "localize")


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_local_programs_compute_what_the_whole_does(program: Program):
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
