#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) mdf_inner_outer_77166e364b(
    MDF_IN(mdf::bf16) b0,
    MDF_IN(mdf::bf16) b1,
    MDF_IN(mdf::bf16) b2,
    MDF_IN(float) b3,
    MDF_OUT(mdf::bf16) b4,
    MDF_OUT(mdf::bf16) b5,
    MDF_INOUT(float) b6,
    MDF_INOUT(mdf::i32) b7,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3,
    const float s0) {
  const mdf::i32 block = blockIdx.x;
  const mdf::i32 lane = threadIdx.x;
  const mdf::i32 first = block;
  MDF_SHARED(float, scratch7, 16);
  mdf::Vec<float, 8> o14[1];
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      o14[t].v[j] = mdf::Sum::identity<float>();
    }
  }
  float n4 = {};
  mdf::Vec<mdf::bf16, 8> g0[1] = {};
  mdf::Vec<mdf::bf16, 8> g3[1] = {};
  {
    const mdf::i32 row = first;
    if (MDF_IN_BOUNDS(row < p1)) {
      const mdf::i32 d0 = row;
      n4 = mdf::to_compute(mdf::load1(b3, d0));
      #pragma unroll
      for (mdf::i32 t = 0; t < 1; ++t) {
        const mdf::i32 c = (t * 256 + lane) * 8;
        const mdf::i32 d1 = c;
        g0[t] = mdf::load<8>(b0, c + d0 * p2);
        g3[t] = mdf::load<8>(b2, c + d0 * p2);
      }
    }
  }
  mdf::u32 turn = 0;
  for (mdf::i32 base = block * 1; base < p1; base += p0) {
    const mdf::i32 row = base;
    const mdf::i32 d0 = row;
    const float v4 = n4;
    const float v8 = s0;
    mdf::Vec<mdf::bf16, 8> h0[1];
    mdf::Vec<mdf::bf16, 8> h3[1];
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      h0[t] = g0[t];
      h3[t] = g3[t];
    }
    {
      const mdf::i32 next = base + p0;
      const mdf::i32 row = next;
      if (MDF_IN_BOUNDS(row < p1)) {
        const mdf::i32 d0 = row;
        n4 = mdf::to_compute(mdf::load1(b3, d0));
        #pragma unroll
        for (mdf::i32 t = 0; t < 1; ++t) {
          const mdf::i32 c = (t * 256 + lane) * 8;
          const mdf::i32 d1 = c;
          g0[t] = mdf::load<8>(b0, c + d0 * p2);
          g3[t] = mdf::load<8>(b2, c + d0 * p2);
        }
      }
    }
    float a7 = mdf::Sum::identity<float>();
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      const mdf::i32 c = (t * 256 + lane) * 8;
      const mdf::i32 d1 = c;
      const mdf::Vec<mdf::bf16, 8> x0 = h0[t];
      const mdf::Vec<mdf::bf16, 8> x3 = h3[t];
      const auto x1 = mdf::load<8>(b1, c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(x1, j);
        const float v2 = mdf::mul(v0, v1);
        const float v3 = mdf::to_compute(x3, j);
        const float v5 = mdf::mul(v3, v4);
        const float v6 = mdf::mul(v2, v5);
        const float v13 = mdf::mul(v0, v5);
        a7 = mdf::Sum::apply(a7, v6);
        o14[t].v[j] = mdf::Sum::apply(o14[t].v[j], v13);
      }
    }
    mdf::group_put<mdf::Sum>(a7, scratch7, turn);
    mdf::barrier();
    const float v7 = mdf::group_get<mdf::Sum, 256, 256>(scratch7, turn);
    const float v9 = mdf::loose_div(v7, v8);
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      const mdf::i32 c = (t * 256 + lane) * 8;
      const mdf::i32 d1 = c;
      const mdf::Vec<mdf::bf16, 8> x0 = h0[t];
      const mdf::Vec<mdf::bf16, 8> x3 = h3[t];
      const auto x1 = mdf::load<8>(b1, c);
      mdf::Vec<float, 8> y4;
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        const float v0 = mdf::to_compute(x0, j);
        const float v1 = mdf::to_compute(x1, j);
        const float v2 = mdf::mul(v0, v1);
        const float v3 = mdf::to_compute(x3, j);
        const float v5 = mdf::mul(v3, v4);
        const float v10 = mdf::mul(v5, v9);
        const float v11 = mdf::sub(v2, v10);
        const float v12 = mdf::mul(v11, v4);
        y4.v[j] = v12;
      }
      mdf::store<8>(b4, c + d0 * p2, mdf::from_compute<mdf::bf16>(y4));
    }
    turn ^= 8;
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    const mdf::i32 c = (t * 256 + lane) * 8;
    const mdf::i32 d1 = c;
    mdf::store<8>(b6, block * p2 + c, o14[t]);
  }
  const mdf::i32 tree = block / 4;
  const mdf::i32 members = mdf::minimum<mdf::i32>(4, p0 - tree * 4);
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b7), 1 + tree, members)) return;
  for (mdf::i32 c = threadIdx.x * 8; c < p2; c += 2048) {
    mdf::Vec<float, 8> s14 = mdf::load<8>(b6, (tree * 4) * p2 + c);
    #pragma unroll 8
    for (mdf::i32 q = 1; q < members; ++q) {
      const mdf::Vec<float, 8> z = mdf::load<8>(b6, (tree * 4 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        s14.v[j] = mdf::Sum::apply(s14.v[j], z.v[j]);
      }
    }
    mdf::store<8>(b6, (p0 + tree) * p2 + c, s14);
  }
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b7), 0, p3)) return;
  for (mdf::i32 c = threadIdx.x * 8; c < p2; c += 2048) {
    mdf::Vec<float, 8> s14 = mdf::load<8>(b6, (p0) * p2 + c);
    #pragma unroll 8
    for (mdf::i32 q = 1; q < p3; ++q) {
      const mdf::Vec<float, 8> z = mdf::load<8>(b6, (p0 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 8; ++j) {
        s14.v[j] = mdf::Sum::apply(s14.v[j], z.v[j]);
      }
    }
    const mdf::i32 d1 = c;
    mdf::Vec<float, 8> y5;
    #pragma unroll
    for (mdf::i32 j = 0; j < 8; ++j) {
      const float v14 = s14.v[j];
      y5.v[j] = v14;
    }
    mdf::store<8>(b5, c, mdf::from_compute<mdf::bf16>(y5));
  }
}
