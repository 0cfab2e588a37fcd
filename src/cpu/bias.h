// bias_act: y = f(x + bias + residual), and in one pass dx = dy f'(x + bias + residual) and dbias,
// the sum of dx over all axes but the bias's; f is any activation's block function.
//
// A chunk at a time, in the compute type (pipeline.h): z = (x + bias) + residual, f(z) in place,
// stored; backward f'(z) dy is stored and, before it is rounded, added to the lanes of its channel
// (reduce_blocks.h) while it is in the first-level cache. The terms and their order are those of a
// sum over dx, so that for float32 and float64 dbias has the bits of bias_grad(dx).
//
// The bias is widened once a thread, and repeated, so that chunks of short lines ((1M, 3), channels
// last) find theirs at any column. Where the channel is a line (NCHW), it is one number a line, or
// spread over a chunk of short lines.
#pragma once

#include "blocks.h"
#include "pipeline.h"
#include "reduce.h"

namespace fastact {

struct BiasAct {
  enum { kDy, kX, kResidual, kOut };  // the operands; those without data are not there

  Streams streams;
  Block activation;  // of the compute type
  const double* parameters;
  bool is_identity;  // of which neither a value nor a derivative need be computed
  bool accumulate;

  const char* bias;
  int bias_dtype;
  int64_t bias_stride;  // bytes
  int64_t channels;

  Reducer reducer;  // backward: of dbias
};

// arrays: kDy to kOut, of one shape and dtype; the bias has x.shape[axis] elements.
void prepare(BiasAct* act, const BlockTable* table, int dtype, const Operand* arrays,
             const Operand& bias, int bias_dtype, int axis);

// After `prepare`, for backward: dbias has the dtype of the bias.
void prepare_sum(BiasAct* act, const ReduceTable* table, const Operand& dbias);

// Bytes of scratch with which few channels can share their work among many threads; at most.
int64_t bias_workspace_size(int64_t channels, int64_t terms);

// The index-th of `shares` parts of either. After all of backward's: merge_share of the reducer.
void forward_share(const BiasAct* act, int64_t index, int64_t shares);
void backward_share(const BiasAct* act, int64_t index, int64_t shares);

}  // namespace fastact
