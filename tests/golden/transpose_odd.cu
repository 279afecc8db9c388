#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256) mdf_transpose_272a776f57(
    MDF_IN(mdf::bf16) b0,
    MDF_OUT(mdf::bf16) b1,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3) {
  const mdf::i32 from_b = blockIdx.x / p0 % p1 * 64;
  const mdf::i32 from_a = blockIdx.x % p0 * 64;
  const mdf::u32 thread = threadIdx.x;
  using Tile_x0 = mdf::Tile<mdf::bf16, 64, 1, 1, 32>;
  MDF_DYNAMIC_SHARED_AT(mdf::bf16, tile_x0, 4096, 0);
  mdf::Vec<mdf::bf16, 1> s0[16][1];
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 lb = ((thread % 32) + (t / 8) * 32) * 1;
    const mdf::i32 la = (thread / 32 + t % 8 * 8) * 1;
    const mdf::i32 d0 = from_b + lb;
    #pragma unroll
    for (mdf::i32 p = 0; p < 1; ++p) {
      const mdf::i32 d1 = from_a + la + p;
      s0[t][p] = MDF_IN_BOUNDS(d0 < p2 && d1 < p3) ? mdf::load<1>(b0, d0 + d1 * p2) : mdf::Vec<mdf::bf16, 1>{};
    }
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 lb = ((thread % 32) + (t / 8) * 32) * 1;
    const mdf::i32 la = (thread / 32 + t % 8 * 8) * 1;
    const mdf::i32 d0 = from_b + lb;
    Tile_x0::set_columns(tile_x0, lb, la, s0[t]);
  }
  mdf::barrier();
  #pragma unroll
  for (mdf::i32 t = 0; t < 16; ++t) {
    const mdf::i32 lb = (thread / 32 + t % 8 * 8);
    const mdf::i32 la = ((thread % 32) + (t / 8) * 32) * 1;
    const mdf::i32 d0 = from_b + lb;
    const mdf::i32 d1 = from_a + la;
    if (MDF_IN_BOUNDS(d0 < p2 && d1 < p3)) {
      const auto x0 = Tile_x0::row<1>(tile_x0, lb, la);
      const float v0 = mdf::to_compute(x0, 0);
      const float v2 = mdf::mul(v0, static_cast<float>(2.0));
      mdf::store1(b1, d0 * p3 + d1, mdf::from_compute<mdf::bf16>(v2));
    }
  }
}
