"""Providers of the benchmark: each makes a callable from a workload, or says why it cannot."""

from collections.abc import Callable

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


def _compile(work: Workload) -> Call:
    torch._dynamo.reset()
    call: Call = torch.compile(work.function, dynamic=False)
    return call


PEERS: dict[str, Callable[[Workload], Call]] = {
    "mdfuse": _thunder(mdfuse_executor.name),
    "eager": lambda work: work.function,
    "compile": _compile,
    "nvfuser": _thunder("nvfuser"),
}
