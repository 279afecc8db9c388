// The emulator's runtime: what interface.hpp promises to kernels, and the launch that Python calls.
// Compiled once and linked into the shared object of every source, so that sources share no state.

#include "global_memory.hpp"
#include "schedule.hpp"

using namespace mdf_emu;

mdf_emu_thread* mdf_emu_current = nullptr;

extern "C" {

// gcc's -fsanitize-coverage=trace-pc calls this in every basic block of a kernel: any loop that does
// not end, whether it touches memory or not, comes by here.
void __sanitizer_cov_trace_pc(void) {
  if (__builtin_expect(++steps > steps_checked_at, 0)) check_steps();
}

void mdf_emu_load(u64 address, u32 bytes, u32 element, void* out, int site) {
  load_global({address, bytes, element, "load", site}, out);
}
void mdf_emu_store(u64 address, u32 bytes, u32 element, const void* value, int site) {
  store_global({address, bytes, element, "store", site}, value);
}
void* mdf_emu_atomic(u64 address, u32 bytes, int site) {
  return atomic_global({address, bytes, bytes, "atomic", site});
}
void* mdf_emu_mailbox(u64 address, u32 bytes, bool write, int site) {
  return mailbox_global({address, bytes, bytes, write ? "mailbox store" : "mailbox load", site},
                        write);
}
void mdf_emu_index_fault(long long index, long long extent, int site) {
  fault(site, "index %lld is out of range for a dim of %lld elements", index, extent);
}
void mdf_emu_poll(int site) {
  launch->running->site = site;
  launch->running->polled = true;
  suspend();
}

u32 mdf_emu_static_shared(u64* key, const char* name, u64 bytes, int site) {
  return static_array(key, name, bytes, site);
}
u32 mdf_emu_dynamic_shared(const char* name, u64 offset, u64 bytes, int site) {
  return dynamic_array(name, offset, bytes, site);
}
void mdf_emu_shared_load(const mdf_emu_array* array, long long i, u32 n, void* out, int site) {
  load_shared(*array, i, n, out, site);
}
void mdf_emu_shared_store(const mdf_emu_array* array, long long i, u32 n, const void* value,
                          int site) {
  store_shared(*array, i, n, value, site);
}
void mdf_emu_copy(const mdf_emu_array* array, long long i, u32 n, u64 address, int site) {
  Fiber& f = *launch->running;
  const u32 bytes = n * array->element;
  Copy copy{*array, i, n, f.copy_group, site, std::vector<u8>(bytes)};
  load_global({address, bytes, array->element, "asynchronous copy", site}, copy.value.data());
  begin_copy(copy);
  f.copies.push_back(std::move(copy));
}
void mdf_emu_commit_copies(void) { ++launch->running->copy_group; }
void mdf_emu_wait_copies(u32 under_way) { end_copies(under_way); }
void mdf_emu_cluster_load(const mdf_emu_array* array, long long i, u32 rank, void* out, int site) {
  load_cluster(*array, i, rank, out, site);
}

void mdf_emu_barrier(int site) { join_barrier(site); }
void mdf_emu_cluster_barrier(int site) { join_cluster_barrier(site); }
u32 mdf_emu_cluster_rank(void) { return launch->running->block->rank; }
u32 mdf_emu_cluster_size(void) { return launch->spec->cluster; }
void mdf_emu_fence(int) { fence(); }
void mdf_emu_warp_barrier(u32 mask, int site) { join_warp(WarpOp::BARRIER, mask, site); }
void mdf_emu_shuffle(u32 mask, u32 source, void* value, u32 bytes, int site) {
  Fiber& f = *launch->running;
  f.source = source;
  f.value = value;
  f.bytes = bytes;
  join_warp(WarpOp::SHUFFLE, mask, site);
}
u32 mdf_emu_ballot(u32 mask, bool value, int site) {
  launch->running->vote = value;
  join_warp(WarpOp::BALLOT, mask, site);
  return launch->running->source;
}
u32 mdf_emu_lane(void) { return launch->running->lane(); }

// From now on, note up to `room` accesses to shared memory in `to`; nullptr: none.
[[gnu::visibility("default")]] void mdf_emu_trace(void* to, u64 room) {
  trace = static_cast<SharedAccess*>(to);
  trace_room = room;
  traced = 0;
}
[[gnu::visibility("default")]] u64 mdf_emu_traced(void) { return traced; }

// 0 when the kernel ran to its end, 1 when spec->message holds a fault.
[[gnu::visibility("default")]] int mdf_emu_launch(LaunchSpec* spec) {
  Launch here{};
  launch = &here;
  here.spec = spec;
  here.threads = spec->block[0] * spec->block[1] * spec->block[2];
  here.random = spec->seed;
  here.now = 1;
  ++launches;
  static_used = 0;
  steps = 0;
  steps_checked_at = 1u << 20;
  deadline = Clock::now() + std::chrono::microseconds((long long)(spec->timeout * 1e6));
  const u64 blocks = u64(spec->grid[0]) * spec->grid[1] * spec->grid[2];
  here.releases.resize(blocks);
  int failed = 0;
  {
    Scheduler scheduler(spec->cluster);
    if (!begin_allocations() || !scheduler.ready()) {
      std::snprintf(spec->message, spec->message_bytes, "not enough memory to emulate this launch");
      failed = 1;
    }
    for (u32 k : make_order(failed ? 0 : blocks / spec->cluster)) {
      if (!scheduler.run(k * spec->cluster)) {
        failed = 1;
        break;
      }
    }
  }
  end_allocations();
  spec->steps = steps;
  steps_checked_at = ~0ull;
  launch = nullptr;
  return failed;
}

}  // extern "C"
