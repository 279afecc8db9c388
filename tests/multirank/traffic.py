"""What a piece of code says to other ranks: how many collectives, and the bytes a rank gets."""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SILENT = ("wait", "_wrap", "barrier", "monitored_barrier")


class Traffic:
    """A context: ``collectives`` as ``CommDebugMode`` counts them, and ``bytes``."""

    def __init__(self) -> None:
        self.collectives, self.bytes = 0, 0

    def __enter__(self) -> "Traffic":
        self._counts, self._sizes = CommDebugMode(), _Bytes()
        self._counts.__enter__()
        self._sizes.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        self._sizes.__exit__(*reason)
        self._counts.__exit__(*reason)
        self.collectives = self._counts.get_total_counts()
        self.bytes = self._sizes.bytes

    def __str__(self) -> str:
        return f"{self.collectives} collectives of {self.bytes} bytes"


class _Bytes(TorchDispatchMode):
    """Of each collective the larger side, which is (n - 1) / n of what a rank gets on a ring;
    an all_reduce goes round twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        found = function(*args, **(kwargs or {}))
        space, name = function._schema.name.split("::")
        if space in ("c10d", "_c10d_functional", "_dtensor") and not name.startswith(_SILENT):
            leaves = (tree_leaves(x) for x in (*args, found))
            sizes = [sum(t.nbytes for t in x if isinstance(t, torch.Tensor)) for x in leaves]
            twice = "reduce" in name and "scatter" not in name
            self.bytes += max(sizes) * (2 if twice else 1)
        return found
