// Conversions between every two types, with the results of torch's `.to`.
//
// Floats round to nearest even and keep NaN (the payload is not kept). float8_e4m3fn has no
// infinity: what rounds above 448 becomes NaN, as in torch 2.11. float8_e5m2 overflows to infinity.
// double goes to the small floats through float, and so is rounded twice, as torch does it.
// Float to integer truncates and saturates at 32 and 64 bits as the GPU does; 8- and 16-bit results
// are the low bits of that (u8 through i64, the others through i32), again as torch on CUDA.
#pragma once

#include "types.cuh"

namespace mdf {
namespace detail {

MDF_DEVICE float float_of_e5m2(u8 x) { return hw::float_of_f16(u16(u16(x) << 8)); }

MDF_DEVICE float float_of_e4m3(u8 x) {
  const u32 sign = u32(x & 0x80u) << 24;
  const u32 magnitude = x & 0x7Fu;
  if (magnitude == 0x7Fu) return hw::float_of(sign | 0x7FC00000u);
  // Exponent and mantissa in float's places, and the biases made equal by an exact product:
  // that is also right for the subnormals.
  const float scaled = hw::float_of(magnitude << 20) * hw::float_of(0x7B800000u);  // 2^120
  return hw::float_of(hw::bits_of(scaled) | sign);
}

// sm_89 has an instruction for pairs. It saturates, so what rounds above the largest is put right.
#if !defined(MDF_EMULATOR) && __CUDA_ARCH__ >= 890
MDF_DEVICE u8 e5m2_of_float(float v) {
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
  const u32 bits = hw::bits_of(v);
  const u32 sign = (bits >> 24) & 0x80u;
  const u32 x = bits & 0x7FFFFFFFu;
  const u32 large = x > 0x7F800000u ? 0x7Fu : 0x7Cu;
  return u8(x >= 0x47700000u ? sign | large : u32(pair));
}
MDF_DEVICE u8 e4m3_of_float(float v) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
  const u32 bits = hw::bits_of(v);
  return u8((bits & 0x7FFFFFFFu) > 0x43E80000u ? ((bits >> 24) & 0x80u) | 0x7Fu : u32(pair));
}
#else
MDF_DEVICE u8 e5m2_of_float(float v) {
  const u32 bits = hw::bits_of(v);
  const u8 sign = u8((bits >> 24) & 0x80u);
  const u32 x = bits & 0x7FFFFFFFu;
  if (x > 0x7F800000u) return u8(sign | 0x7Fu);
  if (x >= 0x47700000u) return u8(sign | 0x7Cu);  // 61440 and above round to infinity
  if (x < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 128 leaves its bits, rounded, at the low end.
    const float shifted = hw::float_of(x) + hw::float_of(0x43000000u);
    return u8(sign | (hw::bits_of(shifted) - 0x43000000u));
  }
  const u32 odd = (x >> 21) & 1u;
  return u8(sign | ((x - 0x38000000u + 0xFFFFFu + odd) >> 21));
}

MDF_DEVICE u8 e4m3_of_float(float v) {
  const u32 bits = hw::bits_of(v);
  const u8 sign = u8((bits >> 24) & 0x80u);
  const u32 x = bits & 0x7FFFFFFFu;
  if (x > 0x43E80000u) return u8(sign | 0x7Fu);  // above 464, the middle of 448 and the next step
  if (x < 0x3C800000u) {
    // Below 2^-6 the result is subnormal: adding 2^14 leaves its bits, rounded, at the low end.
    const float shifted = hw::float_of(x) + hw::float_of(0x46800000u);
    return u8(sign | (hw::bits_of(shifted) - 0x46800000u));
  }
  const u32 odd = (x >> 20) & 1u;
  return u8(sign | ((x - 0x3C000000u + 0x7FFFFu + odd) >> 20));
}
#endif

template <class To>
MDF_DEVICE To integer_of_float(float v) {
  if constexpr (same<To, u8>) return u8(hw::i64_of_float(v));
  if constexpr (same<To, u16>) return u16(hw::i32_of_float(v));
  if constexpr (same<To, u32>) return hw::u32_of_float(v);
  if constexpr (is_unsigned_integer<To> && sizeof(To) == 8) return To(hw::u64_of_float(v));
  if constexpr (is_signed_integer<To> && sizeof(To) == 8) return To(hw::i64_of_float(v));
  return To(hw::i32_of_float(v));
}
template <class To>
MDF_DEVICE To integer_of_float(double v) {
  if constexpr (same<To, u8>) return u8(hw::i64_of_double(v));
  if constexpr (same<To, u16>) return u16(hw::i32_of_double(v));
  if constexpr (same<To, u32>) return hw::u32_of_double(v);
  if constexpr (is_unsigned_integer<To> && sizeof(To) == 8) return To(hw::u64_of_double(v));
  if constexpr (is_signed_integer<To> && sizeof(To) == 8) return To(hw::i64_of_double(v));
  return To(hw::i32_of_double(v));
}

template <class T>
MDF_DEVICE T small_float_of(float v) {
  if constexpr (same<T, bf16>) return bf16{hw::bf16_of_float(v)};
  if constexpr (same<T, f16>) return f16{hw::f16_of_float(v)};
  if constexpr (same<T, f8e4m3>) return f8e4m3{e4m3_of_float(v)};
  if constexpr (same<T, f8e5m2>) return f8e5m2{e5m2_of_float(v)};
}

}  // namespace detail

