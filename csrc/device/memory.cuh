// Loads and stores. On a GPU a plain access of 1 to 16 bytes; in the emulator a checked one.
//
// Plain ld.global and st.global are the fastest on H200 for streaming kernels: cache hints and
// evict-first policies were measured and lost.
#pragma once

#include "types.cuh"

namespace mdf {

// The element of what a load or a store gets: a global pointer or a shared array.
template <class P>
struct ElementOf;
template <class T>
struct ElementOf<T*> {
  using type = T;
};
template <class T>
struct ElementOf<const T*> {
  using type = T;
};
#ifdef MDF_EMULATOR
template <class T>
struct ElementOf<SharedArray<T>> {
  using type = T;
};
#endif
template <class P>
using Element = typename ElementOf<P>::type;

// V consecutive elements from element i on. The address has to be a multiple of
// min(16, V * sizeof(T)); more than 16 bytes become several accesses.
template <int V, class P, class I>
MDF_DEVICE Vec<Element<P>, V> load(P p, I i MDF_SITE) {
  return hw::read<V>(p, i MDF_PASS);
}
template <int V, class P, class I>
MDF_DEVICE void store(P p, I i, const Vec<Element<P>, V>& value MDF_SITE) {
  hw::write(p, i, value MDF_PASS);
}
template <class P, class I>
MDF_DEVICE Element<P> load1(P p, I i MDF_SITE) {
  return hw::read<1>(p, i MDF_PASS).v[0];
}
template <class P, class I>
MDF_DEVICE void store1(P p, I i, Element<P> value MDF_SITE) {
  hw::write(p, i, Vec<Element<P>, 1>{{value}} MDF_PASS);
}

// Copies of V elements from global element j to shared element i, which go on while the thread does
// something else. 4, 8 or 16 bytes, or several times 16. A thread's copies since its last commit are
// a group; wait_copies<N> returns when all but the N latest groups are there, for this thread to
// read: for others a barrier has to follow.
template <int V, class S, class T, class I, class J>
MDF_DEVICE void copy_async(S to, I i, const T* from, J j MDF_SITE) {
  hw::copy_async<V>(to, i, from, j MDF_PASS);
}
MDF_DEVICE void commit_copies() { hw::commit_copies(); }
template <int N>
MDF_DEVICE void wait_copies() {
  hw::wait_copies<N>();
}

// Mailboxes in memory that several devices share: accesses of 4, 8 or 16 bytes that no cache keeps
// back (ld/st.relaxed.sys). Several writers of one word are allowed, and a reader may spin.
template <int V, class T, class I>
MDF_DEVICE Vec<T, V> load_relaxed_sys(const T* p, I i MDF_SITE) {
  return hw::read_mailbox<V>(p + i MDF_PASS);
}
template <int V, class T, class I>
MDF_DEVICE void store_relaxed_sys(T* p, I i, const Vec<T, V>& value MDF_SITE) {
  hw::write_mailbox(p + i, value MDF_PASS);
}
// A flag that orders the accesses around it: release what was written before, acquire what follows.
template <class I>
MDF_DEVICE u32 load_acquire_sys(const u32* p, I i MDF_SITE) {
  return hw::read_acquire_sys(p + i MDF_PASS);
}
template <class I>
MDF_DEVICE void store_release_sys(u32* p, I i, u32 value MDF_SITE) {
  hw::write_release_sys(p + i, value MDF_PASS);
}

// Adds v to p[i] and returns what stood there. float, double, i32, u32, i64, u64. The order of
// float additions is not defined, so neither is the last bit of the sum.
template <class T, class I>
MDF_DEVICE T atomic_add(T* p, I i, Element<T*> v MDF_SITE) {
  return hw::atomic_add(p + i, v MDF_PASS);
}
template <class I>
MDF_DEVICE u32 atomic_exchange(u32* p, I i, u32 v MDF_SITE) {
  return hw::atomic_exchange(p + i, v MDF_PASS);
}

}  // namespace mdf
