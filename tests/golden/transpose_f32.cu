#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_transpose_b797840739(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_OUT(float) b2,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 from_b = blockIdx.x / 1 % 1 * 64;
  const mdf::i32 from_a = blockIdx.x % 1 * 64;
  const mdf::u32 thread = threadIdx.x;
  using Tile_x1 = mdf::Tile<float, 64, 4, 4, 8>;
  MDF_DYNAMIC_SHARED_AT(float, tile_x1, 4096, 0);
  mdf::Vec<float, 4> h0[4];
  mdf::Vec<float, 4> s1[4][1];
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 lb = ((thread % 8) + (t / 2) * 8) * 4;
    const mdf::i32 la = (thread / 8 + t % 2 * 32) * 1;
    const mdf::i32 d0 = from_b + lb;
    #pragma unroll
    for (mdf::i32 p = 0; p < 1; ++p) {
      const mdf::i32 d1 = from_a + la + p;
      s1[t][p] = MDF_IN_BOUNDS(d0 < p0 && d1 < p1) ? mdf::load<4>(b1, d0 + d1 * p0) : mdf::Vec<float, 4>{};
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 lb = (thread / 8 + t % 2 * 32);
    const mdf::i32 la = ((thread % 8) + (t / 2) * 8) * 4;
    const mdf::i32 d0 = from_b + lb;
    const mdf::i32 d1 = from_a + la;
    if (MDF_IN_BOUNDS(d0 < p0 && d1 < p1)) {
      h0[t] = mdf::load<4>(b0, d0 * p1 + d1);
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 lb = ((thread % 8) + (t / 2) * 8) * 4;
    const mdf::i32 la = (thread / 8 + t % 2 * 32) * 1;
    const mdf::i32 d0 = from_b + lb;
    Tile_x1::set_columns(tile_x1, lb, la, s1[t]);
  }
  mdf::barrier();
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 lb = (thread / 8 + t % 2 * 32);
    const mdf::i32 la = ((thread % 8) + (t / 2) * 8) * 4;
    const mdf::i32 d0 = from_b + lb;
    const mdf::i32 d1 = from_a + la;
    if (MDF_IN_BOUNDS(d0 < p0 && d1 < p1)) {
      const mdf::Vec<float, 4> x0 = h0[t];
      const auto x1 = Tile_x1::row<4>(tile_x1, lb, la);
      mdf::Vec<float, 4> y2;
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(x1, j);
        const float v2 = mdf::sub(v0, v1);
        y2.v[j] = v2;
      }
      mdf::store<4>(b2, d0 * p1 + d1, mdf::from_compute<float>(y2));
    }
  }
}
