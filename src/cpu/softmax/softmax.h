// softmax, log_softmax, logsumexp and cross_entropy on the rows engine (core/chunk_reader.h).
//
// A row is read in blocks of kSoftmaxBlock elements, each with a maximum of its own
// (common/softmax/softmax.h), and the blocks' statistics are merged in their order. Blocks depend
// on nothing but the row's length: neither do bits.
//
//   softmax      exponentials go to a buffer of the thread, of at most kTileBytes, and are scaled
//                from there, beside the next rows' where y goes past the caches: one read of
//                memory, one write. Those of longer rows are computed twice, once for the sum and
//                once for y: two reads
//   log_softmax  the statistic, then (z - max) - log1p(s), from the cache where the row fits
//   logsumexp, cross_entropy   one read. No probability is ever stored
//   backward     a sum over the row, then its gradient; of logsumexp and cross_entropy one pass
//
// A row belongs to one thread. Measurements: docs/design/softmax.md.
#pragma once

#include <initializer_list>

#include "common/softmax/call.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/native_function.h"
#include "cpu/softmax/kernels.h"

namespace fastact {

constexpr int64_t kFewElements = 32;  // of a row: of shorter rows many are computed at a time

struct Softmax {
  enum Forward { kX, kMask, kY, kLse, kSink, kShare };  // kLse: of logsumexp, beside kShare
  enum Backward { kDy, kOut, kDx, kOfShare, kDSinks, kOfX };
  enum LseBackward { kIn, kInMask, kDLse, kOfLse, kDIn, kOfRest };

  StridedOperands operands;
  const SoftmaxKernels* kernels;
  const SoftmaxGradients* gradients;  // [kDTypes]
  const SoftmaxTiles* tiles;          // [kDTypes]
  int kind;
  int mask_kind;  // of SoftmaxKernels::prepare
  double scale;
  bool accumulate;
  bool has_sink;  // forward
  double cap;     // of x; 0: none
  // By it, of the compute type: forward and backward of ElementwiseTable.
  ElementwiseKernel capped, times_slope;
};

// Plans a call that is not empty. roles: of its operands, in their order. in_order: the rows are
// counted as they lie in the call.
constexpr int kSoftmaxOperands = 7;  // at most
void plan(Softmax* job, const KernelTable* table, const SoftmaxCall& call,
          std::initializer_list<int> roles, bool in_order = false);

inline int64_t size_of_rows(const SoftmaxCall& call) {
  return size_of(call.arrays[softmax_roles::kX]);
}

// The native functions of cross_entropy.
void add_cross_entropy(std::vector<NativeFunction>* functions);

}  // namespace fastact
