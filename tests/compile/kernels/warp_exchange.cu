// Each warp reverses its 32 values through shared memory: a warp barrier is enough, and another one
// is needed before the slots are used again. A ballot counts the negative values.
#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(64)
warp_exchange(MDF_IN(mdf::i32) x, MDF_OUT(mdf::i32) y, MDF_OUT(mdf::u32) negative, mdf::i32 n) {
  MDF_SHARED(mdf::i32, slots, 64);
  const mdf::u32 lane = mdf::lane_index();
  const mdf::u32 first = mdf::warp_index() * 32;
  for (mdf::i32 c = 0; c < n; c += 64) {
    const mdf::i32 i = c + mdf::i32(threadIdx.x);
    mdf::i32 v = 0;
    if (MDF_IN_BOUNDS(i < n)) v = mdf::load1(x, i);
    slots[first + lane] = v;
    mdf::warp_barrier();
    const mdf::i32 reversed = slots[first + 31 - lane];
    mdf::warp_barrier(mdf::FULL_MASK);
    const mdf::u32 votes = mdf::ballot(v < 0);
    if (MDF_IN_BOUNDS(i < n)) mdf::store1(y, i, reversed);
    if (lane == 0 && MDF_IN_BOUNDS(i < n)) mdf::store1(negative, i / 32, votes);
  }
}
