// Shared memory: one arena a block, a shadow of every byte, and the rules of a barrier interval.
#pragma once

#include "state.hpp"

namespace mdf_emu {

// The limits of sm_90: static arrays, and both kinds together.
constexpr u32 STATIC_BYTES = 48 * 1024;
constexpr u32 ALL_BYTES = 227 * 1024;
constexpr u32 DYNAMIC_START = STATIC_BYTES;

// Offsets of static arrays, given out at first use in a launch. An array's key holds the number of
// the launch that gave it its offset, so that the kernels of one source share no offsets.
inline u32 launches = 0;
inline u32 static_used = 0;

inline u32 static_array(u64* key, const char* name, u64 bytes, int site) {
  if (*key >> 32 != launches) {
    const u64 end = static_used + (bytes + 15) / 16 * 16;
    if (end > STATIC_BYTES) {
      fault(site, "shared array '%s' of %llu bytes: static shared memory is limited to %u bytes",
            name, bytes, STATIC_BYTES);
    }
    *key = u64(launches) << 32 | static_used;
    static_used = u32(end);
    if (static_used + launch->spec->dynamic_shared > ALL_BYTES) {
      fault(site, "%u static and %u dynamic bytes of shared memory: the limit is %u", static_used,
            launch->spec->dynamic_shared, ALL_BYTES);
    }
  }
  return u32(*key);
}

inline u32 dynamic_array(const char* name, u64 offset, u64 bytes, int site) {
  const u32 given = launch->spec->dynamic_shared;
  if (offset % 16 != 0 || offset + bytes > given) {
    fault(site,
          "dynamic shared array '%s' of %llu bytes at byte %llu: the launch gives %u bytes, and the "
          "start must be a multiple of 16",
          name, bytes, offset, given);
  }
  return DYNAMIC_START + u32(offset);
}

inline u32 place(const mdf_emu_array& array, long long i, u32 n, const char* what, int site) {
  if (i < 0 || i + n > array.count) {
    fault(site, "%s of shared '%s' at element %lld: it has %lld elements", what, array.name, i,
          array.count);
  }
  const u32 bytes = array.element * n;
  // 12-byte structures and the like are accessed by their words.
  const u32 alignment = (bytes & (bytes - 1)) ? 4 : (bytes < 16 ? bytes : 16);
  const u32 offset = array.offset + u32(i) * array.element;
  if (n > 1 && offset % alignment != 0) {
    fault(site, "misaligned %s of shared '%s': %u elements at element %lld", what, array.name, n, i);
  }
  return offset;
}

inline Who thread_of(const Block& block, u32 linear) { return who(*block.fibers[linear]); }

inline bool same_interval(const Fiber& f, u32 thread, u32 at) {
  if (thread == f.linear || at < f.block->barrier_at) return false;
  return thread / 32 != f.warp() || at >= f.lane_sync[thread % 32];
}

inline void check_shared_load(const Fiber& f, const mdf_emu_array& array, long long i,
                              SharedShadow& s, int site) {
  Block& block = *f.block;
  if (!s.written || s.written_at < block.started_at) {
    fault(site, "load of shared '%s' element %lld, which nothing has written", array.name, i);
  }
  if (same_interval(f, s.writer, s.written_at)) {
    fault(site, "race: load of shared '%s' element %lld, which %s wrote with no barrier between",
          array.name, i, thread_of(block, s.writer).text);
  }
  if (!s.read || s.read_at < block.barrier_at) {
    s.read = 1;
    s.other_warps = 0;
    s.reader_warp = u16(f.warp());
    s.read_lanes = 0;
  }
  s.read_at = launch->now;
  if (s.reader_warp == f.warp()) {
    s.read_lanes |= 1u << f.lane();
  } else {
    s.other_warps = 1;
  }
}

// A reader that the running thread has not met since, or -1.
inline long long unmet_reader(const Fiber& f, const SharedShadow& s) {
  if (!s.read || s.read_at < f.block->barrier_at) return -1;
  if (s.reader_warp != f.warp()) return s.reader_warp * 32 + __builtin_ctz(s.read_lanes);
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 reader = s.reader_warp * 32u + lane;
    if ((s.read_lanes >> lane & 1) && same_interval(f, reader, s.read_at)) return reader;
  }
  // The lanes of another warp are not kept one by one; the block has met none of them.
  return s.other_warps ? (s.reader_warp == 0 ? 32 : 0) : -1;
}

inline void check_shared_store(const Fiber& f, const mdf_emu_array& array, long long i,
                               SharedShadow& s, int site) {
  Block& block = *f.block;
  const bool begun = s.written && s.written_at >= block.started_at;
  if (begun && same_interval(f, s.writer, s.written_at)) {
    fault(site, "race: store to shared '%s' element %lld, which %s wrote with no barrier between",
          array.name, i, thread_of(block, s.writer).text);
  }
  const long long reader = begun ? unmet_reader(f, s) : -1;
  if (reader >= 0) {
    fault(site, "race: store to shared '%s' element %lld, which %s read with no barrier between",
          array.name, i, thread_of(block, u32(reader)).text);
  }
  if (begun && s.remote && s.remote_read_at >= block.cluster->barrier_at) {
    fault(site,
          "race: store to shared '%s' element %lld, which another block of the cluster read with no "
          "cluster barrier between",
          array.name, i);
  }
  s = {launch->now, 0, 0, 0, u16(f.linear), 0, 1, 0, 0, 0};
}

