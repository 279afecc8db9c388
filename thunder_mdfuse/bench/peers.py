"""Providers of the benchmark: each makes a callable from a workload, or says why it cannot."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from thunder_mdfuse.bench.functions import EPS
from thunder_mdfuse.bench.workloads import Workload
from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.executor import mdfuse_executor
from thunder_mdfuse.thunder.frontend import jit

Call = Callable[..., Any]


class Unavailable(Exception):
    """A peer that is not installed here, or that has nothing for the workload."""


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


# What Liger has for a function, given its module of functions.
LIGER: dict[str, Callable[[Any], Call]] = {
    "rms_norm": lambda m: lambda x, w: m.liger_rms_norm(x, w, EPS),
    "add_rms_norm": lambda m: lambda x, r, w: m.liger_fused_add_rms_norm(x, r, w, EPS)[::-1],
    "layer_norm": lambda m: lambda x, w, b: m.liger_layer_norm(x, w, b, EPS),
    "softmax": lambda m: m.liger_softmax,
    "swiglu": lambda m: m.liger_swiglu,
    "cross_entropy": lambda m: m.liger_cross_entropy,
}
# The same for QuACK.
QUACK: dict[str, Callable[[Any], Call]] = {
    "rms_norm": lambda m: lambda x, w: m.rmsnorm(x, w, eps=EPS),
    "softmax": lambda m: m.softmax,
    "cross_entropy": lambda m: lambda x, t: m.cross_entropy(x, t, reduction="mean"),
}


def _library(
    title: str, load: Callable[[], Any], table: dict[str, Callable[[Any], Call]]
) -> Callable[[Workload], Call]:
    def make(work: Workload) -> Call:
        found = table.get(work.function.__name__)
        if found is None:
            raise Unavailable(f"{title} has no {work.function.__name__}")
        try:
            return found(load())
        except ImportError as e:
            raise Unavailable(f"{title} cannot be imported: {e}") from e

    return make


PEERS: dict[str, Callable[[Workload], Call]] = {
    "mdfuse": _thunder(mdfuse_executor.name),
    "eager": lambda work: work.function,
    "compile": _compile,
    "nvfuser": _nvfuser,
    "liger": _library(
        "Liger", lambda: import_module("liger_kernel.transformers.functional"), LIGER
    ),
    "quack": _library("QuACK", lambda: import_module("quack"), QUACK),
}
# What to install for the peers that torch does not bring.
INSTALL = {
    "nvfuser": "nvfuser-cu130-torch210, which is built for torch 2.10",
    "liger": "liger-kernel",
    "quack": "quack-kernels",
}
