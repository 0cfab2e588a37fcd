// C functions that a device module offers the CPU module in a capsule: nobody looks up a Python
// attribute on the way to a launch.
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

// A native function for calls of one dtype, on the current device (cuda/core/native_function.h).
struct DeviceFunction {
  int64_t (*workspace)(const void* call);
  void (*run)(const void* call, void* workspace, void* stream);
};

struct CallTable;

// Adds the function of one dtype to the device module's table (cuda/binding/module.cpp).
void add_device_function(const CallTable& table, int dtype, const DeviceFunction& function);

// A native function of a device module. call: the struct of its table (common/core/call.h), which
// has been checked; `size` bytes, which tells modules of different builds apart. dtype: of the
// call's first array. Both functions throw std::exception.
struct DeviceCall {
  const char* name;
  int64_t size;
  DeviceFunction functions[kViewDTypes];  // by dtype; null where there is none for it
  int64_t (*size_of)(const DeviceCall&, const void* call, int dtype, int device);
  void (*queue)(const DeviceCall&, const void* call, int dtype, int device, void* workspace,
                int64_t bytes, void* stream);

  int64_t workspace_size(const void* call, int dtype, int device) const {
    return size_of(*this, call, dtype, device);
  }
  // Queues it on a stream. workspace: `bytes` of them, too few are refused.
  void run(const void* call, int dtype, int device, void* workspace, int64_t bytes,
           void* stream) const {
    queue(*this, call, dtype, device, workspace, bytes, stream);
  }
};

// A device module has it in its attribute `table`, a capsule named "fastact_device_table": for the
// compiled fast path and the call cache of the CPU module, which know nothing of CUDA.
struct DeviceTable {
  const DeviceCall* calls;
  int call_count;

  // Launches that are recorded, to be queued again for other addresses. From begin_recording to
  // end_recording, launches of this thread on the stream that the recording is are not queued but
  // taken. Native functions run between them several times, each time after begin_run, with the
  // buffers of a call at addresses that are alike in their last kAlignedBits and otherwise not:
  // no memory is there. A buffer that is given twice is given at one address.
  void* (*begin_recording)();
  void (*begin_run)(void* recording, const char* const* buffers, int count);
  // Gives what replay takes; null where the runs differ in more than where buffers are.
  void* (*end_recording)(void* recording, int device);
  // Throws std::exception.
  void (*replay)(const void* launches, char* const* buffers, int device, void* stream);
  void (*drop)(void* launches);
};

// All that a launch may depend on of an address, but for which buffers begin at one: its residue.
constexpr int kAlignedBits = 4;

}  // namespace fastact
