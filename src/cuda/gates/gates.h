// The interface of the recurrent gates to the bindings; core/api.h states the conventions.
#pragma once

#include "common/gates/cells.h"
#include "cuda/core/api.h"

FASTACT_BEGIN_NAMESPACE

// The arrays of the two directions. Packed ones hold several gates along the last axis.
enum GateRole : int {
  kGates,         // forward IN: pre-activations. Backward IN: what was saved, or the same again
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

constexpr int kMostGates = 4;

// What one call is about; arrays without data are not there. All have the axes of the state.
struct GateArrays {
  Operand role[kGateRoles];
  NumberVector bias[2];           // IN: of gates, of the recurrent projection
  NumberVector bias_gradient[2];  // OUT
  int gate_order[kMostGates];     // of each gate of the kernels in packed arrays
};

template <class T>
void gates_forward(int kind, const GateArrays& arrays, cudaStream_t stream);

// Bytes of scratch for a backward with gradients of biases.
template <class T>
int64_t gates_workspace(int kind, const Operand& state);

// recomputes: gates IN are pre-activations. accumulate: all gradients are IN/OUT, added to.
// workspace: as many bytes as gates_workspace asks for. The state is not empty, unless the
// gradients of the biases are all that is asked for.
template <class T>
void gates_backward(int kind, const GateArrays& arrays, bool recomputes, bool accumulate,
                    void* workspace, cudaStream_t stream);

FASTACT_END_NAMESPACE
