// y = x - mean(x) and the largest of each row: a block a row. The mean by shuffles and shared
// memory written out, the maximum by block_reduce.
#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128)
row_reduction(MDF_IN(float) x, MDF_OUT(float) y, MDF_OUT(float) largest, mdf::i32 n) {
  MDF_SHARED(float, partial, 4);
  MDF_SHARED(float, mean, 1);
  MDF_SHARED(float, scratch, 4);
  const mdf::i32 first = mdf::i32(blockIdx.x) * n;
  float sum = 0.0f;
  float top = mdf::Max::identity<float>();
  for (mdf::i32 c = 0; c < n; c += 128) {
    const mdf::i32 i = c + mdf::i32(threadIdx.x);
    if (MDF_IN_BOUNDS(i < n)) {
      const float v = mdf::load1(x, first + i);
      sum = mdf::add(sum, v);
      top = mdf::maximum(top, v);
    }
  }
  sum += mdf::shfl_xor(sum, 16);
  sum += mdf::shfl_xor(sum, 8);
  sum += mdf::shfl_xor(sum, 4, mdf::FULL_MASK);
  sum += mdf::shfl_xor(sum, 2);
  sum += mdf::shfl_xor(sum, 1);
  if (mdf::lane_index() == 0) partial[mdf::warp_index()] = sum;
  mdf::barrier();
  if (threadIdx.x == 0) mean[0] = (partial[0] + partial[1] + partial[2] + partial[3]) / float(n);
  mdf::barrier();
  const float m = mean[0];
  for (mdf::i32 c = 0; c < n; c += 128) {
    const mdf::i32 i = c + mdf::i32(threadIdx.x);
    if (MDF_IN_BOUNDS(i < n)) mdf::store1(y, first + i, mdf::sub(mdf::load1(x, first + i), m));
  }
  top = mdf::block_reduce<mdf::Max, 128>(top, scratch);
  if (threadIdx.x == 0) mdf::store1(largest, blockIdx.x, top);
}
