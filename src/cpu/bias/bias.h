// bias_act: y = f(x + bias + residual), and in one pass dx = dy f'(x + bias + residual) and dbias,
// the sum of dx over all axes but the bias's; f is any activation's block function.
//
// A chunk at a time, in the compute type (core/chunk_reader.h): f(x + bias) in one loop
// (bias/kernels.h), or, with a residual, the sums first and f of them in place; backward dy f' is
// stored and, before it is rounded, added to the lanes of its channel (reductions/kernels.h). The
// terms and their order are those of a sum over dx, so that for float32 and float64 dbias has the
// bits of bias_grad(dx).
//
// The bias is widened once a thread, and repeated, so that chunks of short lines ((1M, 3), channels
// last) find theirs at any column. Where the channel is a line (NCHW), it is spread over a chunk.
//
// float32 on two AVX-512 threads with everything in the third-level cache, as a ratio to a copy of
// x by the same threads (in brackets: the activation alone):
//                     relu forward   mish forward   relu backward   mish backward
//   (4096, 768)         1.2 (1.0)      1.6 (1.5)      2.1 (1.5)       2.3 (1.7)
//   (32, 64, 56, 56)    1.1 (1.0)      1.7 (1.7)      2.1 (1.5)       2.7 (1.8)
// What is left of the difference backward is the adding up: 0.06 ns an element where the lanes are
// in registers, and for columns a second reading of dx.
//
// What gained, in time on one thread: sum and activation in one loop, mish forward 7 to 21 %;
// asking for the next chunk inside that loop, 4 to 18 % forward, up to 17 % backward; of columns,
// whole lines of up to 1024 instead of tiles of 512, 21 % at (4096, 768).
//
// The identity takes the same loop backward, with dy for x: against memmove and a second loop that
// adds up, 0.42 to 0.77 of the time at (128, 6, 24, 24) and 0.85 at (32, 64, 56, 56), two threads.
//
// Tried and rejected: prefetching the next chunk in one go before the activation (48 lines an
// operand are more than the core can wait for: equal to 20 % slower), or into the second level only
// (2 to 6 % slower), or without dx, which is only written (up to 20 % slower); chunks of 512 or 256
// (equal, up to 20 % slower); tiles of 256 and 128 columns (1.2 and 1.6 times the time of 512).
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

struct BiasAct {
  enum { kDy, kX, kResidual, kOut };  // the operands; those without data are not there

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

// Bytes of scratch with which few channels can share their work among many threads; at most.
int64_t bias_workspace_size(int64_t channels, int64_t terms);

// The index-th of `partitions` parts of either. After all of backward's: merge_partition of the
// reducer.
void bias_forward_partition(const BiasAct* act, int64_t index, int64_t partitions);
void bias_backward_partition(const BiasAct* act, int64_t index, int64_t partitions);

}  // namespace fastact
