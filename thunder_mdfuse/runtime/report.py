"""What each step of a program does and how many bytes it moves, for ``explain`` and for tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from thunder_mdfuse.comm.wire import ring_bytes
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.types import TensorType
from thunder_mdfuse.schedule.plan import KernelPlan, Load
from thunder_mdfuse.schedule.program import ProgramPlan


@dataclass(frozen=True)
class StepReport:
    """``kind``: kernel, aten or collective. Bytes are of device memory; ``wire_bytes`` between
    ranks.
    """

    kind: str
    name: str
    ops: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    wire_bytes: int = 0
    detail: str = ""


def counted(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def report(plan: ProgramPlan, symbols: Mapping[str, int]) -> list[StepReport]:
    """One record for each step that does work; a wait is part of its collective."""
    found = []
    kernels = 0
    for step in plan.steps:
        if step.kernel is not None:
            found.append(_kernel(f"kernel{kernels}", step.kernel, plan, symbols))
            kernels += 1
        elif step.kind in ("aten", "start"):
            found.append(_node(step.kind, step.node, plan, symbols))
    return found


def _nbytes(t: TensorType, symbols: Mapping[str, int]) -> int:
    return sizes.evaluate(sizes.product(t.shape), symbols) * t.dtype.itemsize


def _storage(plan: ProgramPlan, value: Use, symbols: Mapping[str, int]) -> int:
    return _nbytes(plan.fusion.tensor(value), symbols)


def _touched(number: int, kernel: KernelPlan, symbols: Mapping[str, int]) -> int | None:
    """At most so many bytes of a buffer that is looked up or scattered into; else None."""
    offsets = [
        (i.detail.offset, i.depends)
        for i in kernel.body
        if isinstance(i.detail, Load) and i.detail.buffer == number
    ]
    for store in kernel.stores:
        if store.buffer == number:
            depends = (kernel.body[a].depends for a in store.args)
            offsets.append((store.offset, frozenset(sizes.symbols(store.offset)).union(*depends)))
    count = 0
    for offset, varies in offsets:
        if not sizes.symbols(offset) & kernel.positions.keys():
            return None
        axes = [a.extent for a in (*kernel.rows, *kernel.columns) if a.name in varies]
        count += sizes.evaluate(sizes.product(axes), symbols)
    return count * kernel.buffers[number].dtype.itemsize


def _kernel(
    name: str, kernel: KernelPlan, plan: ProgramPlan, symbols: Mapping[str, int]
) -> StepReport:
    read = written = 0
    for n, b in enumerate(kernel.buffers):
        if b.space == "global":
            limit = _touched(n, kernel, symbols)
            moved = _storage(plan, b.value, symbols)
            moved = moved if limit is None else min(moved, limit)
            read += moved if not b.fresh else 0
            written += moved if b.written else 0
    silent = ("load", "const", "scalar", "index", "in_range", "position")
    ops = tuple(
        i.op.removeprefix("reduce_").removeprefix("scan_")
        for i in kernel.body
        if i.op not in silent
    )
    launch = kernel.launch
    per_thread = f"{counted(launch.items, 'item')} of {launch.vector}"
    detail = f"{kernel.family}, {counted(launch.threads, 'thread')} x {per_thread}, "
    detail += counted(kernel.phases, "phase")
    return StepReport("kernel", name, ops, read, written, 0, detail)


def _node(kind: str, number: int, plan: ProgramPlan, symbols: Mapping[str, int]) -> StepReport:
    node = plan.fusion.nodes[number]
    tensors = [plan.fusion.type_of(a) for a in node.args]
    read = sum(_nbytes(t, symbols) for t in tensors if isinstance(t, TensorType))
    written = sum(_nbytes(t, symbols) for t in node.types if isinstance(t, TensorType))
    if kind == "aten":
        return StepReport("aten", node.op, (node.op,), read, written)
    attrs = node.attrs
    ranks: int = attrs.ranks  # type: ignore[union-attr]
    wire = ring_bytes(node.op, max(read, written), ranks)
    detail = f"mesh axis {attrs.team}, {ranks} ranks"  # type: ignore[union-attr]
    return StepReport("collective", node.op, (node.op,), read, written, wire, detail)
