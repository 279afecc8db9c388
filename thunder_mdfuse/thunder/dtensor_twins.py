"""Twins: a torch function of DTensors as one symbol of our own, with what computes it inside.

Thunder's composites are traced on the *global* shapes, as for plain tensors, and stand inside of
the twin; around them are the DTensors that eager DTensor would return (``dtensor_eager.py``). In
front of the fusion pass ``expanded`` gives every value in between its placements and puts what is
inside in the twin's place. A twin that holds something that no region takes stays, and runs as
eager DTensor does. Its gradient is a twin, too, with the placements that eager autograd gives.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_inexact_dtype, to_torch_dtype
from thunder.core.proxies import AnyProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten, tree_map, tree_unflatten
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, Symbol
from thunder.core.trace import TraceCtx, get_tracectx, tracectx
from thunder.core.transforms import get_grad, put_grad
from thunder.extend import Executor
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.transforms.autodiff import grad_transform_on_trace
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
    _known: dict[Any, Any] = field(default_factory=dict, init=False)

    def answer(self, specs: Sequence[DTensorSpec], device: Any) -> list[Any] | None:
        """The specs that eager gives for operands with ``specs``; None where it has no rule."""
        key = (tuple(specs), str(device))
        if key not in self._known:
            self._known[key] = self._asked(specs, device)
        found: list[Any] | None = self._known[key]
        return found

    def _asked(self, specs: Sequence[DTensorSpec], device: Any) -> list[Any] | None:
        if self.wanted is None:
            return eager.results(self.call, specs, device)
        n = len(self.cotangents)
        given = dict(zip(self.cotangents, specs[:n], strict=True))
        return eager.gradients(self.call, specs[n:], self.wanted, given, device)

    def run(self, *operands: Any) -> Any:
        """As eager DTensor does it, outside of regions."""
        if self.wanted is None:
            return self.call(operands)
        n = len(self.cotangents)
        given = dict(zip(self.cotangents, operands[:n], strict=True))
        return self.call.gradients(operands[n:], self.wanted, given)


class PlaceId(str):
    """The id of the symbol that gives result ``number`` of a twin the placements that eager gives.

    It is the string ``PLACE``, and knows how to ask again for operands on another mesh or with
    other placements: their names, and the specs that they had in the trace.
    """

    twin: Twin
    operands: tuple[str, ...]
    specs: tuple[Any, ...]
    device: Any
    number: int

    def again(self, known: Mapping[str, DTensorSpec], mesh: DeviceMesh) -> DTensorSpec | None:
        """The spec of the result when operands have the specs that are ``known``."""
        pairs = zip(self.operands, self.specs, strict=True)
        specs = [known.get(n) or (on_mesh(mesh, s) if n else s) for n, s in pairs]
        answer = self.twin.answer(specs, self.device)
        return None if answer is None else answer[self.number]


def on_mesh(mesh: DeviceMesh, spec: DTensorSpec) -> DTensorSpec:
    return DTensorSpec(mesh, spec.placements, spec.tensor_meta)


def is_twin(bsym: BoundSymbol) -> bool:
    return isinstance(bsym.sym.id, Twin)


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
    return next(x.spec._o.mesh for x in operands if isinstance(x, DTensorProxy))


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
    made, operands = eager.call_of(function, args, kwargs, _name_of)
    operands = _lifted(operands)
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
    return tree_unflatten(outs, tree)


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
        return eager.Call(original, made.leaves, made.tree)(plain)
    finally:
        trace.pop_scope()


def emit(
    twin: Twin, operands: Sequence[Any], inner: Sequence[Any], inside: Sequence[BoundSymbol]
) -> list[Any]:
    """Append the twin's symbol to the present trace; ``inner``: its results inside."""
    trace = get_tracectx()
    device = to_torch_device(next(x.device for x in operands if isinstance(x, TensorProxy)))
    answer = twin.answer([_spec(x) for x in operands], device)
    placed = [x for x in inner if isinstance(x, TensorProxy)]
    if answer is not None and len(answer) < len(placed):
        raise ExecutorError(
            f"{twin.call.name} returns {len(placed)} tensors as Thunder traces it and "
            f"{len(answer)} in eager torch; compute it on to_local(), or outside of the function"
        )
    outs: list[Any] = []
    for i, x in enumerate(inner):
        if not isinstance(x, TensorProxy):
            outs.append(x)
            continue
        spec = answer[i] if answer is not None else None
        if spec is None:
            # Eager has no rule: what comes out is decided when the twin is expanded.
            meta = eager.dense_meta(x.shape, to_torch_dtype(x.true_dtype))
            mesh = mesh_in(operands)
            spec = DTensorSpec(mesh, replicated(mesh), meta)
        outs.append(placed_proxy(spec, x.device, x.true_dtype))
    pairs = [(x, o) for x, o in zip(inner, outs, strict=True) if isinstance(o, DTensorProxy)]
    places = [_place.bind(x, output=o) for x, o in pairs]
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
    bsym = symbol.bind(*operands, output=output, subsymbols=(*inside, *places))
    trace.peek_scope().append(bsym)
    return outs


