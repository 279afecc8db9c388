// Operations of the lanes of a warp. Lanes are not in step: each waits until all lanes of its mask
// have come to the same operation, on the same line, with the same mask.
#pragma once

#include "state.hpp"

namespace mdf_emu {

inline const char* name_of(WarpOp op) {
  switch (op) {
    case WarpOp::BARRIER:
      return "warp barrier";
    case WarpOp::SHUFFLE:
      return "shuffle";
    default:
      return "ballot";
  }
}

inline Fiber* lane_of(const Fiber& f, u32 lane) {
  const u32 linear = f.warp() * 32 + lane;
  return linear < f.block->fibers.size() ? f.block->fibers[linear] : nullptr;
}

// Faults if `other` can never meet `f`; false if it is still on its way.
inline bool has_met(const Fiber& f, u32 lane) {
  const Fiber* other = lane_of(f, lane);
  if (!other) {
    fault(f.site, "%s with mask 0x%08x: lane %u does not exist in this warp", name_of(f.op), f.mask,
          lane);
  }
  if (other->state == State::EXITED) {
    fault(f.site, "%s with mask 0x%08x: lane %u has exited", name_of(f.op), f.mask, lane);
  }
  if (other->state == State::AT_BARRIER || other->state == State::AT_CLUSTER_BARRIER) {
    fault(f.site, "%s with mask 0x%08x: lane %u waits at the barrier of line %d", name_of(f.op),
          f.mask, lane, other->site);
  }
  if (other->state != State::AT_WARP) return false;
  if (other->op != f.op || other->mask != f.mask || other->site != f.site) {
    fault(f.site, "%s with mask 0x%08x: lane %u waits in a %s with mask 0x%08x on line %d",
          name_of(f.op), f.mask, lane, name_of(other->op), other->mask, other->site);
  }
  return true;
}

inline void exchange(const Fiber& f) {
  constexpr u32 LARGEST = 64;
  if (f.bytes > LARGEST) fault(f.site, "shuffle of %u bytes: the limit is %u", f.bytes, LARGEST);
  char values[32][LARGEST];
  for (u32 lane = 0; lane < 32; ++lane) {
    if (f.mask >> lane & 1) std::memcpy(values[lane], lane_of(f, lane)->value, f.bytes);
  }
  for (u32 lane = 0; lane < 32; ++lane) {
    if (!(f.mask >> lane & 1)) continue;
    Fiber& to = *lane_of(f, lane);
    if (to.source > 31 || !(f.mask >> to.source & 1)) {
      fault(f.site, "shuffle: lane %u reads lane %u, which is not in the mask 0x%08x", lane,
            to.source, f.mask);
    }
    std::memcpy(to.value, values[to.source], f.bytes);
  }
}

inline void meet(Fiber& f) {
  if (f.op == WarpOp::SHUFFLE) exchange(f);
  u32 votes = 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    if ((f.mask >> lane & 1) && lane_of(f, lane)->vote) votes |= 1u << lane;
  }
  const u32 at = f.op == WarpOp::BARRIER ? advance() : 0;
  for (u32 lane = 0; lane < 32; ++lane) {
    if (!(f.mask >> lane & 1)) continue;
    Fiber& other = *lane_of(f, lane);
    if (f.op == WarpOp::BARRIER) {
      for (u32 k = 0; k < 32; ++k) {
        if (f.mask >> k & 1) other.lane_sync[k] = at;
      }
    }
    other.source = votes;  // a ballot's result; a shuffle's is in `value`
    other.state = State::READY;
  }
}

// The running thread brings what it has filled in; returns when all lanes of the mask have met.
inline void join_warp(WarpOp op, u32 mask, int site) {
  Fiber& f = *launch->running;
  f.op = op;
  f.mask = mask;
  f.site = site;
  if (!(mask >> f.lane() & 1)) {
    fault(site, "%s with mask 0x%08x, which does not hold the calling lane %u", name_of(op), mask,
          f.lane());
  }
  f.state = State::AT_WARP;
  for (u32 lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) && !has_met(f, lane)) {
      suspend();
      return;
    }
  }
  meet(f);
}

}  // namespace mdf_emu
