"""The fusion executor that ``thunder.jit(fn, executors=[mdfuse_executor])`` names.

Thunder asks it which symbols it takes (``can_fuse``), hands it the joint forward and backward trace
once (``fusion_pass``), and then calls the regions' ``FusionCall`` objects. What was fused, and why
the rest was not, is kept beside Thunder's compile data for ``explain``.
"""

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from thunder.core.compile_data import get_compile_data, using_symbolic_values
from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, TensorProxy, unvariableify
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, TraceProvenance, from_trace
from thunder.executors.passes import update_fusion_call_ctx
from thunder.extend import FUEL_LEVEL, FusionExecutor, register_executor
from thunder.torch.experimental.dtensor_proxy import DTensorProxy

from thunder_mdfuse import __version__, knobs
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder import draws, patches
from thunder_mdfuse.thunder import dtensor_twins as twins
from thunder_mdfuse.thunder import region as rg
from thunder_mdfuse.thunder.claims import CLAIMS, leaf_refusal, refusal
from thunder_mdfuse.thunder.composites import register_composites
from thunder_mdfuse.thunder.dtensor_doors import open_doors
from thunder_mdfuse.thunder.dtensor_expand import expanded
from thunder_mdfuse.thunder.dtensor_gradients import gradient
from thunder_mdfuse.thunder.effects import writes_of
from thunder_mdfuse.thunder.fusion_call import FusionCall
from thunder_mdfuse.thunder.gradients import register_gradients
from thunder_mdfuse.thunder.grouping import Grouping, Kind
from thunder_mdfuse.thunder.handover import hand_over
from thunder_mdfuse.thunder.operators import register_operators
from thunder_mdfuse.thunder.options import check_names, option
from thunder_mdfuse.thunder.reasons import Reason
from thunder_mdfuse.thunder.recompute import Piece, needed_of, recomputed

NAME = "mdFusion"


@dataclass(frozen=True)
class Unfused:
    """A symbol that stayed outside of regions, and why."""

    symbol: str
    reason: Reason


@dataclass(frozen=True)
class PassRecord:
    """What one fusion pass left outside. Regions are found in the traces themselves."""

    unfused: tuple[Unfused, ...]


_records: "weakref.WeakKeyDictionary[Any, list[PassRecord]]" = weakref.WeakKeyDictionary()


def records_of(compile_data: Any) -> list[PassRecord]:
    """The fusion passes that ran for one jitted function, oldest first."""
    return _records.get(compile_data, [])


_ONLY_VIEWS = Reason("only views: torch makes them without a kernel")
_NO_FUEL = Reason("the fuel ran out (MDFUSE_FUEL or set_fuel)")
_NO_TENSOR = Reason("a region needs a tensor among its inputs to know its device")
_NUMBERS = Reason("numbers only: the host computes them")
_IN_PLACE_GRAD = Reason(
    "an in-place write in a differentiated function stays outside of regions, where Thunder's "
    "split into forward and backward finds it"
)


