#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(512) mdf_scan_b803c6cabf(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    const mdf::i32 p0) {
  const mdf::i32 row = blockIdx.x;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x;
  MDF_SHARED(float, scratch_f32, 16);
  float carry2 = mdf::Sum::identity<float>();
  for (mdf::i32 first = 0; first < p0; first += 2048) {
    const mdf::i32 c = first + lane * 4;
    const bool inside = MDF_IN_BOUNDS(c < p0);
    const mdf::i32 d1 = c;
    mdf::Vec<float, 4> r2;
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      r2.v[j] = mdf::Sum::identity<float>();
    }
    if (inside) {
      const auto x0 = mdf::load<4>(b0, c + d0 * p0);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::tanh(v0);
        r2.v[j] = v1;
      }
    }
    r2 = mdf::group_scan<mdf::Sum, 512, 512>(r2, carry2, scratch_f32);
    if (inside) {
      mdf::Vec<float, 4> y1;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v2 = r2.v[j];
        y1.v[j] = v2;
      }
      mdf::store<4>(b1, c + d0 * p0, mdf::from_compute<float>(y1));
    }
  }
}