def _spec(x: Any) -> Any:
    return x.spec._o if isinstance(x, DTensorProxy) else x


_place = Symbol(name=PLACE, meta=lambda x: None, id=PLACE, is_prim=True)


def gradient(twin: Twin, *operands: Any) -> Any:
    """The rule of a twin's gradient: the call and its gradient as two twins."""
    wanted = tuple(
        i
        for i, x in enumerate(operands)
        if isinstance(x, TensorProxy) and is_inexact_dtype(x.dtype)
    )
    forward, backward, inner, cotangents, grads = _joint(twin, operands, wanted)
    outs = emit(twin, operands, inner, forward)
    tensors = [o for o in outs if isinstance(o, TensorProxy)]
    numbers = [i for i, x in enumerate(inner) if isinstance(x, TensorProxy)]
    known = {i: g for i, g in zip(wanted, grads, strict=True) if g is not None}
    pair = Twin(
        twin.call,
        twin.original,
        twin.executor,
        tuple(known),
        tuple(numbers.index(i) for i in cotangents),
        twin,
    )
    pair = _with_gradients(pair, [outs[i] for i in cotangents], operands)
    if pair.wanted:
        given = [_cotangent(outs[i]) for i in cotangents]
        swap = {x.name: global_proxy(g) for x, g in zip(cotangents.values(), given, strict=True)}
        held = [renamed(b, swap) for b in backward]
        last = [swap.get(known[i].name, known[i]) for i in pair.wanted]
        results = emit(pair, [*given, *operands], last, held)
        for i, g in zip(pair.wanted, results, strict=True):
            put_grad(operands[i], g)
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _with_gradients(pair: Twin, outs: Sequence[Any], operands: Sequence[Any]) -> Twin:
    """``pair`` for those operands only that have a gradient in eager: detach() gives none."""
    if not pair.wanted or not outs:
        return replace(pair, wanted=())
    specs = [*(eager.of_cotangent(x.spec._o) for x in outs), *map(_spec, operands)]
    answer = pair.answer(specs, to_torch_device(outs[0].device))
    if answer is None or None not in answer:
        return pair
    pairs = zip(pair.wanted, answer, strict=True)
    return replace(pair, wanted=tuple(i for i, a in pairs if a is not None))


def _cotangent(out: DTensorProxy) -> DTensorProxy:
    """The gradient that comes in for a result, typed as autograd hands it in."""
    found: DTensorProxy = get_grad(out)
    found.spec = AnyProxy(eager.of_cotangent(out.spec._o))
    return found


def _joint(twin: Twin, operands: Sequence[Any], wanted: Sequence[int]) -> tuple[Any, ...]:
    """What Thunder's autodiff makes of the call on global shapes.

    The symbols of both halves, the results, by their numbers the gradients that come in, and the
    gradients of ``wanted``.
    """
    outer = get_tracectx()
    trace = TraceCtx(None)
    trace.names, trace.name_ctr = outer.names, outer.name_ctr
    plain = [global_proxy(x) if isinstance(x, DTensorProxy) else x for x in operands]
    for i in wanted:
        plain[i]._requires_grad = True
    tensors = [x for x in plain if isinstance(x, Proxy)]
    with tracectx(trace):
        for x in tensors:
            trace.bound_symbols.append(prims.unpack_trivial.bind(x, name=x.name, output=x))
        found, _ = tree_flatten(eager.Call(twin.original, twin.call.leaves, twin.call.tree)(plain))
        inner = tuple(x for x in found if isinstance(x, TensorProxy))
        prims.python_return({"flat_args": tensors, "output": inner})
    joint = grad_transform_on_trace(trace)
    outer.name_ctr = max(outer.name_ctr, joint.name_ctr)
    forward: list[BoundSymbol] = []
    backward: list[BoundSymbol] = []
    cotangents: dict[int, Any] = {}
    last = joint.bound_symbols[-1].args[0]
    results = list(last["fw_flat_out"])
    at = {x.name: i for i, x in enumerate(results)}
    for bsym in joint.bound_symbols[:-1]:
        if bsym.sym is prims.unpack_trivial:
            continue
        if bsym.sym.id is prims.PrimIDs.GET_GRAD:
            cotangents[at[bsym.args[0].name]] = bsym.output
        elif BoundSymbolTag.BACKWARD in bsym.tags:
            backward.append(bsym)
        else:
            forward.append(bsym)
    by_name = {x.name: g for x, g in zip(tensors, last["output"], strict=True)}
    return forward, backward, results, cotangents, [by_name[plain[i].name] for i in wanted]


def renamed(bsym: BoundSymbol, names: dict[str, Proxy]) -> BoundSymbol:
    """``bsym`` with other proxies for names, inside too."""

    def swap(x: Any) -> Any:
        return names.get(x.name, x) if isinstance(x, Proxy) else x

    args, kwargs, output = tree_map(swap, (bsym.args, bsym.kwargs, bsym.output))
    inner = tuple(renamed(sub, names) for sub in bsym.subsymbols)
    return bsym.from_bsym(args=args, kwargs=kwargs, output=output, subsymbols=inner)
