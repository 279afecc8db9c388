"""From a workload and a provider to what is timed, and whether its results are right."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thunder_mdfuse.bench.functions import relative
from thunder_mdfuse.bench.workloads import Workload

Tensors = tuple[torch.Tensor, ...]
Call = Callable[..., Any]
Thunk = Callable[[], object]


def as_tuple(outputs: torch.Tensor | Tensors) -> Tensors:
    """One tensor or several, as a tuple."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def leaves(work: Workload, inputs: Sequence[torch.Tensor], timed: str = "") -> Tensors:
    """``inputs`` as fresh leaves, those whose gradients are ``wanted`` requiring them."""
    wanted = () if (timed or work.timed) == "forward" else work.wanted
    return tuple(t.detach().requires_grad_(i in wanted) for i, t in enumerate(inputs))


def cotangents(outputs: Tensors) -> Tensors:
    """The same for every provider: seeded, or 1 for a number."""
    device = outputs[0].device
    generator = torch.Generator(device).manual_seed(7)
    return tuple(
        torch.ones_like(o)
        if o.ndim == 0
        else torch.randn(o.shape, device=device, generator=generator).to(o.dtype)
        for o in outputs
    )


def gradients(work: Workload, outputs: Tensors, given: Tensors, inputs: Tensors) -> Tensors:
    """Of the ``wanted`` inputs; the graph stays, so that it can be asked again."""
    wanted = tuple(inputs[i] for i in work.wanted)
    return torch.autograd.grad(outputs, wanted, given, retain_graph=True)


def prepared(work: Workload, call: Call, inputs: Sequence[torch.Tensor]) -> Thunk:
    """What is timed, with everything before it done."""
    mine = leaves(work, inputs)
    if work.timed == "forward":
        return lambda: call(*mine)
    outputs = as_tuple(call(*mine))
    given = cotangents(outputs)
    if work.timed == "backward":
        return lambda: gradients(work, outputs, given, mine)

    def both() -> object:
        return gradients(work, as_tuple(call(*mine)), given, mine)

    return both


def error(work: Workload, call: Call, inputs: Sequence[torch.Tensor]) -> float:
    """The largest relative error of the provider's outputs, and of its gradients if those are
    timed.

    Measured on copies: some providers write into their inputs.
    """
    mine = leaves(work, [_copied(t) for t in inputs])
    outputs = as_tuple(call(*mine))
    kept = tuple(o.detach().clone() for o in outputs)
    if work.timed == "forward":
        if work.check is not None:
            return work.check(tuple(inputs), kept)
        exact = as_tuple(work.function(*(_widened(t) for t in inputs)))
        return _largest(kept, exact)
    given = cotangents(outputs)
    found = gradients(work, outputs, tuple(c.clone() for c in given), mine)
    if work.check is not None:
        return work.check(tuple(inputs), kept, given, found)
    wide = tuple(
        _widened(t.detach()).requires_grad_(i in work.wanted) for i, t in enumerate(inputs)
    )
    exact = as_tuple(work.function(*wide))
    expected = gradients(work, exact, tuple(_widened(c) for c in given), wide)
    return max(_largest(kept, exact), _largest(found, expected))


def _copied(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, in memory that nothing else uses."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def _widened(t: torch.Tensor) -> torch.Tensor:
    return t.float() if t.dtype.is_floating_point else t


def _largest(found: Tensors, expected: Tensors) -> float:
    assert len(found) == len(expected), f"{len(found)} results where {len(expected)} are expected"
    return max(relative(f, e.detach()) for f, e in zip(found, expected, strict=True))
