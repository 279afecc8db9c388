"""The gradient of a function of DTensors: the function and its gradient as two twins.

Thunder differentiates what stands inside of the twin, on global shapes; eager autograd on fake
DTensors says how each gradient is placed, and which operand has none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thunder.core import prims
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import is_inexact_dtype
from thunder.core.prims import PrimIDs
from thunder.core.proxies import AnyProxy, Proxy, TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.core.symbol import BoundSymbol, BoundSymbolTag
from thunder.core.trace import TraceCtx, get_tracectx, tracectx
from thunder.core.transforms import get_grad, put_grad
from thunder.torch.experimental.dtensor_proxy import DTensorProxy
from thunder.transforms.autodiff import grad_transform_on_trace

from thunder_mdfuse.thunder import dtensor_eager as eager
from thunder_mdfuse.thunder import dtensor_twins as twins


def gradient(twin: twins.Twin, *operands: Any) -> Any:
    """The rule of a twin's gradient: the call and its gradient as two twins."""
    wanted = tuple(
        i
        for i, x in enumerate(operands)
        if isinstance(x, TensorProxy) and is_inexact_dtype(x.dtype)
    )
    forward, backward, inner, cotangents, grads = _joint(twin, operands, wanted)
    outs = twins.emit(twin, operands, inner, forward)
    tensors = [o for o in outs if isinstance(o, TensorProxy)]
    numbers = [i for i, x in enumerate(inner) if isinstance(x, TensorProxy)]
    known = {i: g for i, g in zip(wanted, grads, strict=True) if g is not None}
    pair = twins.Twin(
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
        swap = {
            x.name: twins.global_proxy(g) for x, g in zip(cotangents.values(), given, strict=True)
        }
        held = [twins.renamed(b, swap) for b in backward]
        last = [swap.get(known[i].name, known[i]) for i in pair.wanted]
        results = twins.emit(pair, [*given, *operands], last, held)
        for i, g in zip(pair.wanted, results, strict=True):
            put_grad(operands[i], g)
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _with_gradients(pair: twins.Twin, outs: Sequence[Any], operands: Sequence[Any]) -> twins.Twin:
    """``pair`` for those operands only that have a gradient in eager: detach() gives none."""
    if not pair.wanted or not outs:
        return replace(pair, wanted=())
    specs = [*(eager.of_cotangent(x.spec._o) for x in outs), *map(twins.spec_of, operands)]
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


def _joint(twin: twins.Twin, operands: Sequence[Any], wanted: Sequence[int]) -> tuple[Any, ...]:
    """What Thunder's autodiff makes of the call on global shapes.

    The symbols of both halves, the results, by their numbers the gradients that come in, and the
    gradients of ``wanted``.
    """
    outer = get_tracectx()
    trace = TraceCtx(None)
    trace.names, trace.name_ctr = outer.names, outer.name_ctr
    plain = [twins.global_proxy(x) if isinstance(x, DTensorProxy) else x for x in operands]
    for i in wanted:
        plain[i]._requires_grad = True
    tensors = [x for x in plain if isinstance(x, Proxy)]
    with tracectx(trace), twins.cast_as(twin.call):
        for x in tensors:
            trace.bound_symbols.append(prims.unpack_trivial.bind(x, name=x.name, output=x))
        args, kwargs = twin.call.arguments(plain)
        found, _ = tree_flatten(twin.original(*args, **kwargs))
        inner = tuple(x for x in found if isinstance(x, TensorProxy))
        prims.python_return({"flat_args": tensors, "output": inner})
    with twins.cast_as(twin.call):
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
        if bsym.sym.id is PrimIDs.GET_GRAD:
            cotangents[at[bsym.args[0].name]] = bsym.output
        elif BoundSymbolTag.BACKWARD in bsym.tags:
            backward.append(bsym)
        else:
            forward.append(bsym)
    by_name = {x.name: g for x, g in zip(tensors, last["output"], strict=True)}
    return forward, backward, results, cotangents, [by_name[plain[i].name] for i in wanted]
