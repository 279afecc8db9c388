#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_scan_c611296e1a(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 mine = blockIdx.x * 16 + threadIdx.x / 8;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 row = live ? mine : 0;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x % 8;
  float carry2 = mdf::Sum::identity<float>();
  for (mdf::i32 first = 0; first < p1; first += 32) {
    const mdf::i32 c = first + lane * 4;
    const bool inside = MDF_IN_BOUNDS(c < p1);
    const mdf::i32 d1 = c;
    mdf::Vec<float, 4> r2;
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      r2.v[j] = mdf::Sum::identity<float>();
    }
    if (inside) {
      const auto x0 = mdf::load<4>(b0, c + d0 * p1);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::tanh(v0);
        r2.v[j] = v1;
      }
    }
    r2 = mdf::group_scan<mdf::Sum, 8>(r2, carry2);
    if (inside) {
      mdf::Vec<float, 4> y1;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v2 = r2.v[j];
        y1.v[j] = v2;
      }
      if (live) mdf::store<4>(b1, c + d0 * p1, mdf::from_compute<float>(y1));
    }
  }
}
