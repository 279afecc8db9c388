"""From a region's symbols to a Fusion, for one description of its inputs.

In: flat symbols, input and output proxies, and for each input what it is in this specialisation: a
tensor type (sizes may be symbols), a scalar type, or a number that is baked in. Out: a verified
global Fusion whose first outputs are the region's, in order, and after them the writes that the
region does not return.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map
from thunder.core.symbol import BoundSymbol
from thunder.torch.experimental.dtensor_torch_and_prims import DTensorPrimIDs

from thunder_mdfuse.errors import IRError
from thunder_mdfuse.ir import attrs as at
from thunder_mdfuse.ir.decompose import decompose
from thunder_mdfuse.ir.graph import Builder, Fusion, Output, Use
from thunder_mdfuse.ir.ops import row
from thunder_mdfuse.ir.types import DType, Mesh, Partial, Placements, ScalarType, TensorType
from thunder_mdfuse.ir.verify import verify
from thunder_mdfuse.sharding.changes import route
from thunder_mdfuse.sharding.propagate import propagate
from thunder_mdfuse.sharding.reshard import reshard
from thunder_mdfuse.thunder.claims import CLAIMS
from thunder_mdfuse.thunder.dtensor_twins import PLACE
from thunder_mdfuse.thunder.values import NumberNeeded, Values, is_bool_with_int, known_dtype

Given = TensorType | ScalarType | bool | int | float | complex


@dataclass(frozen=True)
class Translated:
    """A fusion and which region input each of its inputs is."""

    fusion: Fusion
    positions: tuple[int, ...]


def translate(
    bsyms: Sequence[BoundSymbol],
    inputs: Sequence[Proxy],
    outputs: Sequence[Proxy],
    given: Sequence[Given],
    mesh: Mesh | None = None,
    pins: Mapping[str, Placements] | None = None,
) -> Translated:
    """The fusion of ``bsyms``. Raises ``IRError`` when sizes that must be equal are not known to
    be.
    """
    values = Values(Builder(mesh))
    positions = _bind_inputs(values, inputs, given)
    for bsym in bsyms:
        _translate_symbol(values, bsym, pins or {})
    storages = _storages(bsyms)
    return Translated(_finish(values, inputs, outputs, storages), tuple(positions))


@dataclass(frozen=True)
class Placed:
    """Placements by name, and what all changes of placement cost (see ``sharding.changes``)."""

    places: dict[str, Placements]
    cost: int  # of what the last results need


def placements_of(
    bsyms: Sequence[BoundSymbol],
    inputs: Sequence[Proxy],
    given: Sequence[Given],
    mesh: Mesh,
    pins: Mapping[str, Placements],
    *,
    keep_pending: bool = False,
) -> Placed:
    """The placements that propagation gives every tensor that ``bsyms`` make.

    A pending reduction of which all that reads it needs the result is done where it is made, so
    that what is saved for the backward pass is not reduced a second time there.
    ``keep_pending``: as in ``propagate``.
    """
    values = Values(Builder(mesh))
    _bind_inputs(values, inputs, given)
    for bsym in bsyms:
        _translate_symbol(values, bsym, pins)
    made = {p.name: p for b in bsyms for p in b.flat_proxy_outs if isinstance(p, TensorProxy)}
    uses = {name: values.value(p) for name, p in made.items()}
    names = [name for name, use in uses.items() if isinstance(values.type(use), TensorType)]
    fusion = values.builder.finish(tuple(Output(uses[n]) for n in names), tuple(values.guards))
    changed = reshard(propagate(decompose(fusion), keep_pending=keep_pending))
    uses = {name: o.value for name, o in zip(names, changed.outputs, strict=True)}
    places = {name: _settled(changed, use, name in pins) for name, use in uses.items()}
    read = {p.name for b in bsyms for p in b.flat_proxy_args}
    last = [use for name, use in uses.items() if name in pins or name not in read]
    return Placed({n: p for n, p in places.items() if p is not None}, _cost(changed, last, mesh))


def _settled(fusion: Fusion, use: Use, pinned: bool) -> Placements | None:
    """The placements of a value, or what all its readers change them to."""
    found = fusion.tensor(use).placements
    if pinned or found is None or not any(isinstance(p, Partial) for p in found):
        return found
    wanted = _wanted(fusion, use)
    return wanted.pop() if len(wanted) == 1 else found


def _wanted(fusion: Fusion, use: Use) -> set[Placements | None]:
    """The placements that the readers of a value need it with, also those behind casts."""
    found: set[Placements | None] = set()
    for i in fusion.users.get(use, ()):
        node = fusion.nodes[i]
        if isinstance(node.attrs, at.ReshardAttrs):
            found.add(node.attrs.placements)
        elif node.op == "cast" and fusion.users.get(Use(i)):
            found |= _wanted(fusion, Use(i))
        else:
            found.add(fusion.tensor(use).placements)
    return found


def _cost(fusion: Fusion, results: Sequence[Use], mesh: Mesh) -> int:
    """What is moved for ``results``: propagation may leave behind what nothing needs any more."""
    needed, total = {use.node for use in results}, 0
    for i, node in reversed(list(enumerate(fusion.nodes))):
        if i not in needed:
            continue
        needed |= {use.node for use in node.args}
        if isinstance(node.attrs, at.ReshardAttrs):
            t = fusion.tensor(node.args[0])
            assert t.placements is not None
            size = t.dtype.itemsize
            total += route(t.shape, size, mesh, t.placements, node.attrs.placements).cost
    return total


def _bind_inputs(v: Values, inputs: Sequence[Proxy], given: Sequence[Given]) -> list[int]:
    """Bind the inputs; the positions of those that the program takes."""
    positions = []
    for i, (proxy, what) in enumerate(zip(inputs, given, strict=True)):
        if isinstance(what, TensorType | ScalarType):
            v.bind(proxy, v.builder.input(what))
            positions.append(i)
        elif type(what) is int:
            v.env[proxy.name] = what
        else:
            v.bind(proxy, v.builder.const(what))
    return positions


def _translate_symbol(v: Values, bsym: BoundSymbol, pins: Mapping[str, Placements]) -> None:
    outs = tuple(bsym.flat_outs)
    names = (o.name if isinstance(o, Proxy) else "" for o in outs)
    v.begin(outs, tuple(pins.get(name) for name in names))
    build = CLAIMS[bsym.sym.id].build
    assert build is not None, f"{bsym.sym.name} was not rewritten before its translation"
    args, kwargs = tree_map(v.settled, (bsym.args, bsym.kwargs))
    found = build(v, *args, **kwargs)
    numbers = {p.name for p in tree_flatten((args, kwargs))[0] if _may_change(p)}
    for name in sorted(numbers - v.read):  # as a dim: its value went into an attribute
        raise NumberNeeded(name)
    results = (found,) if isinstance(found, Use) or not isinstance(found, Sequence) else found
    for out, value in zip(outs, results, strict=True):
        if isinstance(out, TensorProxy) and isinstance(value, Use):
            _check(bsym, out, v.type(value))
        v.bind(out, value)


def _may_change(x: Any) -> bool:
    return isinstance(x, NumberProxy) and not x.is_static_constrained()


def _check(bsym: BoundSymbol, proxy: TensorProxy, found: TensorType | ScalarType) -> None:
    """Our own tables against Thunder's meta functions."""
    dtype = known_dtype(proxy.true_dtype)
    if not isinstance(found, TensorType):
        assert proxy.ndim == 0, f"{bsym.sym.name}: {proxy.name} became the scalar {found}"
        return
    # Thunder types prims.sum of bools as bool; torch, and we, count in i64.
    counted = found.dtype is DType.I64 and dtype.kind in ("bool", "int", "uint")
    # And an i8 tensor without dims as it does a bool tensor with an int.
    small = found.dtype is DType.I8 and is_bool_with_int(proxy.true_dtype)
    if not (found.dtype is dtype or counted or small) or found.ndim != proxy.ndim:
        raise IRError(f"{bsym.sym.name}: {proxy.type_string()} became {found}")


