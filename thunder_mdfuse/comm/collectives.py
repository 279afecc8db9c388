"""Collectives on local tensors over a team, each started here and waited for with ``Pending.wait``.

In: a local tensor of any strides and a ``Team``. Out: a ``Pending`` whose result is a contiguous
tensor that shares no memory with the input (unless ``in_place`` allows it). Chunks follow DTensor's
rule: equal lengths, trailing ones shorter or empty; positions are mesh coordinates. Nothing waits
for the device, so that every function may run under CUDA graph capture. What is sent depends on
shapes, dtypes and the team alone, so all ranks send the same list of messages.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from thunder_mdfuse.comm.pending import Pending, What, backend_name, named_failure
from thunder_mdfuse.comm.reductions import Folded, Native, reduction
from thunder_mdfuse.comm.team import Team
from thunder_mdfuse.comm.watch import watch
from thunder_mdfuse.comm.wire import (
    Traffic,
    as_bytes,
    chunk_extent,
    chunk_size,
    from_blocks,
    padded,
    plain,
    ring_bytes,
    to_blocks,
    with_size,
)
from thunder_mdfuse.errors import CommError

# Up to this many gathered bytes a folded all_reduce gathers everything and folds once; above, it
# exchanges chunks, folds, and gathers the results. The second sends 2/size of the bytes but costs
# a second collective. Reasoned, not measured: a collective's latency is some 15 us, the time of
# 1 MiB at 70 GB/s.
_GATHER_TO_FOLD = 1 << 20


def start_all_gather(
    x: torch.Tensor, team: Team, dim: int, full_size: int, *, traffic: Traffic | None = None
) -> Pending:
    """``Shard(dim)`` -> ``Replicate``: every position's chunk, ``full_size`` along ``dim``."""
    what = What("all_gather", x, f" on dim {dim} to size {full_size}")
    dim = _dim(x, dim, what)
    position, group = team.member()
    _check_extent(x, dim, full_size, team, position, what)
    x = plain(x)
    if team.size == 1:
        return Pending.done(what, team, _copy(x))
    shape = with_size(x.shape, dim, full_size)
    if math.prod(shape) == 0:
        return Pending.done(what, team, x.new_empty(shape))
    send = padded(x, dim, chunk_size(full_size, team.size))
    blocks = send.new_empty((team.size, *send.shape))
    _count(traffic, "all_gather", ring_bytes("all_gather", blocks.nbytes, team.size))
    work = _start(
        what,
        team,
        lambda: dist.all_gather_into_tensor(as_bytes(blocks), as_bytes(send), group, async_op=True),
    )
    finish = lambda: from_blocks(blocks, dim, full_size, team.order)
    return Pending(what, team, work, finish, (send, blocks))


def start_all_reduce(
    x: torch.Tensor,
    team: Team,
    op: str = "sum",
    *,
    in_place: bool = False,
    overlaps: bool = True,
    traffic: Traffic | None = None,
) -> Pending:
    """``Partial(op)`` -> ``Replicate``. ``in_place``: ``x`` is not needed and may be the result.

    ``overlaps``: whether anything is to run before the wait; if not, NCCL works in the current
    stream, which takes the host half the time of another stream and back.
    """
    what = What(f"all_reduce({op})", x)
    _, group = team.member()
    backend = backend_name(group, x.device)
    how = reduction(x.dtype, op, backend, team.size)
    x = plain(x)
    if team.size == 1 or x.numel() == 0:
        return Pending.done(what, team, x if in_place and x.is_contiguous() else _copy(x))
    if isinstance(how, Folded):
        return _folded_all_reduce(what, x, team, how.fold, traffic)
    buffer = x if in_place and x.is_contiguous() else _copy(x)
    _count(traffic, "all_reduce", ring_bytes("all_reduce", buffer.nbytes, team.size))
    finish = lambda: _divided(buffer, how)
    if not overlaps and backend == "nccl":
        with named_failure(what, team):
            dist.all_reduce(_real(buffer), how.op, group)
        watch(team, buffer.device)
        return Pending(what, team, None, finish, (buffer,))
    work = _start(what, team, lambda: dist.all_reduce(_real(buffer), how.op, group, async_op=True))
    return Pending(what, team, work, finish, (buffer,))


