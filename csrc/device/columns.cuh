// Reductions of columns: each thread has a vector of accumulators for neighbouring columns, and
// threads that have the same columns combine theirs.
//
// Thread i of a block has the columns number i % ACROSS; THREADS / ACROSS threads share them. The
// order depends on these numbers only, and every thread gets the same bits.
#pragma once

#include "reduce.cuh"

namespace mdf {

// A vector of accumulators that have seen nothing.
template <class OP, class T, int V>
MDF_DEVICE Vec<T, V> identities() {
  Vec<T, V> a;
#pragma unroll
  for (int j = 0; j < V; ++j) a.v[j] = OP::template identity<T>();
  return a;
}

// Where a column's threads are lanes of one warp, or one thread: no memory, no barrier.
template <class OP, int ACROSS, int THREADS, class T, int V>
MDF_DEVICE Vec<T, V> column_reduce(Vec<T, V> a MDF_SITE) {
  static_assert((ACROSS & (ACROSS - 1)) == 0 && THREADS % WARP == 0 && THREADS % ACROSS == 0,
                "a power of two of threads lie side by side, in whole warps");
  if constexpr (ACROSS < WARP) {
#pragma unroll
    for (int step = WARP / 2; step >= ACROSS; step /= 2) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        a.v[j] = OP::apply(a.v[j], shfl_xor(a.v[j], step, FULL_MASK, WARP MDF_PASS));
      }
    }
  }
  return a;
}

// The general form. `scratch` is a shared array of THREADS / max(ACROSS, 32) * ACROSS * V elements
// of T. Three barriers: one before scratch is written, so that it may be reused by the next call at
// once, and one before each of the two reads.
template <class OP, int ACROSS, int THREADS, class T, int V, class S>
MDF_DEVICE Vec<T, V> column_reduce(Vec<T, V> a, S scratch MDF_SITE) {
  constexpr int ROW = ACROSS < WARP ? WARP : ACROSS;
  constexpr int COLUMNS = ACROSS * V;
  a = column_reduce<OP, ACROSS, THREADS>(a MDF_PASS);
  const u32 thread = thread_index();
  const u32 x = thread % ACROSS;
  hw::barrier(MDF_PASS0);
  // Element j of all threads side by side, so that no two lanes meet in one bank.
  if (thread % ROW < ACROSS) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      store1(scratch, thread / ROW * COLUMNS + j * ACROSS + x, a.v[j] MDF_PASS);
    }
  }
  hw::barrier(MDF_PASS0);
#pragma unroll
  for (int k = 0; k < COLUMNS; k += THREADS) {
    if (k + thread < COLUMNS) {
      T total = load1(scratch, k + thread MDF_PASS);
#pragma unroll
      for (int row = 1; row < THREADS / ROW; ++row) {
        total = OP::apply(total, load1(scratch, row * COLUMNS + k + thread MDF_PASS));
      }
      store1(scratch, k + thread, total MDF_PASS);
    }
  }
  hw::barrier(MDF_PASS0);
#pragma unroll
  for (int j = 0; j < V; ++j) a.v[j] = load1(scratch, j * ACROSS + x MDF_PASS);
  return a;
}

}  // namespace mdf
