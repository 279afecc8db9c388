"""A planned program, bound to sizes and a backend, and run on tensors.

``BoundProgram`` evaluates every size, compiles or finds every kernel, and writes the straight-line
function that a call is: it allocates, launches, calls ATen and communicates, in the plan's order.
Between calls it holds no tensor. Nothing here decides anything: what runs is in the plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.compile.module import stream_of
from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.graph import Node, Use
from thunder_mdfuse.ir.types import ScalarType
from thunder_mdfuse.runtime.aten import ATEN, TORCH_DTYPES
from thunder_mdfuse.runtime.aten_matmul import PRODUCTS
from thunder_mdfuse.runtime.binding import evaluate_attrs
from thunder_mdfuse.runtime.communicate import Communicate, Terms
from thunder_mdfuse.runtime.inputs import Value
from thunder_mdfuse.runtime.launch import (
    EMPTY_STRIDED,
    Prepared,
    PreparedCuda,
    PreparedEmulated,
    cubins,
)
from thunder_mdfuse.runtime.straight import Straight
from thunder_mdfuse.schedule.program import ProgramPlan, host_scalars
from thunder_mdfuse.schedule.vectorize import FRESH_ALIGNMENT

Run = Callable[[list[Value], Communicate | None], list[Value]]


@dataclass(frozen=True)
class Placed:
    """A tensor value with everything evaluated: its base, and the view of that base that it is."""

    base: Use
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    whole: bool


class BoundProgram:
    """A program for inputs of one shape, stride and alignment class, on one backend and device.

    ``run(inputs, communicate)`` gives the outputs for ``inputs``, which must be of that class. The
    list is emptied: the last step that reads an input lets go of it. ``code`` is the text of it.
    """

    run: Run

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
        if backend == "cuda":
            cubins(texts, arch)
        self.code = self._straight()
        run = self.code.function()
        self.run = run if self._only_kernels() else _without_grad(run)

    def _place(self, use: Use) -> Placed:
        layout, t = self.plan.layouts[use], self.plan.fusion.tensor(use)
        shape = tuple(sizes.evaluate(s, self.symbols) for s in t.shape)
        strides = tuple(sizes.evaluate(s, self.symbols) for s in layout.strides)
        offset = sizes.evaluate(layout.offset, self.symbols)
        return Placed(
            layout.base, shape, strides, offset, TORCH_DTYPES[t.dtype], layout.base == use
        )

    def _only_kernels(self) -> bool:
        """Whether a call makes nothing that autograd would record."""
        outputs = self.plan.fusion.outputs
        views = any("as_strided" in self._read(o.value) for o in outputs)
        kernels = all(step.kernel is not None for step in self.plan.steps)
        return kernels and not views and all(o.writes is None for o in outputs)

    def _straight(self) -> Straight:
        code = Straight("run", "inputs, communicate")
        self._begin(code)
        self._numbers(code)
        released = self._last_uses()
        texts = iter(self._texts)
        for i, step in enumerate(self.plan.steps):
            if step.kernel is not None:
                self._kernel(code, next(texts))
            elif step.kind == "start":
                self._start(code, step.node, self._terms(i, released.get(i, ())))
            else:
                {"aten": self._aten, "wait": self._wait}[step.kind](code, step.node)
            if i in released:
                code.add(" = ".join([*map(_tensor, released[i]), "None"]))
        self._end(code)
        return code

    def _begin(self, code: Straight) -> None:
        code.known("device", self.device)
        if self.backend == "cuda":
            current = code.known("current_device", torch._C._cuda_getDevice)
            code.known("using_device", torch.cuda.device)
            code.add(f"if {current}() != {self.device.index}:")
            code.add("    with using_device(device): return run(inputs, communicate)")
        started = [self.plan.fusion.nodes[s.node] for s in self.plan.steps if s.kind == "start"]
        if started:
            code.known("no_mesh", lambda: _no_mesh(started[0]))
            code.add("if communicate is None: raise no_mesh()")
        inputs = [Use(node) for node in self.plan.fusion.inputs]
        code.add(f"({''.join(f'{self._name(use)}, ' for use in inputs)}) = inputs")
        written = [o.writes for o in self.plan.fusion.outputs if o.writes is not None]
        if written:
            code.add(f"written = [{', '.join(_tensor(Use(node)) for node in written)}]")
        code.add("inputs.clear()")
        if self.backend == "cuda" and self._texts:
            code.add(f"stream = {code.known('stream_of', stream_of)}({self.device.index})")

    def _numbers(self, code: Straight) -> None:
        """The numbers that are read; those that no input has a part in are computed here."""
        nodes = self.plan.fusion.nodes
        wanted = {o.value for o in self.plan.fusion.outputs}
        wanted.update(s.value for text in self._texts for s in text.scalars)
        wanted.update(a for s in self.plan.steps if s.kernel is None for a in nodes[s.node].args)
        scalars = host_scalars(self.plan.fusion)
        for node in reversed(scalars):
            if Use(node) in wanted:
                wanted.update(nodes[node].args)
        known: dict[Use, object] = {}
        for node in scalars:
            args = nodes[node].args
            if Use(node) in wanted and all(a in known for a in args):
                attrs = evaluate_attrs(nodes[node].attrs, self.symbols)
                dtypes, given = [t.dtype for t in nodes[node].types], [known[a] for a in args]
                (known[Use(node)],) = ATEN[nodes[node].op](given, attrs, dtypes, self.device)
                code.known(_number(Use(node)), known[Use(node)])
            elif Use(node) in wanted:
                self._call(code, node)

    def _end(self, code: Straight) -> None:
        outputs = self.plan.fusion.outputs
        found = f"[{', '.join(self._read(o.value) for o in outputs)}]"
        at = [i for i, o in enumerate(outputs) if o.writes is not None]
        if at:
            code.known("write", lambda found, targets: _write(found, targets, at))
            found = f"write({found}, written)"
        code.add(f"return {found}")

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

    def _name(self, use: Use) -> str:
        scalar = isinstance(self.plan.fusion.type_of(use), ScalarType)
        return _number(use) if scalar else _tensor(use)

    def _read(self, use: Use) -> str:
        """What the value ``use`` is in the text."""
        if isinstance(self.plan.fusion.type_of(use), ScalarType):
            return _number(use)
        p = self._places[use]
        base, own = _tensor(p.base), self._places[p.base]
        fresh = self.plan.fusion.nodes[p.base.node].op != "input"
        if p.whole or (fresh and replace(p, whole=True) == own):
            return base
        return f"{base}.as_strided({p.shape}, {p.strides}, {base}.storage_offset() + {p.offset})"

    def _prepared(self, text: KernelText) -> Prepared:
        if self.backend == "cuda":
            assert self.device.index is not None
            return PreparedCuda(text, self.symbols, self.device.index, self._arch)
        return PreparedEmulated(text, self.symbols)

    def _kernel(self, code: Straight, text: KernelText) -> None:
        make = code.known("empty_strided", EMPTY_STRIDED[self.device.type])
        for b in text.plan.buffers:
            if b.fresh:
                p = self._places[b.value]
                dtype = code.known(b.dtype.text, p.dtype)
                code.add(f"{_tensor(b.value)} = {make}({p.shape}, {p.strides}, {dtype})")
        self._prepared(text).write(code, _tensor, _number)

    def _call(self, code: Straight, node_number: int) -> list[Use]:
        """A call of the torch table; what it makes."""
        node = self.plan.fusion.nodes[node_number]
        made = [Use(node_number, r) for r in range(len(node.types))]
        call = code.new("aten", ATEN[node.op])
        attrs = code.new("attrs", evaluate_attrs(node.attrs, self.symbols))
        dtypes = code.new("dtypes", [t.dtype for t in node.types])
        operands = ", ".join(self._read(a) for a in node.args)
        targets = "".join(f"{self._name(use)}, " for use in made)
        code.add(f"({targets}) = {call}([{operands}], {attrs}, {dtypes}, device)  # {node.op}")
        return made

    def _aten(self, code: Straight, node_number: int) -> None:
        for use in self._call(code, node_number):
            self._lay_out(code, use, _tensor(use))

    def _lay_out(self, code: Straight, use: Use, found: str) -> None:
        place = code.new("place", self._places[use])
        code.add(f"{_tensor(use)} = {code.known('laid_out', _laid_out)}({found}, {place})")

    def _terms(self, i: int, released: Sequence[Use]) -> Terms:
        """How step ``i``, which starts a collective, stands among the others."""
        (operand,) = self.plan.fusion.nodes[self.plan.steps[i].node].args
        after = self.plan.steps[i + 1]
        waits = after.kind == "wait" and (
            self.plan.fusion.nodes[after.node].args[0].node == self.plan.steps[i].node
        )
        base = self._places[operand].base  # a view of what nobody reads later is as good
        return Terms(base in released and self._is_own(base), not waits)

    def _start(self, code: Straight, node_number: int, terms: Terms) -> None:
        node = self.plan.fusion.nodes[node_number]
        known = [
            code.new("node", node),
            self._read(node.args[0]),
            code.new("attrs", evaluate_attrs(node.attrs, self.symbols)),
            code.new("terms", terms),
        ]
        code.add(f"pending{node_number} = communicate.start({', '.join(known)})  # {node.op}")

    def _wait(self, code: Straight, node_number: int) -> None:
        pending = f"pending{self.plan.fusion.nodes[node_number].args[0].node}"
        self._lay_out(code, Use(node_number), f"communicate.wait({pending})")
        code.add(f"{pending} = None")


def _tensor(use: Use) -> str:
    return f"t{use.node}" + (f"_{use.result}" if use.result else "")


def _number(use: Use) -> str:
    return f"n{use.node}" + (f"_{use.result}" if use.result else "")


def _no_mesh(node: Node) -> ProgramError:
    return ProgramError(
        f"{node.op} over mesh axis {node.attrs.team!r} needs a DeviceMesh, and none was "  # type: ignore[union-attr]
        "given; pass the mesh of the DTensors that the program was made for"
    )


def _without_grad(run: Run) -> Run:
    """``run`` with grad mode off, which takes as long as three allocations where it is on."""

    def called(inputs: list[Value], communicate: Communicate | None) -> list[Value]:
        if not torch.is_grad_enabled():
            return run(inputs, communicate)
        with torch.no_grad():
            return run(inputs, communicate)

    return called


def _write(found: list[Value], targets: Sequence[Any], at: Sequence[int]) -> list[Value]:
    """``found``, where those ``at`` write an input: one of ``targets`` is then in its place."""
    storages = {_storage(target) for target in targets}
    sources = []
    for i, target in zip(at, targets, strict=True):
        source = found[i]
        assert isinstance(source, torch.Tensor)
        # What is written may itself lie in storage that an earlier write changes.
        moved = source is not target and _storage(source) in storages
        sources.append(source.clone() if moved else source)
    for i, target, source in zip(at, targets, sources, strict=True):
        found[i] = target.copy_(source)
    return found


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _laid_out(result: torch.Tensor, p: Placed) -> torch.Tensor:
    """``result`` itself when it is as planned, else a copy that is.

    Planned are its strides, and the alignment of memory that was allocated for it alone, which
    kernels rely on: a collective or an ATen op may hand out a part of something larger.
    """
    if result.stride() == p.strides and result.data_ptr() % FRESH_ALIGNMENT == 0:
        return result
    return torch.empty_strided(p.shape, p.strides, dtype=p.dtype, device=result.device).copy_(
        result
    )
