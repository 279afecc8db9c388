// Sums that need the row's largest element or its mean, in the same pass that finds those.
//
// An accumulator keeps its sum relative to what it has seen so far and moves it when it sees more.
// Milakov, Gimelshein: Online normalizer calculation for softmax, 2018. Welford: see reduce.cuh.
#pragma once

#include "loose.cuh"
#include "reduce.cuh"

namespace mdf {

// The sum of exp(x - high), where high is the largest x so far; sum is 0 when there was none, or
// none but -inf.
template <class T>
struct SumExp {
  T high;
  T sum;
};

MDF_DEVICE float loosely_exp(float x) { return loose_exp(x); }
MDF_DEVICE double loosely_exp(double x) { return exp(x); }

// One more value, at the price of one exponential. A NaN stays in the sum.
template <bool LOOSE, class T>
MDF_DEVICE SumExp<T> sum_exp_push(SumExp<T> a, T x) {
  // Of two equal infinities too.
  const T step = x == a.high ? T(0) : x - a.high;
  T scale;
  if constexpr (LOOSE) scale = loosely_exp(-abs(step));
  else scale = exp(-abs(step));
  const bool higher = x > a.high;
  const T sum = higher ? a.sum * scale + T(1) : a.sum + scale;
  // -inf adds nothing, also to nothing.
  return SumExp<T>{higher ? x : a.high, x == -infinity<T>() ? a.sum : sum};
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
    const T first = a.high == high ? a.sum : a.sum * exp(a.high - high);
    const T second = b.high == high ? b.sum : b.sum * exp(b.high - high);
    return SumExp<T>{high, first + second};
  }
};
// sum(exp(x - amax(x))): NaN where the largest is infinite.
template <class T>
MDF_DEVICE T sum_exp_of(SumExp<T> a) {
  return a.high == infinity<T>() || a.sum == T(0) ? nan<T>() : a.sum;
}
// The same with 0 in the place of an infinite amax(x).
template <class T>
MDF_DEVICE T sum_exp_finite_of(SumExp<T> a) {
  return a.high == infinity<T>() && a.sum == a.sum ? a.high : a.sum;
}

}  // namespace mdf
