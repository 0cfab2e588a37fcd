// The functions of the CPU module, for arrays on a GPU. This file alone knows pybind11, whose
// headers take long to compile. The kernels' own files add what the table lists
// (core/native_function.h).
//
// Python has checked the arguments. Nothing here allocates or synchronises; work is queued on the
// stream that the caller gives, on the arrays' device, and the GIL is released meanwhile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "common/activations/list.h"
#include "common/core/call_check.h"
#include "common/reductions/call.h"
#include "cuda/core/device.h"
#if defined(FASTACT_CUDA_EMULATION)
#include "cuda_emulation/array.h"
#define FASTACT_MODULE _cuda_emulated
#else
#define FASTACT_MODULE _cuda
#endif

using namespace fastact;

namespace py = pybind11;

namespace {

cudaStream_t stream_of(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// The module's functions. It is a local variable, because other files' variables add to it before
// those of this file may be there.
std::vector<DeviceCall>& device_calls() {
  static std::vector<DeviceCall> calls;
  return calls;
}

const DeviceFunction& function_for(const DeviceCall& of, int dtype) {
  if (dtype < 0 || dtype >= kViewDTypes || !of.functions[dtype].run)
    throw std::invalid_argument("fastact: unknown dtype");
  return of.functions[dtype];
}

int64_t workspace_size(const DeviceCall& of, const void* call, int dtype, int device) {
  const DeviceGuard guard(device);
  return function_for(of, dtype).workspace(call);
}

void run_checked(const DeviceCall& of, const void* call, int dtype, int device, void* workspace,
                 int64_t bytes, void* stream) {
  const DeviceGuard guard(device);
  const DeviceFunction& function = function_for(of, dtype);
  check_workspace("fastact._cuda", of.name, workspace, bytes, function.workspace(call), 16);
  function.run(call, workspace, stream);
}

// Fills elements of any dtype that a View has, by the size of an element.
void add_fill() {
  const auto run = [](const void* given, void*, void* stream) {
    const FillCall& call = *static_cast<const FillCall*>(given);
    fill(call.y.data, item_size(call.y.dtype), call.bits, static_cast<cudaStream_t>(stream));
  };
  for (int dtype = 0; dtype < kViewDTypes; ++dtype)
    add_device_function(kFillCall, dtype, {[](const void*) { return int64_t(0); }, run});
}

py::list devices() {
  py::list all;
  for (int i = 0; i < device_count(); ++i) {
    const DeviceFacts facts = facts_of(i);
    py::dict one;
    one["name"] = facts.name;
    one["capability"] = facts.capability;
    one["memory"] = facts.memory;
    one["multiprocessors"] = facts.multiprocessors;
    all.append(one);
  }
  return all;
}

py::dict build_info() {
  py::dict info;
  info["compiler"] = compiler();
  info["architectures"] = architectures();
  info["runtime"] = CUDART_VERSION;
  info["pybind11"] = PYBIND11_VERSION_MAJOR * 100 + PYBIND11_VERSION_MINOR;
  return info;
}

}  // namespace

void fastact::add_device_function(const CallTable& table, int dtype,
                                  const DeviceFunction& function) {
  for (DeviceCall& call : device_calls())
    if (call.name == std::string(table.name)) {
      call.functions[dtype] = function;
      return;
    }
  device_calls().push_back({table.name, table.size, {}, workspace_size, run_checked});
  device_calls().back().functions[dtype] = function;
}

PYBIND11_MODULE(FASTACT_MODULE, m) {
  m.doc() = "The CUDA backend: the functions of fastact._cpu for arrays on a GPU.";
  static DeviceTable table = {};
  add_fill();
  table.calls = device_calls().data(), table.call_count = int(device_calls().size());
  add_recorded_launches(&table);
  m.attr("table") = py::capsule(&table, "fastact_device_table");

  py::list names;
  for (const char* name : kActivationNames) names.append(name);
  m.attr("ACTIVATIONS") = py::tuple(names);

  m.def("problem_of_machine", problem_of_machine, "Why no device can be used; empty: some can.");
  m.def("problem_of_device", problem_of_device, "Why this device can't be used; empty: it can.");
  m.def("devices", devices, "Facts about each device.");
  m.def("driver_version", driver_version, "CUDA version of the driver; 0: there is none.");
  m.def("build_info", build_info, "What was compiled in.");
  m.def(
      "device_of_stream", [](uintptr_t stream) { return device_of_stream(stream_of(stream)); },
      "The device that a stream belongs to.");
  m.def(
      "device_of_memory",
      [](uintptr_t p) { return device_of_memory(reinterpret_cast<const void*>(p)); },
      "The device on which memory is; the current one for no memory, -1 for unknown memory.");
  m.def(
      "make_wait",
      [](int device, uintptr_t waiting, uintptr_t awaited) {
        make_wait(device, stream_of(waiting), stream_of(awaited));
      },
      "Let one stream wait for what another holds now, without blocking.");

#if defined(FASTACT_CUDA_EMULATION)
  bind_emulation(m);
  bind_selftest(m);
#endif
}
