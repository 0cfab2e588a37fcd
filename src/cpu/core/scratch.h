// Memory for the buffers of a thread's partition of the work.
//
// The buffers do not lie on the stack, which may be as small as 128 KiB (musl's threads,
// OMP_STACKSIZE), while the sums of the gates' gradients alone take 380 KiB. Each thread allocates
// one region at first use and keeps it until the thread ends. Frames are taken from its end and
// released in the opposite order. If the region cannot be allocated the frame lies on the stack
// after all: no kernel can fail for lack of memory.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "cpu/core/tuning.h"

namespace fastact {

class ThreadMemory {
 public:
  static constexpr size_t kBytes = size_t{512} << 10;  // of all frames at a time

  static ThreadMemory& own() {
    static thread_local ThreadMemory memory;
    return memory;
  }
  ~ThreadMemory() { free(memory_); }

  // Aligned to a cache line; null: there is none.
  void* take(size_t bytes) {
    if (!base_) {
      memory_ = malloc(kBytes + kCacheLine);
      if (!memory_) return nullptr;
      base_ = static_cast<char*>(memory_);
      base_ += -reinterpret_cast<uintptr_t>(base_) % kCacheLine;
    }
    bytes = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
    if (bytes > kBytes - used_) return nullptr;
    used_ += bytes;
    return base_ + (used_ - bytes);
  }
  void give_back(size_t bytes) { used_ -= (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }

 private:
  void* memory_ = nullptr;
  char* base_ = nullptr;
  size_t used_ = 0;
};

// run(frame), of a frame that is made of `argument`.
template <class Frame, class Argument, class Run>
__attribute__((always_inline)) inline void with_frame(const Argument& argument, Run run) {
  static_assert(std::is_trivially_destructible_v<Frame>, "nobody destroys it");
  static_assert(alignof(Frame) <= kCacheLine, "of a cache line at most");
  ThreadMemory& memory = ThreadMemory::own();
  void* at = memory.take(sizeof(Frame));
  const bool is_taken = at;
  if (!is_taken) {
    size_t bytes = sizeof(Frame);
    __asm__("" : "+r"(bytes));  // of a known size, it would be a part of every call's stack
    at = __builtin_alloca_with_align(bytes, 8 * kCacheLine);
  }
  run(*new (at) Frame(argument));
  if (is_taken) memory.give_back(sizeof(Frame));
}

}  // namespace fastact
