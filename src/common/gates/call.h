// The calls of the recurrent gates (common/gates/gates.h).
#pragma once

#include "common/core/call.h"
#include "common/gates/cells.h"

namespace fastact {

constexpr int kMostGates = kMostPlaces;

// The arrays of the two directions, all with the axes of the state. Packed ones hold several gates
// along the last axis.
namespace gate_roles {

enum GateRole : int {
  kGates,         // IN: pre-activations. Backward, in the plans: or what was kept
  kRecurrent,     // IN: the recurrent projection
  kState,         // IN: c or h before
  kCell,          // lstm: c, forward OUT, backward IN
  kHidden,        // forward OUT: h. Backward IN: dh
  kCellGradient,  // lstm, backward IN: dc
  kGatesOut,      // forward OUT: activated gates, of gru also what r scales. Backward OUT: dgates
  kRecurrentOut,  // gru, backward OUT: drecurrent
  kStateOut,      // backward OUT: dc or dh before
  kGateRoles,
};

}  // namespace gate_roles

struct GatesCall {
  ArrayArgument role[gate_roles::kGateRoles];
  ArrayArgument kept;              // backward IN, in the place of the pre-activations
  ArrayArgument bias[2];           // IN: of gates, of the recurrent projection
  ArrayArgument bias_gradient[2];  // OUT
  int kind;
  Places places;    // of the kernels' gates (i f g o; r z n; r; z n) in packed arrays
  bool accumulate;  // all gradients are added to

  // Backward makes the activated gates once more.
  bool recomputes() const { return !kept.shape; }
};

inline const char* problem_of_gates_forward(const void* given) {
  const GatesCall& call = *static_cast<const GatesCall*>(given);
  if (call.kind == kLstm && !call.role[gate_roles::kCell].shape) return "cell must be an array";
  if (call.kind == kGru && !call.role[gate_roles::kRecurrent].shape)
    return "recurrent must be an array";
  return nullptr;
}

inline const char* problem_of_gates_backward(const void* given) {
  const GatesCall& call = *static_cast<const GatesCall*>(given);
  if (call.recomputes() != bool(call.role[gate_roles::kGates].shape))
    return "gates or kept must be an array, and the other one none";
  if (call.kind != kGru && call.role[gate_roles::kRecurrentOut].shape)
    return "recurrent_gradient must be none";
  if (call.recomputes()) return call.kind == kLstm ? nullptr : problem_of_gates_forward(given);
  if (call.kind == kLstm && !call.role[gate_roles::kCell].shape) return "cell must be an array";
  return nullptr;
}

// Fields of forward and backward alike. Biases and their gradients may be wider than the data.
constexpr Field of_bias(const Field& field) {
  return field.along_packed("state", "kind", kGatesOf).wide_enough("state").optional();
}
constexpr Field kBiasFields[] = {
    of_bias(fields::in<&GatesCall::bias, 0>("bias")),
    of_bias(fields::in<&GatesCall::bias, 1>("recurrent_bias")),
};
constexpr Field kGatesField =
    fields::in<&GatesCall::role, gate_roles::kGates>("gates").packed("state", "kind", kGatesOf);
constexpr Field kRecurrentField = fields::in<&GatesCall::role, gate_roles::kRecurrent>("recurrent")
                                      .packed("state", "kind", kGatesOf)
                                      .optional();

// hidden OUT and, of "lstm", cell OUT: the states after the step from `state` IN. gates, recurrent
// IN are added up, each with its bias; of "gru" both are there. kept OUT: the activated gates. Each
// output is an input or disjoint from all of them.
constexpr Field kGatesForwardFields[] = {
    fields::in<&GatesCall::role, gate_roles::kState>("state"),
    fields::in<&GatesCall::kind>("kind").below(kGateKinds),
    kGatesField,
    kRecurrentField,
    kBiasFields[0],
    kBiasFields[1],
    fields::out<&GatesCall::role, gate_roles::kHidden>("hidden").like("state"),
    fields::out<&GatesCall::role, gate_roles::kCell>("cell").like("state").optional(),
    fields::out<&GatesCall::role, gate_roles::kGatesOut>("kept")
        .packed("state", "kind", kSavedOf)
        .optional(),
    fields::places<&GatesCall::places>("places", "kind", kGatesOf),
};

// The gradients of the same, each OUT or none; of "gru" alone, recurrent_gradient. kept IN is what
// forward kept, or gates IN, recurrent IN and the biases IN what it took. cell IN: of "lstm", what
// it gave, with `kept`. hidden_gradient IN; cell_gradient IN or none.
constexpr Field kGatesBackwardFields[] = {
    fields::in<&GatesCall::role, gate_roles::kState>("state"),
    fields::in<&GatesCall::kind>("kind").below(kGateKinds),
    kGatesField.optional(),
    fields::in<&GatesCall::kept>("kept").packed("state", "kind", kSavedOf).optional(),
    kRecurrentField,
    kBiasFields[0],
    kBiasFields[1],
    fields::in<&GatesCall::role, gate_roles::kCell>("cell").like("state").optional(),
    fields::in<&GatesCall::role, gate_roles::kHidden>("hidden_gradient").like("state"),
    fields::in<&GatesCall::role, gate_roles::kCellGradient>("cell_gradient")
        .like("state")
        .optional(),
    fields::out<&GatesCall::role, gate_roles::kGatesOut>("gates_gradient")
        .packed("state", "kind", kGatesOf)
        .optional(),
    fields::out<&GatesCall::role, gate_roles::kRecurrentOut>("recurrent_gradient")
        .packed("state", "kind", kGatesOf)
        .optional(),
    fields::out<&GatesCall::role, gate_roles::kStateOut>("state_gradient").like("state").optional(),
    of_bias(fields::out<&GatesCall::bias_gradient, 0>("bias_gradient")),
    of_bias(fields::out<&GatesCall::bias_gradient, 1>("recurrent_bias_gradient")),
    fields::places<&GatesCall::places>("places", "kind", kGatesOf),
    fields::in<&GatesCall::accumulate>("accumulate"),
};

constexpr CallTable kGatesForward =
    table_of_call<GatesCall>("gates_forward", kGatesForwardFields, problem_of_gates_forward);
constexpr CallTable kGatesBackward =
    table_of_call<GatesCall>("gates_backward", kGatesBackwardFields, problem_of_gates_backward);

}  // namespace fastact
