"""Twins: a torch function of DTensors as one symbol of our own, with what computes it inside.

Thunder's composites are traced on the *global* shapes, as for plain tensors, and stand inside of
the twin; around them are the DTensors that eager DTensor would return (``dtensor_eager.py``). In
front of the fusion pass ``expanded`` gives every value in between its placements and puts what is
inside in the twin's place. A twin that holds something that no region takes stays, and runs as
eager DTensor does. Its gradient is a twin, too, with the placements that eager autograd gives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.prims import PrimIDs
from thunder.core.proxies import AnyProxy, Proxy, ProxyTag, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.symbol import BoundSymbol, Symbol
from thunder.core.trace import TraceCtx, get_tracectx, tracectx
from thunder.core.utils import AutocastStack
from thunder.extend import Executor
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder import dtensor_eager as eager

PLACE = "mdfuse_place"


@dataclass(frozen=True, eq=False)
class Twin:
    """The id of a twin's symbol: which call it stands for.

    ``wanted``: None for the call itself; else the operands whose gradients it computes, with
    ``cotangents`` the results whose gradients come first among its arguments.
    """

    call: eager.Call
    original: Callable[..., Any]
    executor: Executor
    wanted: tuple[int, ...] | None = None
    cotangents: tuple[int, ...] = ()
    # The symbols of the gradient read values from inside of the call: both are expanded or none.
    forward: "Twin | None" = None
    # What eager has answered so far, also to equal calls: layer after layer asks the same.
    _known: dict[Any, Any] = field(default_factory=lambda: _answers(), init=False)

    def answer(self, specs: Sequence[DTensorSpec], device: Any) -> list[Any] | None:
        """The specs that eager gives for operands with ``specs``; None where it has no rule."""
        # Equal meshes may have other process groups, so an answer is for the mesh that asks.
        meshes = tuple(id(s.mesh) for s in specs if isinstance(s, DTensorSpec))
        asked = self.call.key or self.call
        key = (asked, self.wanted, self.cotangents, tuple(specs), meshes, str(device))
        if key not in self._known:
            self._known[key] = _on_given_meshes(self._asked(specs, device), specs)
        found: list[Any] | None = self._known[key]
        return found

    def _asked(self, specs: Sequence[DTensorSpec], device: Any) -> list[Any] | None:
        if self.wanted is None:
            return eager.results(self.call, specs, device)
        n = len(self.cotangents)
        given = dict(zip(self.cotangents, specs[:n], strict=True))
        known = eager.gradients(self.call, specs[n:], self.wanted, given, device)
        # Where eager has no rule, a gradient is placed as what it is the gradient of.
        return known or [eager.of_cotangent(specs[n + i]) for i in self.wanted]

    def run(self, *operands: Any) -> Any:
        """As eager DTensor does it, outside of regions."""
        if self.wanted is None:
            return self.call(operands)
        n = len(self.cotangents)
        given = dict(zip(self.cotangents, operands[:n], strict=True))
        return self.call.gradients(operands[n:], self.wanted, given)


def _on_given_meshes(answer: list[Any] | None, specs: Sequence[Any]) -> list[Any] | None:
    """Eager's cache may answer with an equal mesh that another call was on, of other groups."""
    given = {s.mesh: s.mesh for s in specs if isinstance(s, DTensorSpec)}
    if answer is None:
        return None
    return [
        on_mesh(given[s.mesh], s) if isinstance(s, DTensorSpec) and s.mesh in given else s
        for s in answer
    ]


_of_jits: "WeakKeyDictionary[Any, dict[Any, Any]]" = WeakKeyDictionary()


def _answers() -> dict[Any, Any]:
    """Eager's answers for the function that is being jitted."""
    data = get_compile_data()
    return {} if data is None else _of_jits.setdefault(data, {})


class PlaceId(str):
    """The id of the symbol that gives result ``number`` of a twin the placements that eager gives.

    It is the string ``PLACE``, and knows how to ask again for operands on another mesh or with
    other placements: their names, and the specs that they had in the trace. With ``axes``, it is
    operand ``number`` that it places: replicated on these axes of the mesh.
    """

    twin: Twin
    operands: tuple[str, ...]
    specs: tuple[Any, ...]
    device: Any
    number: int
    axes: tuple[int, ...] = ()

    def again(self, known: Mapping[str, DTensorSpec], mesh: DeviceMesh) -> DTensorSpec | None:
        """The spec of the result when operands have the specs that are ``known``."""
        pairs = zip(self.operands, self.specs, strict=True)
        specs = [known.get(n) or (on_mesh(mesh, s) if n else s) for n, s in pairs]
        if self.axes:
            return whole_on(self.axes, specs[self.number])
        answer = self.twin.answer(specs, self.device)
        return None if answer is None else answer[self.number]


def on_mesh(mesh: DeviceMesh, spec: DTensorSpec) -> DTensorSpec:
    if spec.mesh is mesh:
        return spec
    return DTensorSpec(mesh, spec.placements, spec.tensor_meta)


