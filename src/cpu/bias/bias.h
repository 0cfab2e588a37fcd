// bias_act: y = f(x + bias + residual), and in one pass dx = dy f'(x + bias + residual) and dbias,
// the sum of dx over all axes but the bias's. f is any activation.
//
// Both are fused passes (core/fused_pass.h). Forward, f(x + bias) is one loop (bias/kernels.h);
// with a residual the sum is computed first, and f of it in place. Backward, dy f' is stored and,
// before it is rounded, added to the lanes of its channel (reductions/kernels.h).
//
// The same passes serve y = f(x, w), w one number a channel (common/bias/channel_functions.h),
// whose dw is the sum of other terms than dx.
//
// Measurements, and what was tried and rejected: docs/design/bias.md.
#pragma once

#include "common/bias/call.h"
#include "cpu/bias/kernels.h"
#include "cpu/core/kernel_table.h"
#include "cpu/reductions/summing_pass.h"

namespace fastact {

struct BiasAct {
  FusedPlan plan;  // of the operands in the order of BiasCall; plan.accumulate: dx is added to
  ChannelSums sums;
  ChannelArray bias;
  int activation;  // or a channel function
  const double* parameters;
  const BiasKernels* kernels;
  ElementwiseKernel kernel;  // the activation alone, of the compute type: for sums with a residual

  bool takes_parameter() const { return activation >= kActivations; }
};

// The plan of a call that is not empty.
void prepare(BiasAct* act, const KernelTable* table, const BiasCall& call, bool backward);

// One partition of forward or of backward. After all of backward's: merge_partition of the sum.
void bias_forward_partition(const BiasAct* act, int64_t index, int64_t partitions);
void bias_backward_partition(const BiasAct* act, int64_t index, int64_t partitions);

// dropout (common/bias/dropout.h).
struct DropoutPass {
  FusedPlan plan;  // of the operands in the order of DropoutCall, and the elements' indices
  Dropout drop;
  const BiasKernels* kernels;
};

// The plan of a call that is not empty.
void prepare(DropoutPass* pass, const KernelTable* table, const DropoutCall& call);
void dropout_partition(const DropoutPass* pass, int64_t index, int64_t partitions);

}  // namespace fastact
