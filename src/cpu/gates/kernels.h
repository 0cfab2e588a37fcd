// The kernels of the recurrent gates (common/gates/cells.h), compiled once per instruction set.
//
// A kernel runs over rows of a state's columns; each operand has its own stride between rows.
// Operands that are absent have a stand-in (gates.cpp), but for the two that would cost most: a
// recurrent projection that is not added, and gates that are not saved.
#pragma once

#include <cstdint>

#include "common/core/operand.h"
#include "common/gates/cells.h"

namespace fastact {

// The arrays of a call, gate by gate. A first one with its successors in the kernels' order of
// gates: i f g o; r z n; r; z n. Backward with recompute reads what forward does.
enum GateIndex : int {
  kGateIn = 0,         // forward IN: pre-activations. Backward IN: activated gates (of gru r z n q)
  kRecurrentIn = 4,    // IN: the recurrent projection
  kGateBias = 8,       // IN: one row for all (of gru r z n q)
  kStateIn = 12,       // IN: c or h before
  kCell = 13,          // lstm: c, forward OUT, backward IN
  kHidden = 14,        // forward OUT: h. Backward IN: dh
  kCellGradient = 15,  // lstm, backward IN: dc
  kGateOut = 16,       // forward OUT: activated gates. Backward OUT: dgates
  kRecurrentOut = 20,  // gru, backward OUT: drecurrent
  kStateOut = 24,      // backward OUT: dc or dh before
  kGateOperands = 25,
};

// step: from row to row, in elements; columns lie side by side.
struct GateRows {
  char* data[kGateOperands];
  int64_t step[kGateOperands];
  // Backward of 16 bits OUT: what the outputs were before they were rounded, [row][column], if
  // sums need it; else null.
  float* made[kGateOperands];
};

using GateKernel = void (*)(const GateRows& rows, int64_t count, int64_t columns);

// Columns that a kernel of 16-bit operands converts at once: it takes a multiple of these.
constexpr int64_t kGateStep = 32;

// By the type in which operands are stored; kernels of 16-bit types are null where a processor has
// no instruction for their conversion; a bias is of the type that is computed in. An output is an
// input or disjoint from all of them.
struct GateTable {
  GateKernel forward[kGateKinds][kDTypes][2][2];  // [adds a recurrent projection][saves gates]
  // [0]: of saved gates; else they are made anew, [2] with a recurrent projection.
  GateKernel backward[kGateKinds][kDTypes][3];
};

}  // namespace fastact
