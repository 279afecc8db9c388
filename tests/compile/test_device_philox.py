"""Philox4x32-10 against its published test vectors and a Python implementation; distributions."""

import numpy as np
from kernels.emulated import INCLUDE, launch

SOURCE = (
    INCLUDE
    + """
extern "C" __global__ void words(MDF_IN(mdf::u64) in, MDF_OUT(mdf::u32) out, mdf::i32 n) {
  for (int i = threadIdx.x; i < n; i += 32) {
    const mdf::Random4 r =
        mdf::philox(mdf::load1(in, 3 * i), mdf::load1(in, 3 * i + 1), mdf::load1(in, 3 * i + 2));
    for (int k = 0; k < 4; ++k) mdf::store1(out, 4 * i + k, r.v[k]);
  }
}
extern "C" __global__ void uniforms(MDF_IN(mdf::u32) in, MDF_OUT(float) f, MDF_OUT(double) d,
                                    mdf::i32 n) {
  for (int i = threadIdx.x; i < n; i += 32) {
    mdf::store1(f, i, mdf::uniform(mdf::load1(in, 2 * i)));
    mdf::store1(d, i, mdf::uniform(mdf::load1(in, 2 * i), mdf::load1(in, 2 * i + 1)));
  }
}
extern "C" __global__ void normals(MDF_OUT(float) f, MDF_OUT(double) d, mdf::u64 seed, mdf::i32 n) {
  for (int i = threadIdx.x; i < n; i += 32) {
    const mdf::Random4 r = mdf::philox(seed, 0, mdf::u64(i));
    const mdf::Pair<float> a = mdf::normal(r.v[0], r.v[1]);
    mdf::store1(f, 2 * i, a.first);
    mdf::store1(f, 2 * i + 1, a.second);
    const mdf::Pair<double> b = mdf::normal(r);
    mdf::store1(d, 2 * i, b.first);
    mdf::store1(d, 2 * i + 1, b.second);
  }
}
"""
)

MASK = 2**32 - 1


def _philox(seed: int, subsequence: int, offset: int) -> list[int]:
    """Philox4x32-10 as the paper gives it."""
    counter = [offset & MASK, offset >> 32, subsequence & MASK, subsequence >> 32]
    key = [seed & MASK, seed >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (right >> 32) ^ counter[1] ^ key[0],
            right & MASK,
            (left >> 32) ^ counter[3] ^ key[1],
            left & MASK,
        ]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return counter


def _words(inputs: list[tuple[int, int, int]]) -> list[list[int]]:
    packed = np.array(inputs, dtype=np.uint64)
    out = np.empty((len(inputs), 4), dtype=np.uint32)
    launch(SOURCE, "words", inputs=[packed], outputs=[out], scalars=[len(inputs)])
    return out.tolist()


# kat_vectors of Random123, the library that goes with the paper.
VECTORS = {
    (0, 0, 0): [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
    (2**64 - 1, 2**64 - 1, 2**64 - 1): [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    (0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88): [
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    ],
}


def test_published_vectors() -> None:
    assert _words(list(VECTORS)) == list(VECTORS.values())
    assert [_philox(*key) for key in VECTORS] == list(VECTORS.values())


def test_random_counters() -> None:
    inputs = np.random.default_rng(0).integers(0, 2**64, (200, 3), dtype=np.uint64).tolist()
    inputs = [tuple(row) for row in inputs]
    assert _words(inputs) == [_philox(*row) for row in inputs]


def test_uniform_is_exact_and_below_one() -> None:
    edges = [0, 1, 255, 256, 2**31, 2**32 - 256, 2**32 - 1]
    words = np.array([(a, b) for a in edges for b in edges], dtype=np.uint32)
    f, d = np.empty(len(words), np.float32), np.empty(len(words), np.float64)
    launch(SOURCE, "uniforms", inputs=[words], outputs=[f, d], scalars=[len(words)])
    assert f.tolist() == [(int(a) >> 8) / 2**24 for a, _ in words]
    assert d.tolist() == [((int(a) << 32 | int(b)) >> 11) / 2**53 for a, b in words]
    assert f.max() < 1 and d.max() < 1


def test_normal_has_the_moments_of_a_normal() -> None:
    n = 20000
    f, d = np.empty(2 * n, np.float32), np.empty(2 * n, np.float64)
    launch(SOURCE, "normals", outputs=[f, d], scalars=[42, n], orders=1)
    for x in (f.astype(np.float64), d):
        # Four standard errors of each moment.
        error = 4 / np.sqrt(len(x))
        assert abs(x.mean()) < error
        assert abs(x.var() - 1) < error * np.sqrt(2)
        assert abs((x**3).mean()) < error * np.sqrt(15)
        assert abs((x**4).mean() - 3) < error * np.sqrt(96)
        assert abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < error * np.sqrt(2)
    words = _philox(42, 0, 3)
    radius = np.sqrt(-2 * np.log(1 - (words[0] >> 8) / 2**24))
    assert abs(f[6] - radius * np.cos(2 * np.pi * (words[1] >> 8) / 2**24)) < 1e-5
