// Sums that need the row's largest element or its mean, in the same pass that finds those.
//
// An accumulator keeps its sum relative to what it has seen so far and moves it when it sees more.
// Milakov, Gimelshein: Online normalizer calculation for softmax, 2018. Welford: see reduce.cuh.
#pragma once

#include "loose.cuh"
#include "reduce.cuh"

namespace mdf {

// The sum of exp(x - high), where high is the largest x so far; sum is 0 when there was none, or
// none but -inf. A NaN is in the sum alone.
//
// In f32 the sum is one of powers of two, which cost one rounding and one cheap instruction: that of
// 2^(x * log2(e) - place), with place the rounded product high * log2(e). What place is off by is
// common to all terms, and made good at the end. Where it may be off by more than 1, and for
// infinities, the sum is the one that was said first.
template <class T>
struct SumExp {
  T high;
  T sum;
};

namespace detail {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float FAR = 16777216.0f;  // beyond it neighbouring f32 numbers are 2 apart

// A cheap exponential will do, also for a sum that is kept in f32: it is off by 2^-22 of a term, and
// a term is at most one of a sum that is at least one.
MDF_DEVICE float term_exp(float x) { return loose_exp(x); }
MDF_DEVICE double term_exp(double x) { return exp(x); }

MDF_DEVICE bool has_place(float high) { return abs(high) <= FAR; }
MDF_DEVICE bool has_place(double) { return false; }

// What a sum relative to `from` is multiplied with to be one relative to `to`, which is not smaller.
MDF_DEVICE float moved(float from, float to) {
  if (!has_place(to)) return from == to ? 1.0f : exp(from - to);
  const float place = to * LOG2_E;
  return loose_exp2(has_place(from) ? from * LOG2_E - place : fma(from, LOG2_E, -place));
}
MDF_DEVICE double moved(double from, double to) { return from == to ? 1.0 : exp(from - to); }

MDF_DEVICE float term(float x, float place) { return loose_exp2(fma(x, LOG2_E, -place)); }
MDF_DEVICE double term(double x, double) { return x; }  // has no place

// The sum of exp(x - high).
MDF_DEVICE float settled(SumExp<float> a) {
  if (!has_place(a.high)) return a.sum;
  return a.sum * loose_exp2(-fma(a.high, LOG2_E, -(a.high * LOG2_E)));
}
MDF_DEVICE double settled(SumExp<double> a) { return a.sum; }

}  // namespace detail

// V more values; -inf adds nothing. A NaN stays in the sum.
template <int V, class T>
MDF_DEVICE SumExp<T> sum_exp_push(SumExp<T> a, const Vec<T, V>& x) {
  T high = a.high;
#pragma unroll
  for (int j = 0; j < V; ++j) high = hw::larger(high, x.v[j]);
  T sum = a.sum * detail::moved(a.high, high);
  if (detail::has_place(high)) {
    const T place = high * T(detail::LOG2_E);
#pragma unroll
    for (int j = 0; j < V; ++j) sum += detail::term(x.v[j], place);
  } else {
    // Infinity is not subtracted from itself: a sum that has seen it is infinite.
    const T base = isinf(high) ? T(0) : high;
#pragma unroll
    for (int j = 0; j < V; ++j) sum += detail::term_exp(x.v[j] - base);
  }
  return SumExp<T>{high, sum};
}
struct SumExpMerge {
  template <class A>
  static MDF_DEVICE A identity() {
    return A{-infinity<decltype(A::high)>(), 0};
  }
  // Symmetric in a and b, so that both partners of a butterfly step get the same bits.
  template <class T>
  static MDF_DEVICE SumExp<T> apply(SumExp<T> a, SumExp<T> b) {
    const T high = a.high > b.high ? a.high : b.high;
    return SumExp<T>{high, a.sum * detail::moved(a.high, high) + b.sum * detail::moved(b.high, high)};
  }
};
// sum(exp(x - amax(x))): NaN where the largest is infinite.
template <class T>
MDF_DEVICE T sum_exp_of(SumExp<T> a) {
  return a.high == infinity<T>() || a.sum == T(0) ? nan<T>() : detail::settled(a);
}
// The same with 0 for an infinite largest.
template <class T>
MDF_DEVICE T sum_exp_finite_of(SumExp<T> a) {
  return detail::settled(a);
}
// The same with 0 for a largest of -inf: NaN where the largest is inf, 0 where it is -inf.
template <class T>
MDF_DEVICE T sum_exp_floored_of(SumExp<T> a) {
  return a.high == infinity<T>() ? nan<T>() : detail::settled(a);
}
// amax(x), of the same pass.
template <class T>
MDF_DEVICE T sum_exp_high(SumExp<T> a) {
  return isnan(a.sum) ? nan<T>() : a.high;
}

}  // namespace mdf
