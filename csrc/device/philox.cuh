// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): random words as a pure function of a key and
// a counter, so that a mask can be computed again instead of stored.
#pragma once

#include "math.cuh"

namespace mdf {

struct Random4 {
  u32 v[4];
};

// Words for (seed, subsequence, offset): the counter is offset in its low half and subsequence in
// its high half, which is also cuRAND's and torch's layout.
MDF_DEVICE Random4 philox(u64 seed, u64 subsequence, u64 offset) {
  u32 c0 = u32(offset);
  u32 c1 = u32(offset >> 32);
  u32 c2 = u32(subsequence);
  u32 c3 = u32(subsequence >> 32);
  u32 k0 = u32(seed);
  u32 k1 = u32(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 high0 = hw::mul_high(0xD2511F53u, c0);
    const u32 low0 = 0xD2511F53u * c0;
    const u32 high1 = hw::mul_high(0xCD9E8D57u, c2);
    const u32 low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return Random4{{c0, c1, c2, c3}};
}

// [0, 1) in steps of 2^-24.
MDF_DEVICE float uniform(u32 word) { return float(word >> 8) * 5.9604644775390625e-8f; }
// [0, 1) in steps of 2^-53.
MDF_DEVICE double uniform(u32 high, u32 low) {
  const u64 word = (u64(high) << 32) | low;
  return double(word >> 11) * 1.1102230246251565e-16;
}

// Element ``index`` of a tensor of uniform numbers in [low, high): word index % 4 of block index / 4
// (two words an element for double), so that any block of the tensor can be drawn by itself.
MDF_DEVICE float draw(u64 seed, u64 offset, u64 index, float low, float high) {
  const Random4 block = philox(seed, offset, index / 4);
  return low + uniform(block.v[index % 4]) * (high - low);
}
MDF_DEVICE double draw(u64 seed, u64 offset, u64 index, double low, double high) {
  const Random4 block = philox(seed, offset, index / 2);
  const int first = 2 * int(index % 2);
  return low + uniform(block.v[first], block.v[first + 1]) * (high - low);
}

// The words of elements `index` to `index + V - 1`, both multiples of 4, of a float tensor: what draw
// takes for each of them, at a quarter of the cost. `draw_of` makes a number of one. A piece of a
// concatenation may begin before the tensor, at an index that wraps; its words from 0 on are right.
template <int V>
MDF_DEVICE Vec<u32, V> draw_words(u64 seed, u64 offset, u64 index) {
  static_assert(V % 4 == 0, "a block has four words");
  Vec<u32, V> words;
#pragma unroll
  for (int k = 0; k < V / 4; ++k) {
    const Random4 block = philox(seed, offset, (index + 4 * k) / 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) words.v[4 * k + j] = block.v[j];
  }
  return words;
}
MDF_DEVICE float draw_of(u32 word, float low, float high) {
  return low + uniform(word) * (high - low);
}

template <class T>
struct Pair {
  T first;
  T second;
};
// Two independent standard normals (Box-Muller). 1 - u keeps the logarithm away from 0.
MDF_DEVICE Pair<float> normal(u32 a, u32 b) {
  const float radius = sqrt(-2.0f * log(1.0f - uniform(a)));
  const float angle = 6.283185307179586f * uniform(b);
  return Pair<float>{radius * cos(angle), radius * sin(angle)};
}
MDF_DEVICE Pair<double> normal(const Random4& r) {
  const double radius = sqrt(-2.0 * log(1.0 - uniform(r.v[0], r.v[1])));
  const double angle = 6.283185307179586 * uniform(r.v[2], r.v[3]);
  return Pair<double>{radius * cos(angle), radius * sin(angle)};
}


// Element `index` of a tensor of standard normal numbers: from words 0 and 1 or 2 and 3 of block
// index / 4 for float, from all four of block index / 2 for double; an even one is the first of its
// pair.
template <class T>
MDF_DEVICE T draw_normal(u64 seed, u64 offset, u64 index) {
  if constexpr (same<T, double>) {
    const Pair<double> pair = normal(philox(seed, offset, index / 2));
    return index % 2 ? pair.second : pair.first;
  } else {
    const Random4 block = philox(seed, offset, index / 4);
    const bool upper = index % 4 >= 2;
    const Pair<float> pair =
        normal(upper ? block.v[2] : block.v[0], upper ? block.v[3] : block.v[1]);
    return index % 2 ? pair.second : pair.first;
  }
}

}  // namespace mdf
