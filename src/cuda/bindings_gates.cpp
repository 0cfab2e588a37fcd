// The functions of src/cpu/gates.pyx, for arrays on a GPU.
#include <array>

#include "bindings.h"
#include "gates.h"

using namespace fastact;

namespace {

GateVector vector_of(const py::object& view) {
  if (view.is_none()) return {};
  const Array array = array_of(view);
  return {array.operand.data, array.dtype, byte_stride(array.operand, 0, item_size(array.dtype))};
}

// What both directions take. The views hold what the arrays describe.
GateArrays arrays_of(const std::array<const py::object*, kGateRoles>& roles, const py::object& bias,
                     const py::object& recurrent_bias, const std::vector<int>& places) {
  GateArrays arrays{};
  for (int role = 0; role < kGateRoles; ++role)
    if (roles[role]) arrays.role[role] = Optional(*roles[role]).operand;
  arrays.bias[0] = vector_of(bias);
  arrays.bias[1] = vector_of(recurrent_bias);
  for (int k = 0; k < kMostGates; ++k)
    arrays.places[k] = k < int(places.size()) ? places[size_t(k)] : k;
  return arrays;
}

void py_gates_forward(int kind, const py::object& gates, const py::object& recurrent,
                      const py::object& bias, const py::object& recurrent_bias,
                      const py::object& state, const py::object& hidden, const py::object& cell,
                      const py::object& kept, const std::vector<int>& places, uintptr_t stream) {
  const Array a = array_of(state);
  if (is_empty(a.operand)) return;
  std::array<const py::object*, kGateRoles> roles{};
  roles[kGates] = &gates, roles[kRecurrent] = &recurrent, roles[kState] = &state;
  roles[kHidden] = &hidden, roles[kCell] = &cell, roles[kGatesOut] = &kept;
  const GateArrays arrays = arrays_of(roles, bias, recurrent_bias, places);
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  for_dtype(a.dtype, [&](auto element) {
    gates_forward<decltype(element)>(kind, arrays, stream_of(stream));
  });
}

int64_t py_gates_workspace(int kind, const py::object& state) {
  const Array a = array_of(state);
  if (is_empty(a.operand)) return 0;
  return for_dtype(
      a.dtype, [&](auto element) { return gates_workspace<decltype(element)>(kind, a.operand); });
}

void py_gates_backward(int kind, const py::object& gates, const py::object& recurrent,
                       const py::object& bias, const py::object& recurrent_bias,
                       const py::object& state, const py::object& cell,
                       const py::object& hidden_gradient, const py::object& cell_gradient,
                       const py::object& gates_gradient, const py::object& recurrent_gradient,
                       const py::object& state_gradient, const py::object& bias_gradient,
                       const py::object& recurrent_bias_gradient, const std::vector<int>& places,
                       bool recomputes, bool accumulate, const py::object& workspace,
                       uintptr_t stream) {
  const Array a = array_of(state);
  std::array<const py::object*, kGateRoles> roles{};
  roles[kGates] = &gates, roles[kRecurrent] = &recurrent, roles[kState] = &state;
  roles[kHidden] = &hidden_gradient, roles[kCell] = &cell, roles[kCellGradient] = &cell_gradient;
  roles[kGatesOut] = &gates_gradient, roles[kRecurrentOut] = &recurrent_gradient;
  roles[kStateOut] = &state_gradient;
  GateArrays arrays = arrays_of(roles, bias, recurrent_bias, places);
  arrays.bias_gradient[0] = vector_of(bias_gradient);
  arrays.bias_gradient[1] = vector_of(recurrent_bias_gradient);
  void* scratch = Optional(workspace).data();
  const py::gil_scoped_release release;
  const DeviceGuard guard(a.device);
  for_dtype(a.dtype, [&](auto element) {
    gates_backward<decltype(element)>(kind, arrays, recomputes, accumulate, scratch,
                                      stream_of(stream));
  });
}

}  // namespace

namespace fastact {

void bind_gates(py::module_& m) {
  m.def("gates_forward", py_gates_forward,
        "hidden OUT and cell OUT: the states after the step from state IN; kept OUT or None.");
  m.def("gates_workspace", py_gates_workspace, "Bytes of scratch for sums in gates_backward.");
  m.def(
      "gates_sums_apart", [](int, const py::object&) { return false; },
      "Whether the biases' gradients are better summed in a pass of their own: never here.");
  m.def("gates_backward", py_gates_backward,
        "The gradients of gates_forward, each OUT or None, or IN/OUT += with accumulate.");
}

}  // namespace fastact