def start_reduce_scatter(
    x: torch.Tensor, team: Team, dim: int, op: str = "sum", *, traffic: Traffic | None = None
) -> Pending:
    """``Partial(op)`` -> ``Shard(dim)``: this position's chunk of the reduced tensor."""
    what = What(f"reduce_scatter({op})", x, f" on dim {dim}")
    dim = _dim(x, dim, what)
    position, group = team.member()
    how = reduction(x.dtype, op, backend_name(group, x.device), team.size)
    x = plain(x)
    if team.size == 1:
        return Pending.done(what, team, _copy(x))
    extent = chunk_extent(x.size(dim), team.size, position)
    if x.numel() == 0:
        return Pending.done(what, team, x.new_empty(with_size(x.shape, dim, extent)))
    blocks = to_blocks(x, dim, team.order)
    _count(traffic, "reduce_scatter", ring_bytes("reduce_scatter", blocks.nbytes, team.size))
    if isinstance(how, Folded):
        fold = how.fold
        received = torch.empty_like(blocks)
        work = _start(
            what,
            team,
            lambda: dist.all_to_all_single(
                as_bytes(received), as_bytes(blocks), group=group, async_op=True
            ),
        )
        finish = lambda: fold(received).narrow(dim, 0, extent).contiguous()
        return Pending(what, team, work, finish, (blocks, received))
    native = how
    chunk = blocks.new_empty(blocks.shape[1:])
    work = _start(
        what,
        team,
        lambda: dist.reduce_scatter_tensor(
            _real(chunk).reshape(-1), _real(blocks).reshape(-1), native.op, group, async_op=True
        ),
    )
    finish = lambda: _divided(chunk, native).narrow(dim, 0, extent).contiguous()
    return Pending(what, team, work, finish, (blocks, chunk))


def start_all_to_all(
    x: torch.Tensor,
    team: Team,
    split_dim: int,
    split_size_full: int,
    cat_dim: int,
    cat_size_full: int,
    *,
    traffic: Traffic | None = None,
) -> Pending:
    """``Shard(cat_dim)`` -> ``Shard(split_dim)``.

    ``x`` has all of ``split_size_full`` and this position's chunk of ``cat_size_full``; the result
    has this position's chunk of ``split_size_full`` and all of ``cat_size_full``.
    """
    what = What("all_to_all", x, f" from dim {cat_dim} to dim {split_dim}")
    split_dim, cat_dim = _dim(x, split_dim, what), _dim(x, cat_dim, what)
    position, _ = team.member()
    if split_dim == cat_dim or x.size(split_dim) != split_size_full:
        raise CommError(
            f"{what} needs two dims, the first of {split_size_full} elements; found dims "
            f"{split_dim} and {cat_dim}; pass the local shard of dim {cat_dim}"
        )
    _check_extent(x, cat_dim, cat_size_full, team, position, what)
    x = plain(x)
    if team.size == 1:
        return Pending.done(what, team, _copy(x))
    size = team.size
    out_extent = chunk_extent(split_size_full, size, position)
    out_shape = with_size(with_size(x.shape, split_dim, out_extent), cat_dim, cat_size_full)
    if math.prod(with_size(out_shape, split_dim, split_size_full)) == 0:
        return Pending.done(what, team, x.new_empty(out_shape))
    chunk = chunk_size(split_size_full, size)
    sent = [
        x.narrow(split_dim, min(p * chunk, split_size_full), chunk_extent(split_size_full, size, p))
        for p in range(size)
    ]
    shapes = [
        with_size(out_shape, cat_dim, chunk_extent(cat_size_full, size, p)) for p in range(size)
    ]
    finish = lambda pieces: torch.cat(pieces, cat_dim)
    return _exchange(what, "all_to_all", team, sent, shapes, finish, traffic)


