"""What eager DTensor answers: the placements of a torch function's results and gradients.

A function is run on fake tensors, so DTensor's own rules decide and nothing is computed or sent.
Where eager DTensor has no rule for a function it answers None, and the IR's own propagation
decides.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from thunder.core.pytree import tree_flatten, tree_unflatten
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import _random as dtensor_random
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._ops._mask_buffer import MaskBuffer
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from thunder_mdfuse.errors import ExecutorError

_OF_MASKS = ("materialize_mask", "apply_mask", "release_mask")


@dataclass(frozen=True)
class Slot:
    """The place of the ``number``-th tensor among the arguments of a call."""

    number: int


@dataclass(frozen=True, eq=False)
class Call:
    """A torch function with its arguments, tensors left out.

    ``autocast``: the dtype that torch.autocast has it compute in; None outside of it.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    tree: Any
    device_type: str
    autocast: torch.dtype | None

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "call").strip("_")

    @cached_property
    def key(self) -> Any:
        """Equal for calls to which eager DTensor has the same answer; None where that is unknown.

        Contexts such as ``loss_parallel`` give DTensor's dispatcher other rules.
        """
        leaves = tuple(
            (type(x), x.__reduce__() if isinstance(x, slice) else x) for x in self.leaves
        )
        rules = frozenset(DTensor._op_dispatcher._custom_op_handlers.items())
        found = (self.function, leaves, self.tree, self.device_type, self.autocast, rules)
        try:
            hash(found)
        except TypeError:
            return None
        return found

    def arguments(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        """Positional and keyword arguments with ``tensors`` in their places."""
        found = [tensors[x.number] if isinstance(x, Slot) else x for x in self.leaves]
        args, kwargs = tree_unflatten(found, self.tree)
        return args, kwargs

    def __call__(self, tensors: Sequence[Any]) -> Any:
        args, kwargs = self.arguments(tensors)
        enabled = self.autocast is not None
        with torch.autocast(self.device_type, dtype=self.autocast, enabled=enabled):
            return self.function(*args, **kwargs)

    def gradients(
        self, tensors: Sequence[Any], wanted: Sequence[int], cotangents: dict[int, Any]
    ) -> list[Any]:
        """Eager autograd's gradients of the ``wanted`` tensors."""
        with torch.enable_grad():
            leaves = [
                t.detach().requires_grad_(i in wanted) if isinstance(t, torch.Tensor) else t
                for i, t in enumerate(tensors)
            ]
            # An in-place function must not get a leaf.
            outs, _ = tree_flatten(self([_off_leaf(t) for t in leaves]))
            given = [(outs[i], g) for i, g in cotangents.items() if outs[i].requires_grad]
            if not given:
                return [None] * len(wanted)
            grads = torch.autograd.grad(
                [out for out, _ in given],
                [leaves[i] for i in wanted],
                [g for _, g in given],
                allow_unused=True,
            )
        return list(grads)


def _off_leaf(t: Any) -> Any:
    return t.clone() if isinstance(t, torch.Tensor) and t.requires_grad else t


def slots_of(
    args: Any, kwargs: Any, name_of: Callable[[Any], str | None]
) -> tuple[tuple[Any, ...], Any, list[Any]]:
    """Leaves and tree of a call's arguments, and its operands in order of appearance.

    ``name_of``: None for what is no operand. A tensor that is given twice is one operand, so that
    it has one gradient.
    """
    flat, tree = tree_flatten((args, kwargs))
    operands: dict[str, Any] = {}
    leaves: list[Any] = []
    for x in flat:
        name = name_of(x)
        if name is not None:
            operands.setdefault(name, x)
            leaves.append(Slot(list(operands).index(name)))
        else:
            leaves.append(x)
    return tuple(leaves), tree, list(operands.values())


def results(call: Call, specs: Sequence[DTensorSpec], device: Any) -> list[Any] | None:
    """The specs of the DTensors that eager returns, other results as they are; None without a rule.

    ``specs``: those of the operands.
    """
    with _thought_only() as mode:
        tensors = [_fake(s, device, mode) for s in specs]
        with torch.no_grad():
            try:
                outs, _ = tree_flatten(call(tensors))
            except (NotImplementedError, RuntimeError) as e:
                _check_missing_rule(call, e)
                return None
    return [_representable(x._spec) if isinstance(x, DTensor) else x for x in outs]


def gradients(
    call: Call,
    specs: Sequence[DTensorSpec],
    wanted: Sequence[int],
    cotangents: dict[int, DTensorSpec],
    device: Any,
) -> list[DTensorSpec | None] | None:
    """The specs of the gradients that eager autograd gives for ``wanted`` operands."""
    with _thought_only() as mode:
        tensors = [_fake(s, device, mode) for s in specs]
        given = {i: _fake(s, device, mode) for i, s in cotangents.items()}
        try:
            grads = call.gradients(tensors, wanted, given)
        except (NotImplementedError, RuntimeError) as e:
            _check_missing_rule(call, e)
            return None
    return [None if g is None else _representable(g._spec) for g in grads]


def _check_missing_rule(call: Call, error: Exception) -> None:
    """Only what eager DTensor lacks may be left to the IR's own propagation."""
    lacking = (
        "sharding strategy",
        "Sharding propagation failed",
        "flatten multiple dimensions",
        # Of tensors that torch's own function makes inside, since all operands are DTensors.
        "got mixed torch.Tensor and DTensor",
    )
    if not isinstance(error, NotImplementedError) and not any(x in str(error) for x in lacking):
        raise ExecutorError(
            f"torch's {call.name} cannot be called with these DTensors: {error}"
        ) from error


@contextmanager
def _thought_only() -> Iterator[FakeTensorMode]:
    """Fake tensors leave no trace: they move no generator, and do not become the mask that eager
    DTensor keeps of a look-up in a sharded table.
    """
    kept = {name: getattr(MaskBuffer, name) for name in _OF_MASKS}
    tracker = dtensor_random._rng_tracker
    dtensor_random._rng_tracker = None
    masked: list[MaskBuffer] = []

    def materialize(buffer: MaskBuffer, mask: torch.Tensor) -> None:
        if buffer.data is None:
            buffer.data = mask
            masked.append(buffer)

    for name in kept:
        setattr(MaskBuffer, name, materialize if name == "materialize_mask" else lambda *_: None)
    try:
        with torch.random.fork_rng(devices=[]):
            yield FakeTensorMode(allow_non_fake_inputs=True)
    finally:
        dtensor_random._rng_tracker = tracker
        for name, method in kept.items():
            setattr(MaskBuffer, name, method)
        for buffer in masked:
            buffer.data = None


def _fake(spec: DTensorSpec, device: Any, mode: FakeTensorMode) -> DTensor:
    """A DTensor without contents whose local part is laid out as the whole is."""
    meta = spec.tensor_meta
    assert meta is not None
    shape = local_shape(spec)
    order = sorted(range(len(shape)), key=lambda d: (meta.stride[d], -d))
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= max(shape[d], 1)
    with mode:
        local = torch.empty_strided(shape, strides, dtype=meta.dtype, device=device)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def local_shape(spec: DTensorSpec) -> tuple[int, ...]:
    """The shape of this rank's part."""
    shape, _ = compute_local_shape_and_global_offset(spec.shape, spec.mesh, spec.placements)
    return tuple(shape)


def spec_of(mesh: Any, placements: Sequence[Placement], like: TensorMeta) -> DTensorSpec:
    return DTensorSpec(mesh, tuple(placements), like)


def dense_meta(shape: Sequence[int], dtype: torch.dtype) -> TensorMeta:
    """What a contiguous tensor has."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return TensorMeta(torch.Size(shape), tuple(reversed(strides)), dtype)


def _representable(spec: DTensorSpec) -> DTensorSpec:
    """``spec`` with the masked sums of a look-up as plain sums: the IR masks before it sums."""
    kinds = (Replicate, Shard, _StridedShard, Partial)
    if all(type(p) in kinds for p in spec.placements):
        return spec
    placements = [
        Partial(p.reduce_op) if isinstance(p, Partial) and type(p) is not Partial else p
        for p in spec.placements
    ]
    return DTensorSpec(spec.mesh, tuple(placements), spec.tensor_meta)


def of_cotangent(spec: DTensorSpec) -> DTensorSpec:
    """The spec of the gradient that autograd hands in for a result: a sum is whole again."""
    if not any(p.is_partial() for p in spec.placements):
        return spec
    placements = tuple(Replicate() if p.is_partial() else p for p in spec.placements)
    return DTensorSpec(spec.mesh, placements, spec.tensor_meta)
