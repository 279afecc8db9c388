#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_pointwise_8fdddde15d(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_OUT(float) b2,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::u64 q0) {
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = ((static_cast<mdf::i32>(blockIdx.x) * 1 + t) * 128 + threadIdx.x) * 4;
    if (MDF_IN_BOUNDS(c < p0)) {
      const mdf::i32 d1 = mdf::rest(c, p1, q0);
      const mdf::i32 d0 = mdf::quotient(c, q0);
      const auto x0 = mdf::load<4>(b0, c);
      mdf::Vec<float, 4> y2;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(mdf::load1(b1, d0 + (d1 + j) * p2));
        const float v2 = mdf::sub(v0, v1);
        y2.v[j] = v2;
      }
      mdf::store<4>(b2, c, mdf::from_compute<float>(y2));
    }
  }
}
