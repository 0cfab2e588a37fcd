// The fortified longjmp takes a jump to another stack for an attack.
#undef _FORTIFY_SOURCE

#include "fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define FASTACT_FIBER_ASAN 1
#else
#define FASTACT_FIBER_ASAN 0
#endif

namespace fastact::emulation {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kStagger = 832;
constexpr size_t kStack = FASTACT_FIBER_ASAN ? 512 << 10 : 128 << 10;

Fiber* starting = nullptr;  // launches run one at a time

// No locals of its own: nothing that a second return of _setjmp could have clobbered.
__attribute__((noinline)) void jump(jmp_buf& from, jmp_buf& to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}
__attribute__((noinline)) void jump(jmp_buf& from, const ucontext_t& to) {
  if (_setjmp(from) == 0) setcontext(&to);
}

}  // namespace

Fiber::Fiber(void (*body)(Fiber&)) : body_(body) {
  void* memory = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, kGuard, PROT_NONE);  // an overflow ends in a signal, not in another stack
  getcontext(&first_);
  first_.uc_stack.ss_sp = memory_ + kGuard;
  // Stacks that begin at one offset in their pages would contend for the same lines of the cache.
  static size_t count = 0;
  size_ = kStack - count++ * kStagger % kGuard;
  first_.uc_stack.ss_size = size_;
  first_.uc_link = nullptr;
  makecontext(&first_, enter, 0);
}

Fiber::~Fiber() { munmap(memory_, kGuard + kStack); }

void Fiber::enter() {
  Fiber& self = *starting;
#if FASTACT_FIBER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self.outside_stack_, &self.outside_size_);
#endif
  self.body_(self);
}

void Fiber::resume() {
#if FASTACT_FIBER_ASAN
  __sanitizer_start_switch_fiber(&fake_outside_, memory_ + kGuard, size_);
#endif
  if (entered_) {
    jump(outside_, inside_);
  } else {
    entered_ = true;
    starting = this;
    jump(outside_, first_);
  }
#if FASTACT_FIBER_ASAN
  __sanitizer_finish_switch_fiber(fake_outside_, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
#if FASTACT_FIBER_ASAN
  __sanitizer_start_switch_fiber(&fake_inside_, outside_stack_, outside_size_);
#endif
  jump(inside_, outside_);
#if FASTACT_FIBER_ASAN
  // Another thread of the process may have resumed this fiber: its stack is where to go back to.
  __sanitizer_finish_switch_fiber(fake_inside_, &outside_stack_, &outside_size_);
#endif
}

}  // namespace fastact::emulation
