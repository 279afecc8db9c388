// Running reductions over the elements that a group of threads holds, V to a thread, in order.
//
// The order of every combination depends on GROUP and V only, so results repeat bit for bit.
#pragma once

#include "reduce.cuh"

namespace mdf {

// The combination of `v` over all lower lanes of its segment of WIDTH lanes, the identity in lane
// 0, and that over all lanes in `total`. Hillis and Steele 1986: log2(WIDTH) steps.
template <class OP, int WIDTH, class T>
MDF_DEVICE T warp_scan_exclusive(T v, T& total MDF_SITE) {
  const u32 lane = lane_index() % WIDTH;
#pragma unroll
  for (int step = 1; step < WIDTH; step *= 2) {
    const T lower = shfl_up(v, step, FULL_MASK, WIDTH MDF_PASS);
    if (lane >= u32(step)) v = OP::apply(lower, v);
  }
  total = shfl_idx(v, WIDTH - 1, FULL_MASK, WIDTH MDF_PASS);
  const T before = shfl_up(v, 1, FULL_MASK, WIDTH MDF_PASS);
  return lane == 0 ? OP::template identity<T>() : before;
}

// Element j of the result: `carry` combined with all elements of lower threads of the group and
// elements up to j of this one. `carry` becomes its combination with all of them. GROUP, THREADS,
// `scratch` and the barriers are those of group_reduce; GROUP may also be 1.
template <class OP, int GROUP, int THREADS, class T, int V, class S>
MDF_DEVICE Vec<T, V> group_scan(Vec<T, V> v, T& carry, S scratch MDF_SITE) {
#pragma unroll
  for (int j = 1; j < V; ++j) v.v[j] = OP::apply(v.v[j - 1], v.v[j]);
  T before = carry;
  if constexpr (GROUP == 1) {
    carry = OP::apply(carry, v.v[V - 1]);
  } else if constexpr (GROUP <= WARP) {
    T total;
    const T lower = warp_scan_exclusive<OP, GROUP>(v.v[V - 1], total MDF_PASS);
    before = OP::apply(carry, lower);
    carry = OP::apply(carry, total);
  } else {
    constexpr int WARPS = GROUP / WARP;
    T total;
    const T lower = warp_scan_exclusive<OP, WARP>(v.v[V - 1], total MDF_PASS);
    const u32 warp = warp_index();
    const u32 first = warp - warp % WARPS;
    hw::barrier(MDF_PASS0);
    if (lane_index() == 0) store1(scratch, warp, total MDF_PASS);
    hw::barrier(MDF_PASS0);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const T other = load1(scratch, first + w MDF_PASS);
      if (first + w < warp) before = OP::apply(before, other);
      carry = OP::apply(carry, other);
    }
    before = OP::apply(before, lower);
  }
#pragma unroll
  for (int j = 0; j < V; ++j) v.v[j] = OP::apply(before, v.v[j]);
  return v;
}
// Where a group is at most a warp there is nothing to share.
template <class OP, int GROUP, class T, int V>
MDF_DEVICE Vec<T, V> group_scan(Vec<T, V> v, T& carry MDF_SITE) {
  static_assert(GROUP <= WARP, "groups of more than a warp need a scratch array");
  return group_scan<OP, GROUP, WARP>(v, carry, static_cast<T*>(nullptr) MDF_PASS);
}

}  // namespace mdf
