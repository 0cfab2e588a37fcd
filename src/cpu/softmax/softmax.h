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

#include "common/softmax/call.h"
#include "common/softmax/loss.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/softmax/kernels.h"

namespace fastact {

constexpr int64_t kFewElements = 32;  // of a row: of shorter rows many are computed at a time
constexpr int64_t kLossRows = 64;     // rows whose losses are added up before others
constexpr int64_t kManyRows = 4096;   // from which on a thread takes kLossRows at a time

struct Softmax {
  enum Forward { kX, kMask, kY, kLse, kSink, kShare };  // kLse: of logsumexp, beside kShare
  enum Backward { kDy, kOut, kDx, kOfShare, kDSinks, kOfX };
  enum LseBackward { kIn, kInMask, kDLse, kOfLse, kDIn, kOfRest };
  enum CrossEntropy {
    kLogits,
    kTarget,
    kWeight,
    kOutLse,
    kLosses,
    kOutRest,
    kDLoss,
    kCrossOperands
  };
  // Backward of cross_entropy writes dlogits in the place of kLosses.
  static constexpr int kDLogits = kLosses;

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

  // cross_entropy
  bool has_indices, has_shares;  // has_shares: every class takes part in the loss of a row
  int64_t ignore_index;
  LabelSmoothing smoothing;
  double z_loss;
  double* partial;    // [loss_partials(rows)]: sums of losses and of their weights; null: none
  double gradient;    // 1 / divisor
  double weight_sum;  // of all classes
};

// The plans of calls that are not empty. `partial` is null.
void plan_softmax_forward(Softmax* job, const KernelTable* table, const SoftmaxCall& call);
void plan_softmax_backward(Softmax* job, const KernelTable* table, const SoftmaxCall& call);
void plan_logsumexp_backward(Softmax* job, const KernelTable* table, const SoftmaxCall& call);
void plan_cross_entropy(Softmax* job, const KernelTable* table, const SoftmaxCall& call);
void plan_cross_entropy_backward(Softmax* job, const KernelTable* table, const SoftmaxCall& call);

// dsink OUT = total IN, or += of it.
void round_sink(const SinkCall& call);

void softmax_partition(const Softmax* job, int64_t index, int64_t partitions);
void softmax_backward_partition(const Softmax* job, int64_t index, int64_t partitions);
void logsumexp_backward_partition(const Softmax* job, int64_t index, int64_t partitions);

inline int64_t softmax_rows(const Softmax& job) { return job.operands.rows.size; }
inline int64_t softmax_columns(const Softmax& job) { return job.operands.columns.size; }
// Rows whose loss and weight are one pair of partial sums: few rows of a large vocabulary are the
// work of several threads.
inline int64_t rows_a_partial(int64_t rows) { return rows < kManyRows ? 1 : kLossRows; }
int64_t loss_partials(int64_t rows);         // doubles
bool has_valid_targets(const Softmax& job);  // or probabilities
void sum_weights(Softmax* job);
void cross_entropy_partition(const Softmax* job, int64_t index, int64_t partitions);
void cross_entropy_backward_partition(const Softmax* job, int64_t index, int64_t partitions);
// loss OUT, of a dtype, and divisor OUT, double, of the partials.
void finish_loss(const Softmax& job, int reduction, int dtype, char* loss, char* divisor);

}  // namespace fastact
