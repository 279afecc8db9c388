"""The callable of a region: what it remembers, what it shows, how it is reached."""

import gc
import weakref

import thunder
import torch
import torch.distributed as dist
from against_eager import jit, regions
from thunder.examine import get_fusion_symbols, get_fusions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import thunder_mdfuse
from thunder_mdfuse import mdfuse_executor


def test_the_executor_is_registered() -> None:
    assert thunder.get_executor("mdfuse") is mdfuse_executor
    assert mdfuse_executor.name == "mdfuse"
    assert mdfuse_executor.version == thunder_mdfuse.__version__


def test_repr_names_the_prims() -> None:
    jitted = jit(lambda x, y: x * 2 + y)
    jitted(torch.ones(3), torch.ones(3))
    (region,) = regions(jitted)
    assert repr(region) == "mdFusion0: (mul, add)"


def test_nothing_is_compiled_before_the_first_call() -> None:
    jitted = jit(lambda x: (x * 2).sum())
    jitted(torch.ones(3, requires_grad=True))
    forward, backward = regions(jitted)
    assert forward.cache_info().specialisations == 1 and forward.last_used is not None
    assert backward.cache_info().specialisations == 0 and backward.last_used is None


def test_the_cache_counts_and_clears() -> None:
    jitted = jit(lambda x: x * 2 + 1)
    x = torch.randn(3)
    jitted(x)
    jitted(x)
    (region,) = regions(jitted)
    assert (region.cache_info().calls, region.cache_info().specialisations) == (2, 1)
    region.cache_clear()
    assert region.last_used is None and region.cache_info().specialisations == 0
    torch.testing.assert_close(jitted(x), x * 2 + 1)


def test_equal_regions_share_an_executable() -> None:
    first, second = (jit(lambda x: x * 2 + 1) for _ in range(2))
    x = torch.randn(3)
    first(x), second(x)
    (a,), (b,) = regions(first), regions(second)
    assert a is not b and a.last_used is b.last_used


def test_generated_code_is_shown() -> None:
    jitted = jit(lambda x: x * 2 + 1)
    jitted(torch.randn(3))
    (region,) = regions(jitted)
    assert "__global__" in region.last_cuda_code()
    assert region.last_used is not None and "mul" in str(region.last_used)


def test_inputs_are_kept_on_request_only() -> None:
    x = torch.randn(3)
    for options, kept in (({}, False), ({"mdfuse_keep_inputs": True}, True)):
        jitted = jit(lambda x: x * 2 + 1, **options)
        jitted(x)
        (region,) = regions(jitted)
        assert (region.last_inputs is not None) is kept
    assert region.last_inputs[0].data_ptr() == x.data_ptr()


def test_thunder_finds_our_fusions() -> None:
    jitted = jit(lambda x: x * 2 + 1)
    jitted(torch.randn(3))
    trace = thunder.last_traces(jitted)[-1]
    (found,) = get_fusions(trace, warn_if_fusions_unavailable=False)
    assert found[0] == "mdFusion0" and found[1] is regions(jitted)[0]
    (symbol,) = get_fusion_symbols(trace, warn_if_fusions_unavailable=False)
    assert symbol.sym.executor is mdfuse_executor


def test_strides_of_the_inputs_are_no_assumption() -> None:
    # Thunder guards no strides of plain tensors: all of these calls hit one trace.
    function = lambda x, y: (x * 2 + y, x.reshape(12))
    jitted = jit(function)
    whole = torch.randn(6, 8)
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), whole[::2, ::2], whole[:3, 1:5]):
        found, wanted = jitted(x, torch.ones(4)), function(x, torch.ones(4))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
    assert thunder.cache_misses(jitted) == 1


def test_no_mesh_of_a_call_is_kept_alive() -> None:
    """Thunder's trace keeps the mesh that it was made with; equal ones come and go."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        jitted, local = jit(lambda x: x * 2.0 + x), torch.randn(4, 3)

        def call() -> "weakref.ref[object]":
            mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
            found = jitted(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))
            assert found.device_mesh is mesh and found.placements == (Shard(0),)
            torch.testing.assert_close(found.to_local(), local * 3)
            return weakref.ref(mesh)

        call()
        later = [call() for _ in range(2)]
        gc.collect()
        assert [mesh() for mesh in later] == [None, None]
        (region,) = regions(jitted)
        assert region.cache_info().specialisations == 1
    finally:
        dist.destroy_process_group()
