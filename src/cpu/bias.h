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
//
// float32 on one AVX-512 thread with everything in the third-level cache, as a ratio to a copy of x
// by the same thread (in brackets: the activation alone):
//                     relu forward   mish forward   relu backward   mish backward
//   (4096, 768)         1.1 (1.0)      2.1 (1.5)      2.6 (1.5)       3.1 (1.7)
//   (32, 64, 56, 56)    1.3 (1.0)      2.4 (1.6)      2.1 (1.6)       3.2 (1.9)
//   (32, 56, 56, 64)    1.4 (1.0)      2.3 (1.5)      2.0 (1.6)       2.9 (1.9)
// The difference is the second pass over the chunk: while it computes, nothing is read.
//
// Tried and rejected: prefetching the next chunk before the activation (48 lines an operand are
// more than the core can wait for: equal to 20 % slower); eight lines of a lane at once, as a sum
// of columns takes them ((4096, 768) backward 4 % slower, in the second-level cache 5 % faster);
// tiles of 256 and 128 columns (1.2 and 1.6 times the time of 512).
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
