// y = exp(x * scale) in bf16: 16-byte accesses, and single elements for the tail of the array.
#include "mdfuse.cuh"

extern "C" __global__ void __launch_bounds__(64)
pointwise(MDF_IN(mdf::bf16) x, MDF_OUT(mdf::bf16) y, mdf::i64 n, float scale) {
  const mdf::i64 i = (mdf::i64(blockIdx.x) * 64 + threadIdx.x) * 8;
  if (MDF_IN_BOUNDS(i + 8 <= n)) {
    mdf::Vec<float, 8> v = mdf::to_compute(mdf::load<8>(x, i));
    for (int k = 0; k < 8; ++k) v.v[k] = mdf::exp(mdf::mul(v.v[k], scale));
    mdf::store<8>(y, i, mdf::from_compute<mdf::bf16>(v));
  } else {
    for (int k = 0; k < 8; ++k) {
      if (MDF_IN_BOUNDS(i + k < n)) {
        const float v = mdf::to_compute(mdf::load1(x, i + k));
        mdf::store1(y, i + k, mdf::from_compute<mdf::bf16>(mdf::exp(mdf::mul(v, scale))));
      }
    }
  }
}
