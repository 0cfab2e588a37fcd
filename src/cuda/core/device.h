// The interface of the CUDA runtime to the bindings.
#pragma once

#include <string>

#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Whether the process has a context on a device: cudaSetDevice makes one where there is none.
bool has_context(int device);

// Makes a device current for as long as it lives. The one before is current again if it was in use:
// a thread that has chosen none is told device 0, and to choose that would cost a context, of
// hundreds of MB, on a device that the process may never touch. PyTorch's guards do the same.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    FASTACT_CUDA_CHECK(cudaGetDevice(&before_));
    if (device == before_) return;
    restores_ = has_context(before_);
    FASTACT_CUDA_CHECK(cudaSetDevice(device));
  }
  ~DeviceGuard() {
    if (restores_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool restores_ = false;
};

// Lets a kernel be launched on the current device with `bytes` of dynamic shared memory: asks once
// for `most`, which is no less. Threads launch one kernel with several sizes at a time; asking for
// that of each launch, one would lower what the other has just asked for.
void allow_shared(const void* kernel, int bytes, int most);

struct DeviceFacts {
  std::string name, capability;
  int64_t memory;
  int multiprocessors;
};

std::string problem_of_machine();           // why no device can be used; empty: some can
std::string problem_of_device(int device);  // why this one can't be; empty: it can
int device_count();
DeviceFacts facts_of(int device);
std::string architectures();  // that were built
std::string compiler();
int driver_version();  // 0: none

int device_of_stream(cudaStream_t stream);
// What is queued on `waiting` from now on runs after what `awaited` holds now. Never blocks.
void make_wait(int device, cudaStream_t waiting, cudaStream_t awaited);

// One element at p OUT, of `item` bytes.
void fill(void* p, int item, uint64_t bits, cudaStream_t stream);

FASTACT_END_NAMESPACE