def whole_on(axes: Sequence[int], spec: DTensorSpec) -> DTensorSpec:
    """``spec`` replicated on ``axes`` of the mesh."""
    placements = tuple(Replicate() if i in axes else p for i, p in enumerate(spec.placements))
    return DTensorSpec(spec.mesh, placements, spec.tensor_meta)


def place(x: Any, out: DTensorProxy) -> BoundSymbol:
    """The symbol that makes ``out`` of ``x``, which differs by its placements alone."""
    return _place.bind(x, output=out)


def is_twin(bsym: BoundSymbol) -> bool:
    return isinstance(bsym.sym.id, Twin)


def is_no_gradient(bsym: BoundSymbol) -> bool:
    """The zeros that autodiff takes for the gradient of a DTensor that nothing used."""
    return bsym.sym.id == "torch.zeros" and isinstance(bsym.output, DTensorProxy)


def twins_of(bsym: BoundSymbol) -> list[BoundSymbol]:
    """The symbol itself, or those inside of a composite that Thunder called with DTensors, such as
    the sum of two gradients.
    """
    return [sub for sub in (bsym, *_all_of(bsym)) if is_twin(sub)]


def inside(bsym: BoundSymbol) -> list[BoundSymbol]:
    """What a twin holds, on plain tensors of the whole shapes.

    Thunder's passes put the trace's own proxies, which are DTensors, for those of equal names.
    """
    every = [p for sub in _all_of(bsym) for p in (*sub.flat_proxy_args, *sub.flat_proxy_outs)]
    plain = {p.name: global_proxy(p) for p in every if isinstance(p, DTensorProxy)}
    return [renamed(sub, plain) for sub in bsym.subsymbols]


