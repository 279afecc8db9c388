#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_row_e69d98c680(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_IN(float) b2,
    MDF_OUT(float) b3,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const float s0,
    const float s1) {
  const mdf::i32 mine = blockIdx.x * 16 + threadIdx.x / 8;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 row = live ? mine : 0;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x % 8;
  const float v2 = s0;
  const float v7 = s1;
  mdf::Vec<float, 4> h0[1];
  float a1 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = (t * 8 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      h0[t] = mdf::load<4>(b0, c + d0 * p1);
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = (t * 8 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        a1 = mdf::Sum::apply(a1, v0);
      }
    }
  }
  const float v1 = mdf::group_reduce<mdf::Sum, 8>(a1);
  const float v3 = mdf::div(v1, v2);
  float a6 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = (t * 8 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v4 = mdf::sub(v0, v3);
        const float v5 = mdf::mul(v4, v4);
        a6 = mdf::Sum::apply(a6, v5);
      }
    }
  }
  const float v6 = mdf::group_reduce<mdf::Sum, 8>(a6);
  const float v8 = mdf::div(v6, v7);
  const float v10 = mdf::add(v8, static_cast<float>(1e-05));
  const float v11 = mdf::rsqrt(v10);
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = (t * 8 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      const auto x13 = mdf::load<4>(b1, c);
      const auto x15 = mdf::load<4>(b2, c);
      mdf::Vec<float, 4> y3;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v4 = mdf::sub(v0, v3);
        const float v12 = mdf::mul(v4, v11);
        const float v13 = mdf::to_compute(x13, j);
        const float v14 = mdf::mul(v12, v13);
        const float v15 = mdf::to_compute(x15, j);
        const float v16 = mdf::add(v14, v15);
        y3.v[j] = v16;
      }
      if (live) mdf::store<4>(b3, c + d0 * p1, mdf::from_compute<float>(y3));
    }
  }
}
