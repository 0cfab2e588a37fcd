// The functions of src/cpu/gates/gates.pyx, for arrays on a GPU.
#include "cuda/gates/gates.h"

#include <array>

#include "cuda/binding/bindings.h"

using namespace fastact;

namespace {

void check_state(int kind, const Array& state) {
  check_index(kind, kGateKinds, "kind");
  check(state, "state");
  if (state.operand.ndim < 1) refuse("state must have an axis");
}

// None, or so many gates along the last axis of the state's shape.
void check_packed(const py::object& view, const Array& state, int gates, const char* name) {
  if (view.is_none()) return;
  const Array a = array_of(view);
  check(a, name);
  const int last = state.operand.ndim - 1;
  if (a.dtype != state.dtype || a.operand.ndim != last + 1 ||
      !std::equal(a.operand.shape, a.operand.shape + last, state.operand.shape) ||
      a.operand.shape[last] != gates * state.operand.shape[last])
    refuse(std::string(name) + " must hold " + std::to_string(gates) +
           " gates of the state's dtype and shape");
}

// What both directions take.
void check_inputs(int kind, const Array& state, const py::object& gates, int count,
                  const py::object& recurrent, const py::object& bias,
                  const py::object& recurrent_bias, const std::vector<int>& places) {
  const int64_t packed = kGatesOf[kind] * state.operand.shape[state.operand.ndim - 1];
  check_packed(gates, state, count, "gates");
  check_packed(recurrent, state, kGatesOf[kind], "recurrent");
  check_along(bias, packed, "bias");
  check_along(recurrent_bias, packed, "recurrent_bias");
  if (gates.is_none()) refuse("gates must be an array");
  if (int(places.size()) != kGatesOf[kind]) refuse("places must be one for each gate");
  for (int place : places) check_index(place, kGatesOf[kind], "a place");
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
    arrays.gate_order[k] = k < int(places.size()) ? places[size_t(k)] : k;
  return arrays;
}

void py_gates_forward(int kind, const py::object& gates, const py::object& recurrent,
                      const py::object& bias, const py::object& recurrent_bias,
                      const py::object& state, const py::object& hidden, const py::object& cell,
                      const py::object& kept, const std::vector<int>& places, uintptr_t stream) {
  const Array a = array_of(state);
  check_state(kind, a);
  check_inputs(kind, a, gates, kGatesOf[kind], recurrent, bias, recurrent_bias, places);
  check_like(array_of(hidden), a, "hidden");
  check_if_like(cell, a, "cell");
  check_packed(kept, a, kSavedOf[kind], "kept");
  if (kind == kLstm && cell.is_none()) refuse("cell must be an array");
  if (kind == kGru && recurrent.is_none()) refuse("recurrent must be an array");
  if (is_empty(a.operand)) return;
  std::array<const py::object*, kGateRoles> roles{};
  roles[kGates] = &gates, roles[kRecurrent] = &recurrent, roles[kState] = &state;
  roles[kHidden] = &hidden, roles[kCell] = &cell, roles[kGatesOut] = &kept;
  const GateArrays arrays = arrays_of(roles, bias, recurrent_bias, places);
  on_device(
      a, [&](auto element) { gates_forward<decltype(element)>(kind, arrays, stream_of(stream)); });
}

int64_t py_gates_workspace(int kind, const py::object& state) {
  const Array a = array_of(state);
  check_state(kind, a);
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
  check_state(kind, a);
  check_inputs(kind, a, gates, recomputes ? kGatesOf[kind] : kSavedOf[kind], recurrent, bias,
               recurrent_bias, places);
  check_like(array_of(hidden_gradient), a, "hidden_gradient");
  check_if_like(cell, a, "cell");
  check_if_like(cell_gradient, a, "cell_gradient");
  check_packed(gates_gradient, a, kGatesOf[kind], "gates_gradient");
  check_packed(recurrent_gradient, a, kGatesOf[kind], "recurrent_gradient");
  check_if_like(state_gradient, a, "state_gradient");
  const int64_t packed = kGatesOf[kind] * a.operand.shape[a.operand.ndim - 1];
  check_along(bias_gradient, packed, "bias_gradient");
  check_along(recurrent_bias_gradient, packed, "recurrent_bias_gradient");
  if (kind == kLstm && cell.is_none() && !recomputes) refuse("cell must be an array");
  if (kind == kGru && recurrent.is_none() && recomputes) refuse("recurrent must be an array");
  std::array<const py::object*, kGateRoles> roles{};
  roles[kGates] = &gates, roles[kRecurrent] = &recurrent, roles[kState] = &state;
  roles[kHidden] = &hidden_gradient, roles[kCell] = &cell, roles[kCellGradient] = &cell_gradient;
  roles[kGatesOut] = &gates_gradient, roles[kRecurrentOut] = &recurrent_gradient;
  roles[kStateOut] = &state_gradient;
  GateArrays arrays = arrays_of(roles, bias, recurrent_bias, places);
  arrays.bias_gradient[0] = vector_of(bias_gradient);
  arrays.bias_gradient[1] = vector_of(recurrent_bias_gradient);
  const Workspace scratch(workspace);
  const bool has_sums = arrays.bias_gradient[0].data || arrays.bias_gradient[1].data;
  on_device(a, [&](auto element) {
    using T = decltype(element);
    const bool needs = has_sums && !is_empty(a.operand);
    void* memory = scratch.of(needs ? gates_workspace<T>(kind, a.operand) : 0);
    gates_backward<T>(kind, arrays, recomputes, accumulate, memory, stream_of(stream));
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