# Symbols whose result lies in the storage of their first argument, in eager torch too.
_VIEWS = {
    *(PrimIDs.BROADCAST_IN_DIM, PrimIDs.RESHAPE, PrimIDs.VIEW, PrimIDs.TRANSPOSE, PrimIDs.SQUEEZE),
    *(PrimIDs.SLICE, PrimIDs.UNFOLD, PrimIDs.SHALLOW_COPY, PrimIDs.STRIDE_ORDER, PLACE),
    *(
        "torch.Tensor.expand",
        "torch.unsqueeze",
        "torch.detach",
        "dtensor_from_local",
        "dtensor_to_local",
        "dtensor_redistribute",
    ),
    *(DTensorPrimIDs.BROADCAST_IN_DIM, DTensorPrimIDs.RESHAPE, DTensorPrimIDs.TRANSPOSE),
}


def _storages(bsyms: Sequence[BoundSymbol]) -> dict[str, str]:
    """For each tensor that a symbol makes the name of the one whose storage it has in eager torch;
    names that are no key have their own.
    """
    found: dict[str, str] = {}
    for bsym in bsyms:
        sources = [p for p in bsym.flat_proxy_args if isinstance(p, TensorProxy)]
        if bsym.sym.id is PrimIDs.COPY_:
            sources = sources[1:]
        elif bsym.sym.id not in _VIEWS:
            continue
        for out in bsym.flat_proxy_outs:
            if sources:
                found[out.name] = found.get(sources[0].name, sources[0].name)
    return found


def _apart(
    v: Values, inputs: Sequence[Proxy], outputs: Sequence[Proxy], storages: Mapping[str, str]
) -> dict[str, Use]:
    """What each output is, equal values being copied where eager torch has a tensor for each.

    The IR knows equal values as one, and an operation that changes nothing as its operand.
    """
    owners = {v.env[p.name]: p.name for p in inputs if isinstance(v.env.get(p.name), Use)}
    found: dict[str, Use] = {}
    for p in outputs:
        use = v.value(p)
        found[p.name] = use
        if not isinstance(v.type(use), TensorType):
            continue
        storage = storages.get(p.name, p.name)
        if owners.setdefault(_base(v, use), storage) != storage:
            (found[p.name],) = v.op("copy", (use,), at.CopyAttrs(apart=len(found)))
    return found


def _base(v: Values, use: Use) -> Use:
    """The value in whose storage the IR sees ``use``."""
    node = v.builder.nodes[use.node]
    while row(node.op).kind == "view" or (
        isinstance(node.attrs, at.CopyAttrs) and node.attrs.reuse
    ):
        use = node.args[0]
        node = v.builder.nodes[use.node]
    return use


def _finish(
    v: Values, inputs: Sequence[Proxy], outputs: Sequence[Proxy], storages: Mapping[str, str]
) -> Fusion:
    written = {name: Output(value, storage.node) for name, value, storage in v.writes}
    fresh = [p for p in outputs if p.name not in written]
    values = _apart(v, inputs, fresh, storages)
    wanted = [written.pop(p.name) if p.name in written else Output(values[p.name]) for p in outputs]
    fusion = v.builder.finish((*wanted, *written.values()), tuple(v.guards))
    return verify(fusion, "translation")
