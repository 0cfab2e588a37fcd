// The functions of the CPU module, for arrays on a GPU. Only the files named bindings know
// pybind11.
//
// Python has checked the arguments. Nothing here allocates or synchronises; work is queued on the
// stream that the caller gives, on the arrays' device, and the GIL is released meanwhile.
#include "common/activations/list.h"
#include "cuda/binding/bindings.h"
#if defined(FASTACT_CUDA_EMULATION)
#include "cuda_emulation/array.h"
#define FASTACT_MODULE _cuda_emulated
#else
#define FASTACT_MODULE _cuda
#endif

using namespace fastact;

namespace {

int64_t py_sum_workspace(int term, const py::object& x, const py::object& y,
                         const std::vector<int>& axes) {
  const Array a = array_of(x), b = array_of(y);
  check_rank(a.operand, "x");
  const Reduced reduced(axes, a.operand.ndim);
  check_kept(b.operand, a.operand, reduced.axis, true, "y");
  if (is_empty(a.operand)) return 0;
  return for_dtype(a.dtype, [&](auto element) {
    return sum_workspace<decltype(element)>(Term(term), a.operand, b.operand, reduced.axis);
  });
}

void py_sum(int term, const py::object& x, const py::object& y, const std::vector<int>& axes,
            double divisor, const py::object& workspace, bool accumulate, uintptr_t stream) {
  const Array a = array_of(x), b = array_of(y);
  check_index(term, kTerms, "term");
  check(a, "x");
  check(b, "y");
  if (b.dtype != a.dtype) refuse("y must have the dtype of x");
  const Reduced reduced(axes, a.operand.ndim);
  check_kept(b.operand, a.operand, reduced.axis, true, "y");
  if (is_empty(b.operand)) return;
  const Workspace scratch(workspace);
  const py::gil_scoped_release release;
  const DeviceGuard guard(b.device);
  for_dtype(a.dtype, [&](auto element) {
    using T = decltype(element);
    void* memory = scratch.of(sum_workspace<T>(Term(term), a.operand, b.operand, reduced.axis));
    sum<T>(Term(term), a.operand, b.operand, reduced.axis, divisor, memory, accumulate,
           stream_of(stream));
  });
}

void py_sum_backward(int term, const py::object& dy, const py::object& x, const py::object& dx,
                     bool accumulate, uintptr_t stream) {
  const Array a = array_of(dy), b = array_of(x), c = array_of(dx);
  check_index(term, kTerms, "term");
  check(b, "x");
  check_like(a, b, "dy");
  check_like(c, b, "dx");
  if (is_empty(b.operand)) return;
  on_device(b, [&](auto element) {
    sum_backward<decltype(element)>(Term(term), {a.operand, b.operand, c.operand}, accumulate,
                                    stream_of(stream));
  });
}

void py_square_value_and_grad(const py::object& x, const py::object& y, const py::object& grad,
                              const py::object& workspace, uintptr_t stream) {
  const Array a = array_of(x), b = array_of(y), c = array_of(grad);
  check(a, "x");
  check(b, "y");
  check_like(c, a, "grad");
  bool all[kMaxAxes];
  std::fill(all, all + kMaxAxes, true);
  check_kept(b.operand, a.operand, all, true, "y");
  if (b.dtype != a.dtype) refuse("y must have the dtype of x");
  const Workspace scratch(workspace);
  on_device(a, [&](auto element) {
    using T = decltype(element);
    void* memory = scratch.of(sum_workspace<T>(kSquare, a.operand, b.operand, all));
    square_value_and_grad<T>(a.operand, b.operand, c.operand, memory, stream_of(stream));
  });
}

void py_broadcast(const py::object& x, const py::object& y, bool accumulate, uintptr_t stream) {
  const Array a = array_of(x), b = array_of(y);
  check(a, "x");
  check_like(b, a, "y");
  if (is_empty(b.operand)) return;
  on_device(b, [&](auto element) {
    broadcast<decltype(element)>({a.operand, b.operand}, accumulate, stream_of(stream));
  });
}

void py_fill(const py::object& memory, int item, uint64_t bits, uintptr_t stream) {
  const Array a = array_of(memory);
  if (item != 2 && item != 4 && item != 8) refuse("item must be 2, 4 or 8");
  Workspace(memory).of(item);
  const DeviceGuard guard(a.device);
  fill(a.operand.data, item, bits, stream_of(stream));
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

PYBIND11_MODULE(FASTACT_MODULE, m) {
  m.doc() = "The CUDA backend: the functions of fastact._cpu for arrays on a GPU.";
  static DeviceTable table = {};
  static std::vector<DeviceCall> calls;
  add_activations(&calls);
  add_bias(&calls);
  add_gated(&calls);
  add_gates(&calls);
  add_norms(&calls);
  add_softmax(&calls);
  table.calls = calls.data(), table.call_count = int(calls.size());
  add_recorded_launches(&table);
  m.attr("table") = py::capsule(&table, "fastact_device_table");
  const auto cpu = py::module_::import("fastact._cpu");
  views = cpu.attr("view_table").cast<py::capsule>().get_pointer<const ViewTable>();

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

  m.def("sum_workspace", py_sum_workspace, "Bytes of scratch that `sum` needs.");
  m.def("sum", py_sum, "y OUT = sum of terms of x IN over axes, or y IN/OUT += of the same.");
  m.def("square_value_and_grad", py_square_value_and_grad,
        "y OUT = sum of x^2, grad OUT = 2 x IN.");
  m.def("sum_backward", py_sum_backward,
        "dx OUT = dy IN times a term's derivative at x IN, or dx IN/OUT += it.");
  m.def("fill", py_fill, "One element OUT of `item` bytes = bits.");
  m.def("broadcast", py_broadcast, "y OUT = x IN, or y IN/OUT += x.");
  bind_moments(m);
  bind_batch_norm(m);
#if defined(FASTACT_CUDA_EMULATION)
  bind_emulation(m);
  bind_selftest(m);
#endif
}
