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

void activation(int which, int dtype, bool backward, bool accumulate, const Operand* arrays,
                const double* parameters, int device, void* stream) {
  const DeviceGuard guard(device);
  for_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    if (backward)
      activation_backward<T>(which, {arrays[0], arrays[1], arrays[2]}, parameters, accumulate,
                             static_cast<cudaStream_t>(stream));
    else
      activation_forward<T>(which, {arrays[0], arrays[1]}, parameters,
                            static_cast<cudaStream_t>(stream));
  });
}

void py_activation_forward(int which, const py::object& x, const py::object& y,
                           const std::vector<double>& parameters, uintptr_t stream) {
  const Array a = array_of(x), b = array_of(y);
  check_index(which, kActivations, "which");
  check(a, "x");
  check_like(b, a, "y");
  const Parameters p(parameters);
  if (is_empty(a.operand)) return;
  const Operand arrays[] = {a.operand, b.operand};
  const py::gil_scoped_release release;
  activation(which, a.dtype, false, false, arrays, p.value, a.device, stream_of(stream));
}

void py_activation_backward(int which, const py::object& dy, const py::object& x,
                            const py::object& dx, const std::vector<double>& parameters,
                            bool accumulate, uintptr_t stream) {
  const Array a = array_of(dy), b = array_of(x), c = array_of(dx);
  check_index(which, kActivations, "which");
  check(b, "x");
  check_like(a, b, "dy");
  check_like(c, b, "dx");
  const Parameters p(parameters);
  if (is_empty(b.operand)) return;
  const Operand arrays[] = {a.operand, b.operand, c.operand};
  const py::gil_scoped_release release;
  activation(which, b.dtype, true, accumulate, arrays, p.value, b.device, stream_of(stream));
}

void py_bias_act_forward(int which, const py::object& x, const py::object& bias,
                         const py::object& residual, const py::object& y, int axis,
                         const std::vector<double>& parameters, uintptr_t stream) {
  const Array a = array_of(x), b = array_of(bias), c = array_of(y);
  check_index(which, kActivations, "which");
  check(a, "x");
  check_like(c, a, "y");
  check_if_like(residual, a, "residual");
  check_index(axis, a.operand.ndim, "axis");
  check_along(bias, a.operand.shape[axis], "bias");
  if (is_empty(a.operand)) return;
  const Optional r(residual);
  const Parameters p(parameters);
  on_device(a, [&](auto element) {
    bias_act_forward<decltype(element)>(which, a.operand, b.operand, b.dtype, r.pointer(),
                                        c.operand, axis, p.value, stream_of(stream));
  });
}

int64_t py_bias_act_workspace(const py::object& x, const py::object&, int axis) {
  const Array a = array_of(x);
  check_rank(a.operand, "x");
  check_index(axis, a.operand.ndim, "axis");
  return for_dtype(a.dtype, [&](auto element) {
    return bias_act_workspace<decltype(element)>(a.operand, axis);
  });
}

void py_bias_act_backward(int which, const py::object& dy, const py::object& x,
                          const py::object& bias, const py::object& residual, const py::object& dx,
                          const py::object& dbias, int axis, const std::vector<double>& parameters,
                          bool accumulate_dx, bool accumulate_dbias, const py::object& workspace,
                          uintptr_t stream) {
  const Array a = array_of(dy), b = array_of(x), c = array_of(bias), d = array_of(dx),
              e = array_of(dbias);
  check_index(which, kActivations, "which");
  check(b, "x");
  check_like(a, b, "dy");
  check_like(d, b, "dx");
  check_if_like(residual, b, "residual");
  check_index(axis, b.operand.ndim, "axis");
  check_along(bias, b.operand.shape[axis], "bias");
  check_along(dbias, b.operand.shape[axis], "dbias");
  if (e.dtype != c.dtype) refuse("dbias must have the dtype of bias");
  const Optional r(residual);
  const Parameters p(parameters);
  if (is_empty(e.operand)) return;
  const Workspace scratch(workspace);
  on_device(b, [&](auto element) {
    using T = decltype(element);
    void* memory = scratch.of(bias_act_workspace<T>(b.operand, axis));
    bias_act_backward<T>(which, a.operand, b.operand, c.operand, c.dtype, r.pointer(), d.operand,
                         e.operand, axis, p.value, accumulate_dx, accumulate_dbias, memory,
                         stream_of(stream));
  });
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
  table.activation = activation;
  static std::vector<DeviceCall> calls;
  add_reductions(&calls);
  add_norms(&calls);
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

  m.def("activation_forward", py_activation_forward, "y OUT = f(x IN).");
  m.def("activation_backward", py_activation_backward,
        "dx OUT = dy IN * f'(x IN), or dx IN/OUT += of the same.");
  m.def("bias_act_forward", py_bias_act_forward, "y OUT = f(x IN + bias IN + residual IN).");
  m.def("bias_act_workspace", py_bias_act_workspace, "Bytes of scratch for bias_act_backward.");
  m.def("bias_act_backward", py_bias_act_backward,
        "dx OUT = dy IN * f'(x + bias + residual), dbias OUT = its sum by channel, or +=.");
  bind_gated(m);
  bind_gates(m);
  bind_softmax(m);
#if defined(FASTACT_CUDA_EMULATION)
  bind_emulation(m);
  bind_selftest(m);
#endif
}
