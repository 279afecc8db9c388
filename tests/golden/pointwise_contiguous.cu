#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_pointwise_27fbdedb05(
    MDF_IN(mdf::bf16) b0,
    MDF_IN(mdf::bf16) b1,
    MDF_OUT(mdf::bf16) b2,
    const mdf::i32 p0) {
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = ((static_cast<mdf::i32>(blockIdx.x) * 1 + t) * 128 + threadIdx.x) * 8;
    if (MDF_IN_BOUNDS(c < p0)) {
      const mdf::i32 d1 = c;
      const auto x0 = mdf::load<8>(b0, c);
      const auto x6 = mdf::load<8>(b1, c);
      mdf::Vec<float, 8> y2;
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::neg(v0);
        const float v2 = mdf::loose_exp(v1);
        const float v4 = mdf::add(v2, static_cast<float>(1.0));
        const float v5 = mdf::loose_div(v0, v4);
        const float v6 = mdf::to_compute(x6, j);
        const float v7 = mdf::mul(v5, v6);
        y2.v[j] = v7;
      }
      mdf::store<8>(b2, c, mdf::from_compute<mdf::bf16>(y2));
    }
  }
}
