// Vectors of rows that begin anywhere in memory: those that the ends of a row cut, and those that no
// single access reads.
//
// A load may give elements that are next to the row, but reads nothing outside of the `reach`
// elements that the tensor's memory has; a store writes nothing outside of the row. `place` is where
// along its row a vector begins, `extent` where the row ends.
#pragma once

#include "memory.cuh"

namespace mdf {

// Element by element; zero bits for what there is none of.
template <int V, class P, class I>
MDF_DEVICE Vec<Element<P>, V> load_edge(P p, I i, I reach MDF_SITE) {
  Vec<Element<P>, V> out{};
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (i + j >= 0 && i + j < reach) out.v[j] = load1(p, i + j MDF_PASS);
  }
  return out;
}
// The address of element i is a multiple of min(16, V * sizeof(T)), as for load and store.
template <int V, class P, class I>
MDF_DEVICE Vec<Element<P>, V> load_within(P p, I i, I reach MDF_SITE) {
  if (i >= 0 && i + V <= reach) return load<V>(p, i MDF_PASS);
  return load_edge<V>(p, i, reach MDF_PASS);
}
template <int V, class P, class I>
MDF_DEVICE void store_within(P p, I i, const Vec<Element<P>, V>& value, I place, I extent MDF_SITE) {
  if (place >= 0 && place + V <= extent) {
    store<V>(p, i, value MDF_PASS);
    return;
  }
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (place + j >= 0 && place + j < extent) store1(p, i + j, value.v[j] MDF_PASS);
  }
}

// The vector at any address, from the 16-byte pieces of memory that it lies in. All of the piece
// after it has to be the tensor's memory too.
template <int V, class T, class I>
MDF_DEVICE Vec<T, V> load_pieces(const T* p, I i MDF_SITE) {
  constexpr int WORDS = int(sizeof(T)) * V / 4;
  static_assert(WORDS % 4 == 0, "a vector of whole pieces");
  const char* bytes = reinterpret_cast<const char*>(p) + i64(i) * i64(sizeof(T));
  const u32 past = u32(u64(bytes) & 15);
  // Not from the address as a number: the compiler would not know that it is global memory.
  const u32* pieces = reinterpret_cast<const u32*>(bytes - past);
  u32 w[WORDS + 4];
#pragma unroll
  for (int k = 0; k < WORDS + 4; k += 4) {
    const Vec<u32, 4> piece = load<4>(pieces, i32(k) MDF_PASS);
#pragma unroll
    for (int n = 0; n < 4; ++n) w[k + n] = piece.v[n];
  }
  if constexpr (sizeof(T) <= 8) {
#pragma unroll
    for (int k = 0; k < WORDS + 2; ++k) w[k] = past & 8 ? w[k + 2] : w[k];
  }
  if constexpr (sizeof(T) <= 4) {
#pragma unroll
    for (int k = 0; k < WORDS + 1; ++k) w[k] = past & 4 ? w[k + 1] : w[k];
  }
  if constexpr (sizeof(T) <= 2) {
#pragma unroll
    for (int k = 0; k < WORDS; ++k) w[k] = hw::funnel_right(w[k], w[k + 1], (past & 3) * 8);
  }
  Vec<T, V> out;
  memcpy(&out, w, sizeof(out));
  return out;
}
template <int V, class T, class I>
MDF_DEVICE Vec<T, V> load_across(const T* p, I i, I reach MDF_SITE) {
  constexpr int PIECE = 16 / int(sizeof(T));
  if (i >= 0 && i + V + PIECE <= reach) return load_pieces<V>(p, i MDF_PASS);
  return load_edge<V>(p, i, reach MDF_PASS);
}

}  // namespace mdf
