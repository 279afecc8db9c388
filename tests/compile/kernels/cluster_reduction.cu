// y = x / sum(x) for rows that a cluster of blocks shares: each block sums its part and reads the
// sums of the others from their shared memory.
#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(64)
cluster_reduction(MDF_IN(float) x, MDF_OUT(float) y, mdf::i32 n) {
  MDF_SHARED(float, scratch, 2);
  MDF_SHARED(float, part, 1);
  const mdf::i32 blocks = mdf::i32(mdf::cluster_size());
  const mdf::i32 rank = mdf::i32(mdf::cluster_rank());
  const mdf::i32 first = mdf::i32(blockIdx.x) / blocks * n;
  const mdf::i32 c = rank * 64 + mdf::i32(threadIdx.x);
  float v = 0.0f;
  if (MDF_IN_BOUNDS(c < n)) v = mdf::load1(x, first + c);
  const float mine = mdf::block_reduce<mdf::Sum, 64>(v, scratch);
  if (threadIdx.x == 0) part[0] = mine;
  mdf::cluster_barrier();
  float sum = 0.0f;
  for (mdf::i32 r = 0; r < blocks; ++r) {
    sum = mdf::add(sum, mdf::cluster_read(part, 0, mdf::u32(r)));
  }
  mdf::cluster_barrier();
  if (MDF_IN_BOUNDS(c < n)) mdf::store1(y, first + c, mdf::div(v, sum));
}
