#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(512) mdf_outer_6b881aebf2(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 x = threadIdx.x % 4;
  const mdf::i32 y = threadIdx.x / 4;
  const mdf::i32 mine = (blockIdx.x * 4 + x) * 4;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 r = live ? mine : 0;
  const mdf::i32 d1 = r;
  const mdf::i32 begin = 0;
  const mdf::i32 end = p1;
  mdf::Vec<float, 4> h0[4];
  auto a1 = mdf::identities<mdf::Max, float, 4>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = begin + y + t * 128;
    if (MDF_IN_BOUNDS(live && c < end)) {
      const mdf::i32 d0 = c;
      h0[t] = mdf::load<4>(b0, c * p0 + r);
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = begin + y + t * 128;
    if (MDF_IN_BOUNDS(live && c < end)) {
      const mdf::i32 d0 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        a1.v[j] = mdf::Max::apply(a1.v[j], v0);
      }
    }
  }
  MDF_DYNAMIC_SHARED_AT(float, scratch1, 256, 0);
  const auto w1 = mdf::column_reduce<mdf::Max, 4, 512>(a1, scratch1);
  auto a4 = mdf::identities<mdf::Sum, float, 4>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = begin + y + t * 128;
    if (MDF_IN_BOUNDS(live && c < end)) {
      const mdf::i32 d0 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v2 = mdf::sub(v0, w1.v[j]);
        const float v3 = mdf::exp(v2);
        a4.v[j] = mdf::Sum::apply(a4.v[j], v3);
      }
    }
  }
  MDF_DYNAMIC_SHARED_AT(float, scratch4, 256, 0);
  const auto w4 = mdf::column_reduce<mdf::Sum, 4, 512>(a4, scratch4);
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 c = begin + y + t * 128;
    if (MDF_IN_BOUNDS(live && c < end)) {
      const mdf::i32 d0 = c;
      const mdf::Vec<float, 4> x0 = h0[t];
      mdf::Vec<float, 4> y1;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v2 = mdf::sub(v0, w1.v[j]);
        const float v3 = mdf::exp(v2);
        const float v5 = mdf::div(v3, w4.v[j]);
        y1.v[j] = v5;
      }
      mdf::store<4>(b1, c * p0 + r, mdf::from_compute<float>(y1));
    }
  }
}
