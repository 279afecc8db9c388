#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(128) mdf_row_5014f4e521(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 mine = blockIdx.x * 2 + threadIdx.x / 64;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 row = live ? mine : 0;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x % 64;
  MDF_SHARED(float, scratch1, 4);
  MDF_SHARED(float, scratch4, 4);
  mdf::Vec<float, 4> h0[4];
  float a1 = mdf::Max::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = (t * 64 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      h0[t] = mdf::load<4>(b0, c + d0 * p1);
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = (t * 64 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        a1 = mdf::Max::apply(a1, v0);
      }
    }
  }
  mdf::group_put<mdf::Max>(a1, scratch1, 0);
  mdf::barrier();
  const float v1 = mdf::group_get<mdf::Max, 64, 128>(scratch1, 0);
  float a4 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = (t * 64 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v2 = mdf::sub(v0, v1);
        const float v3 = mdf::exp(v2);
        a4 = mdf::Sum::apply(a4, v3);
      }
    }
  }
  mdf::group_put<mdf::Sum>(a4, scratch4, 0);
  mdf::barrier();
  const float v4 = mdf::group_get<mdf::Sum, 64, 128>(scratch4, 0);
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = (t * 64 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p1)) {
      const mdf::i32 d1 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      mdf::Vec<float, 4> y1;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v2 = mdf::sub(v0, v1);
        const float v3 = mdf::exp(v2);
        const float v5 = mdf::div(v3, v4);
        y1.v[j] = v5;
      }
      if (live) mdf::store<4>(b1, c + d0 * p1, mdf::from_compute<float>(y1));
    }
  }
}
