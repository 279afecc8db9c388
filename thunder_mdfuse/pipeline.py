"""The one list of stages: from a global fusion to planned kernels with their CUDA text.

    fusion -> decompose -> propagate -> reshard -> localize      once a fusion
           -> plan -> CUDA text                                  once a layout class of the inputs
           -> compiled and bound to sizes                        runtime/program.py

Nothing else knows the order. Every stage's text goes to a ``Dump``; ``MDFUSE_VERIFY=1`` checks the
program after each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from thunder_mdfuse import knobs
from thunder_mdfuse.codegen.cuda import write_kernel
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.dump import Dump
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Fusion
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan, plan_program
from thunder_mdfuse.schedule.target import Target
from thunder_mdfuse.sharding.localize import localize
from thunder_mdfuse.sharding.mesh_part import mesh_part
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import reshard

STAGES: tuple[tuple[str, Callable[[Fusion], Fusion]], ...] = (
    ("decompose", decompose),
    ("propagate", propagate),
    ("reshard", reshard),
    ("localize", localize),
)


class Lowered(NamedTuple):
    """A local fusion, and the lines of the global one that all ranks must have alike."""

    local: Fusion
    shared: dict[str, str]


def lower(fusion: Fusion, dump: Dump) -> Lowered:
    """The local fusion of a global one."""
    dump.write("region", render(fusion))
    shared: dict[str, str] = {}
    for name, stage in STAGES:
        fusion = stage(fusion)
        if name == "reshard":
            shared = mesh_part(fusion)
        if knobs.flag("MDFUSE_VERIFY"):
            verify(fusion, name)
        dump.write(name, render(fusion))
    return Lowered(fusion, shared)


def plan(
    fusion: Fusion,
    inputs: Sequence[InputClass],
    target: Target,
    hints: Mapping[str, int],
    device: str,
    dump: Dump,
    deterministic: bool = False,
) -> tuple[ProgramPlan, list[KernelText]]:
    """The program of a local fusion for one class of inputs, and its kernels' CUDA text.

    ``deterministic``: whether equal inputs have to give equal bits, as torch was told.
    """
    rounding = knobs.flag("MDFUSE_EAGER_ROUNDING")
    program = plan_program(fusion, inputs, target, hints, device, rounding, deterministic)
    dump.write("program", str(program))
    texts = [write_kernel(kernel) for kernel in program.kernels]
    for i, text in enumerate(texts):
        dump.write(f"kernel{i}", text.source, "cu")
    return program, texts
