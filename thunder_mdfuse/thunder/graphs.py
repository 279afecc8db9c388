"""CUDA graphs of jitted functions: Thunder's ``CUDAGraphTransform`` for our regions.

Thunder's transform captures groups of two symbols and more, but a function that is one region has
one. It refuses backward passes of DTensors, tells inputs apart by dtype, shape and strides alone,
and copies a DTensor by way of its dispatcher. Here a region is captured by itself as well, a graph
belongs to a mesh and to placements, and only local tensors are copied.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from thunder.core import utils, vjp_utils
from thunder.core.prims import PrimIDs
from thunder.core.proxies import ProxyTag
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx, TraceTag
from thunder.executors.utils import Region
from thunder.transforms import cudagraph
from torch.distributed.tensor import DTensor

from thunder_mdfuse.errors import ExecutorError
from thunder_mdfuse.thunder.dtensor import close, waited
from thunder_mdfuse.thunder.executor import mdfuse_executor


class CUDAGraphTransform(cudagraph.CUDAGraphTransform):  # type: ignore[misc]
    """Captures what a jitted function runs, at its first call, and replays it from then on::

        fused = thunder.jit(model, executors=[mdfuse_executor], transforms=[CUDAGraphTransform()])

    As with Thunder's: results lie in memory that the next replay writes again, inputs are copied
    into memory of the graph (parameters are not), a number or a 0-dim CPU tensor is captured as it
    is, and an in-place write to an input that is no parameter or buffer is lost. A transform
    belongs to one jitted function.
    """

    def __init__(self, *, share_mem_pool: bool = False) -> None:
        super().__init__(share_mem_pool=share_mem_pool)
        # For each tensor that the last forward pass saved, whether it stays where it is.
        self.outputs_from_forward: list[bool] | None = None
        self.cuda_graph_runner = Runner(share_mem_pool=share_mem_pool)

    def transform_trace_post_optimization(self, trace: TraceCtx, **kwargs: Any) -> TraceCtx:
        """``trace`` with graphs. Called for a function's forward, then for its backward pass."""
        if trace.siginfo().name == "backward_fn":
            assert self.outputs_from_forward is not None, "a backward pass without a forward one"
            saved = _saved_for_backward(trace)
            for stays, proxy in zip(self.outputs_from_forward, saved, strict=True):
                if stays:
                    proxy.tags.add(ProxyTag.STATIC_MEMORY_LOCATION)
            self.outputs_from_forward = None
        fused = self.generate_fused_trace(trace, **kwargs)
        if TraceTag.AUGMENTED_FORWARD in fused.tags:
            graphs = [b for b in fused.bound_symbols if b.sym.executor is self]
            made = {p.name for bsym in graphs for p in bsym.flat_proxy_outs}
            self.outputs_from_forward = [
                p.name in made or ProxyTag.STATIC_MEMORY_LOCATION in p.tags
                for p in vjp_utils.get_saved_for_backward_tensors(fused)
            ]
        return fused

    def generate_fused_trace(self, trace: TraceCtx, **kwargs: Any) -> TraceCtx:
        """``trace`` with what is captured together as one symbol."""
        fused = super().generate_fused_trace(trace, **kwargs)
        producers, consumers = utils.producers_and_consumers(fused)
        fused.bound_symbols = [
            self.fuse(Region(producers, consumers, [b]), i) if _is_region(b) else b
            for i, b in enumerate(fused.bound_symbols)
        ]
        return fused


def _saved_for_backward(trace: TraceCtx) -> Sequence[Any]:
    """The tensors that a backward pass unpacks of what the forward pass has saved.

    Thunder's transform finds them by their position in the trace, which is another one where
    cotangents are DTensors.
    """
    tensors: Any = None
    for bsym in trace.bound_symbols:
        if bsym.sym.id is not PrimIDs.UNPACK_SEQUENCE:
            continue
        if bsym.args[0].name == "saved_for_backward":
            tensors = bsym.output[0]
        elif bsym.args[0] is tensors:
            return bsym.output  # type: ignore[no-any-return]
    raise ExecutorError(
        "the backward trace does not unpack what was saved for it, so it cannot be captured; jit "
        "the function without CUDAGraphTransform"
    )


def _is_region(bsym: BoundSymbol) -> bool:
    return bool(bsym.sym.is_fusion) and bsym.sym.executor is mdfuse_executor


class Runner(cudagraph.CUDAGraphRunner):  # type: ignore[misc]
    """Keeps the graphs, and replays them on the contents of new inputs."""

    def get_static_buffer(self, x: Any) -> Any:
        """A copy of an input, in memory that the graph reads."""
        if isinstance(x, DTensor):
            local = waited(x._local_tensor)
            return close(super().get_static_buffer(local), x._spec)
        return super().get_static_buffer(x)

    def build_cuda_graph(self, fn: Any, args: Any, static_args_mask: Any) -> Any:
        """The graph of ``fn``, its inputs and results. Raises ``ExecutorError`` without a GPU, and
        for tensors on the CPU: what computes on them would not run again in a replay.
        """
        found = {str(a.device) for a in args if isinstance(a, torch.Tensor) and a.ndim}
        others = sorted(name for name in found if not name.startswith("cuda"))
        if others or not torch.cuda.is_available():
            raise ExecutorError(
                f"CUDA graphs are of what runs on a GPU, found {_listed(others)}; move the module "
                "and its inputs to 'cuda', or call thunder.jit without CUDAGraphTransform"
            )
        return super().build_cuda_graph(fn, args, static_args_mask)

    def make_cache_key(self, fn_name: str, *args: Any) -> Hashable:
        """What a graph was captured for."""
        return super().make_cache_key(fn_name, *args), tuple(map(_place, args))

    def call_cuda_graph(self, fn_name: str, *args: Any) -> Any:
        """The results of a replay on ``args``, captured first if that is new."""
        key = self.make_cache_key(fn_name, *args)
        entry = self.cuda_graph_cache.get(key)
        if entry is None:
            function, _ = self.python_callables[fn_name]
            mask = self.make_static_inputs_mask(fn_name, *args)
            entry = self.cuda_graph_cache[key] = self.build_cuda_graph(function, args, mask)
        graph, static, outputs = entry
        for target, arg in zip(static, args, strict=True):
            if isinstance(arg, torch.Tensor) and target is not arg:
                _local(target).copy_(_local(arg))
        graph.replay()
        return outputs


def _listed(devices: Sequence[str]) -> str:
    return f"tensors on {', '.join(devices)}" if devices else "no GPU"


def _local(x: torch.Tensor) -> torch.Tensor:
    return waited(x._local_tensor) if isinstance(x, DTensor) else x


def _place(x: Any) -> Hashable:
    """Mesh and placements of a DTensor; the graph's own inputs keep the mesh alive."""
    return (id(x._spec.mesh), x._spec.placements) if isinstance(x, DTensor) else None
