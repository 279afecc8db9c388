"""``explain(jitted)``: what became of a jitted function, in numbers and in words.

In: a function or module jitted by ``thunder.jit`` or ``thunderfx`` that has been called. Out: an
``Explanation``: regions with their kernels, ATen steps and collectives and the bytes that each
moves, and every symbol outside of regions with its ``Reason``. ``str`` of it is for people, its
fields for programs.
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import thunder
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse.definition import FusionDefinition
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.executable import Entry
from thunder_mdfuse.runtime.report import StepReport, counted
from thunder_mdfuse.schedule.plan import KernelPlan
from thunder_mdfuse.schedule.program import ProgramPlan
from thunder_mdfuse.thunder.dtensor import described, described_mesh, traced_mesh
from thunder_mdfuse.thunder.dtensor_twins import PLACE
from thunder_mdfuse.thunder.executor import PassRecord, Unfused, mdfuse_executor, records_of
from thunder_mdfuse.thunder.fusion_call import FusionCall
from thunder_mdfuse.thunder.region import is_view

WIDTH = 100  # of the lines that list operations and inputs
NOT_RUN = "kernels generated, not run: the reference backend executed torch ops"


@dataclass(frozen=True)
class RegionReport:
    """One region. ``steps`` is empty before its first call, when nothing is compiled yet.

    ``ops``: what it computes, by Thunder's names, without views and without casts to the dtype that
    is there already. ``inputs`` and ``outputs``: their types, of DTensors with global shape and
    placements, all on ``mesh`` (empty for plain tensors). ``backend``: what executed the last call.
    """

    name: str
    part: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    mesh: str
    calls: int
    specialisations: int
    backend: str
    steps: tuple[StepReport, ...]
    last_plan: ProgramPlan | None = field(default=None, repr=False, compare=False)

    def of_kind(self, kind: str) -> tuple[StepReport, ...]:
        """The steps that are a ``kernel``, an ``aten`` call or a ``collective``."""
        return tuple(s for s in self.steps if s.kind == kind)

    @property
    def kernels(self) -> tuple[StepReport, ...]:
        """Generated kernels, in the order in which they run."""
        return self.of_kind("kernel")

    @property
    def aten_steps(self) -> tuple[StepReport, ...]:
        """Calls of torch's own kernels."""
        return self.of_kind("aten")

    @property
    def collectives(self) -> tuple[StepReport, ...]:
        """Communication between ranks."""
        return self.of_kind("collective")

    @property
    def plan(self) -> ProgramPlan:
        """The plan of the last call's program, which ``thunder_mdfuse.drawing.draw`` takes.

        Raises ``ExecutorError`` before the first call.
        """
        if self.last_plan is None:
            raise ExecutorError(
                f"{self.name} ({self.part}) has not been called yet, so it has no plan; call the "
                "function, or its backward, then explain it again"
            )
        return self.last_plan

    def __str__(self) -> str:
        facts = [self.part, counted(self.calls, "call")]
        facts.append(counted(self.specialisations, "specialisation"))
        facts += [f"on {self.mesh}"] if self.mesh else []
        facts += [f"backend {self.backend}"] if self.backend else []
        lines = [f"{self.name} ({', '.join(facts)})"]
        lines += _wrapped("in: ", _runs(self.inputs))
        lines += _wrapped("out: ", _runs(self.outputs))
        lines += _wrapped("ops: ", _totals(self.ops) or ["views only"])
        if not self.steps:
            return "\n".join([*lines, "  not called yet, so not compiled"])
        if self.backend == "reference" and self.kernels:
            lines.append(f"  {NOT_RUN}")
        rows: list[tuple[str, ...]] = [("step", "ops", "read", "written", "wire", "detail")]
        rows += [_row(step) for step in self.steps]
        return "\n".join([*lines, *_table(rows, "  ")])


