#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_outer_8b27df3f19(
    MDF_IN(mdf::bf16) b0,
    MDF_OUT(mdf::bf16) b1,
    MDF_INOUT(float) b2,
    MDF_INOUT(mdf::i32) b3,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3,
    const mdf::i32 p4) {
  const mdf::i32 block = blockIdx.x % p2;
  const mdf::i32 part = blockIdx.x / p2;
  const mdf::i32 x = threadIdx.x % 16;
  const mdf::i32 y = threadIdx.x / 16;
  const mdf::i32 mine = (block * 16 + x) * 8;
  const bool live = MDF_IN_BOUNDS(mine < p0);
  const mdf::i32 r = live ? mine : 0;
  const mdf::i32 d1 = r;
  const mdf::i32 begin = part * p3;
  const mdf::i32 end = begin + p3 < p1 ? begin + p3 : p1;
  auto a1 = mdf::identities<mdf::Sum, float, 8>();
  for (mdf::i32 k = begin + y; live && k < end; k += 64) {
    mdf::Vec<mdf::bf16, 8> h0[4];
    #pragma unroll
    for (mdf::i32 t = 0; t < 4; ++t) {
      const mdf::i32 c = k + t * 16;
      if (MDF_IN_BOUNDS(c < end)) {
        const mdf::i32 d0 = c;
        h0[t] = mdf::load<8>(b0, c * p0 + r);
      }
    }
    #pragma unroll
    for (mdf::i32 t = 0; t < 4; ++t) {
      const mdf::i32 c = k + t * 16;
      if (MDF_IN_BOUNDS(c < end)) {
        const mdf::i32 d0 = c;
        const mdf::Vec<mdf::bf16, 8> x0 = h0[t];
        #pragma unroll
        for (mdf::i32 j = 0; j < 8; ++j) {
          const float v0 = mdf::to_compute(x0, j);
          a1.v[j] = mdf::Sum::apply(a1.v[j], v0);
        }
      }
    }
  }
  MDF_DYNAMIC_SHARED_AT(float, scratch1, 1024, 0);
  a1 = mdf::column_reduce<mdf::Sum, 16, 256>(a1, scratch1);
  if (live && y == 0) {
    mdf::Vec<float, 8> o2;
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      o2.v[j] = a1.v[j];
    }
    mdf::store<8>(b2, part * p0 + r, o2);
  }
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b3), block, p4)) return;
  a1 = mdf::identities<mdf::Sum, float, 8>();
  #pragma unroll 4
  for (mdf::i32 q = y; live && q < p4; q += 16) {
    const auto o2 = mdf::load<8>(b2, q * p0 + r);
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      a1.v[j] = mdf::Sum::apply(a1.v[j], o2.v[j]);
    }
  }
  const auto w1 = mdf::column_reduce<mdf::Sum, 16, 256>(a1, scratch1);
  if (live && y == 0) {
    mdf::Vec<float, 8> y1;
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      y1.v[j] = w1.v[j];
    }
    mdf::store<8>(b1, r, mdf::from_compute<mdf::bf16>(y1));
  }
}
