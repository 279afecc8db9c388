// Threads of one block, of one cluster, of one grid: indices, barriers, shuffles, the last block.
#pragma once

#include "memory.cuh"

namespace mdf {

inline constexpr u32 FULL_MASK = 0xFFFFFFFFu;
inline constexpr int WARP = 32;

// Linear index of the thread in its block, x fastest, and the number of threads of a block.
MDF_DEVICE u32 thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
MDF_DEVICE u32 block_threads() { return blockDim.x * blockDim.y * blockDim.z; }
MDF_DEVICE u32 lane_index() { return thread_index() % WARP; }
MDF_DEVICE u32 warp_index() { return thread_index() / WARP; }

// All threads of the block arrive, then all go on; orders shared and global memory in the block.
MDF_DEVICE void barrier(MDF_SITE0) { hw::barrier(MDF_PASS0); }
// The same for the lanes of `mask`, which must hold the caller.
MDF_DEVICE void warp_barrier(u32 mask = FULL_MASK MDF_SITE) { hw::warp_barrier(mask MDF_PASS); }

// Orders this thread's earlier accesses before its later ones, for the device or for all devices.
MDF_DEVICE void fence(MDF_SITE0) { hw::fence(MDF_PASS0); }
MDF_DEVICE void fence_sys(MDF_SITE0) { hw::fence_sys(MDF_PASS0); }

// The value of another lane. Every lane of `mask` has to make the same call; none of these orders
// memory. `width` (a power of two) cuts the warp into segments that do not see each other.
template <class T>
MDF_DEVICE T shfl_xor(T v, i32 lane_mask, u32 mask = FULL_MASK, i32 width = WARP MDF_SITE) {
  return hw::shuffle_xor(mask, v, lane_mask, width MDF_PASS);
}
template <class T>
MDF_DEVICE T shfl_down(T v, u32 delta, u32 mask = FULL_MASK, i32 width = WARP MDF_SITE) {
  return hw::shuffle_down(mask, v, delta, width MDF_PASS);
}
template <class T>
MDF_DEVICE T shfl_up(T v, u32 delta, u32 mask = FULL_MASK, i32 width = WARP MDF_SITE) {
  return hw::shuffle_up(mask, v, delta, width MDF_PASS);
}
template <class T>
MDF_DEVICE T shfl_idx(T v, i32 lane, u32 mask = FULL_MASK, i32 width = WARP MDF_SITE) {
  return hw::shuffle_idx(mask, v, lane, width MDF_PASS);
}
// Bit l is set when lane l of `mask` passed true.
MDF_DEVICE u32 ballot(bool v, u32 mask = FULL_MASK MDF_SITE) {
  return hw::ballot(mask, v MDF_PASS);
}

// True in every thread of the last of `total` blocks to call this with the same counter, which was
// 0 before and is 0 again after. What the other blocks wrote to global memory before their call
// can then be read by the block that got true. Every thread of the block has to call it; it holds
// two barriers.
template <class I>
MDF_DEVICE bool counter_arrive(u32* counters, I i, u32 total MDF_SITE) {
  MDF_SHARED(u32, last, 1);
  hw::barrier(MDF_PASS0);
  if (thread_index() == 0) {
    hw::fence(MDF_PASS0);
    const bool is_last = atomic_add(counters, i, 1u MDF_PASS) == total - 1;
    if (is_last) atomic_exchange(counters, i, 0u MDF_PASS);
    hw::fence(MDF_PASS0);
    store1(last, 0, u32(is_last) MDF_PASS);
  }
  hw::barrier(MDF_PASS0);
  return load1(last, 0 MDF_PASS) != 0;
}

// The blocks of one cluster (sm_90 on). cluster_read reads element i of the shared array that the
// block of rank `rank` has under the same name: put a cluster_barrier between its last write and
// the read, and another one between the read and the next write or the end of the kernel.
#if defined(MDF_EMULATOR) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
MDF_DEVICE u32 cluster_rank() { return hw::cluster_rank(); }
MDF_DEVICE u32 cluster_size() { return hw::cluster_size(); }
MDF_DEVICE void cluster_barrier(MDF_SITE0) { hw::cluster_barrier(MDF_PASS0); }
template <class P, class I>
MDF_DEVICE Element<P> cluster_read(P array, I i, u32 rank MDF_SITE) {
  return hw::cluster_read(array, i64(i), rank MDF_PASS);
}
#endif

}  // namespace mdf
