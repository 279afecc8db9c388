"""Random numbers: the published vectors, the mapping of elements to words, blocks, distribution."""

import numpy as np
import pytest
import torch

from thunder_mdfuse.ir.attrs import PhiloxAttrs, RngAttrs
from thunder_mdfuse.ir.types import DType
from thunder_mdfuse.runtime.aten import ATEN
from thunder_mdfuse.runtime.philox import linear_index, words

# (key, counter, words) of Random123's kat_vectors for philox4x32-10.
VECTORS = [
    ("0" * 16, "0" * 32, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("f" * 16, "f" * 32, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "299f31d0a4093822",
        "0370734413198a2e85a308d3243f6a88",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def signed(digits):
    return torch.tensor(int.from_bytes(bytes.fromhex(digits), "big", signed=True))


@pytest.mark.parametrize(("key", "counter", "expected"), VECTORS)
def test_published_vectors(key, counter, expected):
    found = words(signed(key), signed(counter[16:]), signed(counter[:16]))
    assert " ".join(f"{int(w):08x}" for w in found) == expected


def philox(seed, low, high):
    """Four words by the paper, in Python integers."""
    mask = 2**32 - 1
    c = [low & mask, low >> 32 & mask, high & mask, high >> 32 & mask]
    k = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & mask, a >> 32 ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def uniform(seed, offset, **attrs):
    attrs = {"dtype": DType.F32} | attrs
    state = [torch.tensor(seed), torch.tensor(offset)]
    (found,) = ATEN["uniform"](state, PhiloxAttrs(**attrs), [attrs["dtype"]])
    return found


SEEDS = [(0, 0), (1234, 8), (-1, 4), (1 << 62, (1 << 40) + 4)]


@pytest.mark.parametrize(("seed", "offset"), SEEDS)
def test_which_element_gets_which_word(seed, offset):
    found = uniform(seed, offset, shape=(3, 7)).flatten().numpy()
    expected = [np.float32(philox(seed, i // 4, offset)[i % 4] >> 8) * 2.0**-24 for i in range(21)]
    assert found.tolist() == expected


@pytest.mark.parametrize(("seed", "offset"), SEEDS)
def test_which_element_gets_which_two_words(seed, offset):
    found = uniform(seed, offset, shape=(9,), dtype=DType.F64).tolist()
    expected = []
    for i in range(9):
        high, low = philox(seed, i // 2, offset)[2 * (i % 2) :][:2]
        expected.append((high << 32 | low) // 2**11 * 2.0**-53)
    assert found == expected


def test_low_and_high_are_applied_in_f32_and_then_rounded():
    unit = uniform(5, 0, shape=(1000,))
    low, high = np.float32(0.1), np.float32(0.7)
    assert high - low != np.float32(0.7 - 0.1)  # so it is f32 from the start
    wide = unit * (high - low) + low
    assert torch.equal(uniform(5, 0, shape=(1000,), low=0.1, high=0.7), wide)
    for dtype, theirs in ((DType.BF16, torch.bfloat16), (DType.F16, torch.float16)):
        half = uniform(5, 0, shape=(1000,), dtype=dtype, low=0.1, high=0.7)
        assert torch.equal(half, wide.to(theirs))


def test_a_block_draws_what_the_whole_does():
    whole = uniform(7, 4, shape=(6, 5, 3))
    block = uniform(7, 4, shape=(2, 5, 1), whole=(6, 5, 3), starts=(3, 0, 2))
    assert torch.equal(block, whole[3:5, :, 2:])
    empty = uniform(7, 4, shape=(0, 5, 3), whole=(6, 5, 3), starts=(6, 0, 0))
    assert empty.shape == (0, 5, 3)
    assert uniform(7, 4, shape=()).shape == ()


def test_linear_indices_of_blocks():
    index = linear_index((2, 2), (4, 5), (1, 3), torch.device("cpu"))
    assert index.tolist() == [[8, 9], [13, 14]]


def test_other_seeds_and_offsets_draw_others():
    base = uniform(1, 0, shape=(256,))
    for seed, offset in ((2, 0), (1, 4), (1 + (1 << 32), 0), (1, 1 << 32)):
        other = uniform(seed, offset, shape=(256,))
        assert (base == other).float().mean() < 0.05


def test_distribution():
    for dtype in (DType.F32, DType.F64):
        x = uniform(99, 0, shape=(1 << 18,), dtype=dtype).double()
        assert 0 <= float(x.min()) < 1e-4
        assert 1 - 1e-4 < float(x.max()) < 1
        assert abs(float(x.mean()) - 0.5) < 3 / (12 * (1 << 18)) ** 0.5
        counts = torch.histc(x, 64, 0, 1)
        expected = (1 << 18) / 64
        # 63 degrees of freedom: above 120 once in 50,000 seeds.
        assert float(((counts - expected) ** 2 / expected).sum()) < 120


def normal(seed, offset, **attrs):
    attrs = {"dtype": DType.F32} | attrs
    state = [torch.tensor(seed), torch.tensor(offset)]
    (found,) = ATEN["normal"](state, PhiloxAttrs(**attrs), [attrs["dtype"]])
    return found


def test_normal_numbers_have_the_moments_of_a_normal_and_do_not_depend_on_each_other():
    for dtype in (DType.F32, DType.F64):
        x = normal(99, 0, shape=(1 << 18,), dtype=dtype).double()
        # Five standard deviations of each estimate.
        n = x.numel()
        assert abs(x.mean()) < 5 / n**0.5
        assert abs(x.var() - 1) < 5 * (2 / n) ** 0.5
        assert abs((x**3).mean()) < 5 * (15 / n) ** 0.5
        assert abs((x**4).mean() - 3) < 5 * (96 / n) ** 0.5
        for lag in (1, 2, 4):
            assert abs((x[lag:] * x[:-lag]).mean()) < 5 / n**0.5
    whole, block = (
        normal(7, 4, shape=(6, 5)),
        normal(7, 4, shape=(2, 5), whole=(6, 5), starts=(3, 0)),
    )
    assert torch.equal(whole[3:5], block)


def _states(device: torch.device | None, draws: int) -> list[list[torch.Tensor]]:
    call = ATEN["rng_state"]
    return [list(call([], RngAttrs(n, 10), [DType.I64] * 2, device)) for n in range(draws)]


def test_each_draw_has_a_state_of_its_own_that_the_seed_decides():
    torch.manual_seed(3)
    first, second = _states(None, 2)
    assert first[0] != second[0] and first[1] != second[1]
    torch.manual_seed(3)
    (again,) = _states(None, 1)
    assert torch.equal(torch.stack(again), torch.stack(first))
    assert all(word.dtype is torch.int64 and word.shape == () for word in again)


@pytest.mark.gpu
def test_on_cuda_too():
    device = torch.device("cuda")
    torch.cuda.manual_seed(11)
    first, second = _states(device, 2)
    torch.cuda.manual_seed(11)
    (again,) = _states(device, 1)
    assert first[0] != second[0] and torch.equal(torch.stack(again), torch.stack(first))
    on_device = ATEN["uniform"](list(second), PhiloxAttrs((33,), DType.F32), [DType.F32])[0]
    seed, offset = (word.item() for word in second)
    assert torch.equal(on_device.cpu(), uniform(seed, offset, shape=(33,)))


@pytest.mark.gpu
def test_replays_of_a_captured_graph_draw_anew():
    device = torch.device("cuda")
    _states(device, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (state,) = _states(device, 1)
    found = set()
    for _ in range(3):
        graph.replay()
        found.add((state[0].item(), state[1].item()))
    assert len(found) == 3
