// What the bindings ask of the CUDA runtime.
#pragma once

#include <string>

#include "launch.cuh"

FASTACT_BEGIN_NAMESPACE

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
