// Fibers: stacks and the switch between them. x86-64 has its own switch (some 10 ns); elsewhere, or
// with MDF_EMU_UCONTEXT, swapcontext does it (0.2 us, most of it two system calls).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(__x86_64__) && !defined(MDF_EMU_UCONTEXT)
#define MDF_EMU_UCONTEXT 1
#endif
#ifdef MDF_EMU_UCONTEXT
#include <ucontext.h>
#endif

namespace mdf_emu {

#ifdef MDF_EMU_UCONTEXT

struct Context {
  ucontext_t saved;
};
inline void switch_context(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }
inline void prepare_context(Context& context, char* stack, std::size_t bytes, void (*body)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = stack;
  context.saved.uc_stack.ss_size = bytes;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, body, 0);
}

#else

struct Context {
  void* stack_pointer;
};
// Saves what the System V ABI lets a callee rely on; the rest is dead at a call.
extern "C" void mdf_emu_switch(void** save, void* load);
asm(R"(
.text
.hidden mdf_emu_switch
.globl mdf_emu_switch
.type mdf_emu_switch, @function
mdf_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mdf_emu_switch, .-mdf_emu_switch
)");
inline void switch_context(Context& from, Context& to) {
  mdf_emu_switch(&from.stack_pointer, to.stack_pointer);
}
inline void prepare_context(Context& context, char* stack, std::size_t bytes, void (*body)()) {
  // Six registers, the address that `ret` takes, and one word so that body finds the stack as after
  // a call: 8 below a multiple of 16.
  void** top = reinterpret_cast<void**>(stack + bytes - 64);
  std::memset(top, 0, 64);
  top[6] = reinterpret_cast<void*>(body);
  context.stack_pointer = top;
}

#endif

// One range of memory for all stacks of a launch: only touched pages are real. Below each stack is a
// gap as large as the stack, so that one that overflows damages nothing before it is noticed.
class Stacks {
 public:
  static constexpr std::size_t BYTES = 128 * 1024;

  explicit Stacks(std::size_t count) : bytes_(count * 2 * BYTES) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = at == MAP_FAILED ? nullptr : static_cast<char*>(at);
  }
  ~Stacks() {
    if (base_) munmap(base_, bytes_);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  bool ready() const { return base_ != nullptr; }
  char* at(std::size_t k) const { return base_ + (2 * k + 1) * BYTES; }
  void mark(std::size_t k) const { std::memcpy(at(k), &CANARY, sizeof CANARY); }
  bool overflowed(std::size_t k) const { return std::memcmp(at(k), &CANARY, sizeof CANARY) != 0; }

 private:
  static constexpr std::uint64_t CANARY = 0x6d64667573650badull;
  std::size_t bytes_;
  char* base_;
};

}  // namespace mdf_emu
