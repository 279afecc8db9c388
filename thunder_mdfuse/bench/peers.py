"""Providers of the benchmark: each makes a callable from a workload, or says why it cannot."""

import sys
from collections.abc import Callable
from importlib import import_module

import torch

from thunder_mdfuse.bench.workloads import Workload
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.executor import mdfuse_executor
from thunder_mdfuse.thunder.frontend import jit

Call = Callable[..., torch.Tensor]


class Unavailable(Exception):
    """A peer that is not installed here, or that refuses the workload."""


def _thunder(executor: str) -> Callable[[Workload], Call]:
    def make(work: Workload) -> Call:
        try:
            call: Call = jit(work.function, [executor])
        except ExecutorError as e:
            raise Unavailable(str(e)) from e
        return call

    return make


def _nvfuser(work: Workload) -> Call:
    # Thunder 0.2.6 imports one function from ``nvfuser``, which today's wheels no longer carry:
    # it moved to ``nvfuser_direct`` under the same name.
    try:
        sys.modules.setdefault("nvfuser", import_module("nvfuser_direct"))
    except ImportError as e:
        raise Unavailable(f"nvfuser_direct cannot be imported: {e}") from e
    return _thunder("nvfuser")(work)


def _compile(work: Workload) -> Call:
    torch._dynamo.reset()
    call: Call = torch.compile(work.function, dynamic=False)
    return call


PEERS: dict[str, Callable[[Workload], Call]] = {
    "mdfuse": _thunder(mdfuse_executor.name),
    "eager": lambda work: work.function,
    "compile": _compile,
    "nvfuser": _nvfuser,
}
