#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_outer_09a34714d9(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_OUT(float) b2,
    MDF_OUT(float) b3,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 x = threadIdx.x % 16;
  const mdf::i32 y = threadIdx.x / 16;
  const mdf::i32 mine = (blockIdx.x * 16 + x) * 4;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 r = live ? mine : 0;
  const mdf::i32 d1 = r;
  const mdf::i32 begin = 0;
  const mdf::i32 end = p1;
  auto a3 = mdf::identities<mdf::Sum, float, 4>();
  for (mdf::i32 k = begin + y; live && k < end; k += 32) {
    mdf::Vec<float, 4> h0[2];
    mdf::Vec<float, 4> h1[2];
    #pragma unroll
    for (mdf::i32 t = 0; t < 2; ++t) {
      const mdf::i32 c = k + t * 16;
      if (MDF_IN_BOUNDS(c < end)) {
        const mdf::i32 d0 = c;
        h0[t] = mdf::load<4>(b0, c * p0 + r);
        h1[t] = mdf::load<4>(b1, c * p0 + r);
      }
    }
    #pragma unroll
    for (mdf::i32 t = 0; t < 2; ++t) {
      const mdf::i32 c = k + t * 16;
      if (MDF_IN_BOUNDS(c < end)) {
        const mdf::i32 d0 = c;
        const mdf::Vec<float, 4> x0 = h0[t];
        const mdf::Vec<float, 4> x1 = h1[t];
        mdf::Vec<float, 4> y2;
        #pragma unroll
        for (mdf::i32 j = 0; j < 4; ++j) {
          const float v0 = mdf::to_compute(x0, j);
          const float v1 = mdf::to_compute(x1, j);
          const float v2 = mdf::mul(v0, v1);
          a3.v[j] = mdf::Sum::apply(a3.v[j], v2);
          y2.v[j] = v2;
        }
        mdf::store<4>(b2, c * p0 + r, mdf::from_compute<float>(y2));
      }
    }
  }
  MDF_DYNAMIC_SHARED_AT(float, scratch3, 512, 0);
  const auto w3 = mdf::column_reduce<mdf::Sum, 16, 256>(a3, scratch3);
  if (live && y == 0) {
    mdf::Vec<float, 4> y3;
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      y3.v[j] = w3.v[j];
    }
    mdf::store<4>(b3, r, mdf::from_compute<float>(y3));
  }
}
