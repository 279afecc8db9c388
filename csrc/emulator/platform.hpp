// What differs between a GPU and the emulator, emulator side: the twin of platform.cuh.
//
// Each function that may report a fault ends in a line number, which MDF_SITE fills with the line of
// the call in the generated source.
#pragma once

#include <string.h>

#include "interface.hpp"

#include "types.cuh"

#define MDF_DEVICE inline
#define MDF_LIBM(name) __builtin_##name
#define MDF_SITE , int site = __builtin_LINE()
#define MDF_SITE0 int site = __builtin_LINE()
#define MDF_PASS , site
#define MDF_PASS0 site

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (mdf_emu_current->thread)
#define blockIdx (mdf_emu_current->block)
#define blockDim (mdf_emu_current->block_dim)
#define gridDim (mdf_emu_current->grid_dim)

#define MDF_SHARED(T, name, n)                                                                \
  static ::mdf::u64 name##_mdf_key;                                                          \
  const ::mdf::SharedArray<T> name(                                                           \
      #name, mdf_emu_static_shared(&name##_mdf_key, #name, sizeof(T) * (n), __builtin_LINE()), n)
#define MDF_DYNAMIC_SHARED_AT(T, name, n, byte_offset)                                        \
  const ::mdf::SharedArray<T> name(                                                           \
      #name, mdf_emu_dynamic_shared(#name, byte_offset, sizeof(T) * (n), __builtin_LINE()), n)

#include "numerics.hpp"

namespace mdf {

// An index that remembers the line it was written on: operator[] takes one argument only.
struct IndexAt {
  i64 i;
  int site;
  template <class I>
  IndexAt(I index, int line = __builtin_LINE()) : i(i64(index)), site(line) {}
};

// Stands for one element of a shared array, so that reads and writes can be told apart.
template <class T>
struct SharedElement {
  const mdf_emu_array* array;
  i64 i;
  int site;
  operator T() const {
    T out;
    mdf_emu_shared_load(array, i, 1, &out, site);
    return out;
  }
  const SharedElement& operator=(T value) const {
    mdf_emu_shared_store(array, i, 1, &value, site);
    return *this;
  }
  const SharedElement& operator=(const SharedElement& other) const { return *this = T(other); }
  const SharedElement& operator+=(T value) const { return *this = T(T(*this) + value); }
  const SharedElement& operator-=(T value) const { return *this = T(T(*this) - value); }
  const SharedElement& operator*=(T value) const { return *this = T(T(*this) * value); }
  const SharedElement& operator|=(T value) const { return *this = T(T(*this) | value); }
  const SharedElement& operator&=(T value) const { return *this = T(T(*this) & value); }
};

template <class T>
struct SharedArray : mdf_emu_array {
  SharedArray(const char* name, unsigned offset, i64 n)
      : mdf_emu_array{name, offset, unsigned(sizeof(T)), n} {}
  SharedElement<T> operator[](IndexAt at) const { return {this, at.i, at.site}; }
};

namespace hw {

inline u32 funnel_right(u32 low, u32 high, u32 by) {
  return u32((u64(high) << 32 | low) >> by);
}

template <class T, class I>
inline u64 address_of(const T* p, I i) {
  // Not p + i: that would be undefined for the stray addresses that are to be reported.
  return u64(p) + u64(i64(i)) * sizeof(T);
}

template <int V, class T, class I>
inline Vec<T, V> read(const T* p, I i, int site) {
  Vec<T, V> out;
  mdf_emu_load(address_of(p, i), unsigned(sizeof(out)), unsigned(sizeof(T)), &out, site);
  return out;
}
template <class T, int V, class I>
inline void write(T* p, I i, const Vec<T, V>& value, int site) {
  mdf_emu_store(address_of(p, i), unsigned(sizeof(value)), unsigned(sizeof(T)), &value, site);
}
template <int V, class T, class I>
inline Vec<T, V> read(const SharedArray<T>& array, I i, int site) {
  Vec<T, V> out;
  mdf_emu_shared_load(&array, i64(i), V, &out, site);
  return out;
}
template <class T, int V, class I>
inline void write(const SharedArray<T>& array, I i, const Vec<T, V>& value, int site) {
  mdf_emu_shared_store(&array, i64(i), V, &value, site);
}

template <int V, class T, class I, class J>
inline void copy_async(const SharedArray<T>& to, I i, const T* from, J j, int site) {
  static_assert(sizeof(T) * V >= 4, "a copy has 4, 8 or 16 bytes, or several times 16");
  mdf_emu_copy(&to, i64(i), V, address_of(from, j), site);
}
inline void commit_copies() { mdf_emu_commit_copies(); }
template <int N>
inline void wait_copies() {
  mdf_emu_wait_copies(N);
}

template <int V, class T>
inline Vec<T, V> read_mailbox(const T* p, int site) {
  static_assert(sizeof(T) * V == 4 || sizeof(T) * V == 8 || sizeof(T) * V == 16,
                "a mailbox access has 4, 8 or 16 bytes");
  mdf_emu_poll(site);
  Vec<T, V> out;
  const void* from = mdf_emu_mailbox(u64(p), unsigned(sizeof(out)), false, site);
  __builtin_memcpy(&out, from, sizeof(out));
  return out;
}
template <class T, int V>
inline void write_mailbox(T* p, const Vec<T, V>& value, int site) {
  static_assert(sizeof(T) * V == 4 || sizeof(T) * V == 8 || sizeof(T) * V == 16,
                "a mailbox access has 4, 8 or 16 bytes");
  void* to = mdf_emu_mailbox(u64(p), unsigned(sizeof(value)), true, site);
  __builtin_memcpy(to, &value, sizeof(value));
}
inline u32 read_acquire_sys(const u32* p, int site) {
  mdf_emu_poll(site);
  void* from = mdf_emu_mailbox(u64(p), 4, false, site);
  const u32 out = __atomic_load_n(static_cast<u32*>(from), __ATOMIC_ACQUIRE);
  mdf_emu_fence(site);
  return out;
}
inline void write_release_sys(u32* p, u32 v, int site) {
  mdf_emu_fence(site);
  void* to = mdf_emu_mailbox(u64(p), 4, true, site);
  __atomic_store_n(static_cast<u32*>(to), v, __ATOMIC_RELEASE);
}

// No other thread runs between the read and the write: fibers switch at calls of the runtime only.
template <class T>
inline T atomic_add(T* p, T v, int site) {
  T* at = static_cast<T*>(mdf_emu_atomic(u64(p), sizeof(T), site));
  const T old = *at;
  if constexpr (is_integer<T>) {
    *at = T(Wrap<T>(old) + Wrap<T>(v));
  } else {
    *at = old + v;
  }
  return old;
}
inline u32 atomic_exchange(u32* p, u32 v, int site) {
  u32* at = static_cast<u32*>(mdf_emu_atomic(u64(p), sizeof(u32), site));
  const u32 old = *at;
  *at = v;
  return old;
}

template <class W>
inline W compare_and_swap(W* p, W expected, W wanted, int site) {
  W* at = static_cast<W*>(mdf_emu_atomic(u64(p), sizeof(W), site));
  const W old = *at;
  if (old == expected) *at = wanted;
  return old;
}
template <class T>
inline constexpr bool has_small_add = false;
template <class T>
inline void small_add(T*, T, int) {}
// Stores of one place by several threads are what the caller wants, so they are no race.
template <class T>
inline void write_unordered(T* p, T v, int site) {
  *static_cast<T*>(mdf_emu_atomic(u64(p), sizeof(T), site)) = v;
}
inline void index_fault(i64 index, i64 extent, int site) {
  mdf_emu_index_fault(index, extent, site);
}

inline void barrier(int site) { mdf_emu_barrier(site); }
inline void warp_barrier(u32 mask, int site) { mdf_emu_warp_barrier(mask, site); }
inline void fence(int site) { mdf_emu_fence(site); }
inline void fence_sys(int site) { mdf_emu_fence(site); }
inline u32 ballot(u32 mask, bool v, int site) { return mdf_emu_ballot(mask, v, site); }

// Which lane a shuffle reads: PTX's shfl.sync with the clamp and segment that CUDA derives from
// width. A lane that falls outside its segment reads itself.
inline u32 segment_first(u32 lane, i32 width) { return lane & ~u32(width - 1); }
inline u32 segment_last(u32 lane, i32 width) { return lane | u32(width - 1); }
template <class T>
inline T shuffle_from(u32 mask, T v, u32 source, int site) {
  mdf_emu_shuffle(mask, source, &v, sizeof(T), site);
  return v;
}
template <class T>
inline T shuffle_xor(u32 mask, T v, i32 lane_mask, i32 width, int site) {
  const u32 lane = mdf_emu_lane();
  const u32 source = lane ^ u32(lane_mask);
  return shuffle_from(mask, v, source <= segment_last(lane, width) ? source : lane, site);
}
template <class T>
inline T shuffle_down(u32 mask, T v, u32 delta, i32 width, int site) {
  const u32 lane = mdf_emu_lane();
  const u32 source = lane + delta;
  return shuffle_from(mask, v, source <= segment_last(lane, width) ? source : lane, site);
}
template <class T>
inline T shuffle_up(u32 mask, T v, u32 delta, i32 width, int site) {
  const u32 lane = mdf_emu_lane();
  const u32 room = lane - segment_first(lane, width);
  return shuffle_from(mask, v, delta <= room ? lane - delta : lane, site);
}
template <class T>
inline T shuffle_idx(u32 mask, T v, i32 index, i32 width, int site) {
  const u32 lane = mdf_emu_lane();
  return shuffle_from(mask, v, segment_first(lane, width) | (u32(index) & u32(width - 1)), site);
}

inline u32 cluster_rank() { return mdf_emu_cluster_rank(); }
inline u32 cluster_size() { return mdf_emu_cluster_size(); }
inline void cluster_barrier(int site) { mdf_emu_cluster_barrier(site); }
template <class T>
inline T cluster_read(const SharedArray<T>& array, i64 i, u32 rank, int site) {
  T out;
  mdf_emu_cluster_load(&array, i, rank, &out, site);
  return out;
}

}  // namespace hw
}  // namespace mdf
