"""A fusion that can be called: it specialises itself for the inputs it gets and remembers what it
made.

``programs`` remembers the executables of a process, so that equal fusions share one; it may forget
any, which then stays with whoever holds it. An executable has two levels of memory. A *plan* is
made for a layout class (strides as expressions of the shape, pointer alignments) and holds for all
sizes that pass its guards; a *bound program* is a plan with every size evaluated. A call whose
inputs have been seen before is one dictionary look-up away from running.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse import knobs, pipeline
from thunder_mdfuse.codegen.kernel import KernelText
from thunder_mdfuse.comm.agreed import Agreed, agreed_by
from thunder_mdfuse.comm.agreement import agree
from thunder_mdfuse.comm.seeds import agree_on_seed
from thunder_mdfuse.comm.team import axis_names, mesh_coordinate
from thunder_mdfuse.compile.device import current_target, default_target
from thunder_mdfuse.dump import Dump
from thunder_mdfuse.errors import ProgramError
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import holds
from thunder_mdfuse.ir.graph import Fusion, Use
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.text import render
from thunder_mdfuse.lru import Lru
from thunder_mdfuse.reference import run_reference
from thunder_mdfuse.runtime.binding import bind
from thunder_mdfuse.runtime.communicate import Communicate
from thunder_mdfuse.runtime.inputs import (
    Value,
    dense_strides,
    device_of,
    input_key,
    lazy,
    without_memory,
)
from thunder_mdfuse.runtime.likeness import alignment, is_fake, likeness
from thunder_mdfuse.runtime.program import BoundProgram
from thunder_mdfuse.runtime.report import StepReport, report
from thunder_mdfuse.schedule.program import InputClass, ProgramPlan

# What is kept at most; ``multidevice.keep_programs`` changes the first.
MOST_PROGRAMS = 4096  # executables of the process
MOST_ENTRIES = 4096  # bound programs of an executable, by the sizes and addresses of its inputs
MOST_PLANS = 64  # layout classes for which an executable has plans
MOST_VARIANTS = 16  # plans of one layout class, for sizes of which different guards hold
Key = tuple[object, ...]
Shapes = tuple[tuple[int, ...] | None, ...]
_backend_text = knobs.unparsed("MDFUSE_BACKEND")
_rounding_text = knobs.unparsed("MDFUSE_EAGER_ROUNDING")


@dataclass
class Entry:
    """What one key of the fast look-up leads to.

    ``sizes`` and ``agreed`` are of a program that communicates: what the ranks have agreed on
    beside the program, and each team's memory of it with the epoch in which it did. ``like``,
    ``place`` and ``modes`` tell a call that it is for without its key.
    """

    plan: ProgramPlan
    texts: list[KernelText]
    symbols: dict[str, int]
    backend: str
    bound: BoundProgram | None
    sizes: dict[str, int]
    like: Callable[[Sequence[Value]], bool]
    place: Key
    modes: Key
    agreed: tuple[tuple[Agreed, int], ...] = ()

    def is_for(self, inputs: Sequence[Value], place: Key) -> bool:
        """Whether a call is one that this is known to be for."""
        return place == self.place and self.like(inputs) and self.modes == _modes()


class Executable:
    """One global fusion, ready to be called with the local tensors of its inputs."""

    def __init__(self, fusion: Fusion, name: str) -> None:
        self.fusion, self.name = fusion, name
        self.dump = Dump(name)
        self.local, self._shared = pipeline.lower(fusion, self.dump)
        self.communicates = any(row(n.op).kind == "start" for n in self.local.nodes)
        self.draws = any(row(n.op).kind in ("rng_state", "draw") for n in self.local.nodes)
        self._entries: dict[Key, Entry] = {}
        self._plans: Lru[Key, list[tuple[ProgramPlan, list[KernelText]]]] = Lru(MOST_PLANS)
        self._lock = threading.RLock()
        self.last: Entry | None = None

    def run(
        self,
        inputs: Sequence[Value],
        device_mesh: DeviceMesh | None = None,
        shapes: Shapes | None = None,
    ) -> list[Value]:
        """The outputs for ``inputs``, as local tensors and numbers; writes are done in place.

        ``device_mesh``: the mesh that a fusion with placements runs on. ``shapes``: global shapes
        of the inputs, needed when sizes are symbolic and sharded. Raises ``ProgramError`` for
        inputs that do not fit the fusion, ``CommError`` when ranks disagree.
        """
        return self.taking(list(inputs), device_mesh, shapes)

    def taking(
        self,
        inputs: list[Value],
        device_mesh: DeviceMesh | None = None,
        shapes: Shapes | None = None,
    ) -> list[Value]:
        """As ``run``, but generated kernels empty the list ``inputs``: what only it held is let go
        of when nothing reads it any more. The evaluator leaves it as it is.
        """
        place = _place(device_mesh, shapes)
        entry = self.last
        if entry is None or not entry.is_for(inputs, place):
            if lazy(inputs):
                return self._resolved(inputs, device_mesh, shapes)
            entry = self.last = self._find(inputs, device_mesh, shapes, place)
        return self._run(entry, inputs, device_mesh)

    def _resolved(
        self, inputs: list[Value], device_mesh: DeviceMesh | None, shapes: Shapes | None
    ) -> list[Value]:
        """As ``taking``, for inputs that are conjugated or negated lazily."""
        resolved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        values = list(inputs)
        for i in lazy(inputs):
            x = inputs[i]
            assert isinstance(x, torch.Tensor)
            values[i] = y = x.resolve_conj().resolve_neg()
            resolved[i] = x, y
        found = self.taking(values, device_mesh, shapes)
        for o, output in enumerate(self.local.outputs):
            i = -1 if output.writes is None else self.local.inputs.index(output.writes)
            if i in resolved:
                x, y = resolved[i]
                with torch.no_grad():
                    found[o] = x.copy_(y)
        return found

    def again(
        self,
        inputs: Sequence[Value],
        device_mesh: DeviceMesh | None = None,
        shapes: Shapes | None = None,
    ) -> list[Value] | None:
        """As ``run`` for inputs that are like those of the last call, else None."""
        entry = self.last
        if entry is None or not entry.is_for(inputs, _place(device_mesh, shapes)):
            return None
        return self._run(entry, list(inputs), device_mesh)

    def _run(
        self, entry: Entry, inputs: list[Value], device_mesh: DeviceMesh | None
    ) -> list[Value]:
        communicate = None
        if self.communicates:
            assert device_mesh is not None
            communicate = Communicate(device_mesh)
            if not all(team.epoch == epoch for team, epoch in entry.agreed):
                entry.agreed = self._agree(communicate, entry.sizes)
        if self.draws and device_mesh is not None:
            agree_on_seed(device_mesh, device_of(inputs))
        if entry.bound is not None:
            return entry.bound.run(inputs, communicate)
        with torch.no_grad():
            return run_reference(self.local, inputs, entry.symbols, communicate)

    def _find(
        self,
        inputs: Sequence[Value],
        device_mesh: DeviceMesh | None,
        shapes: Shapes | None,
        place: Key,
    ) -> Entry:
        """The entry for a call by its key; it is made for the first such call."""
        modes = _modes()
        try:
            key = (*map(input_key, inputs), place, modes)
        except RuntimeError as e:
            raise ProgramError(f"{self.name}: {without_memory(inputs)}") from e
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:
                entry = self._entries.get(key) or self._specialise(
                    inputs, device_mesh, shapes, place, modes
                )
                if len(self._entries) >= MOST_ENTRIES:  # sizes that change with every call
                    self._entries.clear()
                self._entries[key] = entry
        elif entry.like is not _never and not entry.like(inputs):
            entry.like = likeness(inputs)  # torch tells them apart, a program does not
        return entry

    def _specialise(
        self,
        inputs: Sequence[Value],
        device_mesh: DeviceMesh | None,
        shapes: Shapes | None,
        place: Key,
        modes: Key,
    ) -> Entry:
        symbols = self._symbols(inputs, device_mesh, shapes)
        self._check_guards(symbols)
        device = device_of(inputs)
        backend = "reference" if any(map(is_fake, inputs)) else _backend(device)
        known = {k: v for k, v in symbols.items() if not k.startswith("@")}
        agreed: tuple[tuple[Agreed, int], ...] = ()
        if self.communicates:
            assert device_mesh is not None
            agreed = self._agree(Communicate(device_mesh), known)
        plan, texts, symbols = self._plan(inputs, symbols, device)
        bound = None
        if backend != "reference":
            arch = current_target(device.index).arch if device.type == "cuda" else ""
            bound = BoundProgram(plan, texts, symbols, backend, device, arch)
            self.dump.write("call", bound.code.text, "py")
        like = _never if any(map(is_fake, inputs)) else likeness(inputs)
        return Entry(plan, texts, symbols, backend, bound, known, like, place, modes, agreed)

    def _check_guards(self, symbols: Mapping[str, int]) -> None:
        for guard in self.fusion.guards:
            if not holds(guard, symbols):
                names = sorted(sizes.symbols(guard.left) | sizes.symbols(guard.right))
                values = ", ".join(f"{n}={symbols[n]}" for n in names)
                raise ProgramError(
                    f"{self.name} is for sizes with {guard}, found {values}; make another"
                )

    def _symbols(
        self,
        inputs: Sequence[Value],
        mesh: DeviceMesh | None,
        shapes: Shapes | None,
    ) -> dict[str, int]:
        if self.fusion.mesh is None:
            return bind(self.fusion, inputs)
        if mesh is None:
            raise ProgramError(
                f"{self.name} has placements on {self.fusion.mesh}; pass the DeviceMesh to run on"
            )
        coordinate = mesh_coordinate(mesh)
        if coordinate is None:
            raise ProgramError(f"{self.name}: this rank is not in the mesh {mesh}")
        symbols = {f"@{n}": c for n, c in zip(axis_names(mesh), coordinate, strict=True)}
        if shapes is not None:
            pairs = zip(inputs, shapes, strict=True)
            whole = [v if s is None else _like(v, s) for v, s in pairs]
            symbols = bind(self.fusion, whole, symbols)
        return bind(self.local, inputs, symbols)

    def _agree(
        self, communicate: Communicate, known: Mapping[str, int]
    ) -> tuple[tuple[Agreed, int], ...]:
        """Compare the program's part on the mesh, and settings that numbers depend on, with the
        other ranks of every team, once for each set of sizes. What this process has agreed on is no
        part of the executables: which of these are forgotten differs by rank, and a rank that asked
        again would wait for the others in vain.
        """
        starts = [n for n in self.local.nodes if row(n.op).kind == "start"]
        names = sorted({n.attrs.team for n in starts})  # type: ignore[union-attr]
        settings = _settings()
        digest = hashlib.sha256(repr(self._shared).encode()).hexdigest()
        key = (digest, *sorted(known.items()), *settings.items())

        def ask(name: str) -> None:
            _, group = communicate.team(name).member()
            summary = {**self._shared, "sizes": str(known), **settings}
            agree(group, f"{digest} {known} {settings}", summary, f"region {self.name}")

        teams = [(agreed_by(communicate.team(name).ranks), name) for name in names]
        return tuple((team, team.ask_once(key, partial(ask, name))) for team, name in teams)

    def _plan(
        self, inputs: Sequence[Value], symbols: dict[str, int], device: torch.device
    ) -> tuple[ProgramPlan, list[KernelText], dict[str, int]]:
        classes, symbols = self._classes(inputs, symbols)
        target = current_target(device.index) if device.type == "cuda" else default_target()
        key: Key = (*classes, target.name, device.type, _modes())
        plans = self._plans.get(key)
        if plans is None:
            plans = self._plans.put(key, [])
        for plan, texts in plans:
            if all(holds(g, symbols) for g in plan.guards):
                return plan, texts, symbols
        plan, texts = pipeline.plan(
            self.local,
            classes,
            target,
            symbols,
            device.type,
            self.dump,
            torch.are_deterministic_algorithms_enabled(),
        )
        plans.insert(0, (plan, texts))
        del plans[MOST_VARIANTS:]
        return plan, texts, symbols

    def _classes(
        self, inputs: Sequence[Value], symbols: dict[str, int]
    ) -> tuple[list[InputClass], dict[str, int]]:
        classes, symbols = [], dict(symbols)
        for node, value in zip(self.local.inputs, inputs, strict=True):
            if not isinstance(value, torch.Tensor):
                classes.append(InputClass(None))
                continue
            shape = self.local.tensor(Use(node)).shape
            strides = dense_strides(shape, value)
            if strides is None:
                strides = ()
                for d, stride in enumerate(value.stride()):
                    name = f"stride{node}_{d}"
                    symbols[name] = stride
                    strides += (stride if stride in (0, 1) else sizes.symbol(name),)
            classes.append(InputClass(strides, alignment(value)))
        return classes, symbols

    def stages(self) -> dict[str, str]:
        """The text of every stage so far, by name; program and kernels after the first call."""
        return dict(self.dump.texts)

    def kernel_sources(self) -> dict[str, str]:
        """The CUDA text of each kernel of the last call's program, by entry name."""
        return {} if self.last is None else {t.entry: t.source for t in self.last.texts}

    def report(self) -> list[StepReport]:
        """What each step of the last call's program does and moves. Empty before the first call."""
        return [] if self.last is None else report(self.last.plan, self.last.symbols)

    def __str__(self) -> str:
        return f"{self.name}:\n{render(self.fusion)}"


