// Integer arithmetic that wraps and never traps, with torch's rounding and shift rules.
//
// Division by zero is undefined in torch on CUDA; here the quotient is -1 (all bits set) and the
// remainder the dividend, on the GPU and in the emulator alike. lowest / -1 is lowest, remainder 0.
#pragma once

#include "math.cuh"

namespace mdf {

#define MDF_INTEGER(T) template <class T> MDF_DEVICE typename When<is_integer<T>, T>::type
// Integers and bool.
#define MDF_DISCRETE(T) \
  template <class T> MDF_DEVICE typename When<is_integer<T> || same<T, bool>, T>::type
#define MDF_DISCRETE_TEST(T) \
  template <class T> MDF_DEVICE typename When<is_integer<T> || same<T, bool>, bool>::type

MDF_INTEGER(T) neg(T x) { return T(Wrap<T>(0) - Wrap<T>(x)); }
MDF_INTEGER(T) add(T a, T b) { return T(Wrap<T>(a) + Wrap<T>(b)); }
MDF_INTEGER(T) sub(T a, T b) { return T(Wrap<T>(a) - Wrap<T>(b)); }
MDF_INTEGER(T) mul(T a, T b) { return T(Wrap<T>(a) * Wrap<T>(b)); }
MDF_DISCRETE(T) abs(T x) {
  if constexpr (is_signed_integer<T>) return x < 0 ? neg(x) : x;
  else return x;
}
MDF_DISCRETE(T) sign(T x) { return T((x > T(0)) - (x < T(0))); }
MDF_DISCRETE(T) floor(T x) { return x; }
MDF_DISCRETE(T) ceil(T x) { return x; }
MDF_DISCRETE(T) round(T x) { return x; }
MDF_DISCRETE(T) trunc(T x) { return x; }
MDF_DISCRETE_TEST(T) isnan(T) { return false; }
MDF_DISCRETE_TEST(T) isinf(T) { return false; }
MDF_DISCRETE_TEST(T) isfinite(T) { return true; }
MDF_DISCRETE_TEST(T) signbit(T x) { return x < T(0); }

// n / d and n % d of 0 <= n < 2^31, given 2^63 / d rounded up: exact, in two multiplications.
// Lemire, Kaser, Kurz: Faster remainder by direct computation, 2019.
MDF_DEVICE i32 quotient(i32 n, u64 reciprocal) {
  const u64 twice = u64(u32(n) << 1);
  const u64 low = (twice * u32(reciprocal)) >> 32;
  return i32((twice * u32(reciprocal >> 32) + low) >> 32);
}
MDF_DEVICE i32 rest(i32 n, i32 d, u64 reciprocal) { return n - quotient(n, reciprocal) * d; }

MDF_INTEGER(T) div_trunc(T a, T b) {
  if (b == T(0)) return T(~Wrap<T>(0));
  if constexpr (is_signed_integer<T>) {
    if (b == T(-1)) return neg(a);
  }
  return T(a / b);
}
// The sign of the dividend, as in C.
MDF_INTEGER(T) fmod(T a, T b) {
  if (b == T(0)) return a;
  if constexpr (is_signed_integer<T>) {
    if (b == T(-1)) return T(0);
  }
  return T(a % b);
}
MDF_INTEGER(T) div_floor(T a, T b) {
  const T q = div_trunc(a, b);
  if constexpr (is_signed_integer<T>) {
    if (b == T(0)) return q;
    return fmod(a, b) != T(0) && (a < T(0)) != (b < T(0)) ? T(q - 1) : q;
  } else {
    return q;
  }
}
// The sign of the divisor, as in Python.
MDF_INTEGER(T) remainder(T a, T b) {
  const T r = fmod(a, b);
  if constexpr (is_signed_integer<T>) {
    return b != T(0) && r != T(0) && (r < T(0)) != (b < T(0)) ? T(r + b) : r;
  } else {
    return r;
  }
}

// A negative exponent gives what the exact power rounds to: 1 and -1 have one, the rest is 0.
MDF_INTEGER(T) pow(T base, T exponent) {
  if constexpr (is_signed_integer<T>) {
    if (exponent < T(0)) {
      if (base == T(1)) return T(1);
      if (base == T(-1)) return exponent % 2 == 0 ? T(1) : T(-1);
      return T(0);
    }
  }
  T result = T(1);
  for (Wrap<T> left = Wrap<T>(exponent); left != 0; left >>= 1) {
    if (left & 1u) result = mul(result, base);
    base = mul(base, base);
  }
  return result;
}

MDF_DISCRETE(T) maximum(T a, T b) { return a > b ? a : b; }
MDF_DISCRETE(T) minimum(T a, T b) { return a < b ? a : b; }
MDF_DISCRETE(T) bitwise_and(T a, T b) { return T(a & b); }
MDF_DISCRETE(T) bitwise_or(T a, T b) { return T(a | b); }
MDF_DISCRETE(T) bitwise_xor(T a, T b) { return T(a ^ b); }
MDF_DISCRETE(T) bitwise_not(T a) {
  if constexpr (same<T, bool>) return !a;
  else return T(~a);
}
// A shift by a negative number or by more bits than there are leaves nothing but the sign.
MDF_INTEGER(T) shl(T a, T bits) {
  if (bits < T(0) || u64(bits) >= 8 * sizeof(T)) return T(0);
  return T(Wrap<T>(a) << u32(bits));
}
MDF_INTEGER(T) shr(T a, T bits) {
  if (bits < T(0) || u64(bits) >= 8 * sizeof(T)) return a < T(0) ? T(-1) : T(0);
  return T(a >> u32(bits));
}

MDF_INTEGER(T) gcd(T a, T b) {
  a = abs(a);
  b = abs(b);
  while (b != T(0)) {
    const T r = fmod(a, b);
    a = b;
    b = r;
  }
  return a;
}

}  // namespace mdf
