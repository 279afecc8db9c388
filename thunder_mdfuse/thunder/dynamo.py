"""What thunderfx asks before it cuts a graph of dynamo's into parts for Thunder and for torch.

Thunder tries each node on tensors like those that it will get; with DTensors it tries the 12
functions that it has for them, without gradients. What a twin holds is a function of plain
tensors of the whole shapes, so these are what a node is tried on. A function for which this
executor alone has a door is tried on that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getclosurevars
from typing import Any

import torch
from thunder.extend import FusionExecutor
from thunder.torch import _torch_to_thunder_function_map as _functions
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_any, tree_map

# What dynamo calls its closures for functions of DTensors; they hold all but the first argument.
_CLOSURES: dict[str, Callable[..., Any]] = {
    "prim from_local": DTensor.from_local,
    "prim_redistribute": DTensor.redistribute,
    "prim_to_local": DTensor.to_local,
}


def own_door(executor: FusionExecutor, node: torch.fx.Node) -> Callable[..., Any] | None:
    """What ``executor`` has for a node's function where Thunder has nothing: torch.rms_norm."""
    target: Any = node.target
    if isinstance(target, str):
        target = getattr(torch.Tensor, target, None)
    door: Callable[..., Any] | None = None
    if target not in _functions:
        door = executor._lookasides.get(target)
    return door


@contextmanager
def whole_and_plain(node: torch.fx.Node) -> Iterator[None]:
    """Plain tensors of the whole shapes as examples of what ``node`` is given."""
    kept = {n: n.meta["example_value"] for n in node.all_input_nodes if "example_value" in n.meta}
    placed = {n: x for n, x in kept.items() if tree_any(_is_dtensor, x)}
    for n, x in placed.items():
        n.meta["example_value"] = tree_map(_plain, x)
    try:
        yield
    finally:
        for n, x in placed.items():
            n.meta["example_value"] = x


def _is_dtensor(x: Any) -> bool:
    return isinstance(x, DTensor)


def _plain(x: Any) -> Any:
    if not isinstance(x, DTensor):
        return x
    # Of the local part, which is a fake tensor.
    whole = x._local_tensor.new_empty_strided(x.shape, x.stride())
    return whole.requires_grad_(x.requires_grad)


def open_closures(graph: torch.fx.GraphModule) -> None:
    """Calls of DTensor's own functions, with all their arguments, in the place of closures."""
    for node in graph.graph.nodes:
        function = _CLOSURES.get(getattr(node.target, "__name__", ""))
        if node.op == "call_function" and function is not None:
            inside = getclosurevars(node.target).nonlocals
            node.target = _opened(function, *(inside[f"{k}_as_value"] for k in ("args", "kwargs")))


def _opened(function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
    # As defaults of arguments Thunder takes them for constants.
    def found(
        x: Any, function: Any = function, args: Any = args, kwargs: Any = kwargs, **more: Any
    ) -> Any:
        return function(x, *args, **kwargs, **more)

    found.__name__ = function.__name__
    found.thunder_supported = True  # type: ignore[attr-defined]
    return found