programs: Lru[str, Executable] = Lru(MOST_PROGRAMS)
_making = threading.Lock()


def compile_fusion(fusion: Fusion, name: str) -> Executable:
    """The executable of global ``fusion``; equal fusions share one, whatever their names."""
    found = programs.get(fusion.key)
    if found is None:
        with _making:
            found = programs.peek(fusion.key) or programs.put(fusion.key, Executable(fusion, name))
    return found


def _like(value: Value, shape: Sequence[int]) -> torch.Tensor:
    """A tensor without memory, of the dtype of ``value`` and the global ``shape``."""
    assert isinstance(value, torch.Tensor)
    return torch.empty(tuple(shape), dtype=value.dtype, device="meta")


def _never(inputs: Sequence[Value]) -> bool:
    return False


def _place(mesh: DeviceMesh | None, shapes: Shapes | None) -> Key:
    """Where this process is in the mesh, and the global shapes, if there are any."""
    if mesh is None and shapes is None:
        return ()
    coordinate = None if mesh is None else mesh_coordinate(mesh)
    return coordinate, shapes


def _modes() -> Key:
    """What a program is made for beside its inputs."""
    return _backend_text(), _rounding_text(), torch.are_deterministic_algorithms_enabled()


def _settings() -> dict[str, str]:
    """What numbers depend on beside the program, so that it must be the same on all ranks."""
    return {
        "MDFUSE_EAGER_ROUNDING": str(int(knobs.flag("MDFUSE_EAGER_ROUNDING"))),
        "use_deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def _backend(device: torch.device) -> str:
    asked = knobs.text("MDFUSE_BACKEND")
    if asked == "auto":
        return "cuda" if device.type == "cuda" else "reference"
    needed = {"cuda": "cuda", "emulate": "cpu"}.get(asked, device.type)
    if device.type != needed:
        raise ProgramError(
            f"MDFUSE_BACKEND={asked} runs on {needed} tensors, the inputs are on {device}; "
            "move them, or unset the variable"
        )
    return asked
