// The sum of an array: each block writes a part, the last block to finish adds the parts. What
// counter_arrive does is written out here, so that each of its barriers and fences can be removed.
#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(64)
grid_reduction(MDF_IN(double) x, MDF_INOUT(double) parts, MDF_OUT(double) total,
               MDF_INOUT(mdf::u32) counter, mdf::i64 n) {
  MDF_SHARED(double, scratch, 2);
  MDF_SHARED(mdf::u32, is_last, 1);
  const mdf::i64 i = mdf::i64(blockIdx.x) * 64 + threadIdx.x;
  double v = 0.0;
  if (MDF_IN_BOUNDS(i < n)) v = mdf::load1(x, i);
  v = mdf::warp_reduce<mdf::Sum>(v);
  // One part a warp: two threads of the block write what a third one's fence has to cover.
  if (mdf::lane_index() == 0) mdf::store1(parts, blockIdx.x * 2 + mdf::warp_index(), v);
  mdf::barrier();
  if (threadIdx.x == 0) {
    mdf::fence();
    is_last[0] = mdf::atomic_add(counter, 0, 1u) == gridDim.x - 1;
    mdf::fence();
  }
  mdf::barrier();
  if (is_last[0]) {
    double sum = 0.0;
    for (mdf::u32 k = 0; k < 2 * gridDim.x; k += 64) {
      if (MDF_IN_BOUNDS(k + threadIdx.x < 2 * gridDim.x)) {
        sum = mdf::add(sum, mdf::load1(parts, k + threadIdx.x));
      }
    }
    sum = mdf::block_reduce<mdf::Sum, 64>(sum, scratch);
    if (threadIdx.x == 0) {
      mdf::store1(total, 0, sum);
      mdf::atomic_exchange(counter, 0, 0);
    }
  }
}
