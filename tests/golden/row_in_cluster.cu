#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_row_ef87fbadce(
    MDF_IN(float) b0,
    MDF_OUT(float) b1,
    const mdf::i32 p0) {
  const mdf::i32 row = blockIdx.x / 4;
  const mdf::i32 part = mdf::cluster_rank();
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x;
  MDF_SHARED(float, scratch1, 8);
  MDF_SHARED(float, scratch4, 8);
  MDF_SHARED(float, e1, 1);
  MDF_SHARED(float, e4, 1);
  mdf::Vec<float, 4> h0[16];
  float a1 = mdf::Max::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 c = ((part * 16 + t) * 256 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p0)) {
      const mdf::i32 d1 = c;
      h0[t] = mdf::load<4>(b0, c + d0 * p0);
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 c = ((part * 16 + t) * 256 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p0)) {
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
  a1 = mdf::group_get<mdf::Max, 256, 256>(scratch1, 0);
  if (lane == 0) {
    mdf::store1(e1, 0, a1);
  }
  mdf::cluster_barrier();
  a1 = mdf::cluster_read(e1, 0, 0);
  #pragma unroll
  for (mdf::u32 q = 1; q < 4; ++q) {
    a1 = mdf::Max::apply(a1, mdf::cluster_read(e1, 0, q));
  }
  const float v1 = a1;
  float a4 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 c = ((part * 16 + t) * 256 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p0)) {
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
  a4 = mdf::group_get<mdf::Sum, 256, 256>(scratch4, 0);
  if (lane == 0) {
    mdf::store1(e4, 0, a4);
  }
  mdf::cluster_barrier();
  a4 = mdf::cluster_read(e4, 0, 0);
  #pragma unroll
  for (mdf::u32 q = 1; q < 4; ++q) {
    a4 = mdf::Sum::apply(a4, mdf::cluster_read(e4, 0, q));
  }
  const float v4 = a4;
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 c = ((part * 16 + t) * 256 + lane) * 4;
    if (MDF_IN_BOUNDS(c < p0)) {
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
      mdf::store<4>(b1, c + d0 * p0, mdf::from_compute<float>(y1));
    }
  }
  mdf::cluster_barrier();
}
