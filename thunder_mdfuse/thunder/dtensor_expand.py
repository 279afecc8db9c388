"""In front of the fusion pass: twins become what is inside of them, with placements on every value.

In: the symbols of a trace. A value's specs are settled from the inputs on, since Thunder types a
gradient before it is known: each twin is asked again for what its operands turned out to be, and
the IR's propagation places what is between its operands and its results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, tracectx
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.comm.placements import from_placement, logical_mesh, spec_placements
from thunder_mdfuse.ir.types import Placements, ScalarType, TensorType
from thunder_mdfuse.thunder import draws
from thunder_mdfuse.thunder import dtensor_eager as eager
from thunder_mdfuse.thunder import dtensor_twins as twins
from thunder_mdfuse.thunder import region as rg
from thunder_mdfuse.thunder.claims import twin_refusal
from thunder_mdfuse.thunder.translate import Given, Placed, placements_of
from thunder_mdfuse.thunder.values import NUMBER_DTYPES, known_dtype


@dataclass(frozen=True)
class Expanded:
    """The symbols of a trace, and by the names of what twins held to which twin each belonged."""

    bsyms: list[BoundSymbol]
    homes: dict[str, twins.Twin]


def expanded(
    bsyms: Sequence[BoundSymbol], trace: TraceCtx, left: set[twins.Twin] | None = None
) -> Expanded:
    """``bsyms`` with the twins of which regions take all as what is inside of them.

    ``left``: twins to leave, because a region did not come about.
    """
    if not any(twins.twins_of(b) for b in bsyms):
        return Expanded(list(bsyms), {})
    work = _Expansion(trace, _whole(bsyms, left or set()))
    return Expanded(work.run(bsyms), work.homes)


def _whole(bsyms: Sequence[BoundSymbol], left: set[twins.Twin]) -> set[twins.Twin]:
    """The twins to expand: a call and its gradient both, or none of the two."""
    found = [sub for b in bsyms for sub in twins.twins_of(b)]
    left = left | {b.sym.id for b in found if twin_refusal(b) is not None}
    left |= {twin.forward for twin in left if twin.forward is not None}
    return {b.sym.id for b in found if b.sym.id not in left and b.sym.id.forward not in left}


class _Expansion:
    def __init__(self, trace: TraceCtx, whole: set[twins.Twin]) -> None:
        self.trace, self.whole = trace, whole
        self.proxies: dict[str, Proxy] = {}
        self.homes: dict[str, twins.Twin] = {}

    def run(self, bsyms: Sequence[BoundSymbol]) -> list[BoundSymbol]:
        found: list[BoundSymbol] = []
        for bsym in bsyms:
            bsym = self._renamed(bsym)
            if twins.is_twin(bsym):
                found += self._twin(bsym)
            elif bsym.sym.id is PrimIDs.GET_GRAD and isinstance(bsym.output, DTensorProxy):
                found.append(self._cotangent(bsym))
            elif twins.is_no_gradient(bsym):
                found.append(self._no_gradient(bsym))
            elif twins.twins_of(bsym):
                # Thunder marks a sum of gradients as of the backward pass, but not what is in it.
                inner = bsym.subsymbols
                found += self.run([b.from_bsym(tags=b.tags | bsym.tags) for b in inner])
            else:
                found.append(bsym)
        return found

    def _renamed(self, bsym: BoundSymbol) -> BoundSymbol:
        return twins.renamed(bsym, self.proxies) if self.proxies else bsym

    def _cotangent(self, bsym: BoundSymbol) -> BoundSymbol:
        spec = eager.of_cotangent(bsym.output.spec._o)
        return self._renamed(bsym.from_bsym(output=self._placed(bsym.output, spec)))

    def _no_gradient(self, bsym: BoundSymbol) -> BoundSymbol:
        """Zeros for a result that nothing used."""
        out = bsym.output
        mesh = out.spec._o.mesh
        meta = eager.dense_meta(out.shape, to_torch_dtype(out.dtype))
        placements = eager.of_cotangent(out.spec._o).placements
        out = self._placed(out, DTensorSpec(mesh, placements, meta))
        zeros = prims.full.bind(out.shape, 0, device=out.device, dtype=out.dtype, output=out)
        return zeros.from_bsym(tags=bsym.tags)

    def _placed(self, p: TensorProxy, spec: DTensorSpec) -> DTensorProxy:
        """``p``'s name from now on as a DTensor with ``spec``."""
        if isinstance(p, DTensorProxy) and p.spec._o == spec and p.spec._o.mesh is spec.mesh:
            return p
        found = twins.placed_proxy(spec, p.device, p.true_dtype, p.name, p.requires_grad)
        self.proxies[p.name] = found
        return found

    def _twin(self, bsym: BoundSymbol) -> list[BoundSymbol]:
        twin: twins.Twin = bsym.sym.id
        specs = tuple(x.spec._o if isinstance(x, DTensorProxy) else x for x in bsym.args)
        device = to_torch_device(bsym.flat_proxy_args[0].device)
        answer = twin.answer(specs, device)
        outs = [o for o in bsym.flat_proxy_outs if isinstance(o, DTensorProxy)]
        if twin not in self.whole:
            for o, spec in zip(outs, answer or [], strict=bool(answer)):
                self._placed(o, spec)
            return [self._renamed(bsym)]
        for x in bsym.args:
            if isinstance(x, DTensorProxy):
                self.proxies[x.name] = x
        leaves = [leaf for sub in twins.inside(bsym) for leaf in rg.flatten(sub)]
        leaves = draws.split(draws.exact_chances(leaves, self.trace, set()), self.trace)
        numbers = _numbers(leaves, outs)
        pins = {name: answer[i] for name, i in numbers.items()} if answer else {}
        target = twins.written(leaves)
        if target is not None and not answer:
            pins = dict.fromkeys(numbers, self.proxies[target].spec._o)
        # The results' own proxies say nothing yet.
        leaves = [self._renamed(leaf) for leaf in leaves]
        gathered = self._spread(leaves, pins, twins.mesh_in(bsym.args))
        names = tuple(x.name if isinstance(x, Proxy) else "" for x in bsym.args)
        found = []
        for leaf in map(self._renamed, gathered.leaves):
            if leaf.sym.id == twins.PLACE:
                place = twins.PlaceId(twins.PLACE)
                place.twin, place.operands, place.specs, place.device = twin, names, specs, device
                if leaf.output.name in gathered.operands:
                    place.number = names.index(gathered.operands[leaf.output.name])
                    place.axes = gathered.axes
                else:
                    place.number = numbers[leaf.output.name]
                leaf = leaf.from_bsym(sym=_place_symbol(place, leaf.output.spec._o))
            found.append(leaf.from_bsym(tags=leaf.tags | bsym.tags))
            self.homes.update((p.name, twin) for p in leaf.flat_proxy_outs)
        return found

    def _spread(
        self, leaves: list[BoundSymbol], pins: dict[str, DTensorSpec], mesh: DeviceMesh
    ) -> "_Gathered":
        """Give all that ``leaves`` make its placements, of operands gathered where that is less."""
        chosen, placed = _Gathered(leaves), _cheapest(leaves, pins, mesh)
        other = self._gathered(leaves, pins)
        if other is not None:
            gathered_pins = pins | {p.name: p.spec._o for p in other.made}
            plan = _plan(other.leaves, gathered_pins, mesh)
            if plan.cost < placed.cost:
                chosen, placed, pins = other, plan, gathered_pins
        for p in (p for b in chosen.leaves for p in b.flat_proxy_outs):
            if not isinstance(p, TensorProxy):
                continue
            spec = pins.get(p.name)
            if spec is None:
                found = tuple(map(from_placement, placed.places.get(p.name, ())))
                meta = eager.dense_meta(p.shape, to_torch_dtype(p.true_dtype))
                spec = DTensorSpec(mesh, found or twins.replicated(mesh), meta)
            self._placed(p, spec)
        return chosen

    def _gathered(
        self, leaves: list[BoundSymbol], pins: dict[str, DTensorSpec]
    ) -> "_Gathered | None":
        """The twin on whole operands, on mesh axes on which eager replicates every result.

        Eager gathers there what it has no rule for, as a softmax over a cut dim.
        """
        operands = [p for p in rg.inputs_of(leaves) if isinstance(p, DTensorProxy)]
        ndim = max((len(spec.placements) for spec in pins.values()), default=0)
        axes = tuple(
            i
            for i in range(ndim)
            if all(spec.placements[i].is_replicate() for spec in pins.values())
            and any(not p.spec._o.placements[i].is_replicate() for p in operands)
        )
        if not axes:
            return None
        places, swap, names = [], {}, {}
        for p in operands:
            spec = twins.whole_on(axes, p.spec._o)
            if spec != p.spec._o:
                with tracectx(self.trace):
                    made = twins.placed_proxy(spec, p.device, p.true_dtype)
                places.append(twins.place(p, made))
                swap[p.name], names[made.name] = made, p.name
        renamed = [*places, *(twins.renamed(leaf, swap) for leaf in leaves)]
        return _Gathered(renamed, axes, names, tuple(swap.values()))


