#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(512, 1) mdf_inner_outer_cb7e13388a(
    MDF_IN(double) b0,
    MDF_IN(double) b1,
    MDF_IN(double) b2,
    MDF_IN(double) b3,
    MDF_IN(double) b4,
    MDF_OUT(double) b5,
    MDF_OUT(double) b6,
    MDF_OUT(double) b7,
    MDF_INOUT(double) b8,
    MDF_INOUT(double) b9,
    MDF_INOUT(mdf::i32) b10,
    const mdf::i32 p0,
    const mdf::i32 p1,
    const mdf::i32 p2,
    const mdf::i32 p3,
    const double s0) {
  const mdf::i32 block = blockIdx.x;
  const mdf::i32 lane = threadIdx.x;
  const mdf::i32 first = block;
  MDF_SHARED(double, scratch3, 32);
  MDF_SHARED(double, scratch10, 32);
  mdf::Vec<double, 2> o19[5];
  #pragma unroll
  for (mdf::i32 t = 0; t < 5; ++t) {
    #pragma unroll
    for (mdf::i32 j = 0; j < 2; ++j) {
      o19[t].v[j] = mdf::Sum::identity<double>();
    }
  }
  mdf::Vec<double, 2> o20[5];
  #pragma unroll
  for (mdf::i32 t = 0; t < 5; ++t) {
    #pragma unroll
    for (mdf::i32 j = 0; j < 2; ++j) {
      o20[t].v[j] = mdf::Sum::identity<double>();
    }
  }
  mdf::u32 turn = 0;
  for (mdf::i32 base = block * 1; base < p1; base += p0) {
    const mdf::i32 row = base;
    const mdf::i32 d0 = row;
    const double v5 = mdf::to_compute(mdf::load1(b3, d0));
    const double v7 = mdf::to_compute(mdf::load1(b4, d0));
    const double v11 = s0;
    mdf::Vec<double, 2> h0[5];
    mdf::Vec<double, 2> h4[5];
    #pragma unroll
    for (mdf::i32 t = 0; t < 5; ++t) {
      const mdf::i32 c = (t * 512 + lane) * 2;
      if (MDF_IN_BOUNDS(c < p2)) {
        const mdf::i32 d1 = c;
        h0[t] = mdf::load<2>(b0, c + d0 * p2);
        h4[t] = mdf::load<2>(b2, c + d0 * p2);
      }
    }
    double a3 = mdf::Sum::identity<double>();
    double a10 = mdf::Sum::identity<double>();
    #pragma unroll
    for (mdf::i32 t = 0; t < 5; ++t) {
      const mdf::i32 c = (t * 512 + lane) * 2;
      if (MDF_IN_BOUNDS(c < p2)) {
        const mdf::i32 d1 = c;
        const mdf::Vec<double, 2> x0 = h0[t];
        const mdf::Vec<double, 2> x4 = h4[t];
        const auto x1 = mdf::load<2>(b1, c);
        #pragma unroll
        for (mdf::i32 j = 0; j < 2; ++j) {
          const double v0 = mdf::to_compute(x0, j);
          const double v1 = mdf::to_compute(x1, j);
          const double v2 = mdf::mul(v0, v1);
          const double v4 = mdf::to_compute(x4, j);
          const double v6 = mdf::sub(v4, v5);
          const double v8 = mdf::mul(v6, v7);
          const double v9 = mdf::mul(v2, v8);
          const double v18 = mdf::mul(v0, v8);
          a3 = mdf::Sum::apply(a3, v2);
          a10 = mdf::Sum::apply(a10, v9);
          o19[t].v[j] = mdf::Sum::apply(o19[t].v[j], v18);
          o20[t].v[j] = mdf::Sum::apply(o20[t].v[j], v0);
        }
      }
    }
    mdf::group_put<mdf::Sum>(a3, scratch3, turn);
    mdf::group_put<mdf::Sum>(a10, scratch10, turn);
    mdf::barrier();
    const double v3 = mdf::group_get<mdf::Sum, 512, 512>(scratch3, turn);
    const double v10 = mdf::group_get<mdf::Sum, 512, 512>(scratch10, turn);
    const double v12 = mdf::div(v3, v11);
    const double v14 = mdf::div(v10, v11);
    #pragma unroll
    for (mdf::i32 t = 0; t < 5; ++t) {
      const mdf::i32 c = (t * 512 + lane) * 2;
      if (MDF_IN_BOUNDS(c < p2)) {
        const mdf::i32 d1 = c;
        const mdf::Vec<double, 2> x0 = h0[t];
        const mdf::Vec<double, 2> x4 = h4[t];
        const auto x1 = mdf::load<2>(b1, c);
        mdf::Vec<double, 2> y5;
        #pragma unroll
        for (mdf::i32 j = 0; j < 2; ++j) {
          const double v0 = mdf::to_compute(x0, j);
          const double v1 = mdf::to_compute(x1, j);
          const double v2 = mdf::mul(v0, v1);
          const double v4 = mdf::to_compute(x4, j);
          const double v6 = mdf::sub(v4, v5);
          const double v8 = mdf::mul(v6, v7);
          const double v13 = mdf::sub(v2, v12);
          const double v15 = mdf::mul(v8, v14);
          const double v16 = mdf::sub(v13, v15);
          const double v17 = mdf::mul(v16, v7);
          y5.v[j] = v17;
        }
        mdf::store<2>(b5, c + d0 * p2, mdf::from_compute<double>(y5));
      }
    }
    turn ^= 16;
  }
  #pragma unroll
  for (mdf::i32 t = 0; t < 5; ++t) {
    const mdf::i32 c = (t * 512 + lane) * 2;
    if (MDF_IN_BOUNDS(c < p2)) {
      const mdf::i32 d1 = c;
      mdf::store<2>(b8, block * p2 + c, o19[t]);
      mdf::store<2>(b9, block * p2 + c, o20[t]);
    }
  }
  const mdf::i32 tree = block / 2;
  const mdf::i32 members = mdf::minimum<mdf::i32>(2, p0 - tree * 2);
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b10), 1 + tree, members)) return;
  for (mdf::i32 c = threadIdx.x * 2; c < p2; c += 1024) {
    mdf::Vec<double, 2> s19 = mdf::load<2>(b8, (tree * 2) * p2 + c);
    #pragma unroll 4
    for (mdf::i32 q = 1; q < members; ++q) {
      const mdf::Vec<double, 2> z = mdf::load<2>(b8, (tree * 2 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 2; ++j) {
        s19.v[j] = mdf::Sum::apply(s19.v[j], z.v[j]);
      }
    }
    mdf::Vec<double, 2> s20 = mdf::load<2>(b9, (tree * 2) * p2 + c);
    #pragma unroll 4
    for (mdf::i32 q = 1; q < members; ++q) {
      const mdf::Vec<double, 2> z = mdf::load<2>(b9, (tree * 2 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 2; ++j) {
        s20.v[j] = mdf::Sum::apply(s20.v[j], z.v[j]);
      }
    }
    mdf::store<2>(b8, (p0 + tree) * p2 + c, s19);
    mdf::store<2>(b9, (p0 + tree) * p2 + c, s20);
  }
  if (!mdf::counter_arrive(reinterpret_cast<mdf::u32*>(b10), 0, p3)) return;
  for (mdf::i32 c = threadIdx.x * 2; c < p2; c += 1024) {
    mdf::Vec<double, 2> s19 = mdf::load<2>(b8, (p0) * p2 + c);
    #pragma unroll 4
    for (mdf::i32 q = 1; q < p3; ++q) {
      const mdf::Vec<double, 2> z = mdf::load<2>(b8, (p0 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 2; ++j) {
        s19.v[j] = mdf::Sum::apply(s19.v[j], z.v[j]);
      }
    }
    mdf::Vec<double, 2> s20 = mdf::load<2>(b9, (p0) * p2 + c);
    #pragma unroll 4
    for (mdf::i32 q = 1; q < p3; ++q) {
      const mdf::Vec<double, 2> z = mdf::load<2>(b9, (p0 + q) * p2 + c);
      #pragma unroll
      for (mdf::i32 j = 0; j < 2; ++j) {
        s20.v[j] = mdf::Sum::apply(s20.v[j], z.v[j]);
      }
    }
    const mdf::i32 d1 = c;
    mdf::Vec<double, 2> y6;
    mdf::Vec<double, 2> y7;
    #pragma unroll
    for (mdf::i32 j = 0; j < 2; ++j) {
      const double v19 = s19.v[j];
      const double v20 = s20.v[j];
      y6.v[j] = v19;
      y7.v[j] = v20;
    }
    mdf::store<2>(b6, c, mdf::from_compute<double>(y6));
    mdf::store<2>(b7, c, mdf::from_compute<double>(y7));
  }
}
