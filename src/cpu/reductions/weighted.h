// Moments of elements that are weighted or masked, or of a dtype that no accumulator reads
// (integers), and their gradients.
//
// Sums, from which means are made, read elements where they lie, if these are contiguous along the
// terms or the outputs, and weights too, if they are of the same dtype and there is no mask. All
// else is staged in double first, 512 elements at a time, [term][output]: weights that are masked,
// absent or of another dtype; and both where they are read several times (m2), strided, or
// integers, or where NaN are skipped. A weight that the mask takes out is 0 there
// (common/reductions/weights.h).
//
// All is summed in the order of all reductions (reductions/kernels.h), and a block's moments merge
// as moments that skip NaN, which have a count of their own, too. Weights may concentrate anywhere,
// so that a block's first element tells little of its mean: each block is passed over twice, about
// the first element that counts and about the mean.
//
// docs/design/reductions.md, "Weights, masks and integers", has the figures.
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/reductions/reduce.h"
#include "cpu/reductions/rescaled.h"

namespace fastact {

struct WeightedMoments {
  enum { kX, kWeights, kWhere, kInputs, kY = kInputs, kOperands };

  Reducer reducer;
  StridedOperands operands;   // rows: the outputs; columns: the terms
  bool is_by_output;          // blocks are read output by output
  bool is_readable[kInputs];  // by kernels, where they lie
};

void prepare(WeightedMoments* moments, const ReduceTable* table, const ConvertKernels* kernels,
             const MomentsCall& call);

// The moments of an output whose squares or sums left the range of double (reductions/rescaled.h).
bool rescale_weighted(const WeightedMoments& moments, int64_t output, Rescaled* to);

// The index-th of `partitions` parts. After all of them: merge_partition of the reducer.
void weighted_partition(const WeightedMoments* moments, int64_t index, int64_t partitions);

// The gradient of a statistic with respect to x, or to the weights: what is wanted has `to`.
struct WeightedGradient {
  const ReduceTable* table;
  StridedOperands operands;  // the call's arrays
  int of;                    // WeightedGradientOf
  bool skips, accumulate;
};

void prepare(WeightedGradient* gradient, const ReduceTable* table, const ConvertKernels* kernels,
             const WeightedGradientCall& call);
void weighted_gradient_partition(const WeightedGradient* gradient, int64_t index,
                                 int64_t partitions);

}  // namespace fastact
