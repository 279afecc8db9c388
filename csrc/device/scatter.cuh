// Positions that come out of memory, and stores that several threads may make to one place.
#pragma once

#include "math.cuh"
#include "memory.cuh"

namespace mdf {

// `index` as a position in a dim of `extent` elements. Any other index ends the launch: with a
// device-side assertion, as torch's own kernels do, or with the emulator's fault.
template <class I, class T>
MDF_DEVICE I position(T index, i64 extent MDF_SITE) {
  const i64 at = cast<i64>(index);
  if (at < 0 || at >= extent) hw::index_fault(at, extent MDF_PASS);
  return I(at);
}

// One of the values that are stored to p[i] stays, whichever it is.
template <class T, class I>
MDF_DEVICE void scatter_store(T* p, I i, Element<T*> value MDF_SITE) {
  hw::write_unordered(p + i, value MDF_PASS);
}

namespace detail {

template <int BYTES>
struct SmallWord;
template <>
struct SmallWord<1> {
  using type = u8;
};
template <>
struct SmallWord<2> {
  using type = u16;
};

template <class T>
using SmallBits = typename SmallWord<int(sizeof(T))>::type;
template <class T>
MDF_DEVICE SmallBits<T> small_bits(T x) {
  if constexpr (is_small_float<T>) return x.bits;
  else return SmallBits<T>(x);
}
template <class T>
MDF_DEVICE T of_small_bits(SmallBits<T> bits) {
  if constexpr (is_small_float<T>) return T{bits};
  else return T(bits);
}

// What no device adds by itself: exchange the element until nobody came between.
template <class T>
MDF_DEVICE void add_by_exchange(T* p, T value MDF_SITE) {
  using W = SmallBits<T>;
  W* const word = reinterpret_cast<W*>(p);
  W seen = hw::compare_and_swap(word, W(0), W(0) MDF_PASS);
  for (;;) {
    const T sum = cast<T>(add(to_compute(of_small_bits<T>(seen)), to_compute(value)));
    const W before = hw::compare_and_swap(word, seen, small_bits(sum) MDF_PASS);
    if (before == seen) return;
    seen = before;
  }
}

}  // namespace detail

// Adds `value` to p[i], rounding to T each time; a bool becomes true when any value is. The order of
// float additions is not defined, so neither is the last bit of the sum.
template <class T, class I>
MDF_DEVICE void scatter_add(T* p, I i, Element<T*> value MDF_SITE) {
  if constexpr (same<T, bool>) {
    if (value) hw::write_unordered(p + i, true MDF_PASS);
  } else if constexpr (is_complex<T>) {
    using R = decltype(T::re);
    R* const parts = reinterpret_cast<R*>(p + i);
    hw::atomic_add(parts, value.re MDF_PASS);
    hw::atomic_add(parts + 1, value.im MDF_PASS);
  } else if constexpr (hw::has_small_add<T>) {
    hw::small_add(p + i, value MDF_PASS);
  } else if constexpr (sizeof(T) < 4) {
    detail::add_by_exchange(p + i, value MDF_PASS);
  } else {
    hw::atomic_add(p + i, value MDF_PASS);
  }
}

}  // namespace mdf
