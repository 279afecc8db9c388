"""Every collective against plain torch on all shards; started by test_collectives_multirank.py.

Each rank makes every rank's input from a seed, so that the expected result needs no communication.
Runs on the whole group, on the two axes of a 2x2 mesh, and on a mesh with permuted ids.
"""

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.distributed as dist
from communicator_ranks import make
from torch.distributed.device_mesh import DeviceMesh

from thunder_mdfuse.comm.collectives import (
    start_all_gather,
    start_all_reduce,
    start_all_to_all,
    start_broadcast,
    start_permute,
    start_reduce_scatter,
)
from thunder_mdfuse.comm.communicator import Communicator
from thunder_mdfuse.comm.team import Team, group_team, mesh_team
from thunder_mdfuse.comm.wire import Traffic, chunk_extent, chunk_size
from thunder_mdfuse.errors import CommError

DTYPES = (
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
F8 = DTYPES[-2:]
# A kind of element (by size and by how it is reduced) is tried with all sizes, splits and layouts,
# its siblings with a few: what differs between them is one row of a table.
THOROUGH = (torch.int16, torch.bfloat16, torch.float32, torch.complex64)
FULL = (0, 1, 3, 4, 5, 6, 8, 9)  # empty, fewer than ranks, uneven with an empty last chunk, even
FEW = (5, 8)


def value(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        # Large enough that a sum of small integers wraps around.
        return torch.randint(-100, 100, shape, generator=made).to(dtype)
    real = torch.randint(-8, 8, shape, generator=made).double() / 4
    if dtype.is_complex:
        return torch.complex(real, real.flip(0) if real.ndim else real).to(dtype)
    return real.to(dtype)


def chunk(x: torch.Tensor, dim: int, size: int, p: int) -> torch.Tensor:
    full = x.size(dim)
    start = min(p * chunk_size(full, size), full)
    return x.narrow(dim, start, chunk_extent(full, size, p))


def same(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    assert found.is_contiguous(), f"{what}: strides {found.stride()}"
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (
        f"{what}: found {found.dtype}{list(found.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
    )
    if wanted.dtype in F8:
        found, wanted = found.float(), wanted.float()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True, msg=what)


def sizes(dtype: torch.dtype) -> tuple[int, ...]:
    return FULL if dtype in THOROUGH else FEW


def strided(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same values with three memory layouts."""
    yield x.clone()
    if x.dtype not in THOROUGH:
        return
    yield (
        x.t().contiguous().t() if x.ndim == 2 else x.transpose(0, -1).contiguous().transpose(0, -1)
    )
    yield torch.stack([x, x], -1)[..., 0]


def check_data_moves(team: Team, dtype: torch.dtype) -> None:
    me, size = team.member()[0], team.size
    for n, dim in product(sizes(dtype), (0, 1)):
        full = value((n, 3) if dim == 0 else (2, n), dtype, n)
        for x in strided(chunk(full, dim, size, me)):
            before = x.clone()
            found = start_all_gather(x, team, dim, n).wait()
            same(found, full, f"all_gather {dtype} {n} dim {dim}")
            same(x.contiguous(), before.contiguous(), "input of all_gather")
    few = dtype not in THOROUGH
    splits, cats, dims = ((5,), (6,), ((1, 0),)) if few else ((0, 4, 5), (3, 4), ((0, 1), (2, 0)))
    for n, m, (split, cat) in product(splits, cats, dims):
        shape = [2, 2, 2]
        shape[split], shape[cat] = n, m
        full = value(tuple(shape), dtype, n * 10 + m)
        for x in strided(chunk(full, cat, size, me)):
            found = start_all_to_all(x, team, split, n, cat, m).wait()
            same(found, chunk(full, split, size, me).contiguous(), f"all_to_all {dtype} {n} {m}")
    for source, shape in product(range(size), ((), (3,), (2, 0), (2, 3))):
        x = value(shape, dtype, me + 1)
        found = start_broadcast(x, team, source).wait()
        same(found, value(shape, dtype, source + 1), f"broadcast {dtype} from {source}")
    check_permute(team, dtype)


def check_permute(team: Team, dtype: torch.dtype) -> None:
    me, size = team.member()[0], team.size
    rotation = [(p, (p + 1) % size) for p in range(size)]
    x = value((2, 3), dtype, me)
    same(
        start_permute(x.t().contiguous().t(), team, rotation).wait(),
        value((2, 3), dtype, (me - 1) % size),
        f"permute {dtype}",
    )
    found = start_permute(x, team, [(size - 1, 0)]).wait()
    wanted = value((2, 3), dtype, size - 1) if me == 0 else torch.zeros(2, 3, dtype=dtype)
    same(found, wanted, f"permute of one pair {dtype}")
    # Positions may hold chunks of different lengths.
    shape = (me + 1, 2)
    came = ((me - 1) % size + 1, 2)
    found = start_permute(value(shape, dtype, me), team, rotation, shape=came).wait()
    same(found, value(came, dtype, (me - 1) % size), f"uneven permute {dtype}")


def reduced(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    dtype = inputs[0].dtype
    stack = torch.stack(inputs)
    if dtype == torch.bool:
        return stack.any(0) if op in ("sum", "max") else stack.all(0)
    if not dtype.is_floating_point and not dtype.is_complex:
        wide = stack.long()
    else:
        wide = stack.to(torch.complex128 if dtype.is_complex else torch.float64)
    folds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda s: s.sum(0),
        "avg": lambda s: s.mean(0),
        "min": lambda s: s.amin(0),
        "max": lambda s: s.amax(0),
        "product": lambda s: s.prod(0),
    }
    return folds[op](wide).to(dtype)


def refused(dtype: torch.dtype, op: str) -> bool:
    if dtype in F8:
        return op not in ("min", "max")
    if dtype.is_complex:
        return op in ("min", "max")
    return op == "avg" and not dtype.is_floating_point


def check_reductions(team: Team, dtype: torch.dtype) -> None:
    me, size = team.member()[0], team.size
    for op in ("sum", "avg", "min", "max", "product"):
        if refused(dtype, op):
            try:
                start_all_reduce(value((2,), dtype, 0), team, op)
            except CommError:
                continue
            raise AssertionError(f"{op} in {dtype} was not refused")
        for shape in ((), (5,), (2, 0), (3, 4)):
            all_ = [value(shape, dtype, 7 * p + 1) for p in range(size)]
            wanted = reduced(all_, op)
            x = all_[me].clone()
            same(start_all_reduce(x, team, op).wait(), wanted, f"all_reduce {op} {dtype} {shape}")
            same(x, all_[me], "input of all_reduce")
            same(start_all_reduce(x, team, op, in_place=True).wait(), wanted, "in place")
        for n, dim in product(sizes(dtype), (0, 1)):
            all_ = [value((n, 3) if dim == 0 else (2, n), dtype, 5 * p + n) for p in range(size)]
            wanted = chunk(reduced(all_, op), dim, size, me).contiguous()
            for x in strided(all_[me]):
                found = start_reduce_scatter(x, team, dim, op).wait()
                same(found, wanted, f"reduce_scatter {op} {dtype} {n} dim {dim}")
                same(x.contiguous(), all_[me], "input of reduce_scatter")


def check_extremes(team: Team) -> None:
    """A NaN at any rank makes min and max NaN, as amax over the unsharded tensor would."""
    me, size = team.member()[0], team.size
    for dtype, op in product((torch.float32, torch.bfloat16, torch.float64), ("min", "max")):
        for holder in range(size):
            x = torch.tensor([1.0, float("-inf"), -0.5 * me], dtype=dtype)
            x[0] = float("nan") if me == holder else 1.0
            found = start_all_reduce(x, team, op).wait()
            last = 0.0 if op == "max" else -0.5 * (size - 1)
            wanted = torch.tensor([float("nan"), float("-inf"), last], dtype=dtype)
            same(found + 0, wanted + 0, f"{op} with NaN at {holder}")
    # Above the size at which contributions are gathered whole, and not a multiple of the team.
    n = (1 << 20) + 3
    large = torch.arange(n, dtype=torch.int16) * (me + 1)
    wanted = torch.arange(n, dtype=torch.int16) * sum(range(1, size + 1))
    traffic = Traffic()
    same(start_all_reduce(large, team, "sum", traffic=traffic).wait(), wanted, "large fold")
    assert traffic.total < 2 * large.nbytes, "a folded all_reduce sends no more than a ring"
    rows = [torch.arange(n, dtype=torch.int16).view(1, n) * (p + 1) for p in range(size)]
    same(start_all_reduce(rows[me], team, "max").wait(), reduced(rows, "max"), "large max")


def check_overlap_and_traffic(team: Team) -> None:
    me, size = team.member()[0], team.size
    traffic = Traffic()
    pending = [
        start_all_reduce(torch.full((4,), float(me + i)), team, traffic=traffic) for i in range(5)
    ]
    gathered = start_all_gather(torch.full((2,), me), team, 0, 2 * size, traffic=traffic)
    for i, p in reversed(list(enumerate(pending))):
        total = float(sum(range(size)) + i * size)
        same(p.wait(), torch.full((4,), total), "waited for in another order")
        assert p.wait() is p.wait()
    same(gathered.wait(), torch.arange(size).repeat_interleave(2), "gather among reductions")
    if size > 1:
        assert traffic.calls == {"all_reduce": 5, "all_gather": 1}, traffic
        wanted = 5 * 2 * 16 * (size - 1) // size
        assert traffic.sent["all_gather"] == 16 * (size - 1), traffic
        assert abs(traffic.sent["all_reduce"] - wanted) <= 10, traffic


def check_refusals(team: Team) -> None:
    me, size = team.member()[0], team.size
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: start_all_gather(torch.ones(9), team, 0, 4 * size), "must have 4"),
        (lambda: start_all_gather(torch.ones(4), team, 1, 4), "no dim 1"),
        (lambda: start_all_reduce(torch.ones(4), team, "mean"), "one of sum"),
        (lambda: start_broadcast(torch.ones(4), team, size), "positions"),
        (lambda: start_permute(torch.ones(4), team, [(0, 0), (0, 0)]), "twice"),
        (lambda: start_all_to_all(torch.ones(4, 4), team, 0, 4, 0, 4), "two dims"),
    ]
    for call, text in bad:
        try:
            call()
        except CommError as e:
            assert text in str(e), str(e)
        else:
            raise AssertionError(f"not refused: {text} at {me}")


def teams() -> Iterator[Team]:
    n = dist.get_world_size()
    yield group_team(dist.group.WORLD, "world")
    if n == 4:
        grid = DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("dp", "tp"))
        yield mesh_team(grid, "dp")
        yield mesh_team(grid["tp"], 0)
    reverse = DeviceMesh("cpu", list(reversed(range(n))), mesh_dim_names=("tp",))
    yield mesh_team(reverse, "tp")
    alone = DeviceMesh("cpu", [list(range(n))], mesh_dim_names=("one", "all"))
    yield mesh_team(alone, "one")


def main(ranks: str) -> None:
    make(ranks)
    communicator = Communicator.instance()
    for i, team in enumerate(teams()):
        start = time.monotonic()
        # All dtypes once, with two ranks; other teams are there for their order and their size.
        every = DTYPES if team.size == 2 else THOROUGH
        for dtype in every if i == 0 else (torch.int16, torch.float64):
            check_data_moves(team, dtype)
            check_reductions(team, dtype)
        check_extremes(team)
        check_overlap_and_traffic(team)
        check_refusals(team)
        if communicator.rank() == 0:
            print(f"{team}: {time.monotonic() - start:.1f} s")
    communicator.barrier()
    print(f"rank {communicator.rank()} ok")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1])
