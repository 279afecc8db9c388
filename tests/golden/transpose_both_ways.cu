#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_transpose_edd1bcbcb8(
    MDF_IN(mdf::bf16) b0,
    MDF_IN(mdf::bf16) b1,
    MDF_OUT(mdf::bf16) b2,
    MDF_OUT(mdf::bf16) b3,
    const mdf::i32 p0,
    const mdf::i32 p1) {
  const mdf::i32 from_b = blockIdx.x / 1 % 1 * 128;
  const mdf::i32 from_a = blockIdx.x % 1 * 64;
  const mdf::u32 thread = threadIdx.x;
  using Tile_x1 = mdf::Tile<mdf::bf16, 64, 8, 4, 8>;
  MDF_DYNAMIC_SHARED_AT(mdf::bf16, tile_x1, 8192, 0);
  using Tile_y3 = mdf::Tile<mdf::bf16, 64, 8, 4, 8>;
  MDF_DYNAMIC_SHARED_AT(mdf::bf16, tile_y3, 8192, 16384);
  mdf::Vec<mdf::bf16, 8> h0[4];
  mdf::Vec<mdf::bf16, 8> s1[2][2];
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 lb = ((thread % 8) + (t) * 8) * 8;
    const mdf::i32 la = (thread / 8 % 32) * 2;
    const mdf::i32 d0 = from_b + lb;
    #pragma unroll
    for (mdf::i32 p = 0; p < 2; ++p) {
      const mdf::i32 d1 = from_a + la + p;
      s1[t][p] = MDF_IN_BOUNDS(d0 < p0 && d1 < p1) ? mdf::load<8>(b1, d0 + d1 * p0) : mdf::Vec<mdf::bf16, 8>{};
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 lb = (thread / 8 + t % 4 * 32);
    const mdf::i32 la = ((thread % 8) + (t / 4) * 8) * 8;
    const mdf::i32 d0 = from_b + lb;
    const mdf::i32 d1 = from_a + la;
    if (MDF_IN_BOUNDS(d0 < p0 && d1 < p1)) {
      h0[t] = mdf::load<8>(b0, d0 * p1 + d1);
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 lb = ((thread % 8) + (t) * 8) * 8;
    const mdf::i32 la = (thread / 8 % 32) * 2;
    const mdf::i32 d0 = from_b + lb;
    Tile_x1::set_columns(tile_x1, lb, la, s1[t]);
  }
  mdf::barrier();
  #pragma unroll
  for (mdf::i32 t = 0; t < 4; ++t) {
    const mdf::i32 lb = (thread / 8 + t % 4 * 32);
    const mdf::i32 la = ((thread % 8) + (t / 4) * 8) * 8;
    const mdf::i32 d0 = from_b + lb;
    const mdf::i32 d1 = from_a + la;
    if (MDF_IN_BOUNDS(d0 < p0 && d1 < p1)) {
      const mdf::Vec<mdf::bf16, 8> x0 = h0[t];
      const auto x1 = Tile_x1::row<8>(tile_x1, lb, la);
      mdf::Vec<float, 8> y2;
      mdf::Vec<float, 8> y3;
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(x1, j);
        const float v2 = mdf::add(v0, v1);
        y2.v[j] = v2;
        y3.v[j] = v2;
      }
      mdf::store<8>(b2, d0 * p1 + d1, mdf::from_compute<mdf::bf16>(y2));
      Tile_y3::set_row(tile_y3, lb, la, mdf::from_compute<mdf::bf16>(y3));
    }
  }
  mdf::barrier();
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 lb = ((thread % 8) + (t) * 8) * 8;
    const mdf::i32 la = (thread / 8 % 32) * 2;
    const mdf::i32 d0 = from_b + lb;
    if (MDF_IN_BOUNDS(d0 < p0 && from_a + la < p1)) {
      mdf::Vec<mdf::bf16, 8> y3[2];
      Tile_y3::columns(tile_y3, lb, la, y3);
      #pragma unroll
      for (mdf::i32 p = 0; p < 2; ++p) {
        const mdf::i32 d1 = from_a + la + p;
        mdf::store<8>(b3, d0 + d1 * p0, y3[p]);
      }
    }
  }
}