MDF_DEVICE float to_compute(bf16 x) { return hw::float_of(u32(x.bits) << 16); }
MDF_DEVICE float to_compute(f16 x) { return hw::float_of_f16(x.bits); }
MDF_DEVICE float to_compute(f8e4m3 x) { return detail::float_of_e4m3(x.bits); }
MDF_DEVICE float to_compute(f8e5m2 x) { return detail::float_of_e5m2(x.bits); }
template <class T>
MDF_DEVICE T to_compute(T x) {
  return x;
}

// Any type to any type. Complex to real drops the imaginary part, as torch does with a warning.
template <class To, class From>
MDF_DEVICE To cast(From x) {
  if constexpr (same<To, From>) {
    return x;
  } else if constexpr (is_small_float<From>) {
    return cast<To>(to_compute(x));
  } else if constexpr (is_complex<From> && is_complex<To>) {
    return To{cast<decltype(To::re)>(x.re), cast<decltype(To::im)>(x.im)};
  } else if constexpr (is_complex<From> && same<To, bool>) {
    return x.re != 0 || x.im != 0;
  } else if constexpr (is_complex<From>) {
    return cast<To>(x.re);
  } else if constexpr (is_complex<To>) {
    return To{cast<decltype(To::re)>(x), 0};
  } else if constexpr (same<To, bool>) {
    return x != From(0);
  } else if constexpr (is_small_float<To>) {
    return detail::small_float_of<To>(static_cast<float>(x));
  } else if constexpr (is_integer<To> && is_float<From>) {
    return detail::integer_of_float<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <class T, class C>
MDF_DEVICE T from_compute(C v) {
  return cast<T>(v);
}

namespace detail {

// Two at a time, where neither is NaN or rounds above the largest. lo stands at the lower address.
template <class T>
MDF_DEVICE u16 f8_pair(float lo, float hi) {
#if !defined(MDF_EMULATOR) && __CUDA_ARCH__ >= 890
  u16 pair;
  if constexpr (same<T, f8e4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
  }
  return pair;
#else
  return u16(cast<T>(lo).bits | u32(cast<T>(hi).bits) << 8);
#endif
}
template <class T, int V>
MDF_DEVICE bool all_in_range(const Vec<float, V>& x) {
  bool all = true;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float size = hw::float_of(hw::bits_of(x.v[k]) & 0x7FFFFFFFu);
    all = all && (same<T, f8e4m3> ? size <= 464.0f : size < 61440.0f);
  }
  return all;
}

}  // namespace detail

// Whole vectors. Pairs of the small floats share one conversion instruction.
template <class T, int V>
MDF_DEVICE Vec<Compute<T>, V> to_compute(const Vec<T, V>& x) {
  Vec<Compute<T>, V> out;
#pragma unroll
  for (int k = 0; k < V; ++k) out.v[k] = to_compute(x.v[k]);
  return out;
}

// Element j of a vector. Two bf16 are the halves of a word, and each is one instruction away from
// its float; taken out of the word first, every second one would be two.
template <class T, int V>
MDF_DEVICE Compute<T> to_compute(const Vec<T, V>& x, int j) {
  if constexpr (same<T, bf16> && V > 1) {
    u32 word;
    memcpy(&word, &x.v[j & ~1], 4);
    return hw::float_of(j & 1 ? word & 0xFFFF0000u : word << 16);
  } else {
    return to_compute(x.v[j]);
  }
}

template <class T, class C, int V>
MDF_DEVICE Vec<T, V> from_compute(const Vec<C, V>& x) {
  Vec<T, V> out;
  if constexpr (V > 1 && same<C, float> && (same<T, bf16> || same<T, f16>)) {
#pragma unroll
    for (int k = 0; k < V; k += 2) {
      const u32 pair = same<T, bf16> ? hw::bf16x2_of_floats(x.v[k], x.v[k + 1])
                                     : hw::f16x2_of_floats(x.v[k], x.v[k + 1]);
      out.v[k] = T{u16(pair & 0xFFFFu)};
      out.v[k + 1] = T{u16(pair >> 16)};
    }
  } else {
    if constexpr (V > 1 && same<C, float> && (same<T, f8e4m3> || same<T, f8e5m2>)) {
      if (detail::all_in_range<T>(x)) {
#pragma unroll
        for (int k = 0; k < V; k += 2) {
          const u16 pair = detail::f8_pair<T>(x.v[k], x.v[k + 1]);
          out.v[k] = T{u8(pair & 0xFFu)};
          out.v[k + 1] = T{u8(pair >> 8)};
        }
        return out;
      }
    }
#pragma unroll
    for (int k = 0; k < V; ++k) out.v[k] = cast<T>(x.v[k]);
  }
  return out;
}

}  // namespace mdf