@dataclass(frozen=True)
class Explanation:
    """All regions of a function's newest compilation, and what stayed outside of them."""

    regions: tuple[RegionReport, ...]
    unfused: tuple[Unfused, ...]

    @property
    def kernels(self) -> int:
        """How many generated kernels all regions together launch."""
        return sum(len(r.kernels) for r in self.regions)

    @property
    def bytes_moved(self) -> int:
        """Bytes of device memory that all steps read and write."""
        return sum(s.bytes_read + s.bytes_written for r in self.regions for s in r.steps)

    def __str__(self) -> str:
        parts = [str(r) for r in self.regions] or ["no regions"]
        if self.unfused:
            rows = [("outside of regions", "why")]
            rows += [(u.symbol, str(u.reason)) for u in self.unfused]
            parts.append("\n".join(_table(rows, "")))
        return "\n\n".join(parts)


def explain(jitted: Any) -> Explanation:
    """What the executor did with ``jitted``, which ``thunder.jit`` or ``thunderfx`` returned.

    Raises ``ExecutorError`` for what they did not return, such as a ``FusionDefinition``, for what
    was never called, and for what was jitted without ``mdfuse_executor``.
    """
    regions: list[RegionReport] = []
    unfused: list[Unfused] = []
    functions = _jitted_functions(jitted)
    if functions and not any(map(_has_executor, functions)):
        raise ExecutorError(
            "the function was jitted without mdfuse_executor, which so made nothing of it; "
            "pass executors=[mdfuse_executor] to thunder.jit or thunderfx"
        )
    for function in functions:
        stats = thunder.compile_stats(function)
        forward, backward = stats.last_traces or [], stats.last_backward_traces or []
        for part, traces in (("forward", forward), ("backward", backward)):
            regions += [_region(call, part) for call in _calls(traces)]
        records: Sequence[PassRecord] = records_of(thunder.compile_data(function))
        unfused += records[-1].unfused if records else ()
    return Explanation(tuple(regions), tuple(unfused))


_NOT_CALLED = "the function has not been called yet; call it, then explain it"


def _jitted_functions(jitted: Any) -> list[Any]:
    """The functions that Thunder compiled: one for ``thunder.jit``, one a subgraph for
    ``thunderfx``.
    """
    if thunder.compile_stats(jitted) is not None:
        if not thunder.compile_stats(jitted).last_traces:
            raise ExecutorError(_NOT_CALLED)
        return [jitted]
    backend = getattr(jitted, "_backend", None)
    subgraphs = getattr(backend, "subgraph_infos", None)
    if isinstance(jitted, FusionDefinition):
        raise ExecutorError(
            "explain is for what thunder.jit or thunderfx made, found a FusionDefinition; its "
            "steps are fd.executable.report(), its stages fd.executable.stages()"
        )
    if subgraphs is None:
        raise ExecutorError(
            f"explain is for what thunder.jit or thunderfx made, found a {type(jitted).__name__}; "
            "make and call one, with executors=[mdfuse_executor], and explain that"
        )
    if not subgraphs:
        raise ExecutorError(_NOT_CALLED)
    return [f for info in subgraphs for f in info.thunder_compiled_fns]


def _has_executor(function: Any) -> bool:
    return any(e is mdfuse_executor for e in thunder.compile_data(function).executors_list)


def _calls(traces: Sequence[TraceCtx]) -> Iterator[FusionCall]:
    for bsym in traces[-1].bound_symbols if traces else ():
        call = (bsym._call_ctx or {}).get(bsym.sym.name)
        if isinstance(call, FusionCall):
            yield call


def _region(call: FusionCall, part: str) -> RegionReport:
    info = call.cache_info()
    used = call.last_used
    last = None if used is None else used.last
    mesh = traced_mesh(call.bsyms)
    return RegionReport(
        call.name,
        part,
        tuple(_name(b) for b in call.bsyms if _computes(b)),
        tuple(map(described, call.inputs)),
        tuple(map(described, call.outputs)),
        "" if mesh is None else described_mesh(mesh),
        info.calls,
        info.specialisations,
        "" if last is None else last.backend,
        () if used is None or last is None else _steps(used.report(), last),
        None if last is None else last.plan,
    )


