"""The chunk rule is DTensor's, blocks go out and come back, and bytes are counted by the ring."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

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


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("full", [0, 1, 2, 3, 5, 7, 8, 9, 10, 16, 17])
def test_chunks_are_dtensors(full: int, size: int) -> None:
    found = [chunk_extent(full, size, p) for p in range(size)]
    wanted = [Shard.local_shard_size_and_offset(full, size, p)[0] for p in range(size)]
    assert found == wanted
    assert sum(found) == full
    assert max(found) == chunk_size(full, size)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_blocks_come_back(
    shape: list[int], dim: int, size: int, chance: random.Random, permuted: bool
) -> None:
    dim %= len(shape)
    order = list(range(size))
    if permuted:
        chance.shuffle(order)
    x = torch.arange(torch.tensor(shape).prod()).view(shape)
    x = x.transpose(0, -1).contiguous().transpose(0, -1)
    blocks = to_blocks(x, dim, order)
    assert blocks.is_contiguous()
    full = x.size(dim)
    for position, slot in enumerate(order):
        extent = chunk_extent(full, size, position)
        start = min(position * chunk_size(full, size), full)
        assert torch.equal(blocks[slot].narrow(dim, 0, extent), x.narrow(dim, start, extent))
    back = from_blocks(blocks, dim, full, order)
    assert back.is_contiguous()
    assert torch.equal(back, x)


def test_padding_of_blocks_is_zero() -> None:
    blocks = to_blocks(torch.ones(5), 0, [0, 1, 2, 3])
    assert blocks.tolist() == [[1, 1], [1, 1], [1, 0], [0, 0]]


def test_blocks_of_a_row_major_tensor_are_a_view() -> None:
    x = torch.ones(4, 3)
    assert to_blocks(x, 0, [0, 1]).data_ptr() == x.data_ptr()
    blocks = torch.ones(2, 3, 4)
    # Uneven chunks too: their padding is behind the last element.
    assert from_blocks(blocks, 0, 5, [0, 1]).data_ptr() == blocks.data_ptr()


def test_padded_keeps_what_fits() -> None:
    x = torch.arange(6).view(2, 3).t()
    assert torch.equal(padded(x, 0, 3), x)
    longer = padded(x, 1, 4)
    assert longer.shape == (3, 4) and longer.is_contiguous()
    assert torch.equal(longer[:, :2], x)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int16, torch.float8_e4m3fn, torch.complex64, torch.bfloat16]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_bytes_of_any_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape).to(dtype)
    view = as_bytes(x)
    assert view.dtype == torch.uint8
    assert view.numel() == x.numel() * x.element_size()
    assert x.numel() == 0 or view.data_ptr() == x.data_ptr()


def test_plain_resolves_lazy_bits() -> None:
    x = torch.tensor([1 + 2j], requires_grad=True)
    found = plain(x.conj())
    assert not found.requires_grad and not found.is_conj()
    assert as_bytes(found).view(torch.complex64).tolist() == [1 - 2j]


def test_traffic_sums_by_kind() -> None:
    traffic = Traffic()
    traffic.record("all_reduce", 10)
    traffic.record("all_reduce", 20)
    traffic.record("all_gather", 5)
    assert traffic.calls == {"all_reduce": 2, "all_gather": 1}
    assert traffic.sent == {"all_reduce": 30, "all_gather": 5}
    assert traffic.total == 35


def test_ring_bytes() -> None:
    assert ring_bytes("all_gather", 800, 4) == 600
    assert ring_bytes("reduce_scatter", 800, 4) == 600
    assert ring_bytes("all_reduce", 800, 4) == 1200
    assert ring_bytes("all_reduce", 800, 1) == 0


def test_with_size() -> None:
    assert with_size((2, 3, 4), 1, 7) == (2, 7, 4)
