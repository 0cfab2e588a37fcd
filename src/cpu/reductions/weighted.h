// Moments of elements that are weighted or masked, or of a dtype that no accumulator reads
// (integers), and their gradients.
//
// Sums, from which means are made, read elements where they lie, if these are contiguous along the
// terms or the outputs, and weights too, if they are of the same dtype and there is no mask. All
// else is staged in double first, 512 elements at a time, [term][output]: weights that are masked,
// absent or of another dtype; and both where they are read several times (m2), strided, or
// integers, or where NaN are skipped, or where a term of both takes x's place. A weight that the
// mask takes out is 0 there (common/reductions/weights.h).
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

// to OUT (n) = numbers of any dtype at any address, `stride` bytes apart.
void widen(const ReduceTable& table, int dtype, const char* from, int64_t stride, int64_t n,
           double* to);

// The axes of all arrays in the order of plan_reduction: those that are reduced are columns; null:
// all of them.
void plan_axes(StridedOperands* operands, const ConvertKernels* kernels, int count,
               const ArrayArgument* given, const bool* reduced);

// Takes the axis of groups, the last one, away from an array, and returns its stride. The
// strides of the others go to `strides`.
int64_t take_groups(ArrayArgument* array, int64_t* strides);

// The label of an element, of int32 or int64.
int64_t label_at(int dtype, const char* at);

// Whether kernels can read the numbers of operand k where they lie.
bool is_readable(const StridedOperands& operands, int k);

struct WeightedMoments {
  enum { kX, kWeights, kWhere, kInputs, kY = kInputs, kOperands };

  Reducer reducer;
  StridedOperands operands;   // rows: the outputs; columns: the terms
  bool is_by_output;          // blocks are read output by output
  int pair;                   // what is added of x and weights (common/reductions/pairs.h)
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
  StridedOperands operands;  // the call's arrays, and the labels; all axes are columns
  int of;                    // WeightedGradientOf
  int pair;                  // whose derivatives they are, by x and by the weights
  int pair_dtype;            // in which its kernel has all arrays: of 16 bits, or double
  bool of_weights;
  bool skips, accumulate;
  int64_t groups;                                       // -1: not by groups
  int64_t group_stride[WeightedGradientCall::kArrays];  // in bytes; 0: of what has no groups
  int* has_wrong_label;                                 // OUT
};

void prepare(WeightedGradient* gradient, const ReduceTable* table, const ConvertKernels* kernels,
             const WeightedGradientCall& call);
void weighted_gradient_partition(const WeightedGradient* gradient, int64_t index,
                                 int64_t partitions);
// Of a gradient by groups, before that: compares the labels with their number.
void gradient_labels_partition(const WeightedGradient* gradient, int64_t index, int64_t partitions);

}  // namespace fastact
