"""``explain(jitted)``: what became of a jitted function, in numbers and in words.

In: a function or module jitted by ``thunder.jit`` or ``thunderfx`` that has been called. Out: an
``Explanation``: regions with their kernels, ATen steps and collectives and the bytes that each
moves, and every symbol outside of regions with its ``Reason``. ``str`` of it is for people, its
fields for programs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import thunder
from thunder.core.trace import TraceCtx

from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.runtime.report import StepReport
from thunder_mdfuse.thunder.executor import PassRecord, Unfused, records_of
from thunder_mdfuse.thunder.fusion_call import FusionCall


@dataclass(frozen=True)
class RegionReport:
    """One region. ``steps`` is empty before its first call, when nothing is compiled yet."""

    name: str
    part: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: int
    specialisations: int
    backend: str
    steps: tuple[StepReport, ...]

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

    def __str__(self) -> str:
        called = f"{self.calls} calls, {self.specialisations} specialisations"
        head = f"{self.name} ({self.part}; {called}{self.backend and ', on ' + self.backend})"
        lines = [
            head,
            f"  {', '.join(self.inputs)} -> {', '.join(self.outputs)}",
            f"  ops: {', '.join(self.ops)}",
        ]
        if not self.steps:
            return "\n".join([*lines, "  not called yet, so not compiled"])
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
    """What the executor did with ``jitted``. Raises ``ExecutorError`` for what was never called."""
    regions: list[RegionReport] = []
    unfused: list[Unfused] = []
    for function in _jitted_functions(jitted):
        stats = thunder.compile_stats(function)
        forward, backward = stats.last_traces or [], stats.last_backward_traces or []
        for part, traces in (("forward", forward), ("backward", backward)):
            regions += [_region(call, part) for call in _calls(traces)]
        records: Sequence[PassRecord] = records_of(thunder.compile_data(function))
        unfused += records[-1].unfused if records else ()
    return Explanation(tuple(regions), tuple(unfused))


def _jitted_functions(jitted: Any) -> list[Any]:
    """The functions that Thunder compiled: one for ``thunder.jit``, one a subgraph for
    ``thunderfx``.
    """
    if thunder.compile_stats(jitted) is not None:
        if not thunder.compile_stats(jitted).last_traces:
            raise ExecutorError("the function has not been called yet; call it, then explain it")
        return [jitted]
    backend = getattr(jitted, "_backend", None)
    subgraphs = getattr(backend, "subgraph_infos", None)
    if subgraphs is None:
        raise ExecutorError(
            f"{jitted!r} was not made by thunder.jit or thunderfx; explain what they return"
        )
    return [f for info in subgraphs for f in info.thunder_compiled_fns]


def _calls(traces: Sequence[TraceCtx]) -> Iterator[FusionCall]:
    for bsym in traces[-1].bound_symbols if traces else ():
        call = (bsym._call_ctx or {}).get(bsym.sym.name)
        if isinstance(call, FusionCall):
            yield call


def _region(call: FusionCall, part: str) -> RegionReport:
    info = call.cache_info()
    last = None if call.last_used is None else call.last_used.last
    return RegionReport(
        call.name,
        part,
        tuple(b.sym.name for b in call.bsyms),
        tuple(p.type_string() for p in call.inputs),
        tuple(p.type_string() for p in call.outputs),
        info.calls,
        info.specialisations,
        "" if last is None else last.backend,
        () if call.last_used is None else tuple(call.last_used.report()),
    )


def _row(step: StepReport) -> tuple[str, ...]:
    name = f"{step.kind} {step.name}"
    moved = (_size(step.bytes_read), _size(step.bytes_written), _size(step.wire_bytes))
    return name, " ".join(step.ops), *moved, step.detail


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
