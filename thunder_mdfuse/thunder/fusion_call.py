"""The callable that a region becomes: Thunder calls it with the region's inputs, in order.

Nothing is compiled until the first call. A call is described by a *key*: empty where Thunder's own
guards say everything, else which symbolic sizes are equal (or 0 or 1), the DTensors' specs, and the
numbers that are baked in. Each key has an ``Entry``: a translated fusion, its executable, and the
specs of its DTensor results. Equal fusions share one executable, whatever regions they came from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from thunder.core.prims import PrimIDs
from thunder.core.proxies import IntegerProxy, NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.comm.placements import logical_mesh
from thunder_mdfuse.comm.specs import Seen, SpecWithoutMesh
from thunder_mdfuse.comm.team import mesh_digest
from thunder_mdfuse.errors import ExecutorError, IRError
from thunder_mdfuse.executable import Executable, compile_fusion
from thunder_mdfuse.ir import sizes
from thunder_mdfuse.ir.decide import holds
from thunder_mdfuse.ir.sizes import Size
from thunder_mdfuse.ir.types import Mesh, ScalarType, TensorType
from thunder_mdfuse.repro import program_script
from thunder_mdfuse.runtime.ranges import Ranges
from thunder_mdfuse.thunder import dtensor as dt
from thunder_mdfuse.thunder.deciding import dims
from thunder_mdfuse.thunder.fitting import check_fitting
from thunder_mdfuse.thunder.translate import Given, Translated, translate
from thunder_mdfuse.thunder.values import NUMBER_DTYPES, TORCH_DTYPES, NumberNeeded

Specs = tuple[SpecWithoutMesh | None, ...]


@dataclass
class Entry:
    """One specialisation of a region; it keeps no mesh alive."""

    translated: Translated
    executable: Executable
    specs: Specs  # of the outputs
    calls: int = 0


@dataclass(frozen=True)
class CacheInfo:
    """How often a region was called, and for how many descriptions it was specialised."""

    calls: int
    specialisations: int


class FusionCall:
    """A region as Thunder calls it. ``repr`` names its ops, as ``mdFusion0: (mul, add)``."""

    def __init__(
        self,
        name: str,
        bsyms: Sequence[BoundSymbol],
        inputs: Sequence[Proxy],
        outputs: Sequence[Proxy],
        keep_inputs: bool = False,
    ) -> None:
        self.name = name
        self.bsyms, self.inputs, self.outputs = tuple(bsyms), tuple(inputs), tuple(outputs)
        self.last_used: Executable | None = None
        self.last_inputs: tuple[Any, ...] | None = None
        self._keep_inputs = keep_inputs
        self._entries: dict[Any, Entry] = {}
        self._baked: set[str] = set()
        self._exact = False
        self._last: Entry | None = None
        self._on_mesh = tuple(isinstance(p, DTensorProxy) for p in self.inputs)
        self._on_host = tuple(_is_host_scalar(p, self.inputs) for p in self.inputs)
        # Whether specs are all that a call's key is made of; the last ones, and their entry.
        self._by_specs = all(
            isinstance(p, TensorProxy) and not _is_symbolic(p) for p in self.inputs
        )
        self._seen: tuple[tuple[Seen, ...], Entry] | None = None
        self._ranges = Ranges(name)
        self._writes = _writes(self.bsyms, self.inputs, self.outputs)
        self._simple = _guarded_by_thunder(self.inputs) and not _on_mesh(self.bsyms)

    def __repr__(self) -> str:
        return f"{self.name}: ({', '.join(b.sym.name for b in self.bsyms)})"

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self.taking(list(args))

    @property
    def lets_go(self) -> bool:
        """Whether inputs are of no use to it once its program has read them."""
        return not self._writes and not self._keep_inputs

    def taking(self, given: list[Any]) -> Sequence[Any]:
        """The outputs for the inputs ``given``, a list that is emptied: what only it held is let
        go of when the program has read it.
        """
        if self._ranges.wanted():
            return self._ranges.around(self._run, given)
        return self._run(given)

    def _run(self, given: list[Any]) -> Sequence[Any]:
        if self._keep_inputs:
            self.last_inputs = tuple(given)
        if self._writes:
            self._check_writes(given)
        mesh = None
        if self._simple:
            entry = self._entries.get(()) or self._specialise((), given)
            locals_ = list(given)
        else:
            mesh, opened = self._open(given)
            entry = self._entry(given)
            locals_ = [opened[i] for i in entry.translated.positions]
            del opened
        self.last_used, self._last = entry.executable, entry
        entry.calls += 1
        written = {at: given[source] for at, (source, _) in self._writes.items()}
        given.clear()
        results = entry.executable.taking(locals_, mesh)
        return self._close(written, results, entry, mesh)

    def _open(self, args: Sequence[Any]) -> tuple[DeviceMesh | None, list[Any]]:
        """Local tensors and plain numbers for the program, and the mesh object of this call."""
        mesh: DeviceMesh | None = None
        opened: list[Any] = []
        for i, (on_mesh, on_host, arg) in enumerate(
            zip(self._on_mesh, self._on_host, args, strict=True)
        ):
            if on_mesh:
                if not isinstance(arg, DTensor):
                    raise ExecutorError(
                        f"{self.name}: the input {self.inputs[i].name} was a DTensor when it was "
                        f"traced, but is a {type(arg).__name__} now; wrap it with "
                        "DTensor.from_local"
                    )
                if mesh is None:
                    mesh = arg._spec.mesh
                elif arg._spec.mesh is not mesh:
                    dt.check_one_mesh(self.name, mesh, arg._spec.mesh)
                opened.append(dt.waited(arg._local_tensor))
            elif on_host:
                opened.append(arg.item())
            else:
                opened.append(dt.waited(arg) if isinstance(arg, torch.Tensor) else arg)
        return mesh or dt.traced_mesh(self.bsyms), opened

    def _close(
        self,
        written: Mapping[int, Any],
        results: Sequence[Any],
        entry: Entry,
        mesh: DeviceMesh | None,
    ) -> Sequence[Any]:
        outs = list(results[: len(self.outputs)])
        outs = _told_apart(outs)
        for at, target in written.items():
            if at < len(outs):
                outs[at] = target
        if mesh is None:
            return outs
        # What was written to is the caller's own DTensor.
        return [
            o if s is None or isinstance(o, DTensor) else dt.close(o, s.on(mesh))
            for o, s in zip(outs, entry.specs, strict=True)
        ]

    def _check_writes(self, args: Sequence[Any]) -> None:
        for source, grad_enabled in self._writes.values():
            target = args[source]
            if grad_enabled and target.is_leaf and target.requires_grad:
                # The class and the words that eager torch has for it.
                raise RuntimeError(
                    "a leaf Variable that requires grad is being used in an in-place operation "
                    f"({self.inputs[source].name} in {self.name}); use torch.no_grad() or a copy"
                )

    def _entry(self, args: Sequence[Any]) -> Entry:
        if not self._by_specs:
            return self._entry_for(args)
        specs = [arg._spec for arg, on_mesh in zip(args, self._on_mesh, strict=True) if on_mesh]
        if self._seen is not None:
            seen, entry = self._seen
            if all(s.holds(spec) for s, spec in zip(seen, specs, strict=True)):
                return entry
        entry = self._entry_for(args)
        if not self._exact and not entry.translated.fusion.guards:
            self._seen = tuple(map(Seen, specs)), entry
        return entry

    def _entry_for(self, args: Sequence[Any]) -> Entry:
        key = self._key(args)
        found = self._entries.get(key)
        if found is not None and not self._guards_hold(found, args):
            self._bake_all()
            self._entries.clear()
            return self._specialise(self._key(args), args)
        if found is None:
            known = (self._exact, frozenset(self._baked))
            found = self._specialise(key, args)
            if known != (self._exact, frozenset(self._baked)):
                self._entries = {self._key(args): found}
        return found

    def _guards_hold(self, entry: Entry, args: Sequence[Any]) -> bool:
        guards = entry.translated.fusion.guards
        if not guards:
            return True
        classes: dict[int, int] = {}
        self._key(args, classes)
        values = {f"s{number}": size for size, number in classes.items()}
        return all(holds(guard, values) for guard in guards)

    def _key(self, args: Sequence[Any], classes: dict[int, int] | None = None) -> tuple[Any, ...]:
        """What a call must be specialised for; ``classes`` gets the numbers of its sizes."""
        parts: list[Any] = []
        classes = {} if classes is None else classes
        for proxy, arg in zip(self.inputs, args, strict=True):
            if isinstance(proxy, DTensorProxy):
                parts.append(_spec_key(arg._spec))
            elif isinstance(proxy, TensorProxy):
                if self._exact:
                    parts.append(arg.shape)
                elif _is_symbolic(proxy):
                    parts.append(tuple(_class_of(s, classes) for s in arg.shape))
            else:
                parts.append((type(arg), arg) if proxy.name in self._baked else type(arg))
        return tuple(parts)

    def _specialise(self, key: Any, args: Sequence[Any]) -> Entry:
        """A new entry. Whatever must be known and is not yet is baked in, then tried again."""
        while True:
            try:
                translated, specs = self._translate(args)
                break
            except NumberNeeded as e:
                if e.name in {p.name for p in self.inputs} - self._baked:
                    self._baked.add(e.name)
                elif self._exact:
                    raise IRError(f"{self.name}: {e.name} must be known to compile it") from None
                else:
                    self._bake_all()
            except IRError as e:
                # Sizes that are equal now, but not by the symbols that they are made of.
                if self._simple or (self._exact and not any(map(_is_symbolic, self.inputs))):
                    raise
                if self._exact:
                    raise IRError(f"{e}; {self._stale(args)}") from e
                self._bake_all()
        entry = Entry(translated, compile_fusion(translated.fusion, self.name), specs)
        self._entries[key] = entry
        return entry

    def _stale(self, args: Sequence[Any]) -> str:
        """Thunder has no guards on what broadcasts under symbolic values."""
        shapes = ", ".join(str(tuple(a.shape)) for a in args if isinstance(a, torch.Tensor))
        return (
            f"if the function may be called with {shapes}, then {self.name} was traced for inputs "
            "that broadcast in another way, which Thunder's cache of symbolic values does not tell "
            "apart: jit the function once for each way, or with cache='constant values'"
        )

    def _bake_all(self) -> None:
        """From now on specialise for the very sizes and integers of a call."""
        self._exact = True
        self._baked |= {p.name for p in self.inputs if isinstance(p, IntegerProxy)}

    def _translate(self, args: Sequence[Any]) -> tuple[Translated, Specs]:
        given_specs = {
            p.name: a._spec
            for p, a in zip(self.inputs, args, strict=True)
            if isinstance(p, DTensorProxy)
        }
        mesh = next((s.mesh for s in given_specs.values()), None) or dt.traced_mesh(self.bsyms)
        logical = None if mesh is None else logical_mesh(mesh)
        specs = dt.specs_for(self.bsyms, self.inputs, given_specs)
        pins = {name: dt.to_placements(s) for name, s in specs.items()}
        given = self._given(args, logical, specs)
        done = translate(self.bsyms, self.inputs, self.outputs, given, logical, pins)
        found = (specs.get(p.name) for p in self.outputs)
        return done, tuple(None if s is None else SpecWithoutMesh(s) for s in found)

    def _given(self, args: Sequence[Any], mesh: Mesh | None, specs: dt.Specs) -> list[Given]:
        classes: dict[int, int] = {}
        locals_ = dt.local_inputs(self.bsyms)
        found: list[Given] = []
        for proxy, arg in zip(self.inputs, args, strict=True):
            if isinstance(proxy, DTensorProxy):
                shape: tuple[Size, ...] = tuple(arg.shape)
                found.append(
                    TensorType(TORCH_DTYPES[arg.dtype], shape, dt.to_placements(arg._spec))
                )
            elif isinstance(proxy, NumberProxy):
                baked = proxy.name in self._baked
                found.append(arg if baked else ScalarType(NUMBER_DTYPES[type(arg)]))
            elif _is_host_scalar(proxy, self.inputs):
                found.append(ScalarType(NUMBER_DTYPES[type(arg.item())]))
            elif mesh is not None and proxy.name in locals_:
                spec = specs[locals_[proxy.name]]
                shape = dt.local_shape(tuple(spec.shape), dt.to_placements(spec), mesh)
                found.append(TensorType(TORCH_DTYPES[arg.dtype], shape))
            else:
                shape = self._shape(proxy, arg, classes)
                found.append(TensorType(TORCH_DTYPES[arg.dtype], shape))
        return found

    def _shape(self, proxy: Proxy, arg: torch.Tensor, classes: dict[int, int]) -> tuple[Size, ...]:
        if self._exact or not _is_symbolic(proxy):
            return tuple(arg.shape)
        return tuple(_size_of(_class_of(s, classes)) for s in arg.shape)

    def cache_info(self) -> CacheInfo:
        """Calls so far and specialisations made."""
        entries = self._entries.values()
        return CacheInfo(sum(e.calls for e in entries), len(entries))

    def cache_clear(self) -> None:
        """Forget all specialisations; the next call makes a new one."""
        self._entries.clear()
        self._last = self.last_used = self._seen = None

    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """A script that runs this region's program on inputs like ``inputs``, without Thunder.

        ``inputs``: such as Thunder calls the region with, by ``self.inputs``; None for
        ``last_inputs``, which are kept with ``thunder.jit(..., mdfuse_keep_inputs=True)``. With
        DTensors the script runs on as many ranks as this job has: under torchrun or mpirun, or
        started by itself under ``python``.
        Raises ``ExecutorError`` for inputs that the region was not traced for.
        """
        given = self.last_inputs if inputs is None else tuple(inputs)
        if given is None:
            raise ExecutorError(
                f"{self.name} has kept no inputs to write a script for; give them, or call "
                "thunder.jit with mdfuse_keep_inputs=True and then the function"
            )
        check_fitting(self.name, self.inputs, given)
        mesh, opened = self._open(given)
        entry = self._entry(given)
        values = [
            given[i] if isinstance(given[i], DTensor) else opened[i]
            for i in entry.translated.positions
        ]
        return program_script(entry.translated.fusion, self.name, values, mesh)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All specialisations, oldest first."""
        return tuple(self._entries.values())

    def last_cuda_code(self) -> str:
        """The generated CUDA text of the program that ran last."""
        if self.last_used is None:
            raise ExecutorError(f"{self.name} has not run yet, so it has no code; call it first")
        return "\n".join(self.last_used.kernel_sources().values())


