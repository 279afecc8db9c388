// The numbers that a GPU computes in one instruction and C++ does not define or does not have.
#pragma once

namespace mdf {
namespace hw {

inline u32 bits_of(float x) {
  u32 r;
  __builtin_memcpy(&r, &x, 4);
  return r;
}
inline u64 bits_of(double x) {
  u64 r;
  __builtin_memcpy(&r, &x, 8);
  return r;
}
inline float float_of(u32 x) {
  float r;
  __builtin_memcpy(&r, &x, 4);
  return r;
}
inline double double_of(u64 x) {
  double r;
  __builtin_memcpy(&r, &x, 8);
  return r;
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float rsqrt(float x) { return float(1.0 / __builtin_sqrt(double(x))); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

// max.NaN and min.NaN of PTX: a canonical NaN if there is any, and +0 above -0.
inline float maximum(float a, float b) {
  if (a != a || b != b) return float_of(0x7FFFFFFFu);
  if (a == b) return float_of(bits_of(a) & bits_of(b));
  return a > b ? a : b;
}
inline float minimum(float a, float b) {
  if (a != a || b != b) return float_of(0x7FFFFFFFu);
  if (a == b) return float_of(bits_of(a) | bits_of(b));
  return a < b ? a : b;
}
inline float larger(float a, float b) { return b > a ? b : a; }
inline double larger(double a, double b) { return b > a ? b : a; }

// cvt.rn: nearest even; a NaN of any payload becomes 0x7FFF.
inline u16 bf16_of_float(float x) {
  if (x != x) return 0x7FFFu;
  const u32 bits = bits_of(x);
  return u16((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
inline u16 f16_of_float(float x) {
  if (x != x) return 0x7FFFu;
  const u32 bits = bits_of(x);
  const u32 sign = (bits >> 16) & 0x8000u;
  const u32 magnitude = bits & 0x7FFFFFFFu;
  if (magnitude >= 0x477FF000u) return u16(sign | 0x7C00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 at the low end.
    return u16(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u));
  }
  return u16(sign | ((magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13));
}
inline float float_of_f16(u16 x) {
  const u32 sign = u32(x & 0x8000u) << 16;
  const u32 magnitude = x & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  const float scaled = float_of(magnitude << 13) * 5.192296858534828e33f;  // 2^112
  return float_of(bits_of(scaled) | sign);
}
inline u32 bf16x2_of_floats(float lo, float hi) {
  return u32(bf16_of_float(lo)) | (u32(bf16_of_float(hi)) << 16);
}
inline u32 f16x2_of_floats(float lo, float hi) {
  return u32(f16_of_float(lo)) | (u32(f16_of_float(hi)) << 16);
}

// cvt.rzi saturates. A NaN becomes 0, or the top bit alone when either side has 64 bits.
inline u64 top_bit_if_nan(int width) { return u64(1) << (width - 1); }
inline i32 i32_of_float(float x) {
  if (x != x) return 0;
  if (x >= 2147483648.0f) return 2147483647;
  return x < -2147483648.0f ? -2147483647 - 1 : i32(x);
}
inline u32 u32_of_float(float x) {
  if (!(x > 0.0f)) return 0;
  return x >= 4294967296.0f ? 0xFFFFFFFFu : u32(x);
}
inline i64 i64_of_double(double x) {
  if (x != x) return i64(top_bit_if_nan(64));
  if (x >= 9223372036854775808.0) return 9223372036854775807ll;
  return x < -9223372036854775808.0 ? -9223372036854775807ll - 1 : i64(x);
}
inline u64 u64_of_double(double x) {
  if (x != x) return top_bit_if_nan(64);
  if (!(x > 0.0)) return 0;
  return x >= 18446744073709551616.0 ? ~u64(0) : u64(x);
}
inline i64 i64_of_float(float x) { return i64_of_double(double(x)); }
inline u64 u64_of_float(float x) { return u64_of_double(double(x)); }
inline i32 i32_of_double(double x) {
  if (x != x) return i32(u32(top_bit_if_nan(32)));
  if (x >= 2147483648.0) return 2147483647;
  return x <= -2147483649.0 ? -2147483647 - 1 : i32(x);
}
inline u32 u32_of_double(double x) {
  if (x != x) return u32(top_bit_if_nan(32));
  if (!(x > 0.0)) return 0;
  return x >= 4294967296.0 ? 0xFFFFFFFFu : u32(x);
}

inline u32 mul_high(u32 a, u32 b) { return u32((u64(a) * b) >> 32); }

// y with erfc(y) = z for 0 < z <= 1 and x = 1 - z, each given as exactly as the caller knows it.
// Winitzki's closed form is good to 2e-3 and Halley's step triples the digits.
inline double inverse_erf_from(double x, double z) {
  const double log_term = __builtin_log(z * (1.0 + x));
  const double b = 2.0 / (3.14159265358979323846 * 0.147) + 0.5 * log_term;
  double y = __builtin_sqrt(__builtin_sqrt(b * b - log_term / 0.147) - b);
  for (int step = 0; step < 4; ++step) {
    const double residual = x < 0.5 ? __builtin_erf(y) - x : z - __builtin_erfc(y);
    const double newton = residual / (1.12837916709551257390 * __builtin_exp(-y * y));
    y -= newton / (1.0 + y * newton);
  }
  return y;
}
inline double erfinv(double x) {
  const double magnitude = __builtin_fabs(x);
  if (!(magnitude < 1.0)) {
    return magnitude == 1.0 ? __builtin_copysign(__builtin_inf(), x) : __builtin_nan("");
  }
  // The residual of a tiny x is lost in the sum; there erfinv is linear to the last bit.
  if (magnitude < 1e-9) return x * 0.88622692545275801365;
  return __builtin_copysign(inverse_erf_from(magnitude, 1.0 - magnitude), x);
}
inline double erfcinv(double z) {
  if (!(z > 0.0 && z < 2.0)) {
    if (z == 0.0) return __builtin_inf();
    return z == 2.0 ? -__builtin_inf() : __builtin_nan("");
  }
  if (z > 0.5) return z < 1.5 ? erfinv(1.0 - z) : -erfcinv(2.0 - z);
  return inverse_erf_from(1.0 - z, z);
}
inline float erfinv(float x) { return float(erfinv(double(x))); }
inline float erfcinv(float x) { return float(erfcinv(double(x))); }

}  // namespace hw
}  // namespace mdf
