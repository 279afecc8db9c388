#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256, 6) mdf_row_385cb1c20b(
    MDF_IN(mdf::bf16) b0,
    MDF_IN(mdf::bf16) b1,
    MDF_OUT(mdf::bf16) b2,
    const mdf::i32 p0,
    const float s0) {
  const mdf::i32 row = blockIdx.x;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x;
  const float v3 = s0;
  MDF_SHARED(float, scratch2, 8);
  mdf::Vec<mdf::bf16, 8> h0[2];
  float a2 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 256 + lane) * 8;
    const mdf::i32 d1 = c;
    h0[t] = mdf::load<8>(b0, c + d0 * p0);
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 256 + lane) * 8;
    const mdf::i32 d1 = c;
    const mdf::Vec<mdf::bf16, 8> x0 = h0[t];
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      const float v0 = mdf::to_compute(x0, j);
      const float v1 = mdf::mul(v0, v0);
      a2 = mdf::Sum::apply(a2, v1);
    }
  }
  mdf::group_put<mdf::Sum>(a2, scratch2, 0);
  mdf::barrier();
  const float v2 = mdf::group_get<mdf::Sum, 256, 256>(scratch2, 0);
  const float v4 = mdf::loose_div(v2, v3);
  const float v6 = mdf::add(v4, static_cast<float>(1e-05));
  const float v7 = mdf::rsqrt(v6);
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 256 + lane) * 8;
    const mdf::i32 d1 = c;
    const mdf::Vec<mdf::bf16, 8> x0 = h0[t];
    const auto x9 = mdf::load<8>(b1, c);
    mdf::Vec<float, 8> y2;
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      const float v0 = mdf::to_compute(x0, j);
      const float v8 = mdf::mul(v0, v7);
      const float v9 = mdf::to_compute(x9, j);
      const float v10 = mdf::mul(v8, v9);
      y2.v[j] = v10;
    }
    mdf::store<8>(b2, c + d0 * p0, mdf::from_compute<mdf::bf16>(y2));
  }
}