def _told_apart(outs: list[Any]) -> list[Any]:
    """Results as tensors of their own: for autograd one that is an input (only these require a
    gradient here), or is another result as well, has another gradient, or none (``detach``).
    """
    if len(set(map(id, outs))) == len(outs) and not any(
        isinstance(o, torch.Tensor) and o.requires_grad for o in outs
    ):
        return outs
    found: list[Any] = []
    seen: set[int] = set()
    for o in outs:
        again = id(o) in seen
        seen.add(id(o))
        alias = isinstance(o, torch.Tensor) and (again or o.requires_grad)
        found.append(o.detach() if alias else o)
    return found


def _spec_key(spec: DTensorSpec) -> tuple[Any, ...]:
    """What tells specs apart, without the mesh object."""
    order = spec.shard_order if spec.mesh.ndim > 1 else None
    return mesh_digest(spec.mesh), spec.placements, spec.tensor_meta, order


def _class_of(size: int, classes: dict[int, int]) -> int:
    """0 and 1 as they are (negated), other sizes by when they were first seen."""
    if size < 2:
        return -1 - size
    return classes.setdefault(size, len(classes))


def _size_of(number: int) -> Size:
    return -1 - number if number < 0 else sizes.symbol(f"s{number}")


def _is_symbolic(proxy: Proxy) -> bool:
    return bool(dims(proxy))