def start_broadcast(
    x: torch.Tensor, team: Team, source: int, *, traffic: Traffic | None = None
) -> Pending:
    """Position ``source``'s ``x`` everywhere; other positions' ``x`` gives shape and dtype only."""
    what = What("broadcast", x, f" from position {source}")
    position, group = team.member()
    _check_position(source, team, what)
    x = plain(x)
    if team.size == 1 or x.numel() == 0:
        return Pending.done(what, team, _copy(x))
    buffer = _copy(x) if position == source else x.new_empty(x.shape)
    _count(traffic, "broadcast", ring_bytes("broadcast", buffer.nbytes, team.size))
    work = _start(
        what,
        team,
        lambda: dist.broadcast(
            as_bytes(buffer), group=group, async_op=True, group_src=team.order[source]
        ),
    )
    return Pending(what, team, work, lambda: buffer, (buffer,))


def start_permute(
    x: torch.Tensor,
    team: Team,
    pairs: Sequence[tuple[int, int]],
    *,
    shape: Sequence[int] | None = None,
    traffic: Traffic | None = None,
) -> Pending:
    """Sends ``x`` from position ``a`` to position ``b`` for each ``(a, b)`` of ``pairs``.

    A position is a source once at most and a target once at most; one that is no target gets
    zeros. ``shape`` is what this position receives, where that is not the shape of ``x``.
    """
    what = What("permute", x, f" by {list(pairs)}")
    position, _ = team.member()
    for end in (0, 1):
        ends = [pair[end] for pair in pairs]
        if len(set(ends)) != len(ends):
            role = "source" if end == 0 else "target"
            raise CommError(f"{what} has a {role} twice; each position may be one {role} at most")
        for p in ends:
            _check_position(p, team, what)
    x = plain(x)
    out_shape = tuple(x.shape if shape is None else shape)
    target = next((b for a, b in pairs if a == position), None)
    source = next((a for a, b in pairs if b == position), None)
    if team.size == 1:
        return Pending.done(what, team, _copy(x) if source == 0 else x.new_zeros(out_shape))
    sent = [x if p == target else x.new_empty(0) for p in range(team.size)]
    shapes = [out_shape if p == source else (0,) for p in range(team.size)]
    finish = lambda pieces: x.new_zeros(out_shape) if source is None else pieces[source]
    return _exchange(what, "permute", team, sent, shapes, finish, traffic)


def _folded_all_reduce(
    what: object,
    x: torch.Tensor,
    team: Team,
    fold: Callable[[torch.Tensor], torch.Tensor],
    traffic: Traffic | None,
) -> Pending:
    """An all_reduce that moves bytes only; every rank folds in the same order, so all agree."""
    _, group = team.member()
    send = x.contiguous()
    if send.nbytes * team.size <= _GATHER_TO_FOLD:
        stack = send.new_empty((team.size, *send.shape))
        _count(traffic, "all_reduce", ring_bytes("all_gather", stack.nbytes, team.size))
        work = _start(
            what,
            team,
            lambda: dist.all_gather_into_tensor(
                as_bytes(stack), as_bytes(send), group, async_op=True
            ),
        )
        return Pending(what, team, work, lambda: fold(stack), (send, stack))
    order = range(team.size)  # of blocks that come back where they came from: no need of positions
    blocks = to_blocks(send.reshape(-1), 0, order)
    received = torch.empty_like(blocks)
    result = torch.empty_like(blocks)
    _count(traffic, "all_reduce", ring_bytes("all_reduce", blocks.nbytes, team.size))
    work = _start(
        what,
        team,
        lambda: dist.all_to_all_single(
            as_bytes(received), as_bytes(blocks), group=group, async_op=True
        ),
    )

    def finish() -> torch.Tensor:
        part = fold(received)
        gather = _start(
            what,
            team,
            lambda: dist.all_gather_into_tensor(
                as_bytes(result), as_bytes(part), group, async_op=True
            ),
        )
        join = lambda: from_blocks(result, 0, send.numel(), order).view(send.shape)
        return Pending(what, team, gather, join, (part, result)).wait()

    return Pending(what, team, work, finish, (blocks, received))


