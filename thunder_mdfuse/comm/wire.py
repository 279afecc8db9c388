"""What goes over the wire: DTensor's chunk rule, blocks of chunks, bytes, and how many of them.

In: a local tensor and a team's size. Out: buffers of equal blocks in the order that the group
wants, and back. Data-moving collectives send these buffers as bytes, so that every dtype works on
every backend (gloo knows no i16, NCCL no complex). Nothing here waits for the device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


def chunk_size(full: int, size: int) -> int:
    """Elements of the longest chunk when ``full`` is split over ``size`` positions."""
    return -(-full // size)


def chunk_extent(full: int, size: int, position: int) -> int:
    """Elements at ``position``: chunks are of equal length, trailing ones shorter or empty."""
    chunk = chunk_size(full, size)
    return max(0, min(chunk, full - position * chunk))


def plain(x: torch.Tensor) -> torch.Tensor:
    """``x`` without gradient history and without a pending conjugation or negation."""
    if x.requires_grad:
        x = x.detach()
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The storage of the contiguous tensor ``x`` as a flat uint8 tensor."""
    return x.reshape(-1).view(torch.uint8)


def with_size(shape: Sequence[int], dim: int, extent: int) -> tuple[int, ...]:
    """``shape`` with ``extent`` in place of dimension ``dim``."""
    return (*shape[:dim], extent, *shape[dim + 1 :])


def padded(x: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """``x`` contiguous, lengthened to ``extent`` along ``dim`` by unspecified elements."""
    if x.size(dim) == extent:
        return x.contiguous()
    buffer = x.new_empty(with_size(x.shape, dim, extent))
    buffer.narrow(dim, 0, x.size(dim)).copy_(x)
    return buffer


def to_blocks(x: torch.Tensor, dim: int, order: Sequence[int]) -> torch.Tensor:
    """``x`` cut along ``dim`` into one block for each position, block ``order[p]`` for position p.

    All blocks have the longest chunk's shape; the rest of short ones is zero, because a reduction
    reads it. Returns ``x`` itself, as a view, when that is the layout already.
    """
    size, full = len(order), x.size(dim)
    chunk = chunk_size(full, size)
    if full % size == 0 and _is_identity(order):
        cut = x.reshape(*x.shape[:dim], size, chunk, *x.shape[dim + 1 :])
        return cut.movedim(dim, 0).contiguous()
    buffer = x.new_zeros((size, *with_size(x.shape, dim, chunk)))
    for position, slot in enumerate(order):
        extent = chunk_extent(full, size, position)
        piece = x.narrow(dim, min(position * chunk, full), extent)
        buffer[slot].narrow(dim, 0, extent).copy_(piece)
    return buffer


def from_blocks(blocks: torch.Tensor, dim: int, full: int, order: Sequence[int]) -> torch.Tensor:
    """The inverse of ``to_blocks``: a contiguous tensor with ``full`` elements along ``dim``.

    A view of ``blocks`` where chunks follow each other in memory: the padding of uneven chunks is
    all at the end then.
    """
    size, shape = len(order), blocks.shape[1:]
    if _is_identity(order) and math.prod(shape[:dim]) == 1:
        joined = blocks.reshape(with_size(shape, dim, size * shape[dim]))
        return joined.narrow(dim, 0, full)
    pieces = [
        blocks[slot].narrow(dim, 0, chunk_extent(full, size, position))
        for position, slot in enumerate(order)
    ]
    return torch.cat(pieces, dim)


def _is_identity(order: Sequence[int]) -> bool:
    return all(slot == position for position, slot in enumerate(order))


@dataclass
class Traffic:
    """Counts collectives and the bytes that this rank sends, by kind; for ``explain``."""

    calls: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)

    def record(self, kind: str, sent: int) -> None:
        """Count one collective of ``kind`` that sends ``sent`` bytes from here."""
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.sent[kind] = self.sent.get(kind, 0) + sent

    @property
    def total(self) -> int:
        """Bytes sent by all collectives together."""
        return sum(self.sent.values())


def ring_bytes(kind: str, nbytes: int, size: int) -> int:
    """Bytes that each rank sends in a ring, ``nbytes`` being the whole buffer's, not a chunk's.

    ``all_gather`` and ``reduce_scatter`` pass every chunk but one on and ``all_reduce`` does both;
    ``broadcast`` passes the buffer on everywhere but at the last rank, so its mean is counted.
    (Point-to-point collectives send what they send and need no formula.)
    """
    once = nbytes * (size - 1) // size
    return 2 * once if kind == "all_reduce" else once
