#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) mdf_inner_outer_9b92a1a3b8(
    MDF_IN(float) b0,
    MDF_IN(float) b1,
    MDF_IN(float) b2,
    MDF_IN(float) b3,
    MDF_IN(float) b4,
    MDF_OUT(float) b5,
    MDF_OUT(float) b6,
    MDF_OUT(float) b7,
    MDF_INOUT(float) b8,
    MDF_INOUT(float) b9,
    MDF_INOUT(mdf::i32) b10,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3,
    const float s0) {
  const mdf::i32 block = blockIdx.x;
  const mdf::i32 lane = threadIdx.x % 8;
  const mdf::i32 mate = threadIdx.x / 8;
  const mdf::i32 first = block * 32 + mate;
  mdf::Vec<float, 4> o19[1];
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      o19[t].v[j] = mdf::Sum::identity<float>();
    }
  }
  mdf::Vec<float, 4> o20[1];
  #pragma unroll
  for (mdf::i32 t = 0; t < 1; ++t) {
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      o20[t].v[j] = mdf::Sum::identity<float>();
    }
  }
  float n5 = {};
  float n7 = {};
  mdf::Vec<float, 4> g0[1] = {};
  mdf::Vec<float, 4> g4[1] = {};
  {
    const mdf::i32 row = first;
    if (MDF_IN_BOUNDS(row < p1)) {
      const mdf::i32 d0 = row;
      n5 = mdf::to_compute(mdf::load1(b3, d0));
      n7 = mdf::to_compute(mdf::load1(b4, d0));
      #pragma unroll
      for (mdf::i32 t = 0; t < 1; ++t) {
        const mdf::i32 c = (t * 8 + lane) * 4;
        if (MDF_IN_BOUNDS(c < p2)) {
          const mdf::i32 d1 = c;
          g0[t] = mdf::load<4>(b0, c + d0 * p2);
          g4[t] = mdf::load<4>(b2, c + d0 * p2);
        }
      }
    }
  }
  for (mdf::i32 base = block * 32; base < p1; base += p0 * 32) {
    const mdf::i32 mine = base + mate;
    const bool live = MDF_IN_BOUNDS(mine < p1);
    const mdf::i32 row = live ? mine : 0;
    const mdf::i32 d0 = row;
    const float v5 = n5;
    const float v7 = n7;
    const float v11 = s0;
    mdf::Vec<float, 4> h0[1];
    mdf::Vec<float, 4> h4[1];
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      h0[t] = g0[t];
      h4[t] = g4[t];
    }
    {
      const mdf::i32 next = mine + p0 * 32;
      const mdf::i32 row = next;
      if (MDF_IN_BOUNDS(row < p1)) {
        const mdf::i32 d0 = row;
        n5 = mdf::to_compute(mdf::load1(b3, d0));
        n7 = mdf::to_compute(mdf::load1(b4, d0));
        #pragma unroll
        for (mdf::i32 t = 0; t < 1; ++t) {
          const mdf::i32 c = (t * 8 + lane) * 4;
          if (MDF_IN_BOUNDS(c < p2)) {
            const mdf::i32 d1 = c;
            g0[t] = mdf::load<4>(b0, c + d0 * p2);
            g4[t] = mdf::load<4>(b2, c + d0 * p2);
          }
        }
      }
    }
    float a3 = mdf::Sum::identity<float>();
    float a10 = mdf::Sum::identity<float>();
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      const mdf::i32 c = (t * 8 + lane) * 4;
      if (MDF_IN_BOUNDS(c < p2)) {
        const mdf::i32 d1 = c;
        const mdf::Vec<float, 4> x0 = h0[t];
        const mdf::Vec<float, 4> x4 = h4[t];
        const auto x1 = mdf::load<4>(b1, c);
        #pragma unroll
        for (mdf::i32 j = 0; j < 4; ++j) {
          const float v0 = mdf::to_compute(x0, j);
          const float v1 = mdf::to_compute(x1, j);
          const float v2 = mdf::mul(v0, v1);
          const float v4 = mdf::to_compute(x4, j);
          const float v6 = mdf::sub(v4, v5);
          const float v8 = mdf::mul(v6, v7);
          const float v9 = mdf::mul(v2, v8);
          const float v18 = mdf::mul(v0, v8);
          a3 = mdf::Sum::apply(a3, v2);
          a10 = mdf::Sum::apply(a10, v9);
          if (live) o19[t].v[j] = mdf::Sum::apply(o19[t].v[j], v18);
          if (live) o20[t].v[j] = mdf::Sum::apply(o20[t].v[j], v0);
        }
      }
    }
    const float v3 = mdf::group_reduce<mdf::Sum, 8>(a3);
    const float v10 = mdf::group_reduce<mdf::Sum, 8>(a10);
    const float v12 = mdf::div(v3, v11);
    const float v14 = mdf::div(v10, v11);
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      const mdf::i32 c = (t * 8 + lane) * 4;
      if (MDF_IN_BOUNDS(c < p2)) {
        const mdf::i32 d1 = c;
        const mdf::Vec<float, 4> x0 = h0[t];
        const mdf::Vec<float, 4> x4 = h4[t];
        const auto x1 = mdf::load<4>(b1, c);
        mdf::Vec<float, 4> y5;
        #pragma unroll
        for (mdf::i32 j = 0; j < 4; ++j) {
          const float v0 = mdf::to_compute(x0, j);
          const float v1 = mdf::to_compute(x1, j);
          const float v2 = mdf::mul(v0, v1);
          const float v4 = mdf::to_compute(x4, j);
          const float v6 = mdf::sub(v4, v5);
          const float v8 = mdf::mul(v6, v7);
          const float v13 = mdf::sub(v2, v12);
          const float v15 = mdf::mul(v8, v14);
          const float v16 = mdf::sub(v13, v15);
          const float v17 = mdf::mul(v16, v7);
          y5.v[j] = v17;
        }
        if (live) mdf::store<4>(b5, c + d0 * p2, mdf::from_compute<float>(y5));
      }
    }
  }
  {
    MDF_DYNAMIC_SHARED_AT(float, meet, 1024, 0);
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        mdf::store1(meet, mate * 32 + (t * 8 + lane) * 4 + j, o19[t].v[j]);
      }
    }
    mdf::barrier();
    for (mdf::i32 c = threadIdx.x; c < p2; c += 256) {
      float sum = mdf::load1(meet, c);
      for (mdf::i32 q = 1; q < 32; ++q) {
        sum = mdf::Sum::apply(sum, mdf::load1(meet, q * 32 + c));
      }
      mdf::store1(b8, block * p2 + c, sum);
    }
  }
  {
    MDF_DYNAMIC_SHARED_AT(float, meet, 1024, 0);
    mdf::barrier();
    #pragma unroll
    for (mdf::i32 t = 0; t < 1; ++t) {
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        mdf::store1(meet, mate * 32 + (t * 8 + lane) * 4 + j, o20[t].v[j]);
      }
    }
    mdf::barrier();
    for (mdf::i32 c = threadIdx.x; c < p2; c += 256) {
      float sum = mdf::load1(meet, c);
      for (mdf::i32 q = 1; q < 32; ++q) {
        sum = mdf::Sum::apply(sum, mdf::load1(meet, q * 32 + c));
      }
      mdf::store1(b9, block * p2 + c, sum);
    }
  }
  const mdf::i32 tree = block / 4;
  const mdf::i32 members = mdf::minimum<mdf::i32>(4, p0 - tree * 4);
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b10), 1 + tree, members)) return;
  for (mdf::i32 c = threadIdx.x * 4; c < p2; c += 1024) {
    mdf::Vec<float, 4> s19 = mdf::load<4>(b8, (tree * 4) * p2 + c);
    #pragma unroll 8
    for (mdf::i32 q = 1; q < members; ++q) {
      const mdf::Vec<float, 4> z = mdf::load<4>(b8, (tree * 4 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        s19.v[j] = mdf::Sum::apply(s19.v[j], z.v[j]);
      }
    }
    mdf::Vec<float, 4> s20 = mdf::load<4>(b9, (tree * 4) * p2 + c);
    #pragma unroll 8
    for (mdf::i32 q = 1; q < members; ++q) {
      const mdf::Vec<float, 4> z = mdf::load<4>(b9, (tree * 4 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        s20.v[j] = mdf::Sum::apply(s20.v[j], z.v[j]);
      }
    }
    mdf::store<4>(b8, (p0 + tree) * p2 + c, s19);
    mdf::store<4>(b9, (p0 + tree) * p2 + c, s20);
  }
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b10), 0, p3)) return;
  for (mdf::i32 c = threadIdx.x * 4; c < p2; c += 1024) {
    mdf::Vec<float, 4> s19 = mdf::load<4>(b8, (p0) * p2 + c);
    #pragma unroll 8
    for (mdf::i32 q = 1; q < p3; ++q) {
      const mdf::Vec<float, 4> z = mdf::load<4>(b8, (p0 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        s19.v[j] = mdf::Sum::apply(s19.v[j], z.v[j]);
      }
    }
    mdf::Vec<float, 4> s20 = mdf::load<4>(b9, (p0) * p2 + c);
    #pragma unroll 8
    for (mdf::i32 q = 1; q < p3; ++q) {
      const mdf::Vec<float, 4> z = mdf::load<4>(b9, (p0 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 4; ++j) {
        s20.v[j] = mdf::Sum::apply(s20.v[j], z.v[j]);
      }
    }
    const mdf::i32 d1 = c;
    mdf::Vec<float, 4> y6;
    mdf::Vec<float, 4> y7;
    #pragma unroll
    for (mdf::i32 j = 0; j < 4; ++j) {
      const float v19 = s19.v[j];
      const float v20 = s20.v[j];
      y6.v[j] = v19;
      y7.v[j] = v20;
    }
    mdf::store<4>(b6, c, mdf::from_compute<float>(y6));
    mdf::store<4>(b7, c, mdf::from_compute<float>(y7));
  }
}
