// Math with torch's results on float and double: the accurate functions, never the fast ones.
// Integer arithmetic is in integer.cuh and complex in complex.cuh, under the same names.
#pragma once

#include "convert.cuh"

namespace mdf {

template <class T>
MDF_DEVICE T infinity();
template <>
MDF_DEVICE float infinity<float>() {
  return hw::float_of(0x7F800000u);
}
template <>
MDF_DEVICE double infinity<double>() {
  return hw::double_of(0x7FF0000000000000ull);
}
template <class T>
MDF_DEVICE T nan();
template <>
MDF_DEVICE float nan<float>() {
  return hw::float_of(0x7FC00000u);
}
template <>
MDF_DEVICE double nan<double>() {
  return hw::double_of(0x7FF8000000000000ull);
}

#define MDF_MATH1(name, f32_name, f64_name)                          \
  MDF_DEVICE float name(float x) { return MDF_LIBM(f32_name)(x); }   \
  MDF_DEVICE double name(double x) { return MDF_LIBM(f64_name)(x); }
MDF_MATH1(abs, fabsf, fabs)
MDF_MATH1(exp, expf, exp)
MDF_MATH1(exp2, exp2f, exp2)
MDF_MATH1(expm1, expm1f, expm1)
MDF_MATH1(log, logf, log)
MDF_MATH1(log2, log2f, log2)
MDF_MATH1(log10, log10f, log10)
MDF_MATH1(log1p, log1pf, log1p)
MDF_MATH1(sqrt, sqrtf, sqrt)
MDF_MATH1(sin, sinf, sin)
MDF_MATH1(cos, cosf, cos)
MDF_MATH1(tan, tanf, tan)
MDF_MATH1(asin, asinf, asin)
MDF_MATH1(acos, acosf, acos)
MDF_MATH1(atan, atanf, atan)
MDF_MATH1(sinh, sinhf, sinh)
MDF_MATH1(cosh, coshf, cosh)
MDF_MATH1(tanh, tanhf, tanh)
MDF_MATH1(asinh, asinhf, asinh)
MDF_MATH1(acosh, acoshf, acosh)
MDF_MATH1(atanh, atanhf, atanh)
MDF_MATH1(erf, erff, erf)
MDF_MATH1(erfc, erfcf, erfc)
MDF_MATH1(lgamma, lgammaf, lgamma)
MDF_MATH1(floor, floorf, floor)
MDF_MATH1(ceil, ceilf, ceil)
MDF_MATH1(round, rintf, rint)  // half to even
MDF_MATH1(trunc, truncf, trunc)
#undef MDF_MATH1

#define MDF_MATH2(name, f32_name, f64_name)                                        \
  MDF_DEVICE float name(float a, float b) { return MDF_LIBM(f32_name)(a, b); }     \
  MDF_DEVICE double name(double a, double b) { return MDF_LIBM(f64_name)(a, b); }
MDF_MATH2(fmod, fmodf, fmod)
MDF_MATH2(pow, powf, pow)
MDF_MATH2(atan2, atan2f, atan2)
MDF_MATH2(nextafter, nextafterf, nextafter)
MDF_MATH2(copysign, copysignf, copysign)
MDF_MATH2(hypot, hypotf, hypot)
#undef MDF_MATH2

MDF_DEVICE float frexp(float x, int* e) { return MDF_LIBM(frexpf)(x, e); }
MDF_DEVICE double frexp(double x, int* e) { return MDF_LIBM(frexp)(x, e); }

// One definition for float and double; MDF_REAL keeps it from integers, which have their own.
template <bool OK, class T>
struct When {};
template <class T>
struct When<true, T> {
  using type = T;
};
#define MDF_REAL(T) template <class T> MDF_DEVICE typename When<is_float<T>, T>::type
#define MDF_REAL_TEST(T) template <class T> MDF_DEVICE typename When<is_float<T>, bool>::type

MDF_REAL(T) neg(T x) { return -x; }
MDF_REAL(T) add(T a, T b) { return a + b; }
MDF_REAL(T) sub(T a, T b) { return a - b; }
MDF_REAL(T) mul(T a, T b) { return a * b; }
MDF_REAL(T) div(T a, T b) { return a / b; }
MDF_REAL(T) fma(T a, T b, T c) { return hw::fma(a, b, c); }
MDF_REAL(T) rsqrt(T x) { return hw::rsqrt(x); }
MDF_REAL(T) erfinv(T x) { return hw::erfinv(x); }
MDF_REAL(T) erfcinv(T x) { return hw::erfcinv(x); }
MDF_REAL(T) reciprocal(T x) { return T(1) / x; }
MDF_REAL(T) frac(T x) { return x - trunc(x); }
// 0 for NaN and for both zeros.
MDF_REAL(T) sign(T x) { return T((x > T(0)) - (x < T(0))); }

MDF_REAL_TEST(T) isnan(T x) { return x != x; }
MDF_REAL_TEST(T) isinf(T x) { return abs(x) == infinity<T>(); }
MDF_REAL_TEST(T) isfinite(T x) { return abs(x) < infinity<T>(); }
MDF_REAL_TEST(T) signbit(T x) {
  return (hw::bits_of(x) >> (8 * sizeof(T) - 1)) != 0;
}

// x = mantissa * 2^exponent with 0.5 <= |mantissa| < 1; what is not finite is its own mantissa.
MDF_REAL(T) mantissa(T x) {
  int e = 0;
  return isfinite(x) ? frexp(x, &e) : x;
}
template <class T>
MDF_DEVICE typename When<is_float<T>, i32>::type exponent(T x) {
  int e = 0;
  if (isfinite(x)) frexp(x, &e);
  return e;
}

// The sign of the divisor, as in Python.
MDF_REAL(T) remainder(T a, T b) {
  const T r = fmod(a, b);
  return r != T(0) && (b < T(0)) != (r < T(0)) ? r + b : r;
}
MDF_REAL(T) div_trunc(T a, T b) { return trunc(a / b); }
// Not floor(a / b): the quotient is corrected by the exact remainder, as torch does it.
MDF_REAL(T) div_floor(T a, T b) {
  if (b == T(0)) return a / b;
  const T r = fmod(a, b);
  T q = (a - r) / b;
  if (r != T(0) && (b < T(0)) != (r < T(0))) q -= T(1);
  if (q == T(0)) return copysign(T(0), a / b);
  const T down = floor(q);
  return q - down > T(0.5) ? down + T(1) : down;
}

// NaN wins over every number and +0 is above -0, whatever the order of the arguments.
MDF_DEVICE float maximum(float a, float b) { return hw::maximum(a, b); }
MDF_DEVICE float minimum(float a, float b) { return hw::minimum(a, b); }
MDF_DEVICE double maximum(double a, double b) {
  if (a == b) return hw::double_of(hw::bits_of(a) & hw::bits_of(b));
  return a > b || a != a ? a : b;
}
MDF_DEVICE double minimum(double a, double b) {
  if (a == b) return hw::double_of(hw::bits_of(a) | hw::bits_of(b));
  return a < b || a != a ? a : b;
}

// Of x, low and high, a NaN wins; high wins over low.
template <class T>
MDF_DEVICE T clamp(T x, T low, T high);

MDF_REAL(T) lerp(T a, T b, T weight) {
  return abs(weight) < T(0.5) ? a + weight * (b - a) : b - (b - a) * (T(1) - weight);
}

template <class T>
MDF_DEVICE T where(bool condition, T a, T b) {
  return condition ? a : b;
}

}  // namespace mdf

#include "integer.cuh"

namespace mdf {

template <class T>
MDF_DEVICE T clamp(T x, T low, T high) {
  return minimum(maximum(x, low), high);
}

}  // namespace mdf

#include "complex.cuh"
