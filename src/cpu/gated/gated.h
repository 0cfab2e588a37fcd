// Gated activations, y = f(gate(a)) factor(b), and their gradients in one pass each
// (common/gated/gated.h has the formulas, core/fused_pass.h the pass).
//
// A chunk of a goes through the activation's own kernel into a buffer, and from there times the
// factor into y. Backward takes two calls of the activation on a chunk, f and dy f': that its
// exponential is computed twice costs less than a kernel of its own for each activation would in
// compiling, and past the caches nothing. All of a chunk is read before any of its results is
// written: da and db may be any of the inputs.
//
// Packed arrays are two strided operands: halves are read row by row, interleaved ones are gathered
// chunk by chunk. Measurements: docs/design/gated.md.
#pragma once

#include <limits>

#include "common/gated/call.h"
#include "cpu/core/kernel_table.h"
#include "cpu/gated/kernels.h"
#include "cpu/reductions/summing_pass.h"

namespace fastact {

struct Gated {
  FusedPlan plan;  // of the operands in the order of GatedCall; plan.accumulate: they are added to
  ChannelSums sums;
  ChannelArray bias_a, bias_b;  // both or neither
  GatedNumbers numbers;
  const double* parameters;  // of the activation
  const GatedKernels* kernels;
  ElementwiseKernel value, slope;  // f, and dy f', of the compute type
  bool has_gate;                   // it is not a itself, or a is written before it has been read
};

// The plan of a call that is not empty.
void prepare(Gated* gated, const KernelTable* table, const GatedCall& call);

// One partition of forward or of backward. After all of backward's: merge_partition of the sums.
void gated_forward_partition(const Gated* gated, int64_t index, int64_t partitions);
void gated_backward_partition(const Gated* gated, int64_t index, int64_t partitions);

}  // namespace fastact
