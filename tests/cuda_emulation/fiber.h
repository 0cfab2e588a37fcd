// A stack of its own for a function, which the launching thread runs, leaves and enters again.
#pragma once

#include <ucontext.h>

#include <csetjmp>
#include <cstddef>

namespace fastact::emulation {

// Entered by resume() from the launching context alone and left by suspend() from inside.
//
// Only the first entry goes through ucontext. swapcontext saves the signal mask by a system call
// (380 ns for there and back), _setjmp and _longjmp do not (14 ns).
class Fiber {
 public:
  explicit Fiber(void (*body)(Fiber&));  // body never returns
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();
  void suspend();

 private:
  static void enter();

  void (*body_)(Fiber&);
  char* memory_;  // a guard page, then the stack
  size_t size_;   // of the stack
  bool entered_ = false;
  ucontext_t first_;
  jmp_buf inside_, outside_;
  void* fake_inside_ = nullptr;  // of AddressSanitizer, as are the next three
  void* fake_outside_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_size_ = 0;
};

}  // namespace fastact::emulation
