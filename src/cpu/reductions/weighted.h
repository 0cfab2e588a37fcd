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

namespace fastact {

struct WeightedMoments {
  enum { kX, kWeights, kWhere, kInputs, kY = kInputs, kOperands };

  Reducer reducer;
  StridedOperands operands;   // rows: the outputs; columns: the terms
  bool is_by_output;          // blocks are read output by output
  bool is_readable[kInputs];  // by kernels, where they lie
};

// inputs: x, weights and a mask, of dtypes[k], of any that a View has; of x's shape, with strides
// of 0 where they repeat. The last two may be absent. The rest as for prepare_moments.
void prepare(WeightedMoments* moments, const ReduceTable* table, const ConvertKernels* kernels,
             const Operand* inputs, const int* dtypes, const Operand* results, const bool* reduced,
             int y_dtype, OfM2 of_m2, double correction, bool skips);

// The index-th of `partitions` parts. After all of them: merge_partition of the reducer.
void weighted_partition(const WeightedMoments* moments, int64_t index, int64_t partitions);

// The gradient of a statistic with respect to x, or to the weights: what is wanted has `to`.
struct WeightedGradient {
  enum { kTo, kDy, kSlope, kX, kWeights, kWhere, kMean, kOperands };

  const ReduceTable* table;
  StridedOperands operands;
  WeightedGradientOf of;
  bool skips, accumulate;
};

// arrays: in the order above, of dtypes[k] and of one shape, with strides of 0 where they repeat.
// Weights, mask and mean may be absent: the gradient of a mean with respect to x needs no mean.
void prepare(WeightedGradient* gradient, const ReduceTable* table, const ConvertKernels* kernels,
             const Operand* arrays, const int* dtypes, bool of_weights, bool skips,
             bool accumulate);
void weighted_gradient_partition(const WeightedGradient* gradient, int64_t index,
                                 int64_t partitions);

}  // namespace fastact
