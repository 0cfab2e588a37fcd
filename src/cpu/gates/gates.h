// Recurrent gates: forward and backward, each in one pass over memory (common/gates/gates.h).
//
// A packed array (..., G H) holds G gates of H columns side by side, in the caller's order. A gate
// is the same array from another column on, and nothing is ever gathered to be taken apart. All
// axes but the last are rows. Each array has its own strides, so that one step of a sequence, or a
// slice of the gates, is read where it lies. The kernels (gates/kernels.h) run over rows of
// columns. Strided columns, outputs that are added to, and short rows (which are joined) pass
// through buffers of kGatePiece elements that stay in the first-level cache. So do all operands of
// 16 bits where one of them does, and columns that are no whole step of the kernels that else
// convert them.
//
// Both biases are added up once for each thread and tile of columns, and are a single row for the
// kernels. Where there is none it is a row of -0, which changes nothing that it is added to.
//
// dbias is the sum over all rows, in the order and with the bits of bias_grad
// (reductions/kernels.h), of the gradients before they are rounded, while they are still in the
// second-level cache. A task is then a tile of columns of all gates over a chunk of the rows
// (gates/bias_grad.cpp); where there is only one block of rows and several threads, it is some of
// these rows with all their columns. Where a row is longer than such a tile, and its gradients
// exceed the cache, the rows of a tile are pages apart and compete for the same cache sets:
// gradients of float and double are then stored by whole rows first, and summed in a second pass as
// bias_grad would.
//
// Measurements, and what was tried and rejected: docs/design/gates.md.
#pragma once

#include "common/gates/call.h"
#include "common/gates/gates.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/gates/kernels.h"

namespace fastact {

// One gate of an array, or a state.
struct GateOperand {
  char* data;
  int array;       // whose strides it has
  int64_t column;  // bytes from one to the next
  bool is_direct;  // a row's columns lie side by side and need no conversion
};

struct Gates : StridedOperands {  // of the call's arrays; columns: of the state
  GateKernel kernel;              // of the compute type
  GateKernel converting;          // of 16-bit operands, by whole steps; null: they need buffers
  int kind;
  bool backward, accumulate;
  GateOperand operands[kGateOperands];
  ChannelArray bias[kMostGates][2];  // of each row of the kernels' bias: one, or both, are added
  int biases;                        // rows of bias: gates, and q of gru
  bool moves;                        // something passes through buffers
  bool lacks;                        // something has a buffer as its stand-in
  bool is_joined;                    // rows are short

  // Bytes from a row of an operand to the next one along the last axis.
  int64_t row_step(const GateOperand& s) const {
    return rows.count ? rows.stride[s.array][rows.count - 1] : 0;
  }
};

// Plans a call that is not empty. backward: else forward.
void prepare(Gates* gates, const KernelTable* table, const GatesCall& call, bool backward);

// Runs backward, and adds up the gradients of the biases that the call wants, on so many threads.
// With a workspace of `gate_workspace_size` bytes they divide sums of few columns; if there is less
// of it, the thread count having changed since, fewer of them do, and the bits are the same.
void run_with_bias_gradients(const Gates& gates, const KernelTable* table, const GatesCall& call,
                             char* workspace, int64_t bytes, int threads);
// Bytes of scratch with which so many threads can divide the sums; 0 where that would not help.
int64_t gate_workspace_size(int kind, int dtype, int64_t rows, int64_t columns, int threads);

// Tells whether the biases' gradients are better summed in a pass of their own, over the gradients
// that were stored: tasks of a few columns would read rows that are too far apart.
bool sums_are_apart(int kind, int dtype, int64_t rows, int64_t columns, int threads);
bool gate_sums_apart(int kind, int dtype, const Operand& state);

}  // namespace fastact
