#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_row_fd910b3903(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    MDF_INOUT(float) b2,
    MDF_INOUT(mdf::i32) b3,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 row = blockIdx.x / p0;
  const mdf::i32 part = blockIdx.x % p0;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x;
  MDF_SHARED(float, scratch1, 8);
  float a1 = mdf::Sum::identity<float>();
  #pragma unroll 1
  for (mdf::i32 f = 0; f < 8; f += 4) {
    if (MDF_IN_BOUNDS(((part * 8 + f + 0) * 256 + 0) * 4 >= 0 && ((part * 8 + f + 4) * 256 + 0) * 4 <= p1)) {
      mdf::Vec<float, 4> h0[4];
      #pragma unroll
      for (mdf::i32 t = 0; t < 4; ++t) {
        const mdf::i32 c = ((part * 8 + f + t) * 256 + lane) * 4;
        const mdf::i32 d1 = c;
        h0[t] = mdf::load<4>(b0, c + d0 * p1);
      }
      #pragma unroll
      for (mdf::i32 t = 0; t < 4; ++t) {
        const mdf::i32 c = ((part * 8 + f + t) * 256 + lane) * 4;
        const mdf::i32 d1 = c;
        const mdf::Vec<float, 4> x0 = h0[t];
        #pragma unroll
        for (mdf::i32 j = 0; j < 4; ++j) {
          const float v0 = mdf::to_compute(x0, j);
          a1 = mdf::Sum::apply(a1, v0);
        }
      }
    }
    else {
      mdf::Vec<float, 4> h0[4];
      #pragma unroll
      for (mdf::i32 t = 0; t < 4; ++t) {
        const mdf::i32 c = ((part * 8 + f + t) * 256 + lane) * 4;
        if (MDF_IN_BOUNDS(c < p1)) {
          const mdf::i32 d1 = c;
          h0[t] = mdf::load<4>(b0, c + d0 * p1);
        }
      }
      #pragma unroll
      for (mdf::i32 t = 0; t < 4; ++t) {
        const mdf::i32 c = ((part * 8 + f + t) * 256 + lane) * 4;
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
    }
  }
  mdf::group_put<mdf::Sum>(a1, scratch1, 0);
  mdf::barrier();
  a1 = mdf::group_get<mdf::Sum, 256, 256>(scratch1, 0);
  if (lane == 0) {
    mdf::store1(b2, row * p0 + part, a1);
  }
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b3), row, p0)) return;
  a1 = mdf::Sum::identity<decltype(a1)>();
  for (mdf::i32 q = lane; q < p0; q += 256) {
    a1 = mdf::Sum::apply(a1, mdf::load1(b2, row * p0 + q));
  }
  const float v1 = mdf::group_reduce<mdf::Sum, 256, 256>(a1, scratch1);
  if (lane == 0) {
    mdf::store1(b1, d0, mdf::from_compute<float>(v1));
  }
}
