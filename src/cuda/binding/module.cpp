// The functions of the CPU module, for arrays on a GPU. This file alone knows pybind11, whose
// headers take longer to compile than a family's bindings.
//
// Python has checked the arguments. Nothing here allocates or synchronises; work is queued on the
// stream that the caller gives, on the arrays' device, and the GIL is released meanwhile.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "common/activations/list.h"
#include "cuda/binding/bindings.h"
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

PYBIND11_MODULE(FASTACT_MODULE, m) {
  m.doc() = "The CUDA backend: the functions of fastact._cpu for arrays on a GPU.";
  static DeviceTable table = {};
  static std::vector<DeviceCall> calls;
#define FASTACT_ADD(family, kernels) add_##family(&calls);
  FASTACT_FAMILIES(FASTACT_ADD, )
  add_quantize(&calls);
  table.calls = calls.data(), table.call_count = int(calls.size());
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