def _all_of(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    for sub in bsym.subsymbols:
        yield sub
        yield from _all_of(sub)


def placed_proxy(
    spec: DTensorSpec, device: Any, dtype: Any, name: str | None = None, grad: bool = False
) -> DTensorProxy:
    """A proxy with ``spec``; with a ``name``, that of a value that the trace knows already."""

    def make() -> DTensorProxy:
        local = TensorProxy(shape=eager.local_shape(spec), device=device, dtype=dtype)
        return DTensorProxy(
            name,
            local_tensor=local,
            spec=AnyProxy(spec),
            shape=tuple(spec.shape),
            device=device,
            dtype=dtype,
            requires_grad=grad,
        )

    if name is None:
        return make()
    with tracectx(TraceCtx()):
        return make()


def global_proxy(p: DTensorProxy) -> TensorProxy:
    """A plain tensor of the whole shape under the same name, for what is traced inside a twin."""
    with tracectx(TraceCtx()):
        return TensorProxy(
            p.name,
            shape=p._shape,
            device=p.device,
            dtype=p.true_dtype,
            requires_grad=p.requires_grad,
        )


def replicated(mesh: DeviceMesh) -> tuple[Replicate, ...]:
    return (Replicate(),) * mesh.ndim


def mesh_in(operands: Sequence[Any]) -> DeviceMesh:
    mesh: DeviceMesh = next(x.spec._o.mesh for x in operands if isinstance(x, DTensorProxy))
    return mesh


def call(
    executor: Executor,
    function: Callable[..., Any],
    original: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> Any:
    """What ``function`` returns for DTensors, as a twin in the present trace.

    ``original`` is what Thunder has for plain tensors.
    """
    leaves, tree, operands = eager.slots_of(args, kwargs, _name_of)
    operands = _lifted(operands)
    made = eager.Call(function, leaves, tree, *_autocast(device_of(operands).type))
    inside: list[BoundSymbol] = []
    found = _traced(made, original, operands, inside)
    flat, tree = tree_flatten(found)
    if not any(isinstance(x, TensorProxy) for x in flat):
        return found
    given = {x.name: x for x in operands if isinstance(x, DTensorProxy)}
    if all(x.name in given for x in flat if isinstance(x, TensorProxy)):
        return tree_map(lambda x: given[x.name] if isinstance(x, TensorProxy) else x, found)
    twin = Twin(made, original, executor)
    outs = emit(twin, operands, flat, inside)
    data = get_compile_data()
    if data is not None and not data.is_grad_enabled:
        for x in outs:
            if isinstance(x, TensorProxy):
                x.tags.add(ProxyTag.DETACHED_AUTOGRAD_GRAPH)
    return tree_unflatten(outs, tree)


def device_of(operands: Sequence[Any]) -> Any:
    return to_torch_device(next(x.device for x in operands if isinstance(x, TensorProxy)))


def _autocast(device_type: str) -> tuple[str, torch.dtype | None]:
    """What torch.autocast asks for where the function is called."""
    data = get_compile_data()
    found = data and data.autocast_stack.get_dtype_for_device_if_enabled(device_type)
    return device_type, to_torch_dtype(found) if found else None


@contextmanager
def cast_as(call: eager.Call) -> Iterator[None]:
    """Let Thunder trace under the autocast that ``call`` was made under."""
    data = get_compile_data()
    if data is None:
        yield
        return
    before, data.autocast_stack = data.autocast_stack, AutocastStack()
    if call.autocast is not None:
        data.autocast_stack.push(call.device_type, call.autocast, True)
    try:
        yield
    finally:
        data.autocast_stack = before


def _name_of(x: Any) -> str | None:
    return x.name if isinstance(x, Proxy) else None


def _lifted(operands: Sequence[Any]) -> list[Any]:
    """A plain tensor beside DTensors is the same on all ranks."""
    mesh = mesh_in(operands)
    return [from_local(x, mesh) if type(x) is TensorProxy else x for x in operands]


def from_local(x: TensorProxy, mesh: DeviceMesh) -> DTensorProxy:
    found: DTensorProxy = DTensorProxy.from_local(x, mesh, [Replicate()] * mesh.ndim)
    return found


def _traced(
    made: eager.Call,
    original: Callable[..., Any],
    operands: Sequence[Any],
    inside: list[BoundSymbol],
) -> Any:
    """``original`` on global shapes; its symbols go to ``inside``."""
    plain = [global_proxy(x) if isinstance(x, DTensorProxy) else x for x in operands]
    trace = get_tracectx()
    trace.push_scope(inside)
    try:
        args, kwargs = made.arguments(plain)
        return original(*args, **kwargs)
    finally:
        trace.pop_scope()


def emit(
    twin: Twin, operands: Sequence[Any], inner: Sequence[Any], inside: Sequence[BoundSymbol]
) -> list[Any]:
    """Append the twin's symbol to the present trace; ``inner``: its results inside."""
    trace = get_tracectx()
    device = device_of(operands)
    answer = twin.answer([spec_of(x) for x in operands], device)
    placed = [x for x in inner if isinstance(x, TensorProxy)]
    if answer is not None and len(answer) < len(placed):
        raise ExecutorError(
            f"{twin.call.name} returns {len(placed)} tensors as Thunder traces it and "
            f"{len(answer)} in eager torch; compute it on to_local(), or outside of the function"
        )
    target = next((x.spec._o for x in operands if x.name == written(inside)), None)
    outs: list[Any] = []
    for i, x in enumerate(inner):
        if not isinstance(x, TensorProxy):
            outs.append(x)
            continue
        spec = answer[i] if answer is not None else target
        if spec is None:
            # Eager has no rule: what comes out is decided when the twin is expanded.
            meta = eager.dense_meta(x.shape, to_torch_dtype(x.true_dtype))
            mesh = mesh_in(operands)
            spec = DTensorSpec(mesh, replicated(mesh), meta)
        outs.append(placed_proxy(spec, x.device, x.true_dtype))
    pairs = [(x, o) for x, o in zip(inner, outs, strict=True) if isinstance(o, DTensorProxy)]
    held, places = _placed(inside, pairs)
    name = trace.make_name(prefix=f"dtensor_{twin.call.name}{'_grad' if twin.wanted else ''}_")
    symbol = Symbol(
        name=name,
        meta=lambda *operands: None,
        id=twin,
        executor=twin.executor,
        _bind_postprocess=lambda b: setattr(b, "_call_ctx", {name: twin.run}),
    )
    results = tuple(o for _, o in pairs)
    output = results if twin.wanted is not None or len(outs) > 1 else results[0]
    bsym = symbol.bind(*operands, output=output, subsymbols=(*held, *places))
    trace.peek_scope().append(bsym)
    return outs


def written(inside: Sequence[BoundSymbol]) -> str | None:
    """The tensor that a twin writes in place, where that is what it ends in."""
    last = inside[-1] if inside else None
    while last is not None and last.subsymbols:
        last = last.subsymbols[-1]
    return last.args[1].name if last is not None and last.sym.id is PrimIDs.COPY_ else None


def _placed(
    inside: Sequence[BoundSymbol], pairs: Sequence[tuple[Any, DTensorProxy]]
) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """What a twin holds, and the symbols that give its results their placements.

    What is written in place has its placements before it is written: the last symbol is the write.
    """
    held = list(inside)
    if written(held) is None or len(pairs) != 1:
        return held, [place(x, o) for x, o in pairs]
    while held[-1].subsymbols:
        held[-1:] = held[-1].subsymbols
    write, ((_, out),) = held.pop(), pairs
    source, *rest = write.args
    placed = placed_proxy(out.spec._o, out.device, out.true_dtype)
    write = write.from_bsym(args=(placed, *rest), output=out)
    return held, [place(source, placed), write]


def spec_of(x: Any) -> Any:
    return x.spec._o if isinstance(x, DTensorProxy) else x


_place = Symbol(name=PLACE, meta=lambda x: None, id=PLACE, is_prim=True)


def renamed(bsym: BoundSymbol, names: dict[str, Proxy]) -> BoundSymbol:
    """``bsym`` with other proxies for names, inside too."""

    def swap(x: Any) -> Any:
        return names.get(x.name, x) if isinstance(x, Proxy) else x

    args, kwargs, output = tree_map(swap, (bsym.args, bsym.kwargs, bsym.output))
    inner = tuple(renamed(sub, names) for sub in bsym.subsymbols)
    return bsym.from_bsym(args=args, kwargs=kwargs, output=output, subsymbols=inner)
