// Runs the blocks of a grid: cluster after cluster, the threads of one cluster as fibers.
#pragma once

#include <sched.h>

#include <chrono>
#include <numeric>

#include "shared_memory.hpp"
#include "warp.hpp"

namespace mdf_emu {

using Clock = std::chrono::steady_clock;
inline Clock::time_point deadline;

inline void check_deadline() {
  if (Clock::now() > deadline) {
    fault(launch->running ? launch->running->site : 0,
          "no end after %.3g s: a loop that does not end, or a wait for something that never comes",
          launch->spec->timeout);
  }
}

inline void check_steps() {
  steps_checked_at = steps + (1u << 20);
  if (steps > launch->spec->step_limit) {
    fault(launch->running->site, "no end after %llu steps: a loop that does not end",
          launch->spec->step_limit);
  }
  check_deadline();
}

inline void pass_barrier(Block& block) {
  block.barrier_at = advance();
  for (Fiber* f : block.fibers) block.acquired = std::max(block.acquired, f->acquired);
  for (Fiber* f : block.fibers) f->state = State::READY;
  block.arrived = 0;
}

inline void join_barrier(int site) {
  Fiber& f = *launch->running;
  Block& block = *f.block;
  f.site = site;
  if (block.exited > 0) {
    fault(site, "divergent barrier: %u threads of the block have exited", block.exited);
  }
  if (block.arrived > 0 && block.arrived_site != site) {
    fault(site, "divergent barrier: %s waits at the barrier of line %d",
          thread_of(block, block.arrived_by).text, block.arrived_site);
  }
  block.arrived_site = site;
  block.arrived_by = f.linear;
  f.state = State::AT_BARRIER;
  if (++block.arrived == block.fibers.size()) {
    pass_barrier(block);
  } else {
    suspend();
  }
}

inline void join_cluster_barrier(int site) {
  Fiber& f = *launch->running;
  Cluster& cluster = *f.block->cluster;
  f.site = site;
  u32 arrived = 0;
  for (const Block& block : cluster.blocks) {
    if (block.exited > 0) {
      fault(site, "divergent cluster barrier: threads of rank %u have exited", block.rank);
    }
    arrived += block.arrived_cluster;
  }
  if (arrived > 0 && cluster.arrived_site != site) {
    fault(site, "divergent cluster barrier: other threads wait at the one of line %d",
          cluster.arrived_site);
  }
  cluster.arrived_site = site;
  f.state = State::AT_CLUSTER_BARRIER;
  ++f.block->arrived_cluster;
  if (arrived + 1 < cluster.blocks.size() * launch->threads) {
    suspend();
    return;
  }
  for (Block& block : cluster.blocks) {
    block.arrived_cluster = 0;
    pass_barrier(block);
  }
  cluster.barrier_at = advance();
}

inline void exit_thread() {
  Fiber& f = *launch->running;
  Block& block = *f.block;
  if (block.arrived > 0) {
    fault(block.arrived_site, "divergent barrier: the thread exits while %s waits at a barrier",
          thread_of(block, block.arrived_by).text);
  }
  for (const Block& other : block.cluster->blocks) {
    if (other.arrived_cluster > 0) {
      fault(block.cluster->arrived_site,
            "divergent cluster barrier: the thread exits while others wait at one");
    }
  }
  f.state = State::EXITED;
  if (++block.exited == block.fibers.size()) check_cluster_exit(block);
}

inline void fiber_body() {
  launch->spec->entry(launch->spec->args);
  exit_thread();
  suspend();
  __builtin_unreachable();
}

[[noreturn]] inline void fault_deadlock(const Cluster& cluster) {
  for (const Block& block : cluster.blocks) {
    for (Fiber* f : block.fibers) {
      if (f->state != State::AT_WARP) continue;
      launch->running = f;
      for (u32 lane = 0; lane < 32; ++lane) {
        // Faults with the lane's own reason if it waits elsewhere.
        if (f->mask >> lane & 1) has_met(*f, lane);
      }
    }
  }
  for (const Block& block : cluster.blocks) {
    for (Fiber* f : block.fibers) {
      if (f->state == State::EXITED) continue;
      launch->running = f;
      fault(f->site, "deadlock: waits at a %s that the other threads do not reach",
            f->state == State::AT_BARRIER ? "barrier" : "cluster barrier");
    }
  }
  fault(0, "deadlock");
}

inline void shuffle_order(std::vector<u32>& order) {
  for (std::size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[next_random() % k]);
}

// 0, 1, ... n - 1 in the order that the launch asks for.
inline std::vector<u32> make_order(std::size_t n) {
  std::vector<u32> order(n);
  std::iota(order.begin(), order.end(), 0u);
  if (launch->spec->order == 1) std::reverse(order.begin(), order.end());
  if (launch->spec->order == 2) shuffle_order(order);
  return order;
}

inline void run_fiber(Fiber& f) {
  f.polled = false;
  launch->running = &f;
  mdf_emu_current = &f;
  switch_context(launch->main, f.context);
  launch->running = launch->failed ? launch->running : nullptr;
}

class Scheduler {
 public:
  explicit Scheduler(std::size_t resident)
      : stacks_(resident * launch->threads), fibers_(resident * launch->threads) {
    cluster_.blocks.resize(resident);
    order_ = make_order(fibers_.size());
  }
  bool ready() const { return stacks_.ready(); }

