// Reductions over lanes, groups of threads and blocks. Deterministic: the order depends on the
// number of threads only, and every thread gets the same bits.
//
// An operation is a struct with `identity<T>()` and `apply(a, b)`, associative and commutative.
#pragma once

#include "math.cuh"
#include "sync.cuh"

namespace mdf {

struct Sum {
  template <class T>
  static MDF_DEVICE T identity() {
    return cast<T>(0);
  }
  template <class T>
  static MDF_DEVICE T apply(T a, T b) {
    if constexpr (same<T, bool>) return a || b;
    else return add(a, b);
  }
};
struct Prod {
  template <class T>
  static MDF_DEVICE T identity() {
    return cast<T>(1);
  }
  template <class T>
  static MDF_DEVICE T apply(T a, T b) {
    if constexpr (same<T, bool>) return a && b;
    else return mul(a, b);
  }
};
// NaN wins over every number, as in torch.amax and torch.amin.
struct Max {
  template <class T>
  static MDF_DEVICE T identity() {
    if constexpr (is_float<T>) return T(-infinity<T>());
    else return Limits<T>::lowest;
  }
  template <class T>
  static MDF_DEVICE T apply(T a, T b) {
    return maximum(a, b);
  }
  template <class T>
  static MDF_DEVICE bool before(T a, T b) {
    return a > b;
  }
};
struct Min {
  template <class T>
  static MDF_DEVICE T identity() {
    if constexpr (is_float<T>) return infinity<T>();
    else return Limits<T>::highest;
  }
  template <class T>
  static MDF_DEVICE T apply(T a, T b) {
    return minimum(a, b);
  }
  template <class T>
  static MDF_DEVICE bool before(T a, T b) {
    return a < b;
  }
};
struct Any {
  template <class T>
  static MDF_DEVICE T identity() {
    return T(false);
  }
  template <class T>
  static MDF_DEVICE T apply(T a, T b) {
    return T(a != T(0) || b != T(0));
  }
};
struct All {
  template <class T>
  static MDF_DEVICE T identity() {
    return T(true);
  }
  template <class T>
  static MDF_DEVICE T apply(T a, T b) {
    return T(a != T(0) && b != T(0));
  }
};

// A value and where it stands, for argmax and argmin: NaN wins, and of equals the lowest index.
template <class T, class I = i64>
struct Indexed {
  T value;
  I index;
};
template <class T>
using Indexed32 = Indexed<T, i32>;
template <class ORDER>
struct ArgOf {
  template <class P>
  static MDF_DEVICE P identity() {
    return P{ORDER::template identity<decltype(P::value)>(), Limits<decltype(P::index)>::highest};
  }
  // Selections and no branches: a reduction of bf16 is bound by these instructions.
  template <class T, class I>
  static MDF_DEVICE Indexed<T, I> apply(Indexed<T, I> a, Indexed<T, I> b) {
    const bool a_nan = a.value != a.value;
    const bool b_nan = b.value != b.value;
    const bool tie = !ORDER::before(a.value, b.value) & (a_nan == b_nan);
    const bool second = ORDER::before(b.value, a.value) | (b_nan & !a_nan) |
                        (tie & (b.index < a.index));
    return Indexed<T, I>{second ? b.value : a.value, second ? b.index : a.index};
  }
};
using ArgMax = ArgOf<Max>;
using ArgMin = ArgOf<Min>;

// Mean, sum of squared distances from it, and how many: variance without cancellation.
template <class T>
struct Welford {
  T mean;
  T m2;
  T count;
};
// One more value. Start from WelfordMerge::identity<Welford<T>>().
template <class T>
MDF_DEVICE Welford<T> welford_push(Welford<T> w, T x) {
  const T count = w.count + T(1);
  const T delta = x - w.mean;
  const T mean = w.mean + delta / count;
  return Welford<T>{mean, w.m2 + delta * (x - mean), count};
}
struct WelfordMerge {
  template <class W>
  static MDF_DEVICE W identity() {
    return W{0, 0, 0};
  }
  // Symmetric in a and b, so that both partners of a butterfly step get the same bits.
  template <class T>
  static MDF_DEVICE Welford<T> apply(Welford<T> a, Welford<T> b) {
    const T count = a.count + b.count;
    if (count == T(0)) return Welford<T>{0, 0, 0};
    const T delta = b.mean - a.mean;
    const T mean = (a.mean * a.count + b.mean * b.count) / count;
    return Welford<T>{mean, (a.m2 + b.m2) + delta * delta * (a.count * b.count / count), count};
  }
};

// Over WIDTH neighbouring lanes (a power of two up to 32); no memory, no barrier.
template <class OP, int WIDTH = WARP, class T>
MDF_DEVICE T warp_reduce(T v MDF_SITE) {
  static_assert(WIDTH >= 1 && WIDTH <= WARP && (WIDTH & (WIDTH - 1)) == 0,
                "a warp is reduced over a power of two of lanes");
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) {
    v = OP::apply(v, shfl_xor(v, step, FULL_MASK, WARP MDF_PASS));
  }
  return v;
}

