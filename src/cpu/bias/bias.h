// bias_act: y = f(x + bias + residual), and in one pass dx = dy f'(x + bias + residual) and dbias,
// the sum of dx over all axes but the bias's. f is any activation.
//
// The arrays are read chunk by chunk in the compute type (core/chunk_reader.h). Forward, f(x +
// bias) is one loop (bias/kernels.h); with a residual the sum is computed first, and f of it in
// place. Backward, dy f' is stored and, before it is rounded, added to the lanes of its channel
// (reductions/kernels.h). The terms and their order are those of a sum over dx: for float32 and
// float64 dbias has the bits of bias_grad(dx).
//
// Each thread converts the bias to the compute type once, and repeats it, so that chunks of short
// rows ((1M, 3), channels last) find theirs at any column. Where the channels are rows (NCHW) the
// bias is spread over a chunk.
//
// Measurements, and what was tried and rejected: docs/design/bias.md.
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

struct BiasAct {
  enum { kDy, kX, kResidual, kOut };  // the operands; those without data are absent

  StridedOperands operands;
  int activation;
  const double* parameters;
  bool accumulate;           // dx is added to
  ElementwiseKernel kernel;  // the activation alone, of the compute type: for sums with a residual
  bool is_double;            // the compute type

  const char* bias;
  int bias_dtype;
  int64_t bias_stride;  // bytes
  int64_t channels;

  Reducer reducer;  // backward: of dbias
};

// Once activation, parameters and accumulate are set.
// arrays: kDy to kOut, of one shape and dtype; the bias has x.shape[axis] elements.
void prepare(BiasAct* act, const KernelTable* table, bool backward, int dtype,
             const Operand* arrays, const Operand& bias, int bias_dtype, int axis);

// After `prepare`, for backward: dbias has the dtype of the bias. accumulate: it is added to.
void prepare_sum(BiasAct* act, const ReduceTable* table, const Operand& dbias, bool accumulate);

// Bytes of scratch with which the work of few channels can be divided among many threads; at most.
int64_t bias_workspace_size(int64_t channels, int64_t terms);

// One partition of forward or of backward. After all of backward's: merge_partition of the reducer.
void bias_forward_partition(const BiasAct* act, int64_t index, int64_t partitions);
void bias_backward_partition(const BiasAct* act, int64_t index, int64_t partitions);

}  // namespace fastact