class MdfuseExecutor(FusionExecutor):  # type: ignore[misc]
    """The fusion executor; ``mdfuse_executor`` is the one object of this class.

    It takes a function's symbols by the table in ``claims.py``, groups them into regions, and makes
    of each region one program of generated kernels, ATen calls and collectives::

        import thunder
        from thunder_mdfuse import explain, mdfuse_executor

        fused = thunder.jit(function, executors=[mdfuse_executor])
        fused(x)  # x: tensors, or DTensors
        print(explain(fused))

    Making it raises ``MdfuseError`` for ``MDFUSE_*`` variables that are not valid.
    """

    def __init__(self) -> None:
        super().__init__("mdfuse", version=__version__)
        self._fuel: int | None = None
        fuel = knobs.integer("MDFUSE_FUEL")
        self.set_fuel(FUEL_LEVEL.UNLIMITED if fuel < 0 else fuel)

    def get_fuel(self, amount: int = 1, /) -> bool:
        """Take ``amount`` of the fuel; False, taking nothing, when less is left."""
        if self._fuel is None:
            return True
        if self._fuel < amount:
            return False
        self._fuel -= amount
        return True

    def set_fuel(self, value: int | FUEL_LEVEL) -> None:
        """How many regions may be fused from now on."""
        if isinstance(value, FUEL_LEVEL):
            self._fuel = None
            return
        if not isinstance(value, int) or value < 0:
            raise ExecutorError(f"fuel must be a non-negative int or UNLIMITED, found {value!r}")
        self._fuel = value

    def can_execute(self, bsym: BoundSymbol) -> bool:
        """Whether the table has a row for the symbol itself that takes it, or it is a twin."""
        return twins.is_twin(bsym) or (not bsym.sym.is_fusion and leaf_refusal(bsym) is None)

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether all of the symbol can be in a region, or what it holds is for us to expand."""
        ours = twins.twins_of(bsym) or twins.is_no_gradient(bsym)
        return bool(ours) or refusal(bsym) is None

    def get_grad_transform(self, sym: Symbol) -> Any:
        """The rule of a twin's gradient; other symbols' as they were registered."""
        if isinstance(sym.id, twins.Twin):
            return partial(gradient, sym.id)
        return super().get_grad_transform(sym)

    def fuse(self, region: Any, fusion_counter: int) -> BoundSymbol:
        """The symbol of one region. Nothing is translated or compiled before its first call."""
        outputs = [p for p in map(unvariableify, region.outputs) if isinstance(p, TensorProxy)]
        flat = [leaf for bsym in region.bound_symbols for leaf in rg.flatten(bsym)]
        flat = rg.dead_code_free(flat, outputs)
        inputs = rg.inputs_of(flat)
        name = f"{NAME}{fusion_counter}"
        call = FusionCall(name, flat, inputs, outputs, option("mdfuse_keep_inputs"))
        # Who reads the trace is shown, and Thunder's checks of it find, where sizes come from.
        shown = rg.with_sizes(flat, inputs)
        bsym = self.register_temporary_operation(
            name, call, inputs=inputs, outputs=outputs, bsyms=shown
        )
        if any(BoundSymbolTag.BACKWARD in b.tags for b in flat):
            bsym.tags.add(BoundSymbolTag.BACKWARD)
        return bsym

    def fusion_pass(self, trace: TraceCtx) -> TraceCtx:
        """``trace`` with its regions as single symbols."""
        start = time.perf_counter_ns()
        check_names()
        symbolic = using_symbolic_values()
        if symbolic:
            rg.name_sizes(trace.bound_symbols)
        fused = from_trace(trace)
        work = self._grouped(trace, fused)
        fused.bound_symbols = rg.without_dead(work.run())
        if symbolic:
            fused.bound_symbols = rg.with_made_sizes(fused.bound_symbols)
        fused = update_fusion_call_ctx(fused)
        hand_over(fused.bound_symbols)
        compile_data = get_compile_data()
        if compile_data is not None:
            record = PassRecord(tuple(work.unfused))
            _records.setdefault(compile_data, []).append(record)
        took = (time.perf_counter_ns() - start) // 1000000
        fused.set_provenance(TraceProvenance(f"mdfuse fusion (took {took} milliseconds)"))
        return fused

    def _grouped(self, trace: TraceCtx, fused: TraceCtx) -> "_Pass":
        """The trace in groups. Twins with parts in no region run whole, as eager DTensor does."""
        left: dict[twins.Twin, Reason] = {}
        fuel = self._fuel
        while True:
            found = expanded(trace.bound_symbols, fused, set(left))
            self._fuel = fuel
            work = _Pass(self, fused, found.bsyms, left)
            refused = [(p.name, why) for b, why in work.refused for p in b.flat_proxy_outs]
            more = {found.homes[name]: why for name, why in refused if name in found.homes}
            if not more:
                return work
            left.update(more)


class _Pass:
    """One run of the fusion pass over one trace."""

    def __init__(
        self,
        executor: MdfuseExecutor,
        trace: TraceCtx,
        bsyms: Sequence[BoundSymbol],
        left: Mapping[twins.Twin, Reason],
    ) -> None:
        self.executor, self.left = executor, left
        self.bsyms: list[BoundSymbol] = rg.with_shapes(bsyms)
        self.unfused: list[Unfused] = []
        self.joint = any(b.sym.id is PrimIDs.GET_GRAD for b in self.bsyms)
        self.numbers = rg.number_producers(self.bsyms)
        self.regions = 0
        # What could be in a region and is in none.
        self.refused: list[tuple[BoundSymbol, Reason]] = []
        self.ordered = self._ordered(trace)

    def _ordered(self, trace: TraceCtx) -> list[Piece | list[BoundSymbol]]:
        ordered: list[Piece | list[BoundSymbol]] = []
        for kind, group in Grouping(self.bsyms, self._fusible).groups():
            refused = self._group_refusal(kind, group)
            if kind is not None and refused is None:
                leaves = [leaf for bsym in group for leaf in rg.flatten(bsym)]
                ordered.append(Piece(kind, tuple(self._drawn(group, leaves, trace))))
                continue
            ordered.append(group)
            if kind is not None:
                self.refused += [(bsym, refused) for bsym in group if refused]
            if refused is not None:
                for bsym in group:
                    self._note(bsym, refused)
        return ordered

    def run(self) -> list[BoundSymbol]:
        """The symbols of the trace, in order, its regions as one each."""
        pieces = [p for p in self.ordered if isinstance(p, Piece)]
        others = [bsym for group in self.ordered if isinstance(group, list) for bsym in group]
        if self._may_recompute:
            pieces = recomputed(pieces, others)
        return self._fused(pieces, needed_of(pieces, others))

    def _drawn(
        self, group: Sequence[BoundSymbol], leaves: Sequence[BoundSymbol], trace: TraceCtx
    ) -> list[BoundSymbol]:
        """The leaves of ``group`` with its random numbers in symbols of our own."""
        mine = set(map(id, group))
        outside = {p.name for b in self.bsyms if id(b) not in mine for p in b.flat_proxy_args}
        return draws.split(draws.exact_chances(leaves, trace, outside), trace)

    @property
    def _may_recompute(self) -> bool:
        """Recomputing could read a storage after a write to it, or need sizes without a name."""
        if not option("mdfuse_recompute"):
            return False
        symbolic = any(isinstance(p, NumberProxy) for b in self.bsyms for p in b.flat_proxy_outs)
        return not symbolic and not any(map(writes_of, self.bsyms))

    def _fused(
        self,
        pieces: Sequence[Piece],
        needed: set[str],
    ) -> list[BoundSymbol]:
        found: list[BoundSymbol] = []
        ready = iter(pieces)
        for group in self.ordered:
            if isinstance(group, list):
                found += group
                continue
            found.append(self.executor.fuse(self._region(next(ready), needed), self.regions))
            self.regions += 1
        return found

    def _fusible(self, bsym: BoundSymbol) -> bool:
        return self._refusal(bsym) is None

    def _refusal(self, bsym: BoundSymbol) -> Reason | None:
        found = self.left.get(bsym.sym.id) or refusal(bsym)
        if found is None and self.joint and writes_of(bsym):
            return _IN_PLACE_GRAD
        return found

    def _group_refusal(self, kind: Kind | None, group: Sequence[BoundSymbol]) -> Reason | None:
        if kind is None:
            return self._refusal(group[0]) or _NUMBERS
        leaves = [leaf for bsym in group for leaf in rg.flatten(bsym)]
        views = all(map(rg.is_view, leaves)) and not rg.rearranges(leaves)
        if views and not any(map(_on_mesh, leaves)):
            return _ONLY_VIEWS
        inputs = [p for p in rg.inputs_of(leaves) if isinstance(p, TensorProxy)]
        if not any(p.device.device_str() == kind.device for p in inputs):
            return _NO_TENSOR
        return None if self.executor.get_fuel() else _NO_FUEL

    def _region(self, piece: Piece, needed: set[str]) -> rg.Region:
        leaves = rg.with_numbers(piece.leaves, self.numbers)
        return rg.Region(tuple(leaves), (), tuple(rg.outputs_of(piece.own, needed)))

    def _note(self, bsym: BoundSymbol, reason: Reason) -> None:
        tensors = any(isinstance(p, TensorProxy) for p in bsym.flat_proxy_outs)
        if bsym.sym.id in _SILENT or not (tensors or refusal(bsym)):
            return
        outs = ", ".join(p.name for p in bsym.flat_proxy_outs)
        self.unfused.append(Unfused(f"{outs} = {bsym.sym.name}" if outs else bsym.sym.name, reason))


def _on_mesh(bsym: BoundSymbol) -> bool:
    """Whether it is of DTensors: torch takes them in functions as the user calls them only."""
    proxies = (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)
    return any(isinstance(p, DTensorProxy) for p in proxies)


_SILENT = {
    PrimIDs.UNPACK_TRIVIAL,
    PrimIDs.RETURN,
    PrimIDs.COMMENT,
    PrimIDs.DEL,
    PrimIDs.GET_GRAD,
}


def _register() -> MdfuseExecutor:
    executor = MdfuseExecutor()
    register_executor(executor)
    for id in CLAIMS:
        # Thunder's own look-ups (examine, grad transforms) go through this map.
        executor.register_supported(id, None)
    register_gradients(executor)
    register_operators(executor)
    # Without its patch a door would take a list for a constant: two calls would be one.
    if patches.guard_arguments(executor):
        register_composites(executor)
        open_doors(executor)
    patches.apply(executor)
    return executor


mdfuse_executor = _register()
