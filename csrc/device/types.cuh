// Storage types, compute types and the few type traits that the rest of the library needs.
//
// A storage type is what stands in memory; arithmetic happens in Compute<T>: float for the 8- and
// 16-bit floats, the type itself for everything else. No standard header is included: NVRTC has
// none to offer, and leaving them out keeps a compile of the emulator short.
#pragma once

namespace mdf {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// No constructors: they have to be usable as elements of __shared__ arrays.
struct alignas(2) bf16 {
  u16 bits;
};
struct alignas(2) f16 {
  u16 bits;
};
struct f8e4m3 {
  u8 bits;
};
struct f8e5m2 {
  u8 bits;
};
struct alignas(8) c64 {
  float re;
  float im;
};
struct alignas(16) c128 {
  double re;
  double im;
};

template <class A, class B>
struct Same {
  static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
  static constexpr bool value = true;
};
template <class A, class B>
inline constexpr bool same = Same<A, B>::value;

template <class T>
inline constexpr bool is_float = same<T, float> || same<T, double>;
// The floats that have no arithmetic of their own.
template <class T>
inline constexpr bool is_small_float =
    same<T, bf16> || same<T, f16> || same<T, f8e4m3> || same<T, f8e5m2>;
template <class T>
inline constexpr bool is_complex = same<T, c64> || same<T, c128>;
template <class T>
inline constexpr bool is_signed_integer =
    same<T, i8> || same<T, i16> || same<T, i32> || same<T, i64> || same<T, long>;
template <class T>
inline constexpr bool is_unsigned_integer =
    same<T, u8> || same<T, u16> || same<T, u32> || same<T, u64> || same<T, unsigned long>;
template <class T>
inline constexpr bool is_integer = is_signed_integer<T> || is_unsigned_integer<T>;

template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<bf16> {
  using type = float;
};
template <>
struct ComputeOf<f16> {
  using type = float;
};
template <>
struct ComputeOf<f8e4m3> {
  using type = float;
};
template <>
struct ComputeOf<f8e5m2> {
  using type = float;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

// The unsigned integer in which arithmetic of T wraps without undefined behaviour. It is never
// narrower than u32: u16 * u16 would be promoted to int and could overflow it.
template <int BYTES>
struct WrapOf {
  using type = u32;
};
template <>
struct WrapOf<8> {
  using type = u64;
};
template <class T>
using Wrap = typename WrapOf<sizeof(T)>::type;

template <class T>
struct Limits {
  static_assert(is_integer<T>, "limits exist for integers, bool, float and double");
  static constexpr T highest = is_signed_integer<T>
                                   ? T((u64(1) << (8 * sizeof(T) - 1)) - 1)
                                   : T(~u64(0));
  static constexpr T lowest = is_signed_integer<T> ? T(-highest - 1) : T(0);
};
template <>
struct Limits<bool> {
  static constexpr bool highest = true;
  static constexpr bool lowest = false;
};

// V elements that are read or written by one access, or by several when they need more than 16
// bytes, or no power of two (structs of three numbers).
template <int BYTES>
inline constexpr int access_bytes = (BYTES & -BYTES) < 16 ? (BYTES & -BYTES) : 16;

template <class T, int V>
struct alignas(access_bytes<int(sizeof(T)) * V>) Vec {
  static_assert((V & (V - 1)) == 0 && V > 0, "a vector has a power of two of elements");
  T v[V];
};

}  // namespace mdf
