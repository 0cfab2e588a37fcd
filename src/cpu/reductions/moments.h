// Mean and m2, or variance, over any axes: the walks of a sum (reduce.h) with a pair an output.
//
// The same units, chunks, threads and workspace, and so the same independence of them. What differs
// is that a block of columns needs its shift first (its first row), keeps two sums a lane, and that
// float64 is passed over twice.
//
// float32 on two AVX-512 threads, as a ratio to a copy of the same array (in brackets: the sum):
//   (8192, 4096)      axis 0 0.56 (0.55), axis 1 0.50 (0.47), all 0.47 (0.44)
//   (32, 64, 56, 56)  axes 0, 2, 3 0.65 (0.62), axis 1 1.13 (0.75)
//   (32, 56, 56, 64)  axes 0, 1, 2 0.74 (0.65)
//
// In us on Zen 4, one and two threads, output by output with a subtraction and with prefetches of
// our own; in lines (reductions/segmented.h), the subtraction a multiply-add (simd/accumulators.h):
//   (1024, 1024) all  127, 66   96, 65         (128, 6, 24, 24)  79, 50   46, 26
//   (32, 64, 56, 56)  1490, 623  717, 542      (8, 256, 14, 14)  80, 58   63, 33
// float64, passed over twice, has no lines: its blocks are passed over one by one.
//
// Tried and rejected: narrower tiles of columns, whose lanes and rows stay nearer ((8192, 4096)
// axis 0: 512 and 256 columns alike, 128 take 0.65, 64 0.96; of float64, passed over twice, 1.13
// and 1.09, 1.19, 1.35), but for the 64 rows of a middle axis, where 128 columns take 0.96
// for 1.13.
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