@dataclass(frozen=True)
class _Gathered:
    """What a twin holds, on operands that are gathered first: by their new names the old ones."""

    leaves: list[BoundSymbol]
    axes: tuple[int, ...] = ()
    operands: dict[str, str] = field(default_factory=dict)
    made: tuple[DTensorProxy, ...] = ()


def _numbers(leaves: Sequence[BoundSymbol], outs: Sequence[DTensorProxy]) -> dict[str, int]:
    """By its name the number of the result that a symbol places."""
    found = {o.name: i for i, o in enumerate(outs)}
    for leaf in leaves:
        if leaf.sym.id is PrimIDs.COPY_ and leaf.output.name in found:
            found[leaf.args[0].name] = found[leaf.output.name]
    return found


def _cheapest(
    leaves: Sequence[BoundSymbol], pins: dict[str, DTensorSpec], mesh: DeviceMesh
) -> Placed:
    """Pending sums stay so to the end where that is less, as in the gradient of a norm."""
    placed = _plan(leaves, pins, mesh)
    if placed.cost and any(p.is_partial() for spec in pins.values() for p in spec.placements):
        return min(placed, _plan(leaves, pins, mesh, keep_pending=True), key=lambda p: p.cost)
    return placed


def _plan(
    leaves: Sequence[BoundSymbol],
    pins: dict[str, DTensorSpec],
    mesh: DeviceMesh,
    *,
    keep_pending: bool = False,
) -> Placed:
    inputs = rg.inputs_of(leaves)
    given = list(map(_given, inputs))
    known = {name: spec_placements(spec) for name, spec in pins.items()}
    return placements_of(
        leaves, inputs, given, logical_mesh(mesh), known, keep_pending=keep_pending
    )


def _given(p: Proxy) -> Given:
    if isinstance(p, NumberProxy):
        return ScalarType(NUMBER_DTYPES[p.python_type])
    assert isinstance(p, TensorProxy)
    dtype = known_dtype(p.true_dtype)
    placements: Placements | None = None
    if isinstance(p, DTensorProxy):
        placements = spec_placements(p.spec._o)
    return TensorType(dtype, tuple(p.shape), placements)


def _place_symbol(id: twins.PlaceId, spec: DTensorSpec) -> Symbol:
    """The symbol can also run by itself, for when the fuel is out."""

    def run(x: Any) -> Any:
        return x.redistribute(placements=spec.placements)

    return Symbol(
        name=twins.PLACE,
        meta=lambda x: None,
        id=id,
        is_prim=True,
        executor=id.twin.executor,
        _bind_postprocess=lambda b: setattr(b, "_call_ctx", {twins.PLACE: run}),
    )
