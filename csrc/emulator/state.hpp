// The state of one launch: threads, blocks, clusters, allocations, and how a fault ends it.
//
// Time is `now`, a counter that every synchronising event advances. An access carries the time at
// which it happened; it is ordered before another thread's when a barrier that both passed lies
// between, which is a comparison of times.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <vector>

#include "fiber.hpp"
#include "interface.hpp"

namespace mdf_emu {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// The layouts below are mirrored in thunder_mdfuse/compile/emulate_launch.py.
struct AllocationSpec {
  u64 address;
  u64 bytes;
  u32 writable;
  u32 fresh;  // nothing may be read from it that this launch did not write
  const char* name;
  u64 unwritten;        // out: bytes that no thread wrote
  u64 first_unwritten;  // out: offset of the first of them
};
struct LaunchSpec {
  u32 grid[3];
  u32 block[3];
  u32 dynamic_shared;
  u32 cluster;
  u32 order;  // 0 ascending, 1 descending, 2 random
  u32 allocation_count;
  u64 seed;
  u64 step_limit;
  double timeout;
  AllocationSpec* allocations;
  void (*entry)(void**);
  void** args;
  char* message;
  u64 message_bytes;
  u64 steps;  // out
};

enum class State : u8 { READY, AT_BARRIER, AT_CLUSTER_BARRIER, AT_WARP, EXITED };
enum class WarpOp : u8 { BARRIER, SHUFFLE, BALLOT };

struct Block;

// A copy to shared memory that its thread has not waited for yet.
struct Copy {
  mdf_emu_array array;
  long long i;
  u32 n, group;
  int site;
  std::vector<u8> value;
};

struct Fiber : mdf_emu_thread {
  Context context;
  Block* block;
  u32 linear;  // in its block
  u32 global;  // in the grid
  State state;
  bool polled;
  int site;
  // What a lane brings to an operation of its warp.
  WarpOp op;
  u32 mask;
  u32 source;
  u32 bytes;
  void* value;
  bool vote;
  // When this thread last fenced, acquired through an atomic and a fence, or did an atomic.
  u32 fenced, acquired, last_atomic;
  std::vector<Copy> copies;
  u32 copy_group;     // how many groups of copies this thread has closed
  u32 lane_sync[32];  // when it last met each lane of its warp at a warp barrier

  u32 lane() const { return linear % 32; }
  u32 warp() const { return linear / 32; }
};

// What happened to one byte of shared memory since the block began.
struct SharedShadow {
  u32 written_at, read_at, remote_read_at;
  u32 read_lanes;
  u16 writer, reader_warp;
  u8 written, read, other_warps, remote;
};

struct Cluster;

struct Block {
  Cluster* cluster;
  u32 linear;  // in the grid
  u32 rank;
  std::vector<Fiber*> fibers;
  u32 arrived, arrived_cluster, exited;
  int arrived_site;
  u32 arrived_by;
  u32 started_at, barrier_at, acquired, remote_read_at;
  std::vector<u8> shared;
  std::vector<SharedShadow> shadow;
};
struct Cluster {
  std::vector<Block> blocks;
  u32 barrier_at;
  int arrived_site;
};

// The last release of a block: an atomic after a fence.
struct Release {
  u32 at;         // 0: never
  u32 covers;     // everything the block wrote before this time, its last barrier
  u32 thread;     // and what this thread wrote before its fence
};

struct GlobalShadow {
  u32 writer;  // global thread + 1; 0: not written by this launch
  u32 at;
};
constexpr u32 BY_ATOMIC = 0xFFFFFFFFu;
constexpr u32 BY_MAILBOX = 0xFFFFFFFEu;

struct Allocation {
  AllocationSpec* spec;
  GlobalShadow* shadow;  // nullptr when read only
};

struct Launch {
  LaunchSpec* spec;
  u32 threads;  // of a block
  u32 now;
  bool failed;
  Context main;
  Fiber* running;
  std::vector<Allocation> allocations;  // by address
  Allocation* last_hit;
  std::vector<Release> releases;  // by block
  std::vector<u32> fenced;        // by global thread, empty until a thread fences
  u64 random;
};

inline Launch* launch = nullptr;
inline u64 steps = 0;
inline u64 steps_checked_at = ~0ull;  // no check outside a launch

inline u64 next_random() {  // splitmix64
  u64 z = (launch->random += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// "block (1,0,0) thread (3,0,0)"; several may be used in one message.
struct Who {
  char text[96];
};
inline Who who(const mdf_emu_thread& t) {
  Who r;
  std::snprintf(r.text, sizeof r.text, "block (%u,%u,%u) thread (%u,%u,%u)", t.block.x, t.block.y,
                t.block.z, t.thread.x, t.thread.y, t.thread.z);
  return r;
}
inline Who who(u32 global_thread) {
  const u32 threads = launch->threads;
  const u32* grid = launch->spec->grid;
  const u32* block = launch->spec->block;
  const u32 b = global_thread / threads;
  const u32 t = global_thread % threads;
  mdf_emu_thread out;
  out.block = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
  out.thread = {t % block[0], t / block[0] % block[1], t / block[0] / block[1]};
  return who(out);
}

// Writes the message, leaves the launch for good. The fibers are abandoned as they stand: kernels
// own nothing that would have to be destroyed.
[[noreturn, gnu::format(printf, 2, 3)]] inline void fault(int site, const char* format, ...) {
  LaunchSpec& spec = *launch->spec;
  int used = 0;
  if (launch->running) {
    used = std::snprintf(spec.message, spec.message_bytes, "%s: ", who(*launch->running).text);
  }
  std::va_list list;
  va_start(list, format);
  used += std::vsnprintf(spec.message + used, spec.message_bytes - used, format, list);
  va_end(list);
  if (site > 0 && u64(used) < spec.message_bytes) {
    std::snprintf(spec.message + used, spec.message_bytes - used, " [line %d]", site);
  }
  launch->failed = true;
  Context abandoned;
  switch_context(launch->running ? launch->running->context : abandoned, launch->main);
  __builtin_unreachable();
}

// To be called by the running fiber: the scheduler takes over until this fiber is READY again.
inline void suspend() { switch_context(launch->running->context, launch->main); }

inline u32 advance() {
  if (++launch->now == 0xFFFFFFFFu) fault(0, "too many synchronising events for one launch");
  return launch->now;
}

}  // namespace mdf_emu
