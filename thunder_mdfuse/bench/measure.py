"""Timing on a GPU: CUDA-graph replays of many calls over rotating inputs, providers interleaved.

One call's time is a replay's time over its calls. Rounds take the providers in rotated order, so
that clocks and temperature treat all alike; a figure is the median over rounds. Inputs rotate over
sets larger than four times the L2 cache.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse.comm.communicator import Communicator

Thunk = Callable[[], object]

CALLS = 20
ROUNDS = 7
REPLAYS = 3
L2_BYTES = 60 << 20
# Between the two buffers of the reference copy: no multiple of a large power of two.
GAP, ALIGNMENT = (5 << 20) + (3 << 14) + 4096, 4096


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median over rounds and the spread (max - min)."""

    median: float
    spread: float


def input_sets(make: Callable[[], tuple[torch.Tensor, ...]]) -> list[tuple[torch.Tensor, ...]]:
    """Enough sets of inputs that reuse is further apart than four L2 caches, if 20 are enough."""
    sets = [make()]
    one = sum(t.nbytes for t in sets[0])
    while len(sets) * one < 4 * L2_BYTES and len(sets) < CALLS:
        sets.append(make())
    return sets


def captured(thunks: Callable[[], Sequence[Thunk]]) -> torch.cuda.CUDAGraph:
    """A graph of ``CALLS`` calls of what ``thunks`` prepares, warmed up before capture.

    Everything runs on one stream: a gradient is computed on the stream of its forward.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls = thunks()
        for call in calls:
            call()
        with _not_waiting():
            calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(CALLS):
            calls[i % len(calls)]()
    return graph


@contextmanager
def _not_waiting() -> Iterator[None]:
    """Raises where the host would wait for the GPU: found during a capture, that would leave
    torch's random state unusable for the rest of the process.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def waited(device: torch.device) -> None:
    """Returns when all that ``device`` was given is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ranks_mesh() -> tuple[DeviceMesh, torch.device]:
    """All ranks of the launcher along one axis, and this rank's device: a GPU, or the CPU."""
    size = dist.get_world_size(Communicator.instance().group)  # made here, for one rank as well
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = DeviceMesh(kind, list(range(size)), mesh_dim_names=("tp",))
    if kind == "cuda":
        return mesh, torch.device(kind, torch.cuda.current_device())
    return mesh, torch.device(kind)


def slowest(value: float, device: torch.device) -> float:
    """The largest ``value`` of all ranks."""
    found = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def host_time(call: Thunk, seconds: float = 0.2) -> float:
    """Microseconds that the host is busy with one call; the GPU catches up in between."""
    batch, times = 20, []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - begin) / batch)
    return statistics.median(times) * 1e6


def interleaved(graphs: dict[str, torch.cuda.CUDAGraph]) -> dict[str, Timing]:
    """The time of one call of each graph's provider."""
    names = list(graphs)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    for round_number in range(ROUNDS):
        shift = round_number % len(names)
        for name in names[shift:] + names[:shift]:
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(REPLAYS):
                graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            samples[name].append(begin.elapsed_time(end) / REPLAYS / CALLS * 1e3)
    return {name: Timing(statistics.median(s), max(s) - min(s)) for name, s in samples.items()}


def copy_reference(nbytes: int, device: torch.device) -> Thunk:
    """A call that copies ``nbytes / 2`` bytes, so that it moves ``nbytes``: the ratio's
    denominator.

    Buffers a power of two apart would cost a third of the bandwidth, so both are cut from one piece
    at a distance that is none.
    """
    half = nbytes // 2
    gap = GAP - half % ALIGNMENT
    whole = torch.randint(0, 255, (2 * half + gap,), dtype=torch.uint8, device=device)
    source, target = whole[:half], whole[half + gap :]

    def call() -> object:
        return target.copy_(source)

    return call
