// Mean and m2, or variance, over any axes: the layouts of a sum (reduce.h), with a pair of results
// for each output.
//
// Tasks, chunks, threads and workspace are those of a sum, and the bits are as independent of them.
// What differs: a block of columns first needs its shift (its first row), each lane holds two sums,
// and the blocks of float64 are read twice.
//
// Measurements, and what was tried and rejected: docs/design/reductions.md.
#pragma once

#include "cpu/core/kernel_table.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

// mean; low, what the mean lost when it was rounded; second = m2 / divisor.
struct MomentReducer {
  Reducer reducer;  // its outputs are those of both results
  const MomentTable* table;
  const MomentKernels* kernels;
  char *mean, *low, *second;  // null: not wanted
  double divisor;
};

// x of `dtype`; results: mean, low and second, of y_dtype, of x's rank with length 1 along each
// reduced axis, with the same strides. Those without data are not wanted. Nothing is empty.
void prepare(MomentReducer* moments, const KernelTable* table, const Operand& x,
             const Operand* results, const bool* reduced, int dtype, int y_dtype, double divisor);

// Bytes of scratch, for moments.reducer.partial, with which the terms can be cut too; or 0.
int64_t workspace_size(const MomentReducer* moments);

// The index-th of `partitions` parts of the work; once all are done, of merging the chunks, for
// which there is work only with a workspace.
void reduce_partition(const MomentReducer* moments, int64_t index, int64_t partitions);
void merge_partition(const MomentReducer* moments, int64_t index, int64_t partitions);

}  // namespace fastact
