// What differs between a GPU and the emulator, GPU side: macros, intrinsics and all PTX.
//
// Every function in mdf::hw has a twin of the same name in csrc/emulator/platform.hpp; the rest of
// the library is the same text on both sides. Tests compare the twins with torch and numpy.
#pragma once

#ifdef MDF_EMULATOR
#include "platform.hpp"
#else

#include "types.cuh"

#define MDF_DEVICE __device__ __forceinline__
#define MDF_LIBM(name) ::name
// The emulator passes the line of the call through every function that may report a fault.
#define MDF_SITE
#define MDF_SITE0
#define MDF_PASS
#define MDF_PASS0

#define MDF_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define MDF_DYNAMIC_SHARED_AT(T, name, n, byte_offset)     \
  extern __shared__ __align__(16) unsigned char mdf_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(mdf_dynamic_shared + (byte_offset))

namespace mdf {

namespace hw {

MDF_DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
MDF_DEVICE u64 bits_of(double x) { return u64(__double_as_longlong(x)); }
MDF_DEVICE float float_of(u32 x) { return __uint_as_float(x); }
MDF_DEVICE double double_of(u64 x) { return __longlong_as_double(i64(x)); }

// The low 32 bits of high:low shifted right by 0 to 31.
MDF_DEVICE u32 funnel_right(u32 low, u32 high, u32 by) { return __funnelshift_r(low, high, by); }

MDF_DEVICE float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
MDF_DEVICE double fma(double a, double b, double c) { return ::fma(a, b, c); }
MDF_DEVICE float rsqrt(float x) { return ::rsqrtf(x); }
MDF_DEVICE double rsqrt(double x) { return ::rsqrt(x); }
MDF_DEVICE float erfinv(float x) { return ::erfinvf(x); }
MDF_DEVICE double erfinv(double x) { return ::erfinv(x); }
MDF_DEVICE float erfcinv(float x) { return ::erfcinvf(x); }
MDF_DEVICE double erfcinv(double x) { return ::erfcinv(x); }

// NaN wins and +0 is above -0: one instruction instead of a compare and two selects.
MDF_DEVICE float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
MDF_DEVICE float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
// The larger one, a where b is NaN.
MDF_DEVICE float larger(float a, float b) { return ::fmaxf(a, b); }
MDF_DEVICE double larger(double a, double b) { return b > a ? b : a; }

MDF_DEVICE u16 f16_of_float(float x) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
MDF_DEVICE float float_of_f16(u16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}
MDF_DEVICE u16 bf16_of_float(float x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
// Two at a time: half the conversion instructions of a vector store. lo stands at the lower address.
MDF_DEVICE u32 bf16x2_of_floats(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
MDF_DEVICE u32 f16x2_of_floats(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

// Truncation that saturates; PTX says what a NaN becomes and csrc/emulator follows it.
MDF_DEVICE i32 i32_of_float(float x) { return __float2int_rz(x); }
MDF_DEVICE u32 u32_of_float(float x) { return __float2uint_rz(x); }
MDF_DEVICE i64 i64_of_float(float x) { return __float2ll_rz(x); }
MDF_DEVICE u64 u64_of_float(float x) { return __float2ull_rz(x); }
MDF_DEVICE i32 i32_of_double(double x) { return __double2int_rz(x); }
MDF_DEVICE u32 u32_of_double(double x) { return __double2uint_rz(x); }
MDF_DEVICE i64 i64_of_double(double x) { return __double2ll_rz(x); }
MDF_DEVICE u64 u64_of_double(double x) { return __double2ull_rz(x); }

MDF_DEVICE u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }

// Memory. p points at the first element of the access, in any state space.
template <int BYTES>
struct Word;
template <>
struct Word<1> {
  using type = u8;
};
template <>
struct Word<2> {
  using type = u16;
};
template <>
struct Word<4> {
  using type = u32;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

template <int V, class T, class I>
MDF_DEVICE Vec<T, V> read(const T* p, I i) {
  constexpr int BYTES = int(sizeof(T)) * V;
  using W = typename Word<access_bytes<BYTES>>::type;
  constexpr int N = BYTES / int(sizeof(W));
  Vec<T, V> out;
  W words[N];
#pragma unroll
  for (int k = 0; k < N; ++k) words[k] = reinterpret_cast<const W*>(p + i)[k];
  memcpy(&out, words, BYTES);
  return out;
}

template <class T, int V, class I>
MDF_DEVICE void write(T* p, I i, const Vec<T, V>& value) {
  constexpr int BYTES = int(sizeof(T)) * V;
  using W = typename Word<access_bytes<BYTES>>::type;
  constexpr int N = BYTES / int(sizeof(W));
  W words[N];
  memcpy(words, &value, BYTES);
#pragma unroll
  for (int k = 0; k < N; ++k) reinterpret_cast<W*>(p + i)[k] = words[k];
}

template <int V, class T, class I, class J>
MDF_DEVICE void copy_async(T* to, I i, const T* from, J j) {
  constexpr int BYTES = int(sizeof(T)) * V;
  constexpr int EACH = access_bytes<BYTES>;
  static_assert(EACH >= 4, "a copy has 4, 8 or 16 bytes, or several times 16");
  const u32 target = u32(__cvta_generic_to_shared(to + i));
  const char* source = reinterpret_cast<const char*>(from + j);
#pragma unroll
  for (int k = 0; k < BYTES; k += EACH) {
    if constexpr (EACH == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                   :
                   : "r"(target + k), "l"(source + k)
                   : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                   :
                   : "r"(target + k), "l"(source + k), "n"(EACH)
                   : "memory");
    }
  }
}
MDF_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
MDF_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

MDF_DEVICE u32 read_relaxed_sys(const u32* p) {
  u32 r;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}
MDF_DEVICE u64 read_relaxed_sys(const u64* p) {
  u64 r;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(r) : "l"(p) : "memory");
  return r;
}
MDF_DEVICE uint4 read_relaxed_sys(const uint4* p) {
  uint4 r;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p)
               : "memory");
  return r;
}
MDF_DEVICE void write_relaxed_sys(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
MDF_DEVICE void write_relaxed_sys(u64* p, u64 v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
MDF_DEVICE void write_relaxed_sys(uint4* p, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
template <int V, class T>
MDF_DEVICE Vec<T, V> read_mailbox(const T* p) {
  constexpr int BYTES = int(sizeof(T)) * V;
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "a mailbox access has 4, 8 or 16 bytes");
  Vec<T, V> out;
  if constexpr (BYTES == 8) {
    const u64 w = read_relaxed_sys(reinterpret_cast<const u64*>(p));
    memcpy(&out, &w, BYTES);
  } else {
    using W = typename Word<BYTES>::type;
    const W w = read_relaxed_sys(reinterpret_cast<const W*>(p));
    memcpy(&out, &w, BYTES);
  }
  return out;
}
template <class T, int V>
MDF_DEVICE void write_mailbox(T* p, const Vec<T, V>& value) {
  constexpr int BYTES = int(sizeof(T)) * V;
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "a mailbox access has 4, 8 or 16 bytes");
  if constexpr (BYTES == 8) {
    u64 w;
    memcpy(&w, &value, BYTES);
    write_relaxed_sys(reinterpret_cast<u64*>(p), w);
  } else {
    typename Word<BYTES>::type w;
    memcpy(&w, &value, BYTES);
    write_relaxed_sys(reinterpret_cast<typename Word<BYTES>::type*>(p), w);
  }
}
MDF_DEVICE u32 read_acquire_sys(const u32* p) {
  u32 r;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
  return r;
}
MDF_DEVICE void write_release_sys(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

template <class T>
MDF_DEVICE T atomic_add(T* p, T v) {
  if constexpr (same<T, i64>) {
    return T(::atomicAdd(reinterpret_cast<u64*>(p), u64(v)));
  } else {
    return ::atomicAdd(p, v);
  }
}
MDF_DEVICE u32 atomic_exchange(u32* p, u32 v) { return ::atomicExch(p, v); }

// What stood at p; `wanted` is put there where that is `expected`.
MDF_DEVICE u16 compare_and_swap(u16* p, u16 expected, u16 wanted) {
  return ::atomicCAS(p, expected, wanted);
}
MDF_DEVICE u8 compare_and_swap(u8* p, u8 expected, u8 wanted) {
  // Memory is handed out in pieces of whole words, so the word around a byte is ours to exchange.
  u32* const word = reinterpret_cast<u32*>(u64(p) & ~u64(3));
  const u32 shift = u32(u64(p) & 3u) * 8u;
  u32 seen = *reinterpret_cast<volatile u32*>(word);
  while (u8(seen >> shift) == expected) {
    const u32 next = (seen & ~(0xFFu << shift)) | (u32(wanted) << shift);
    const u32 before = ::atomicCAS(word, seen, next);
    if (before == seen) return expected;
    seen = before;
  }
  return u8(seen >> shift);
}
// The 16-bit floats that the device adds by itself, rounding as cvt.rn does.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <class T>
inline constexpr bool has_small_add = same<T, f16> || same<T, bf16>;
#else
template <class T>
inline constexpr bool has_small_add = same<T, f16>;
#endif
template <class T>
MDF_DEVICE void small_add(T* p, T v) {
  if constexpr (same<T, f16>) {
    asm volatile("red.global.add.noftz.f16 [%0], %1;" ::"l"(p), "h"(v.bits) : "memory");
  } else {
    asm volatile("red.global.add.noftz.bf16 [%0], %1;" ::"l"(p), "h"(v.bits) : "memory");
  }
}
template <class T>
MDF_DEVICE void write_unordered(T* p, T v) {
  write(p, 0, Vec<T, 1>{{v}});
}
MDF_DEVICE void index_fault(i64, i64) {
  __assertfail("an index is out of range for the dim that it selects from", "thunder_mdfuse", 0,
               "position", 1);
}

// Synchronisation.
MDF_DEVICE void barrier() { __syncthreads(); }
MDF_DEVICE void warp_barrier(u32 mask) { __syncwarp(mask); }
MDF_DEVICE void fence() { __threadfence(); }
MDF_DEVICE void fence_sys() { __threadfence_system(); }
MDF_DEVICE u32 ballot(u32 mask, bool v) { return __ballot_sync(mask, v); }

// The value of T that lane `source(lane)` holds, moved as 32-bit words.
template <class T>
struct Words {
  static constexpr int N = (int(sizeof(T)) + 3) / 4;
  u32 w[N];
};
template <class T>
MDF_DEVICE Words<T> words_of(const T& v) {
  Words<T> r = {};
  memcpy(r.w, &v, sizeof(T));
  return r;
}
template <class T>
MDF_DEVICE T value_of(const Words<T>& words) {
  T v;
  memcpy(&v, words.w, sizeof(T));
  return v;
}
template <class T>
MDF_DEVICE T shuffle_xor(u32 mask, T v, i32 lane_mask, i32 width) {
  Words<T> words = words_of(v);
#pragma unroll
  for (int k = 0; k < Words<T>::N; ++k) {
    words.w[k] = __shfl_xor_sync(mask, words.w[k], lane_mask, width);
  }
  return value_of<T>(words);
}
template <class T>
MDF_DEVICE T shuffle_down(u32 mask, T v, u32 delta, i32 width) {
  Words<T> words = words_of(v);
#pragma unroll
  for (int k = 0; k < Words<T>::N; ++k) {
    words.w[k] = __shfl_down_sync(mask, words.w[k], delta, width);
  }
  return value_of<T>(words);
}
template <class T>
MDF_DEVICE T shuffle_up(u32 mask, T v, u32 delta, i32 width) {
  Words<T> words = words_of(v);
#pragma unroll
  for (int k = 0; k < Words<T>::N; ++k) {
    words.w[k] = __shfl_up_sync(mask, words.w[k], delta, width);
  }
  return value_of<T>(words);
}
template <class T>
MDF_DEVICE T shuffle_idx(u32 mask, T v, i32 lane, i32 width) {
  Words<T> words = words_of(v);
#pragma unroll
  for (int k = 0; k < Words<T>::N; ++k) {
    words.w[k] = __shfl_sync(mask, words.w[k], lane, width);
  }
  return value_of<T>(words);
}

// Thread-block clusters exist from sm_90 on. Below that the names do not, so that a plan which asks
// for a cluster on an older device fails when it is compiled and not when it runs.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
MDF_DEVICE u32 cluster_rank() {
  u32 r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
MDF_DEVICE u32 cluster_size() {
  u32 r;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
  return r;
}
// Arrives with release and waits with acquire, which is what the unqualified forms mean.
MDF_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
template <class T>
MDF_DEVICE T cluster_read(const T* array, i64 i, u32 rank) {
  const u32 local = u32(__cvta_generic_to_shared(array + i));
  u32 remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  T out;
  if constexpr (sizeof(T) == 1 || sizeof(T) == 2) {
    u16 w;
    if constexpr (sizeof(T) == 1) {
      asm volatile("ld.shared::cluster.u8 %0, [%1];" : "=h"(w) : "r"(remote) : "memory");
    } else {
      asm volatile("ld.shared::cluster.u16 %0, [%1];" : "=h"(w) : "r"(remote) : "memory");
    }
    memcpy(&out, &w, sizeof(T));
  } else {
    static_assert(sizeof(T) % 4 == 0, "elements of 1, 2 or a multiple of 4 bytes");
    u32 words[sizeof(T) / 4];
#pragma unroll
    for (int k = 0; k < int(sizeof(T) / 4); ++k) {
      asm volatile("ld.shared::cluster.u32 %0, [%1];"
                   : "=r"(words[k])
                   : "r"(remote + 4 * k)
                   : "memory");
    }
    memcpy(&out, words, sizeof(T));
  }
  return out;
}
#endif

}  // namespace hw
}  // namespace mdf

#endif