// Every access, where somebody wants to know (compile/emulate_banks.py mirrors the layout).
struct SharedAccess {
  u32 thread;
  int site;
  u32 offset, bytes;
};
inline SharedAccess* trace = nullptr;
inline u64 trace_room = 0;
inline u64 traced = 0;
inline void note_access(const Fiber& f, u32 offset, u32 bytes, int site) {
  if (traced < trace_room) trace[traced++] = {f.global, site, offset, bytes};
}

inline void load_shared(const mdf_emu_array& array, long long i, u32 n, void* out, int site) {
  const u32 offset = place(array, i, n, "load", site);
  Fiber& f = *launch->running;
  for (u32 k = 0; k < n * array.element; ++k) {
    check_shared_load(f, array, i + k / array.element, f.block->shadow[offset + k], site);
  }
  note_access(f, offset, n * array.element, site);
  std::memcpy(out, &f.block->shared[offset], n * array.element);
}

inline void store_shared(const mdf_emu_array& array, long long i, u32 n, const void* value,
                         int site) {
  const u32 offset = place(array, i, n, "store", site);
  Fiber& f = *launch->running;
  for (u32 k = 0; k < n * array.element; ++k) {
    check_shared_store(f, array, i + k / array.element, f.block->shadow[offset + k], site);
  }
  note_access(f, offset, n * array.element, site);
  std::memcpy(&f.block->shared[offset], value, n * array.element);
}

// 0x7FF1 in every half word: NaN as f16, bf16, f32 and f64.
inline void poison(u8* from, std::size_t bytes) {
  for (std::size_t k = 0; k < bytes; ++k) from[k] = k % 2 ? 0x7F : 0xF1;
}

// What is on its way is not there yet, for its own thread neither.
inline void begin_copy(const Copy& copy) {
  store_shared(copy.array, copy.i, copy.n, copy.value.data(), copy.site);
  const u32 offset = place(copy.array, copy.i, copy.n, "copy", copy.site);
  Block& block = *launch->running->block;
  for (std::size_t k = 0; k < copy.value.size(); ++k) block.shadow[offset + k].written = 0;
  poison(&block.shared[offset], copy.value.size());
}
inline void end_copies(u32 under_way) {
  Fiber& f = *launch->running;
  std::vector<Copy> left;
  for (Copy& copy : f.copies) {
    if (copy.group + under_way >= f.copy_group) {
      left.push_back(std::move(copy));
    } else {
      store_shared(copy.array, copy.i, copy.n, copy.value.data(), copy.site);
    }
  }
  f.copies = std::move(left);
}

inline void load_cluster(const mdf_emu_array& array, long long i, u32 rank, void* out, int site) {
  Fiber& f = *launch->running;
  Cluster& cluster = *f.block->cluster;
  if (rank >= cluster.blocks.size()) {
    fault(site, "cluster_read of rank %u in a cluster of %u blocks", rank,
          u32(cluster.blocks.size()));
  }
  Block& owner = cluster.blocks[rank];
  if (&owner == f.block) return load_shared(array, i, 1, out, site);
  if (owner.exited == owner.fibers.size()) {
    fault(site, "cluster_read of shared '%s' of rank %u, a block that has ended", array.name, rank);
  }
  const u32 offset = place(array, i, 1, "cluster_read", site);
  for (u32 k = 0; k < array.element; ++k) {
    SharedShadow& s = owner.shadow[offset + k];
    if (!s.written || s.written_at < owner.started_at) {
      fault(site, "cluster_read of shared '%s' element %lld of rank %u, which nothing has written",
            array.name, i, rank);
    }
    if (s.written_at >= cluster.barrier_at) {
      fault(site,
            "race: cluster_read of shared '%s' element %lld of rank %u, which %s wrote with no "
            "cluster barrier between",
            array.name, i, rank, thread_of(owner, s.writer).text);
    }
    s.remote = 1;
    s.remote_read_at = launch->now;
  }
  owner.remote_read_at = launch->now;
  std::memcpy(out, &owner.shared[offset], array.element);
}

// A block's memory is gone when it ends, so it has to meet its readers before.
inline void check_cluster_exit(const Block& block) {
  if (block.remote_read_at && block.remote_read_at >= block.cluster->barrier_at) {
    fault(launch->running->site,
          "the block ends while another block of its cluster may still read its shared memory: put "
          "a cluster barrier after the last cluster_read");
  }
}

inline void begin_shared(Block& block) {
  const std::size_t dynamic = launch->spec->dynamic_shared;
  const std::size_t bytes = DYNAMIC_START + dynamic;
  if (block.shared.size() != bytes) {
    block.shared.resize(bytes);
    block.shadow.assign(bytes, SharedShadow{});
    poison(block.shared.data(), DYNAMIC_START);
  }
  poison(block.shared.data(), static_used);
  poison(block.shared.data() + DYNAMIC_START, dynamic);
}

}  // namespace mdf_emu
