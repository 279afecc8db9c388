#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_pointwise_3cfc0dedaf(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_OUT(float) b2,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3,
    const mdf::i32 p4,
    const mdf::i32 p5,
    const mdf::i32 p6,
    const mdf::u64 q0) {
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = ((static_cast<mdf::i32>(blockIdx.x) * 1 + t) * 128 + threadIdx.x) * 4;
    if (MDF_IN_BOUNDS(c < p0)) {
      const mdf::i32 d1 = mdf::rest(c, p1, q0);
      const mdf::i32 d0 = mdf::quotient(c, q0);
      mdf::Vec<float, 4> y2;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = MDF_IN_BOUNDS((d1 + j) >= 0 && (d1 + j) < p2) ? mdf::to_compute(mdf::load1(b0, d0 * p2 + (d1 + j))) : static_cast<float>(0);
        const float v2 = mdf::mul(v0, static_cast<float>(2.0));
        const float v3 = MDF_IN_BOUNDS((d1 + j) + p5 >= 0 && (d1 + j) + p5 < p6 && (d1 + j) + p4 >= 0 && (d1 + j) + p4 < p3) ? mdf::to_compute(mdf::load1(b1, d0 * p3 + (d1 + j) + p4)) : static_cast<float>(0);
        const bool v5 = MDF_IN_BOUNDS((d1 + j) + p4 >= 0 && (d1 + j) + p4 < p3);
        const float v6 = mdf::where(v5, v3, static_cast<float>(1.5));
        const bool v7 = MDF_IN_BOUNDS((d1 + j) >= 0 && (d1 + j) < p2);
        const float v8 = mdf::where(v7, v2, v6);
        y2.v[j] = v8;
      }
      mdf::store<4>(b2, c, mdf::from_compute<float>(y2));
    }
  }
}