  // False when a fault has ended the launch.
  bool run(u32 first_block) {
    begin(first_block);
    std::size_t live = fibers_.size();
    while (live > 0) {
      if (launch->spec->order == 2) shuffle_order(order_);
      bool ran = false;
      bool worked = false;
      for (u32 k : order_) {
        Fiber& f = fibers_[k];
        if (f.state != State::READY) continue;
        run_fiber(f);
        if (launch->failed) return false;
        if (stacks_.overflowed(k)) return report_overflow(f);
        ran = true;
        worked = worked || !f.polled;
        if (f.state == State::EXITED) --live;
      }
      if (live > 0 && !ran) return report_deadlock();
      if (live > 0 && !worked) {
        // All of them spin: on another device, if they are right.
        sched_yield();
        if (Clock::now() > deadline) return report_stuck();
      }
    }
    return true;
  }

 private:
  void begin(u32 first_block) {
    const LaunchSpec& spec = *launch->spec;
    const u32 now = advance();
    cluster_.barrier_at = now;
    const u32 threads = launch->threads;
    for (u32 rank = 0; rank < cluster_.blocks.size(); ++rank) {
      Block& block = cluster_.blocks[rank];
      block.cluster = &cluster_;
      block.linear = first_block + rank;
      block.rank = rank;
      block.arrived = block.arrived_cluster = block.exited = block.acquired = 0;
      block.remote_read_at = 0;
      block.started_at = block.barrier_at = now;
      block.fibers.resize(threads);
      begin_shared(block);
      for (u32 t = 0; t < threads; ++t) {
        const std::size_t slot = std::size_t(rank) * threads + t;
        block.fibers[t] = &fibers_[slot];
        begin_fiber(fibers_[slot], block, t, slot, spec);
      }
    }
  }

  void begin_fiber(Fiber& f, Block& block, u32 linear, std::size_t slot, const LaunchSpec& spec) {
    const u32* b = spec.block;
    const u32* g = spec.grid;
    f = Fiber{};
    f.thread = {linear % b[0], linear / b[0] % b[1], linear / b[0] / b[1]};
    f.block_dim = {b[0], b[1], b[2]};
    f.grid_dim = {g[0], g[1], g[2]};
    const u32 n = block.linear;
    f.mdf_emu_thread::block = {n % g[0], n / g[0] % g[1], n / g[0] / g[1]};
    f.block = &block;
    f.linear = linear;
    f.global = n * launch->threads + linear;
    f.state = State::READY;
    for (u32& at : f.lane_sync) at = block.started_at;
    stacks_.mark(slot);
    prepare_context(f.context, stacks_.at(slot), Stacks::BYTES, fiber_body);
  }

  // The three reports below run on the main stack: fault() has to come back to it.
  template <class F>
  bool report(F what) {
    static F* pending;
    static Fiber reporter;
    pending = &what;
    Fiber* shown = launch->running;
    prepare_context(reporter.context, stacks_.at(0), Stacks::BYTES, [] { (*pending)(); });
    launch->running = shown;
    switch_context(launch->main, reporter.context);
    return false;
  }
  bool report_deadlock() {
    return report([this] { fault_deadlock(cluster_); });
  }
  bool report_stuck() {
    launch->running = fibers_[order_[0]].state == State::READY ? &fibers_[order_[0]] : nullptr;
    return report([] { check_deadline(); });
  }
  bool report_overflow(Fiber& f) {
    launch->running = &f;
    return report([] {
      fault(0, "stack overflow: more than %zu bytes of local variables", Stacks::BYTES);
    });
  }

  Stacks stacks_;
  std::vector<Fiber> fibers_;
  std::vector<u32> order_;
  Cluster cluster_;
};

}  // namespace mdf_emu