def _exchange(
    what: object,
    kind: str,
    team: Team,
    sent: Sequence[torch.Tensor],
    shapes: Sequence[Sequence[int]],
    finish: Callable[[list[torch.Tensor]], torch.Tensor],
    traffic: Traffic | None,
) -> Pending:
    """Sends ``sent[p]`` to each position p and gets one tensor of ``shapes[p]`` from each."""
    position, group = team.member()
    like = sent[0]
    item = like.element_size()
    # Positions in the order of their group ranks, which is how the backend lays buffers out.
    slots = sorted(range(team.size), key=team.order.__getitem__)
    outgoing = like.new_empty(sum(t.numel() for t in sent))
    incoming = like.new_empty(sum(math.prod(shape) for shape in shapes))
    out_sizes = [sent[p].numel() for p in slots]
    in_sizes = [math.prod(shapes[p]) for p in slots]
    for piece, p in zip(torch.split_with_sizes(outgoing, out_sizes), slots, strict=True):
        piece.view(sent[p].shape).copy_(sent[p])
    away = sum(sent[p].numel() for p in range(team.size) if p != position)
    _count(traffic, kind, away * item)
    work = _start(
        what,
        team,
        lambda: dist.all_to_all_single(
            as_bytes(incoming),
            as_bytes(outgoing),
            [n * item for n in in_sizes],
            [n * item for n in out_sizes],
            group=group,
            async_op=True,
        ),
    )

    def unpack() -> torch.Tensor:
        pieces = dict(zip(slots, torch.split_with_sizes(incoming, in_sizes), strict=True))
        return finish([pieces[p].view(tuple(shapes[p])) for p in range(team.size)])

    return Pending(what, team, work, unpack, (outgoing, incoming))


def _start(what: object, team: Team, call: Callable[[], dist.Work | None]) -> dist.Work:
    with named_failure(what, team):
        work = call()
    assert work is not None, "members of a group get a work from every asynchronous collective"
    return work


def _real(x: torch.Tensor) -> torch.Tensor:
    # NCCL has no complex dtypes; sums and averages are those of the parts.
    return torch.view_as_real(x) if x.is_complex() else x


def _divided(x: torch.Tensor, how: Native) -> torch.Tensor:
    return x if how.divisor == 1 else x.div_(how.divisor)


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _count(traffic: Traffic | None, kind: str, sent: int) -> None:
    if traffic is not None:
        traffic.record(kind, sent)


def _dim(x: torch.Tensor, dim: int, what: object) -> int:
    if not -x.ndim <= dim < x.ndim:
        raise CommError(f"{what}: the tensor has {x.ndim} dims, so there is no dim {dim}")
    return dim % x.ndim


def _check_extent(
    x: torch.Tensor, dim: int, full: int, team: Team, position: int, what: object
) -> None:
    needed = chunk_extent(full, team.size, position)
    if x.size(dim) != needed:
        raise CommError(
            f"{what} over {team}: position {position} of {team.size} must have {needed} of {full} "
            f"elements along dim {dim} (equal chunks, trailing ones shorter or empty), found "
            f"{x.size(dim)}; the local tensor does not match its placement"
        )


def _check_position(position: int, team: Team, what: object) -> None:
    if not 0 <= position < team.size:
        raise CommError(f"{what}: {team} has {team.size} positions, there is no {position}")