_VIEWS = {DTensorPrimIDs.RESHAPE, DTensorPrimIDs.TRANSPOSE, DTensorPrimIDs.BROADCAST_IN_DIM}
_CASTS = {PrimIDs.CONVERT_ELEMENT_TYPE, DTensorPrimIDs.CONVERT_ELEMENT_TYPE}


def _computes(bsym: BoundSymbol) -> bool:
    """Whether a symbol is more than another look at a tensor, a cast to the dtype it has already,
    the placement that a value has, or work on numbers.
    """
    made = [p for p in bsym.flat_proxy_outs if isinstance(p, TensorProxy)]
    if bsym.sym.id == PLACE:
        return bool(bsym.args[0].spec._o.placements != made[0].spec._o.placements)
    if not made or is_view(bsym) or bsym.sym.id in _VIEWS:
        return False
    return bsym.sym.id not in _CASTS or bsym.args[0].dtype != made[0].dtype


def _name(bsym: BoundSymbol) -> str:
    name = bsym.sym.name.removeprefix("dtensor_").removesuffix("_prim")
    if name == PLACE:
        return "redistribute"
    return "cast" if name in ("convert_element_type", "mdfuse_cast") else name


def _steps(steps: Sequence[StepReport], last: Entry) -> tuple[StepReport, ...]:
    """``steps``, kernels with the operations of their plans as a reader says them."""
    plans = iter(last.plan.kernels)
    return tuple(_kernel_step(s, next(plans)) if s.kind == "kernel" else s for s in steps)


def _kernel_step(step: StepReport, kernel: KernelPlan) -> StepReport:
    return replace(step, ops=_kernel_ops(step.ops, kernel))


def _kernel_ops(ops: Sequence[str], kernel: KernelPlan) -> tuple[str, ...]:
    """``ops`` without casts of a dtype to itself; of a kernel that only moves, what that is.

    Loads and stores convert by themselves, so a plan need not say that a kernel casts.
    """
    casts = (i for i in kernel.body if i.op == "cast")
    idle = iter([kernel.body[i.args[0]].dtype is i.dtype and not i.rounds for i in casts])
    shown = tuple(op for op in ops if op != "cast" or not next(idle))
    if shown:
        return shown
    read = {b.dtype for b in kernel.buffers if not b.written}
    written = {b.dtype for b in kernel.buffers if b.written}
    return ("fill" if not read else "copy" if read == written else "cast",)


def _row(step: StepReport) -> tuple[str, ...]:
    name = f"{step.kind} {step.name}"
    moved = (_size(step.bytes_read), _size(step.bytes_written), _size(step.wire_bytes))
    return name, ", ".join(_totals(step.ops)), *moved, step.detail


def _totals(names: Sequence[str]) -> list[str]:
    """Each name once, in the order of first appearance, with how often it is there."""
    return [_times(name, count) for name, count in Counter(names).items()]


def _runs(names: Sequence[str]) -> list[str]:
    """The names in order, equal neighbours as one."""
    return [_times(name, len(list(same))) for name, same in groupby(names)]


def _times(name: str, count: int) -> str:
    return name if count == 1 else f"{name} x{count}"


def _wrapped(head: str, items: Sequence[str]) -> list[str]:
    """Lines of ``items``, none of them cut in two."""
    words = [item.replace(" ", "\0") for item in items]
    lines = textwrap.wrap(
        head + ", ".join(words),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def _size(count: int) -> str:
    if not count:
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.4g} GiB"


def _table(rows: Sequence[Sequence[str]], indent: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return [f"{indent}{line}".rstrip() for line in lines]
