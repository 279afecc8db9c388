"""The plan of a whole program: a local fusion as an ordered list of steps, kernels fully planned.

In: a local fusion, the layout class of its inputs and a target. Out: a ``ProgramPlan``, frozen; its
guards say for which other sizes it is right too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from thunder_mdfuse.errors import ScheduleError
from thunder_mdfuse.ir.decide import Decider
from thunder_mdfuse.ir.graph import Fusion, Guard, Use
from thunder_mdfuse.ir.layout import Layout, layouts
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.text import render_node
from thunder_mdfuse.ir.types import ScalarType
from thunder_mdfuse.schedule.build import kernel_plan
from thunder_mdfuse.schedule.inner_outer import has_room
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.scatter import spelled_out
from thunder_mdfuse.schedule.segment import Segmenter
from thunder_mdfuse.schedule.target import Target


@dataclass(frozen=True)
class InputClass:
    """What a program is specialised for: an input's strides and the alignment of its pointer.

    ``alignment``: the largest power of two up to 16 that divides the address, in bytes.
    """

    strides: tuple[Size, ...] | None
    alignment: int = 16


@dataclass(frozen=True)
class Step:
    """``kernel`` (with its plan), or ``aten``, ``start``, ``wait`` of fusion node ``node``."""

    kind: str
    node: int = -1
    kernel: KernelPlan | None = None


@dataclass(frozen=True)
class ProgramPlan:
    """Steps in order. ``layouts`` places every tensor value in the storage of an input or of a
    base.

    A base that is no input is written whole by exactly one step. Outputs that write an input are
    copied into it after all steps, when nothing reads the old contents any more.
    """

    fusion: Fusion
    layouts: dict[Use, Layout]
    steps: tuple[Step, ...]
    guards: tuple[Guard, ...]

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """The plans of all kernels, in order."""
        return tuple(s.kernel for s in self.steps if s.kernel is not None)

    def __str__(self) -> str:
        lines = []
        for i, step in enumerate(self.steps):
            if step.kernel is not None:
                lines.append(f"step {i}: {step.kernel}".rstrip())
            else:
                node = render_node(step.node, self.fusion.nodes[step.node])
                lines.append(f"step {i}: {step.kind} {node}")
        for output in self.fusion.outputs:
            lines.append(f"output {output.value}: {self.describe(output.value, output.writes)}")
        lines += [f"where {g}" for g in self.guards]
        return "\n".join(lines) + "\n"

    def describe(self, value: Use, writes: int | None) -> str:
        """How an output leaves: ``fresh``, ``view(%i, offset, strides)``, ``write(%i)`` or a
        number.
        """
        layout = self.layouts.get(value)
        if layout is None:
            return "scalar"
        if writes is not None:
            return f"write(%{writes})"
        strides = f"[{', '.join(map(str, layout.strides))}]"
        if layout.base == value and self.fusion.nodes[value.node].op != "input":
            return f"fresh, strides {strides}"
        return f"view({layout.base}, {layout.offset}, {strides})"


def plan_program(
    fusion: Fusion,
    inputs: Sequence[InputClass],
    target: Target,
    hints: Mapping[str, int] | None = None,
    device: str = "cuda",
    round_all: bool = False,
    deterministic: bool = False,
) -> ProgramPlan:
    """The plan for local ``fusion``. ``hints``: the sizes at the call that it is made for.

    ``round_all``: every low-precision intermediate is rounded as eager torch does.
    ``deterministic``: what adds in any order is left to ATen. Raises ``ScheduleError`` for a fusion
    that is not local.
    """
    if fusion.level != "local":
        raise ScheduleError("only local programs are scheduled; run localize first")
    teams = {axis.name: axis.size for axis in fusion.mesh.axes} if fusion.mesh else {}
    decide = Decider(hints or {}, fusion.guards, teams)
    if not deterministic:
        fusion = spelled_out(fusion, decide)
    places = layouts(fusion, [i.strides for i in inputs], decide, device)
    alignments = {Use(n): i.alignment for n, i in zip(fusion.inputs, inputs, strict=True)}
    room = partial(has_room, decide=decide, target=target)
    segmenter = Segmenter(fusion, places, decide.value, round_all, room, deterministic)
    steps = []
    for unit in segmenter.units():
        if unit.group is None:
            steps.append(Step(unit.kind, unit.node))
        else:
            plan = kernel_plan(unit.group, decide, alignments, target)
            steps.append(Step("kernel", -1, plan))
    return ProgramPlan(fusion, places, tuple(steps), tuple(decide.guards))


def host_scalars(fusion: Fusion) -> tuple[int, ...]:
    """The nodes that compute numbers, which the host evaluates, in order."""
    return tuple(
        i
        for i, n in enumerate(fusion.nodes)
        if n.op != "input" and isinstance(n.types[0], ScalarType) and row(n.op).kind != "input"
    )
