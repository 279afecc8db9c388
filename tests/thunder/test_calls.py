"""Calls of what was traced before: all that Thunder asks of a call is asked, in less time."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import thunder
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from thunder_mdfuse import mdfuse_executor
from thunder_mdfuse.thunder import calls


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)


@pytest.fixture
def one_rank() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def jit(function: Callable[..., Any], **options: Any) -> Any:
    return thunder.jit(function, executors=[mdfuse_executor], **options)


def counts(jitted: Any) -> tuple[int, int]:
    return thunder.cache_hits(jitted), thunder.cache_misses(jitted)


def shorter(jitted: Any) -> bool:
    cell = calls._variables(thunder.compile_data(jitted).get_computation_and_inputs)
    return hasattr(cell["get_computation_and_inputs_fn"].cell_contents, "mdfuse")


def test_only_jits_of_this_executor_are_changed() -> None:
    x = torch.randn(4)
    ours, others = jit(torch.sin), thunder.jit(torch.sin)
    for call in (ours, others):
        call(x)
    assert shorter(ours) and not shorter(others)
    decorated = thunder.compile_stats(others).interpreter_cache[0].epilogue_fn
    assert hasattr(decorated.__wrapped__, "__wrapped__")
    (entry,) = thunder.compile_stats(ours).interpreter_cache
    assert not hasattr(entry.epilogue_fn.__wrapped__, "__wrapped__")


def test_what_is_noted_of_calls_is_thunders() -> None:
    """Two cache entries in turn, with statistics and traces of the last call."""
    found = []
    for make in (jit, thunder.jit):
        jitted = make(lambda a, n: a * n + a.sum(-1, keepdim=True))
        notes = []
        for shape, n in (((2, 3), 2), ((4, 3), 2), ((2, 3), 2), ((2, 3), 2.0), ((4, 3), 2)):
            jitted(torch.ones(shape), n)
            result = thunder.last_traces(jitted)[0].bound_symbols[-1].args
            prologue = str(thunder.last_prologue_traces(jitted)[0])
            notes.append((*counts(jitted), len(result), str(shape) in prologue))
            stats = thunder.compile_stats(jitted)
            assert stats.last_trace_host_execution_stop > stats.last_trace_host_execution_start
            assert stats.last_prologue is not None and stats.calls == len(notes)
        found.append(notes)
    assert found[0] == found[1]
    assert found[0][-1][:2] == (2, 3)


def test_defaults_are_guarded() -> None:
    jitted = jit(lambda x: torch.zeros(3) + x)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        assert jitted(1.0).dtype is dtype
    assert counts(jitted) == (1, 2)
    torch.set_default_device("meta")
    assert jitted(1.0).device.type == "meta"
    torch.set_default_device(None)
    with torch.device("meta"):
        assert jitted(1.0).device.type == "meta"
    assert jitted(1.0).device.type == "cpu"
    assert thunder.cache_misses(jitted) == 3


@pytest.mark.parametrize("enabled", [True, False])
def test_grad_mode_is_guarded_and_left_as_it_was(enabled: bool) -> None:
    jitted = jit(lambda x: (x * 2).sum())
    x = torch.randn(4, requires_grad=True)
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with torch.set_grad_enabled(enabled):
            with mode():
                result, wanted = jitted(x), (x * 2).sum()
                assert torch.is_grad_enabled() == (mode is torch.enable_grad)
            assert torch.is_grad_enabled() == enabled
        assert result.requires_grad == wanted.requires_grad
        torch.testing.assert_close(result, wanted)


def test_grad_mode_is_as_it_was_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jit(lambda x: x * 2)
    x = torch.randn(4)
    jitted(x)

    def fail(*args: Any) -> None:
        raise ValueError("found")

    (entry,) = thunder.compile_stats(jitted).interpreter_cache
    bare = entry.computation_fn.__wrapped__
    monkeypatch.setitem(bare.__globals__, "mdFusion0", fail)
    with torch.enable_grad(), pytest.raises(ValueError, match="found"):
        jitted(x)
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:torch.get_autocast_gpu_dtype:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.is_autocast_cpu_enabled:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.get_autocast_cpu_dtype:DeprecationWarning")
def test_autocast_goes_thunders_way() -> None:
    jitted = jit(lambda a, b: torch.nn.functional.linear(a, b) * 2)
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    for dtype in (None, torch.bfloat16, None, torch.bfloat16):
        with nullcontext() if dtype is None else torch.autocast("cpu", dtype):
            found, wanted = jitted(a, b), torch.nn.functional.linear(a, b) * 2
            assert torch.is_autocast_enabled("cpu") == (dtype is not None)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)


def test_aliases_are_guarded() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    jitted = jit(function)
    for shared in (False, True, False, True):
        room, other = torch.ones(4, 4), torch.ones(4, 4)
        wanted_room, wanted_other = room.clone(), other.clone()
        found = jitted(room, room if shared else other)
        wanted = function(wanted_room, wanted_room if shared else wanted_other)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(room, wanted_room)
    assert counts(jitted) == (2, 2)


def test_arguments_of_all_kinds() -> None:
    def function(a: Any, b: Any = 1, *, more: Any = ()) -> Any:
        total = a * b
        for value in more:
            total = total + value
        return {"total": total, "same": a}

    jitted = jit(function)
    x, y = torch.randn(3), torch.randn(3)
    for args, options in (
        ((x,), {}),
        ((x, 2), {}),
        ((x, 2.0), {}),
        ((x,), {"b": y}),
        ((x,), {"b": y, "more": [x, y]}),
        ((x,), {"more": (x,)}),
        ((x, torch.nn.Parameter(y)), {}),
    ):
        for _ in range(2):
            found, wanted = jitted(*args, **options), function(*args, **options)
            torch.testing.assert_close(found["total"], wanted["total"])
            assert found["same"] is x
    assert counts(jitted) == (7, 7)


@dataclass
class Masked:
    mask: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any


FORMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "a dim or none": (lambda x, n: x * 2 if n is None else x.sum(n), [(None,), (0,), (1,)]),
    "a mask or none": (
        lambda x, m=None: x if m is None else x * m,
        [(None,), (torch.full((4,), 3.0),), (2.0,), ()],
    ),
    "a mask that nobody reads": (
        lambda x, m: x * 3 if m is None else x + 1,
        [(torch.ones(4),), (None,)],
    ),
    "a dict": (
        lambda x, d: sum(d.values()) * x,
        [({"a": 1.0},), ({"a": 1.0, "b": 2.0},), ({"a": 2.0},), ({"c": 2.0, "a": 3.0},)],
    ),
    "a list of none": (
        lambda x, d: x * len([v for v in d if v is None]),
        [([None, 1],), ([1, None],), ([None, None],), ([None],)],
    ),
    "dims": (lambda x, d: x.sum(d) * 2, [((1,),), ((0, 1),), (0,), ([0],)]),
    "a dataclass": (
        lambda x, m: x if m.mask is None else x * m.mask,
        [(Masked(),), (Masked(3.0),), (Masked(torch.full((4,), 2.0)),)],
    ),
    "a named tuple": (
        lambda x, p: x * p.left if p.right is None else x * p.right,
        [(Pair(2.0, None),), (Pair(2.0, 3.0),), (Pair(None, 4.0),)],
    ),
    "nested": (
        lambda x, d: x if d["a"][0] is None else x * d["a"][0],
        [({"a": (None, 1)},), ({"a": (2.0, 1)},), ({"a": (None,)},)],
    ),
}


@pytest.mark.parametrize(("function", "calls_of_it"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("order", [1, -1])
def test_what_there_is_none_of_is_guarded(
    function: Callable[..., Any], calls_of_it: list[tuple[Any, ...]], order: int
) -> None:
    jitted, x = jit(function), torch.randn(3, 4)
    for args in calls_of_it[::order] * 2:
        torch.testing.assert_close(jitted(x, *args), function(x, *args))
    assert thunder.cache_hits(jitted) >= len(calls_of_it)


def test_keywords_may_come_in_any_order() -> None:
    jitted = jit(lambda x, a=None, b=None: x * (2 if a is None else a) + (b or 0))
    x = torch.ones(3)
    for _ in range(2):
        torch.testing.assert_close(jitted(x, a=3.0, b=1.0), x * 3 + 1)
        torch.testing.assert_close(jitted(x, b=1.0, a=3.0), x * 3 + 1)
        torch.testing.assert_close(jitted(x, b=1.0, a=None), x * 2 + 1)
        torch.testing.assert_close(jitted(x, b=1.0), x * 2 + 1)
    assert counts(jitted) == (5, 3)


def test_tensors_and_dtensors_are_told_apart(one_rank: DeviceMesh) -> None:
    """Of the same shape, dtype and device; Thunder's guards take one for the other."""
    function = lambda x, y: x * 2 + y
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    given = [
        (x, y),
        (distribute_tensor(x, one_rank, [Shard(0)]), distribute_tensor(y, one_rank, [Shard(0)])),
    ]
    for order in (given, given[::-1]):
        jitted = jit(function)
        for args in (*order, *order):
            found = jitted(*args)
            assert type(found) is type(args[0])
            whole = found.full_tensor() if isinstance(found, DTensor) else found
            torch.testing.assert_close(whole, x * 2 + y)
        assert counts(jitted) == (2, 2)


@pytest.mark.filterwarnings("ignore:The 'symbolic values' cache option")
@pytest.mark.parametrize("cache", ["no caching", "symbolic values"])
def test_other_caches(cache: str) -> None:
    jitted = jit(lambda x: x * 2, cache=cache)
    x = torch.randn(4, 4)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), x * 2)
    assert thunder.cache_misses(jitted) == (3 if cache == "no caching" else 1)


def test_a_jit_is_kept_alive_no_longer() -> None:
    jitted = jit(lambda x: x * 2)
    jitted(torch.randn(4))
    known = weakref.ref(thunder.compile_data(jitted))
    del jitted
    gc.collect()
    assert known() is None


def test_decorators_that_are_not_known_stay() -> None:
    plain = lambda: torch.is_grad_enabled()
    assert calls.undecorated(plain) is plain
    once = torch.no_grad()(plain)
    assert calls.undecorated(once) is once
    twice = torch.no_grad()(once)
    assert calls.undecorated(twice) is twice
