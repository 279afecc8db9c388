// Every access to global memory: inside an allocation, aligned, allowed, and free of races.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "state.hpp"

namespace mdf_emu {

struct Access {
  u64 address;
  u32 bytes;
  u32 element;
  const char* what;
  int site;
};

inline Allocation* allocation_of(u64 address) {
  Allocation* hit = launch->last_hit;
  if (hit && address - hit->spec->address < hit->spec->bytes) return hit;
  auto& all = launch->allocations;
  auto after = std::upper_bound(all.begin(), all.end(), address, [](u64 a, const Allocation& x) {
    return a < x.spec->address;
  });
  if (after == all.begin()) return nullptr;
  launch->last_hit = &*(after - 1);
  return launch->last_hit;
}

[[noreturn]] inline void fault_outside(const Access& a, const Allocation* before) {
  // The nearest allocation says most: a bound that is off by one ends just behind it.
  const Allocation* near = before;
  if (!near && !launch->allocations.empty()) near = &launch->allocations.front();
  if (!near) fault(a.site, "%s of %u bytes, but no memory was given to the kernel", a.what, a.bytes);
  const long long offset = (long long)(a.address - near->spec->address);
  const long long element = a.element ? (long long)a.element : 1;
  fault(a.site,
        "%s of %u bytes outside every allocation: at element %lld (byte %lld) of '%s', which has "
        "%llu bytes",
        a.what, a.bytes, offset / element, offset, near->spec->name, near->spec->bytes);
}

inline Allocation& checked(const Access& a, bool write) {
  Allocation* at = allocation_of(a.address);
  if (!at || a.address - at->spec->address + a.bytes > at->spec->bytes) fault_outside(a, at);
  const u64 offset = a.address - at->spec->address;
  const u32 alignment = a.bytes < 16 ? a.bytes : 16;
  if (a.address % alignment != 0) {
    fault(a.site, "misaligned %s: %u bytes at byte %llu of '%s' need an address that %u divides",
          a.what, a.bytes, offset, at->spec->name, alignment);
  }
  if (write && !at->spec->writable) {
    fault(a.site, "%s of %u bytes to '%s', which is read only (byte %llu)", a.what, a.bytes,
          at->spec->name, offset);
  }
  return *at;
}

// Whether what `writer` (a global thread) did at time `at` comes before the running thread's now.
inline bool ordered(u32 writer, u32 at) {
  const Fiber& f = *launch->running;
  if (writer == f.global) return true;
  const u32 block = writer / launch->threads;
  const u32 linear = writer % launch->threads;
  if (block == f.block->linear) {
    if (at < f.block->barrier_at) return true;
    return linear / 32 == f.warp() && at < f.lane_sync[linear % 32];
  }
  for (const Block& other : f.block->cluster->blocks) {
    if (other.linear == block && at < f.block->cluster->barrier_at) return true;
  }
  const Release& r = launch->releases[block];
  const u32 acquired = std::max(f.acquired, f.block->acquired);
  if (r.at == 0 || acquired < r.at) return false;
  if (at < r.covers) return true;
  const u32 fenced = launch->fenced.empty() ? 0 : launch->fenced[writer];
  return at < fenced && (writer == r.thread || fenced < r.covers);
}

// Atomics are ordered against each other; against plain accesses only by a barrier or an acquire.
inline bool ordered_after_atomic(u32 at) {
  const Fiber& f = *launch->running;
  return at < f.block->barrier_at || at <= std::max(f.acquired, f.block->acquired) ||
         at == f.last_atomic;
}

inline bool conflict(const GlobalShadow& s) {
  if (s.writer == 0 || s.writer == BY_MAILBOX) return false;
  if (s.writer == BY_ATOMIC) return !ordered_after_atomic(s.at);
  return !ordered(s.writer - 1, s.at);
}
inline Who writer_of(const GlobalShadow& s) {
  if (s.writer != BY_ATOMIC) return who(s.writer - 1);
  Who r;
  std::snprintf(r.text, sizeof r.text, "an atomic");
  return r;
}

inline void load_global(const Access& a, void* out) {
  const Allocation& at = checked(a, false);
  if (at.shadow) {
    const u64 offset = a.address - at.spec->address;
    const u32 self = launch->running->global + 1;
    for (u32 k = 0; k < a.bytes; ++k) {
      const GlobalShadow& s = at.shadow[offset + k];
      if (s.writer == self) continue;
      if (s.writer == 0 && at.spec->fresh) {
        fault(a.site, "load of byte %llu of '%s', which nothing has written", offset + k,
              at.spec->name);
      }
      if (conflict(s)) {
        fault(a.site,
              "race: load of byte %llu of '%s', which %s wrote in this launch with no barrier or "
              "fence and atomic between",
              offset + k, at.spec->name, writer_of(s).text);
      }
    }
  }
  std::memcpy(out, reinterpret_cast<const void*>(a.address), a.bytes);
}

inline void store_global(const Access& a, const void* value) {
  Allocation& at = checked(a, true);
  const u64 offset = a.address - at.spec->address;
  const u32 self = launch->running->global + 1;
  const u8* from = static_cast<const u8*>(value);
  u8* to = reinterpret_cast<u8*>(a.address);
  for (u32 k = 0; k < a.bytes; ++k) {
    GlobalShadow& s = at.shadow[offset + k];
    // Two threads that write the same value do no harm: torch's index_put is written that way.
    if (s.writer != self && to[k] != from[k] && conflict(s)) {
      fault(a.site, "race: two threads store different values to byte %llu of '%s': the other is %s",
            offset + k, at.spec->name, writer_of(s).text);
    }
    s = {self, launch->now};
  }
  std::memcpy(to, from, a.bytes);
}

inline void record_release(Fiber& f) {
  if (f.fenced == 0) return;
  Release& r = launch->releases[f.block->linear];
  r = {advance(), f.block->barrier_at, f.global};
  // A barrier after the fence was not waited for by it.
  if (f.fenced < f.block->barrier_at) r.covers = f.fenced;
}

inline void* atomic_global(const Access& a) {
  Allocation& at = checked(a, true);
  Fiber& f = *launch->running;
  const u64 offset = a.address - at.spec->address;
  record_release(f);
  f.last_atomic = advance();
  for (u32 k = 0; k < a.bytes; ++k) {
    GlobalShadow& s = at.shadow[offset + k];
    if (s.writer != BY_ATOMIC && conflict(s)) {
      fault(a.site, "race: atomic on byte %llu of '%s', which %s stored to plainly", offset + k,
            at.spec->name, writer_of(s).text);
    }
    s = {BY_ATOMIC, f.last_atomic};
  }
  return reinterpret_cast<void*>(a.address);
}

inline void* mailbox_global(const Access& a, bool write) {
  Allocation& at = checked(a, write);
  Fiber& f = *launch->running;
  const u64 offset = a.address - at.spec->address;
  if (write) {
    record_release(f);
    for (u32 k = 0; k < a.bytes; ++k) at.shadow[offset + k] = {BY_MAILBOX, launch->now};
  } else {
    f.last_atomic = advance();
  }
  return reinterpret_cast<void*>(a.address);
}

inline void fence() {
  Fiber& f = *launch->running;
  if (launch->fenced.empty()) {
    launch->fenced.assign(launch->releases.size() * launch->threads, 0);
  }
  f.fenced = launch->fenced[f.global] = advance();
  if (f.last_atomic) f.acquired = f.last_atomic;
}

inline bool begin_allocations() {
  LaunchSpec& spec = *launch->spec;
  for (u32 k = 0; k < spec.allocation_count; ++k) {
    AllocationSpec& a = spec.allocations[k];
    GlobalShadow* shadow = nullptr;
    if (a.writable) {
      shadow = static_cast<GlobalShadow*>(std::calloc(a.bytes ? a.bytes : 1, sizeof(GlobalShadow)));
      if (!shadow) return false;
    }
    launch->allocations.push_back({&a, shadow});
  }
  std::sort(launch->allocations.begin(), launch->allocations.end(),
            [](const Allocation& x, const Allocation& y) {
              return x.spec->address < y.spec->address;
            });
  return true;
}

inline void end_allocations() {
  for (Allocation& a : launch->allocations) {
    a.spec->unwritten = a.spec->first_unwritten = 0;
    if (!a.shadow) continue;
    for (u64 k = a.spec->bytes; k-- > 0;) {
      if (a.shadow[k].writer != 0) continue;
      ++a.spec->unwritten;
      a.spec->first_unwritten = k;
    }
    std::free(a.shadow);
  }
}

}  // namespace mdf_emu
