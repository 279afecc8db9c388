"""All-gather of a strided shard: a plain all-gather of padded parts, then the parts in order.

In: a local tensor that holds, along one dim, this position's chunk of each of ``split`` parts of
the whole (torch's ``_StridedShard``). Out: the whole. Parts and chunks follow DTensor's chunk rule;
every position sends ``split`` chunks of the longest length, so that the message is the same
everywhere.
"""

import torch

from thunder_mdfuse.comm.collectives import start_all_gather
from thunder_mdfuse.comm.pending import Pending
from thunder_mdfuse.comm.team import Team
from thunder_mdfuse.comm.wire import Traffic, chunk_extent, chunk_size, padded
from thunder_mdfuse.errors import CommError


def start_strided_gather(
    x: torch.Tensor, team: Team, dim: int, full: int, split: int, traffic: Traffic | None = None
) -> Pending:
    """``StridedShard(dim, split)`` -> ``Replicate``, ``full`` being the whole size of ``dim``.

    Raises ``CommError`` when ``x`` has not what its placement says along ``dim``.
    """
    position, _ = team.member()
    extents = [chunk_extent(n, team.size, position) for n in _parts(full, split)]
    if x.size(dim) != sum(extents):
        raise CommError(
            f"all_gather of a strided shard over {team}: position {position} of {team.size} must "
            f"have {sum(extents)} of {full} elements along dim {dim} (its chunks of {split} "
            f"parts), found {x.size(dim)}; the local tensor does not match its placement"
        )
    longest = chunk_size(chunk_size(full, split), team.size)
    pieces = torch.split_with_sizes(x, extents, dim)
    send = torch.cat([padded(piece, dim, longest) for piece in pieces], dim)
    blocks = start_all_gather(send, team, dim, team.size * split * longest, traffic=traffic)
    what = f"all_gather of a strided shard on dim {dim} to size {full}"
    order = lambda: _in_order(blocks.wait(), dim, full, team.size, split)
    return Pending(what, team, None, order)


def _parts(full: int, split: int) -> list[int]:
    return [chunk_extent(full, split, j) for j in range(split)]


def _in_order(blocks: torch.Tensor, dim: int, full: int, ranks: int, split: int) -> torch.Tensor:
    """``blocks`` has ``ranks`` times ``split`` padded chunks along ``dim``: part by part then."""
    longest = chunk_size(chunk_size(full, split), ranks)
    chunks = [
        blocks.narrow(dim, (r * split + j) * longest, chunk_extent(n, ranks, r))
        for j, n in enumerate(_parts(full, split))
        for r in range(ranks)
    ]
    return torch.cat(chunks, dim)