def _on_mesh(bsyms: Sequence[BoundSymbol]) -> bool:
    return any(
        isinstance(p, DTensorProxy) for b in bsyms for p in (*b.flat_proxy_args, *b.flat_proxy_outs)
    )


def _guarded_by_thunder(inputs: Sequence[Proxy]) -> bool:
    """Whether Thunder's prologue checks all that a program depends on, but for strides."""
    return all(
        isinstance(p, TensorProxy)
        and not isinstance(p, DTensorProxy)
        and not _is_symbolic(p)
        and not _is_host_scalar(p, inputs)
        for p in inputs
    )


def _is_host_scalar(proxy: Proxy, inputs: Sequence[Proxy]) -> bool:
    """Whether an input is a 0-dim CPU tensor for a program on another device: a number to it."""
    if not isinstance(proxy, TensorProxy) or proxy.ndim or proxy.device.device_str() != "cpu":
        return False
    return any(isinstance(p, TensorProxy) and p.device.device_str() != "cpu" for p in inputs)


def _writes(
    bsyms: Sequence[BoundSymbol], inputs: Sequence[Proxy], outputs: Sequence[Proxy]
) -> dict[int, tuple[int, bool]]:
    """For each write: the output that it is (or a number past them), its input, the grad mode."""
    where = {p.name: i for i, p in enumerate(inputs)}
    at = {p.name: i for i, p in enumerate(outputs)}
    found: dict[int, tuple[int, bool]] = {}
    for bsym in bsyms:
        if bsym.sym.id is PrimIDs.COPY_:
            number = at.get(bsym.output.name, len(outputs) + len(found))
            found[number] = (where[bsym.args[1].name], bool(bsym.kwargs["grad_enabled"]))
    return found