// Over each GROUP of consecutive threads out of THREADS, one group a row: GROUP is a power of two up
// to 32, or a multiple of 32 that divides THREADS. In two steps with a barrier of the block between
// them, so that several reductions share one: each warp puts its part, each thread gets the whole.
// `scratch` is a shared array, of which THREADS / 32 elements of T from `place` on are used, which
// nobody may still be reading; one step and no memory when GROUP <= 32.
template <class OP, class T, class S>
MDF_DEVICE void group_put(T v, S scratch, u32 place MDF_SITE) {
  v = warp_reduce<OP, WARP>(v MDF_PASS);
  if (lane_index() == 0) store1(scratch, place + warp_index(), v MDF_PASS);
}
template <class OP, int GROUP, int THREADS, class S>
MDF_DEVICE Element<S> group_get(S scratch, u32 place MDF_SITE) {
  static_assert(GROUP % WARP == 0 && GROUP > WARP && THREADS % GROUP == 0,
                "a group has whole warps, more than one, and divides the block");
  using T = Element<S>;
  constexpr int WARPS = GROUP / WARP;
  const u32 lane = lane_index();
  const u32 warp = warp_index();
  const u32 first = place + warp - warp % WARPS;
  if constexpr (is_float<T> && WARPS <= 8) {
    // Every thread has all of them sooner than shuffles would bring them.
    T total = load1(scratch, first MDF_PASS);
#pragma unroll
    for (int k = 1; k < WARPS; ++k) total = OP::apply(total, load1(scratch, first + k MDF_PASS));
    return total;
  } else if constexpr ((WARPS & (WARPS - 1)) == 0) {
    return warp_reduce<OP, WARPS>(load1(scratch, first + lane % WARPS MDF_PASS) MDF_PASS);
  } else {
    T part = OP::template identity<T>();
    if (lane < WARPS) part = load1(scratch, first + lane MDF_PASS);
    return warp_reduce<OP, WARP>(part MDF_PASS);
  }
}
// Both, with scratch that the call before may have used: one more barrier.
template <class OP, int GROUP, int THREADS, class T, class S>
MDF_DEVICE T group_reduce(T v, S scratch MDF_SITE) {
  static_assert(THREADS % WARP == 0, "a block has whole warps");
  if constexpr (GROUP <= WARP) {
    return warp_reduce<OP, GROUP>(v MDF_PASS);
  } else {
    hw::barrier(MDF_PASS0);
    group_put<OP>(v, scratch, 0 MDF_PASS);
    hw::barrier(MDF_PASS0);
    return group_get<OP, GROUP, THREADS>(scratch, 0 MDF_PASS);
  }
}
// Where a group is at most a warp there is nothing to share.
template <class OP, int GROUP, class T>
MDF_DEVICE T group_reduce(T v MDF_SITE) {
  static_assert(GROUP <= WARP, "groups of more than a warp need a scratch array");
  return warp_reduce<OP, GROUP>(v MDF_PASS);
}

// Over all THREADS threads of the block (a multiple of 32); every thread gets the result.
template <class OP, int THREADS, class T, class S>
MDF_DEVICE T block_reduce(T v, S scratch MDF_SITE) {
  return group_reduce<OP, THREADS, THREADS>(v, scratch MDF_PASS);
}

}  // namespace mdf
