// What tests see of the emulated devices and what they tell them, arrays aside.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "api.h"
#include "array.h"
#include "block.h"
#include "fault.h"
#include "host_calls.h"
#include "memory.h"

namespace fastact {
namespace {

namespace py = pybind11;
using emulation::Lock;

int64_t number(const void* p) { return int64_t(reinterpret_cast<intptr_t>(p)); }
py::tuple triple(const dim3& d) { return py::make_tuple(d.x, d.y, d.z); }

py::list launches() {
  const Lock lock;
  py::list all;
  for (const emulation::Launch& launch : emulation::launch_log) {
    py::dict entry;
    entry["kernel"] = launch.kernel;
    entry["symbol"] = launch.symbol;
    entry["device"] = launch.device;
    entry["stream"] = number(launch.stream);
    entry["grid"] = triple(launch.grid);
    entry["block"] = triple(launch.block);
    entry["shared"] = launch.shared;
    entry["static_shared"] = launch.static_shared;
    all.append(entry);
  }
  return all;
}

py::list events() {
  const Lock lock;
  py::list all;
  for (const emulation::StreamCall& call : emulation::stream_log)
    all.append(py::make_tuple(call.what, call.device, number(call.stream), number(call.event)));
  return all;
}

// A Python function that whoever lets go of it last may drop without the GIL.
struct Held {
  py::object body;
  explicit Held(py::object given) : body(std::move(given)) {}
  ~Held() {
    const py::gil_scoped_acquire acquire;
    body = py::object();
  }
};

void set_thread_order(const std::string& order, uint32_t seed) {
  constexpr std::pair<const char*, emulation::Order> orders[] = {
      {"alternate", emulation::Order::kAlternate},
      {"forward", emulation::Order::kForward},
      {"backward", emulation::Order::kBackward},
      {"shuffle", emulation::Order::kShuffle}};
  for (const auto& [name, value] : orders)
    if (order == name) return emulation::set_order(value, seed);
  throw py::value_error("no such order: " + order);
}

}  // namespace

void bind_control(py::module_& m) {
  py::register_local_exception<emulation::Fault>(m, "Fault", PyExc_RuntimeError);

  m.def("make_stream", [](int device) {
    if (device < 0 || device >= emulation::kDevices) throw py::value_error("no such device");
    return number(emulation::make_stream(device));
  });
  m.def("launches", launches);
  m.def("clear_launches", [] {
    const Lock lock;
    emulation::launch_log.clear();
  });
  m.def("events", events, "(\"record\" | \"wait\", device, stream, event) of each call");
  m.def("clear_events", [] {
    const Lock lock;
    emulation::stream_log.clear();
  });
  m.def("count_host_calls", emulation::count_host_calls,
        "Count calls of CUDA's functions, launches and allocations from now on, or no more.");
  m.def(
      "host_calls",
      [] {
        const Lock lock;
        return std::map<std::string, int64_t>(emulation::host_calls());
      },
      "How often each was called, by its name, \"launch\" or \"allocate\".");
  m.def(
      "set_empty_launches",
      [](bool empty) {
        const Lock lock;
        emulation::empty_launches = empty;
      },
      "From now on launches run no kernel, check nothing and are logged where they are counted, or "
      "are launches again.");
  m.def("live_bytes", [] {
    const Lock lock;
    return emulation::live_bytes();
  });
  m.def("set_thread_order", set_thread_order,
        "The order in which threads and blocks run: alternate (the default), forward, backward, "
        "shuffle.",
        py::arg("order"), py::arg("seed") = 0);
  m.def("contexts", [] {
    py::list all;
    for (int device = 0; device < emulation::kDevices; ++device)
      if (emulation::has_context(device)) all.append(device);
    return all;
  });
  m.def("forget_contexts", emulation::forget_contexts);
  m.def("current_device", [] {
    int device;
    cudaGetDevice(&device);
    return device;
  });
  m.def(
      "after",
      [](const std::string& call, const py::object& body) {
        emulation::after(call, [held = std::make_shared<Held>(body)] {
          const py::gil_scoped_acquire acquire;
          held->body();
        });
      },
      "Once a CUDA function has been called the next time, and before the caller goes on, a Python "
      "function is.",
      py::arg("call"), py::arg("body"));
  m.def(
      "fail",
      [](const std::string& call, int code, int times) {
        emulation::fail(call, cudaError_t(code), times);
      },
      "The next calls of a CUDA function (\"launch\" for a launch) return this error.",
      py::arg("call"), py::arg("code"), py::arg("times") = 1);
}

}  // namespace fastact
