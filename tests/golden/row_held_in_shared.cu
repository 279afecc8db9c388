#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(1024) mdf_row_451d1b14a9(
    MDF_IN(mdf::bf16) b0,
    MDF_IN(mdf::bf16) b1,
    MDF_IN(mdf::bf16) b2,
    MDF_OUT(mdf::bf16) b3,
    MDF_OUT(mdf::bf16) b4,
    const mdf::i32 p0,
    const float s0) {
  const mdf::i32 row = blockIdx.x;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x;
  const float v5 = s0;
  MDF_SHARED(float, scratch4, 32);
  MDF_DYNAMIC_SHARED_AT(mdf::bf16, h0, 57344, 0);
  MDF_DYNAMIC_SHARED_AT(mdf::bf16, h1, 57344, 114688);
  float a4 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 7; ++t) {
    const mdf::i32 c = (t * 1024 + lane) * 8;
    if (MDF_IN_BOUNDS(c < p0)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<mdf::bf16, 8> x0 = mdf::load<8>(b0, c + d0 * p0);
      mdf::store<8>(h0, (t * 1024 + threadIdx.x) * 8, x0);
      const mdf::Vec<mdf::bf16, 8> x1 = mdf::load<8>(b1, c + d0 * p0);
      mdf::store<8>(h1, (t * 1024 + threadIdx.x) * 8, x1);
      mdf::Vec<float, 8> y3;
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(x1, j);
        const float v2 = mdf::add(v0, v1);
        const float v3 = mdf::mul(v2, v2);
        a4 = mdf::Sum::apply(a4, v3);
        y3.v[j] = v2;
      }
      mdf::store<8>(b3, c + d0 * p0, mdf::from_compute<mdf::bf16>(y3));
    }
  }
  mdf::group_put<mdf::Sum>(a4, scratch4, 0);
  mdf::barrier();
  const float v4 = mdf::group_get<mdf::Sum, 1024, 1024>(scratch4, 0);
  const float v6 = mdf::loose_div(v4, v5);
  const float v8 = mdf::add(v6, static_cast<float>(1e-05));
  const float v9 = mdf::rsqrt(v8);
  #pragma unroll
  for (mdf::i32 t = 0; t < 7; ++t) {
    const mdf::i32 c = (t * 1024 + lane) * 8;
    if (MDF_IN_BOUNDS(c < p0)) {
      const mdf::i32 d1 = c;
      const auto x0 = mdf::load<8>(h0, (t * 1024 + threadIdx.x) * 8);
      const auto x1 = mdf::load<8>(h1, (t * 1024 + threadIdx.x) * 8);
      const auto x11 = mdf::load<8>(b2, c);
      mdf::Vec<float, 8> y4;
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(x1, j);
        const float v2 = mdf::add(v0, v1);
        const float v10 = mdf::mul(v2, v9);
        const float v11 = mdf::to_compute(x11, j);
        const float v12 = mdf::mul(v10, v11);
        y4.v[j] = v12;
      }
      mdf::store<8>(b4, c + d0 * p0, mdf::from_compute<mdf::bf16>(y4));
    }
  }
}
