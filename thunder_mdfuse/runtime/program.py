"""A planned program, bound to sizes and a backend, and run on tensors.

``bind_program`` evaluates every size, compiles or finds every kernel and returns a
``BoundProgram``, whose ``run`` allocates, launches, calls ATen and communicates, in the plan's
order. Between calls it holds no tensor. Nothing here decides anything: what runs is in the plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Use
from thunder_mdfuse.ir.types import ScalarType
from thunder_mdfuse.runtime.aten import ATEN, TORCH_DTYPES
from thunder_mdfuse.runtime.aten_matmul import PRODUCTS
from thunder_mdfuse.runtime.binding import evaluate_attrs
from thunder_mdfuse.runtime.communicate import Communicate, Terms
from thunder_mdfuse.runtime.launch import cubins, prepare_cuda, prepare_emulated
from thunder_mdfuse.schedule.program import ProgramPlan, host_scalars
from thunder_mdfuse.schedule.vectorize import FRESH_ALIGNMENT

Value = torch.Tensor | bool | int | float | complex


@dataclass(frozen=True)
class Placed:
    """A tensor value with everything evaluated: its base, and the view of that base that it is."""

    base: Use
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    whole: bool


@dataclass
class Frame:
    """The values of one call: tensors by base, numbers, and results that are pending."""

    device: torch.device
    communicate: Communicate | None
    tensors: dict[Use, torch.Tensor] = field(default_factory=dict)
    numbers: dict[Use, object] = field(default_factory=dict)
    pending: dict[int, Any] = field(default_factory=dict)


Action = Callable[[Frame], None]


class BoundProgram:
    """A program for inputs of one shape, stride and alignment class, on one backend and device."""

    def __init__(
        self,
        plan: ProgramPlan,
        texts: Sequence[KernelText],
        symbols: Mapping[str, int],
        backend: str,
        device: torch.device,
        arch: str,
    ) -> None:
        self.plan, self.symbols, self.device = plan, dict(symbols), device
        self.backend = backend
        self._places = {use: self._place(use) for use in plan.layouts}
        self._texts, self._arch = list(texts), arch
        self._inputs = [Use(node) for node in plan.fusion.inputs]
        self._scalars = [self._scalar(i) for i in host_scalars(plan.fusion)]
        if backend == "cuda":
            cubins(texts, arch)
        self._actions = self._build()
        outputs = plan.fusion.outputs
        self._readers = [self._read(o.value) for o in outputs]
        positions = {node: i for i, node in enumerate(plan.fusion.inputs)}
        self._writes = [
            (i, positions[o.writes]) for i, o in enumerate(outputs) if o.writes is not None
        ]

    def _place(self, use: Use) -> Placed:
        layout, t = self.plan.layouts[use], self.plan.fusion.tensor(use)
        shape = tuple(sizes.evaluate(s, self.symbols) for s in t.shape)
        strides = tuple(sizes.evaluate(s, self.symbols) for s in layout.strides)
        offset = sizes.evaluate(layout.offset, self.symbols)
        return Placed(
            layout.base, shape, strides, offset, TORCH_DTYPES[t.dtype], layout.base == use
        )

    def _build(self) -> list[Action]:
        """The actions of a call: each step, then the release of what no later step reads."""
        released = self._last_uses()
        texts = iter(self._texts)
        actions: list[Action] = []
        for i, step in enumerate(self.plan.steps):
            if step.kernel is not None:
                action = self._kernel(next(texts))
            elif step.kind == "start":
                action = self._start(step.node, self._terms(i, released.get(i, ())))
            else:
                action = {"aten": self._aten, "wait": self._wait}[step.kind](step.node)
            actions.append(_then_release(action, tuple(released.get(i, ()))))
        return actions

    def _last_uses(self) -> dict[int, list[Use]]:
        """The storages, by the values that own them, that each step is the last one to use."""
        last_use: dict[Use, int] = {}
        for i, step in enumerate(self.plan.steps):
            if step.kernel is not None:
                for b in step.kernel.buffers:
                    if b.space == "global":
                        last_use[b.value] = i
                continue
            node = self.plan.fusion.nodes[step.node]
            for arg in node.args:
                if arg in self._places:
                    last_use[self._places[arg].base] = i
            if step.kind != "start":  # whose result is none yet
                last_use.update((Use(step.node, r), i) for r in range(len(node.types)))
        outputs = [o.value for o in self.plan.fusion.outputs]
        kept = {self._places[value].base for value in outputs if value in self._places}
        released: dict[int, list[Use]] = {}
        for use, i in last_use.items():
            if use not in kept:
                released.setdefault(i, []).append(use)
        return released

    def _is_own(self, use: Use) -> bool:
        """Whether ``use`` owns a storage that this program allocates in each call, and that one
        collective reads: one that was started before may be reading still.
        """
        started = [
            self.plan.fusion.nodes[s.node].args[0] for s in self.plan.steps if s.kind == "start"
        ]
        if [self._places[u].base for u in started].count(use) > 1:
            return False
        fresh = {b.value for s in self.plan.steps if s.kernel for b in s.kernel.buffers if b.fresh}
        return use in fresh or self.plan.fusion.nodes[use.node].op in PRODUCTS

    def _kernel(self, text: KernelText) -> Action:
        if self.backend == "cuda":
            assert self.device.index is not None
            launch = prepare_cuda(text, self.symbols, self.device.index, self._arch)
        else:
            launch = prepare_emulated(text, self.symbols)
        fresh = [(b.value, self._places[b.value]) for b in text.plan.buffers if b.fresh]

        def action(frame: Frame) -> None:
            for use, p in fresh:
                frame.tensors[use] = torch.empty_strided(
                    p.shape, p.strides, dtype=p.dtype, device=frame.device
                )
            launch(frame.tensors, frame.numbers)

        return action

    def _operands(self, node: int) -> list[Callable[[Frame], Value]]:
        return [self._read(a) for a in self.plan.fusion.nodes[node].args]

    def _read(self, use: Use) -> Callable[[Frame], Value]:
        """A function that finds the value ``use`` in a frame."""
        if isinstance(self.plan.fusion.type_of(use), ScalarType):
            return lambda frame: frame.numbers[use]  # type: ignore[return-value]
        p = self._places[use]
        if p.whole:
            return lambda frame: frame.tensors[use]
        return lambda frame: _view(frame.tensors[p.base], p)

    def _aten(self, node_number: int) -> Action:
        node = self.plan.fusion.nodes[node_number]
        operands, attrs = self._operands(node_number), evaluate_attrs(node.attrs, self.symbols)
        call, dtypes = ATEN[node.op], [t.dtype for t in node.types]
        places = [self._places[Use(node_number, r)] for r in range(len(node.types))]

        def action(frame: Frame) -> None:
            results = call([read(frame) for read in operands], attrs, dtypes, frame.device)
            for r, (result, p) in enumerate(zip(results, places, strict=True)):
                frame.tensors[Use(node_number, r)] = _with_layout(result, p)

        return action

    def _terms(self, i: int, released: Sequence[Use]) -> Terms:
        """How step ``i``, which starts a collective, stands among the others."""
        (operand,) = self.plan.fusion.nodes[self.plan.steps[i].node].args
        after = self.plan.steps[i + 1]
        waits = after.kind == "wait" and (
            self.plan.fusion.nodes[after.node].args[0].node == self.plan.steps[i].node
        )
        base = self._places[operand].base  # a view of what nobody reads later is as good
        return Terms(base in released and self._is_own(base), not waits)

    def _start(self, node_number: int, terms: Terms) -> Action:
        node = self.plan.fusion.nodes[node_number]
        (read,) = self._operands(node_number)
        attrs = evaluate_attrs(node.attrs, self.symbols)

        def action(frame: Frame) -> None:
            if frame.communicate is None:
                raise ProgramError(
                    f"{node.op} over mesh axis {attrs.team!r} needs a DeviceMesh, and none was "
                    "given; pass the mesh of the DTensors that the program was made for"
                )
            local = read(frame)
            assert isinstance(local, torch.Tensor)
            frame.pending[node_number] = frame.communicate.start(node, local, attrs, terms)

        return action

    def _wait(self, node_number: int) -> Action:
        started = self.plan.fusion.nodes[node_number].args[0].node
        place = self._places[Use(node_number)]

        def action(frame: Frame) -> None:
            assert frame.communicate is not None
            result = frame.communicate.wait(frame.pending.pop(started))
            frame.tensors[Use(node_number)] = _with_layout(result, place)

        return action

    def _scalar(self, node_number: int) -> Action:
        node = self.plan.fusion.nodes[node_number]
        attrs = evaluate_attrs(node.attrs, self.symbols)
        call, dtypes = ATEN[node.op], [t.dtype for t in node.types]

        def action(frame: Frame) -> None:
            args = [frame.numbers[a] for a in node.args]
            (frame.numbers[Use(node_number)],) = call(args, attrs, dtypes, frame.device)

        return action

    def run(self, inputs: list[Value], communicate: Communicate | None) -> list[Value]:
        """The outputs for ``inputs``, which must be of the class that this was bound to.

        The list is emptied: the last step that reads an input lets go of it.
        """
        frame = Frame(self.device, communicate)
        targets = [inputs[position] for _, position in self._writes]
        for use, value in zip(self._inputs, inputs, strict=True):
            if isinstance(value, torch.Tensor):
                frame.tensors[use] = value
            else:
                frame.numbers[use] = value
        value = 0  # or the last one would be held
        inputs.clear()
        for action in self._scalars:
            action(frame)
        for action in self._actions:
            action(frame)
        found = [read(frame) for read in self._readers]
        if self._writes:
            self._write(found, targets)
        return found

    def _write(self, found: list[Value], written: Sequence[Value]) -> None:
        """Put the outputs that write an input there; the input is what is returned then."""
        targets = [(i, target) for (i, _), target in zip(self._writes, written, strict=True)]
        storages = {_storage(target) for _, target in targets}
        sources = []
        for i, target in targets:
            source = found[i]
            assert isinstance(source, torch.Tensor)
            # What is written may itself lie in storage that an earlier write changes.
            moved = source is not target and _storage(source) in storages
            sources.append(source.clone() if moved else source)
        for (i, target), source in zip(targets, sources, strict=True):
            assert isinstance(target, torch.Tensor)
            found[i] = target.copy_(source)


def _storage(x: Value) -> int:
    assert isinstance(x, torch.Tensor)
    return x.untyped_storage().data_ptr()


def _then_release(action: Action, uses: tuple[Use, ...]) -> Action:
    if not uses:
        return action

    def both(frame: Frame) -> None:
        action(frame)
        for use in uses:
            frame.tensors.pop(use, None)

    return both


def _view(base: torch.Tensor, p: Placed) -> torch.Tensor:
    return base.as_strided(p.shape, p.strides, base.storage_offset() + p.offset)


def _with_layout(result: torch.Tensor, p: Placed) -> torch.Tensor:
    """``result`` itself when it is as planned, else a copy that is.

    Planned are its strides, and the alignment of memory that was allocated for it alone, which
    kernels rely on: a collective or an ATen op may hand out a part of something larger.
    """
    if result.stride() == p.strides and result.data_ptr() % FRESH_ALIGNMENT == 0:
        return result
    return torch.empty_strided(p.shape, p.strides, dtype=p.dtype, device=result.device).copy_(
        result
    )
