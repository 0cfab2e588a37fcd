// What the bindings have in common: how a family's functions become entries of the device table.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "common/activations/list.h"
#include "common/core/call_check.h"
#include "common/core/device_table.h"
#include "common/core/families.h"
#include "cuda/core/api.h"
#include "cuda/core/device.h"

namespace fastact {

// A native function for calls of every dtype. size_of(element, call): bytes of scratch;
// run_on(element, call, workspace, stream): queues it. Both are lambdas without captures, given an
// element of the call's storage type.
template <class Call, class SizeOf, class RunOn>
DeviceCall device_call(const CallTable& table, SizeOf size_of, RunOn run_on) {
  static const CallTable& of = table;  // one for each pair of lambdas
  static const SizeOf size = size_of;
  static const RunOn run = run_on;
  const auto workspace_size = [](const void* call, int dtype, int device) {
    const DeviceGuard guard(device);
    return for_dtype(dtype, [&](auto element) -> int64_t {
      return size(element, *static_cast<const Call*>(call));
    });
  };
  const auto run_checked = [](const void* given, int dtype, int device, void* workspace,
                              int64_t bytes, void* stream) {
    const Call& call = *static_cast<const Call*>(given);
    const DeviceGuard guard(device);
    for_dtype(dtype, [&](auto element) {
      check_workspace("fastact._cuda", of.name, workspace, bytes, size(element, call), 16);
      run(element, call, workspace, static_cast<cudaStream_t>(stream));
    });
  };
  return {table.name, table.size, workspace_size, run_checked};
}

// The same of one that needs no scratch: run_on(element, call, stream).
template <class Call, class RunOn>
DeviceCall device_call(const CallTable& table, RunOn run_on) {
  [[maybe_unused]] static const RunOn run = run_on;
  return device_call<Call>(
      table, [](auto, const Call&) -> int64_t { return 0; },
      [](auto element, const Call& call, void*, cudaStream_t stream) {
        run(element, call, stream);
      });
}

void add_recorded_launches(DeviceTable* table);
void add_quantize(std::vector<DeviceCall>* calls);  // of no family

#define FASTACT_DECLARE(family, kernels) void add_##family(std::vector<DeviceCall>* calls);
FASTACT_FAMILIES(FASTACT_DECLARE, )
#undef FASTACT_DECLARE

}  // namespace fastact
