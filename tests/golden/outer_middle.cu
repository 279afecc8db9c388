#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_outer_4d01a1486c(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_OUT(float) b2,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3,
    const mdf::u64 q0) {
  const mdf::i32 x = threadIdx.x % 16;
  const mdf::i32 y = threadIdx.x / 16;
  const mdf::i32 mine = (blockIdx.x * 16 + x) * 4;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 r = live ? mine : 0;
  const mdf::i32 d2 = mdf::rest(r, p2, q0);
  const mdf::i32 d0 = mdf::quotient(r, q0);
  const mdf::i32 begin = 0;
  const mdf::i32 end = p1;
  const auto x2 = mdf::load<4>(b1, d2);
  mdf::Vec<float, 4> w2;
  #pragma unroll
  for (mdf::i32 j = 0; j < 4; ++j) {
    w2.v[j] = mdf::to_compute(x2, j);
  }
  auto a1 = mdf::identities<mdf::Sum, float, 4>();
  for (mdf::i32 k = begin + y; live && k < end; k += 64) {
    mdf::Vec<float, 4> h0[4];
    #pragma unroll
    for (mdf::i32 t = 0; t < 4; ++t) {
      const mdf::i32 c = k + t * 16;
      if (MDF_IN_BOUNDS(c < end)) {
        const mdf::i32 d1 = c;
        h0[t] = mdf::load<4>(b0, c * p2 + d0 * p3 + d2);
      }
    }
    #pragma unroll
    for (mdf::i32 t = 0; t < 4; ++t) {
      const mdf::i32 c = k + t * 16;
      if (MDF_IN_BOUNDS(c < end)) {
        const mdf::i32 d1 = c;
        const mdf::Vec<float, 4> x0 = h0[t];
        #pragma unroll
        for (mdf::i32 j = 0; j < 4; ++j) {
          const float v0 = mdf::to_compute(x0, j);
          a1.v[j] = mdf::Sum::apply(a1.v[j], v0);
        }
      }
    }
  }
  MDF_DYNAMIC_SHARED_AT(float, scratch1, 512, 0);
  const auto w1 = mdf::column_reduce<mdf::Sum, 16, 256>(a1, scratch1);
  mdf::Vec<float, 4> w3;
  #pragma unroll
  for (mdf::i32 j = 0; j < 4; ++j) {
    w3.v[j] = mdf::mul(w1.v[j], w2.v[j]);
  }
  if (live && y == 0) {
    mdf::Vec<float, 4> y2;
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      y2.v[j] = w3.v[j];
    }
    mdf::store<4>(b2, r, mdf::from_compute<float>(y2));
  }
}
