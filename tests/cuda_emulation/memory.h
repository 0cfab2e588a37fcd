// The memory of the emulated devices.
//
// The addresses that cudaMalloc gives are reserved but not mapped: whoever dereferences one, on the
// host or in a kernel, ends in a segmentation fault, as on a machine whose GPU is another chip. The
// bytes lie elsewhere, and every access goes through the functions below.
//
// Beside each byte stand the thread that wrote it last and the threads that read it, with the epoch
// (block.h) in which they did. From these follow the reads of what nobody wrote and the conflicts:
// two threads of one launch that touch a byte, one of them writing, unless they are of one block
// with a __syncthreads between. (A __syncwarp between does not count.)
//
// All of this is called with the Lock of api.h held, as it is through a launch.
#pragma once

#include <cstdint>
#include <memory>

#include "fault.h"

namespace fastact::emulation {

constexpr int kDevices = 3;

// When a byte was touched last, and by which thread of its block.
struct Touch {
  uint32_t epoch;
  uint32_t rank;
};

struct Allocation {
  uintptr_t address;
  size_t size;
  int device;
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<char[], Free> bytes;
  std::unique_ptr<Touch[], Free> written, read;  // zeros: never
};

// 256-byte aligned, of exactly `size` bytes, not initialised; null when memory runs out.
void* allocate(size_t size, int device);
// False if nothing was allocated at p.
bool release(void* p);
size_t live_bytes();
// The device on which `bytes` bytes from p on lie in one allocation; -1: on none.
int device_of(const void* p, size_t bytes);

// From and to the host; both fault outside one allocation, read also at bytes nobody wrote.
void write_from_host(void* to, const void* from, size_t bytes);
void read_to_host(void* to, const void* from, size_t bytes);

// What a thread of a kernel does: checked, and then done.
void kernel_read(void* to, const void* from, size_t bytes, size_t alignment, const Site& site);
void kernel_bring_near(const void* p, size_t bytes, const Site& site);
void kernel_write(void* to, const void* from, size_t bytes, size_t alignment, const Site& site);

}  // namespace fastact::emulation
