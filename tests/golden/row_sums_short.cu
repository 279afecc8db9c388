#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_row_e103ed41f5(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 mine = blockIdx.x * 16 + threadIdx.x / 8;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 row = live ? mine : 0;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x % 8;
  float a1 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = (t * 8 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const auto x0 = mdf::load<4>(b0, c + d0 * p1);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        a1 = mdf::Sum::apply(a1, v0);
      }
    }
  }
  const float v1 = mdf::group_reduce<mdf::Sum, 8>(a1);
  if (lane == 0 && live) {
    mdf::store1(b1, d0, mdf::from_compute<float>(v1));
  }
}
