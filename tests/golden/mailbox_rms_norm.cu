#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(512) mdf_row_3311804d13(
    MDF_IN(mdf::u64) b0,
    MDF_IN(mdf::bf16) b1,
    MDF_IN(mdf::bf16) b2,
    MDF_OUT(mdf::bf16) b3,
    MDF_OUT(mdf::bf16) b4,
    MDF_OUT(mdf::bf16) b5,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const float s0) {
  const mdf::i32 row = blockIdx.x;
  const mdf::i32 d0 = row;
  const mdf::i32 lane = threadIdx.x;
  const float v5 = s0;
  MDF_SHARED(float, scratch4, 16);
  mdf::Vec<float, 8> h0[2];
  mdf::Vec<mdf::bf16, 8> h1[2];
  float a4 = mdf::Sum::identity<float>();
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 512 + lane) * 8;
    const mdf::i32 d1 = c;
    h1[t] = mdf::load<8>(b1, c + d0 * p0);
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 512 + lane) * 8;
    const mdf::i32 d1 = c;
    mdf::Vec<float, 8> sb0{};
    for (mdf::i32 q = 0; q < p1; ++q) {
      const mdf::bf16* box = reinterpret_cast<const mdf::bf16*>(mdf::load1(b0, q));
      mdf::Vec<float, 8> part;
      for (bool missing = true; missing;) {
        part = mdf::to_compute(mdf::load_relaxed_sys<8>(box, c + d0 * p0));
        missing = false;
        #pragma unroll
        for (mdf::i32 j = 0; j < 8; ++j) {
          missing = missing || (part.v[j] == 0.0f && mdf::signbit(part.v[j]));
        }
      }
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        sb0.v[j] = mdf::add(sb0.v[j], part.v[j]);
      }
    }
    h0[t] = sb0;
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 512 + lane) * 8;
    const mdf::i32 d1 = c;
    const mdf::Vec<float, 8> x0 = h0[t];
    const mdf::Vec<mdf::bf16, 8> x1 = h1[t];
    mdf::Vec<float, 8> y4;
    mdf::Vec<float, 8> y3;
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      const float v0 = mdf::to_compute(x0, j);
      const float v1 = mdf::to_compute(x1, j);
      const float v2 = mdf::to_compute(mdf::from_compute<mdf::bf16>(mdf::add(v0, v1)));
      const float v3 = mdf::mul(v2, v2);
      a4 = mdf::Sum::apply(a4, v3);
      y4.v[j] = v2;
      y3.v[j] = static_cast<float>(-0.0);
    }
    mdf::store<8>(b4, c + d0 * p0, mdf::from_compute<mdf::bf16>(y4));
    mdf::store<8>(b3, c + d0 * p0, mdf::from_compute<mdf::bf16>(y3));
  }
  mdf::group_put<mdf::Sum>(a4, scratch4, 0);
  mdf::barrier();
  const float v4 = mdf::group_get<mdf::Sum, 512, 512>(scratch4, 0);
  const float v6 = mdf::div(v4, v5);
  const float v8 = mdf::add(v6, static_cast<float>(1e-05));
  const float v9 = mdf::rsqrt(v8);
  #pragma unroll
  for (mdf::i32 t = 0; t < 2; ++t) {
    const mdf::i32 c = (t * 512 + lane) * 8;
    const mdf::i32 d1 = c;
    const mdf::Vec<float, 8> x0 = h0[t];
    const mdf::Vec<mdf::bf16, 8> x1 = h1[t];
    const auto x11 = mdf::load<8>(b2, c);
    mdf::Vec<float, 8> y5;
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      const float v0 = mdf::to_compute(x0, j);
      const float v1 = mdf::to_compute(x1, j);
      const float v2 = mdf::to_compute(mdf::from_compute<mdf::bf16>(mdf::add(v0, v1)));
      const float v10 = mdf::mul(v2, v9);
      const float v11 = mdf::to_compute(x11, j);
      const float v12 = mdf::mul(v10, v11);
      y5.v[j] = v12;
    }
    mdf::store<8>(b5, c + d0 * p0, mdf::from_compute<mdf::bf16>(y5));
  }
}
