// The interface of the CUDA runtime to the bindings.
#pragma once

#include <string>

#include "common/core/device_table.h"
#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// Whether the process has a context on a device: cudaSetDevice makes one where there is none.
bool has_context(int device);

// Makes a device current for its own lifetime. Afterwards the previous device is current again, but
// only if the process has a context on it: CUDA reports device 0 to a thread that has chosen none,
// and choosing that would create a context of hundreds of MB on a device that the process may never
// use. PyTorch's guards do the same.
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

// Bytes of shared memory of a kernel on the current device: `own`, of the arrays that it declares;
// and those that a block may have beside them, by default and at most. CUDA is asked once.
struct SharedMemory {
  int own, unasked, most;

  // The share of each of two blocks on a multiprocessor.
  int half() const { return (most - own) / 2; }
};
SharedMemory shared_of(const void* kernel);
template <class... Parameters>
SharedMemory shared_of(void (*kernel)(Parameters...)) {
  return shared_of(reinterpret_cast<const void*>(kernel));
}

// Allows a kernel on the current device the most that a block may have. It is set once: if each
// launch set its own limit, of two threads that launch the same kernel with different sizes one
// would lower the limit of the other.
void allow_shared(const void* kernel);
// Queues a kernel with as much dynamic shared memory as it needs, at most shared_of(kernel).most.
template <class... Parameters, class... Arguments>
void launch_with_shared(void (*kernel)(Parameters...), const Shape& shape, cudaStream_t stream,
                        const Arguments&... arguments) {
  if (shape.shared > shared_of(kernel).unasked) allow_shared(reinterpret_cast<const void*>(kernel));
  launch(kernel, shape, stream, arguments...);
}

// Whether the current device has room for the clusters of a launch: not where it has none, or where
// the kernel was compiled without. CUDA is asked once for each kernel and shape of a block.
bool has_room_for_clusters(const void* kernel, const Shape& shape);

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
// The device on which memory is; the current one for no memory, -1 for memory that CUDA does not
// know.
int device_of_memory(const void* p);
// Work queued on `waiting` from now on runs after all work that is queued on `awaited` now. Never
// blocks the host.
void make_wait(int device, cudaStream_t waiting, cudaStream_t awaited);

// One element at p OUT, of `item` bytes.
void fill(void* p, int64_t item, uint64_t bits, cudaStream_t stream);

// Gives the table what records and replays launches (binding/recorded_launches.cpp).
void add_recorded_launches(DeviceTable* table);

FASTACT_END_NAMESPACE
