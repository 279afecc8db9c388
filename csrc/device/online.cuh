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

// A cheap exponential will do, also for a sum that is kept in f32: it is off by 2^-22 of a term, and
// a term is at most one of a sum that is at least one.
MDF_DEVICE float term_exp(float x) { return loose_exp(x); }
MDF_DEVICE double term_exp(double x) { return exp(x); }

// V more values; -inf adds nothing. A NaN stays in the sum.
template <int V, class T>
MDF_DEVICE SumExp<T> sum_exp_push(SumExp<T> a, const Vec<T, V>& x) {
  T high = a.high;
#pragma unroll
  for (int j = 0; j < V; ++j) high = x.v[j] > high ? x.v[j] : high;
  // Infinity is not subtracted from itself: a sum that has seen it is infinite.
  const T base = isinf(high) ? T(0) : high;
  T sum = a.sum * (a.high == high ? T(1) : exp(a.high - high));
#pragma unroll
  for (int j = 0; j < V; ++j) sum += term_exp(x.v[j] - base);
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
// The same with 0 for a largest of -inf: NaN where the largest is inf, 0 where it is -inf.
template <class T>
MDF_DEVICE T sum_exp_floored_of(SumExp<T> a) {
  return a.high == infinity<T>() ? nan<T>() : a.sum;
}

}  // namespace mdf
