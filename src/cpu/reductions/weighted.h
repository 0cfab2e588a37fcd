// Weighted moments (weighted.cpp) and statistics by groups (grouped.cpp) share how they read
// elements, weights, masks and labels of any dtype and strides. Here are their native functions,
// too.
#pragma once

#include <cmath>

#include "common/reductions/call.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/native_function.h"
#include "cpu/reductions/grouped_kernels.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

// The axes of all arrays in the order of plan_reduction: those that are reduced are columns; null:
// all of them.
void plan_axes(StridedOperands* operands, const ConvertKernels* kernels, int count,
               const ArrayArgument* given, const bool* reduced);

// Takes the axis of groups, the last one, away from an array, and returns its stride. The
// strides of the others go to `strides`.
int64_t take_groups(ArrayArgument* array, int64_t* strides);

constexpr int64_t kStaged = 512;  // elements at a time: x, weights, mask and centre fill 16 KiB,
                                  // and all that a gradient is made of 40

// The arrays of a call by groups, one of which has the labels.
struct LabelledArrays {
  StridedOperands operands;
  const GroupedKernels* table;
  int labels;               // the operand that has them
  int64_t all_groups;       // -1: there are no labels
  int has_wrong_label = 0;  // OUT
  bool has_groups() const { return all_groups >= 0; }
};

// Partitions note these in the plan that all of them read.
inline void note(const int& flag) {
  __atomic_store_n(const_cast<int*>(&flag), 1, __ATOMIC_RELAXED);
}

// labels OUT (n), of elements of a row from `first` on; -1 where one is of no group. Notes whether
// one is wrong; that one is of none, also where another thread wrote it meanwhile.
void read_labels(const LabelledArrays& arrays, int64_t row, int64_t first, int64_t n,
                 int64_t* labels);
// Reads all of them, for the note alone.
void check_labels_partition(const LabelledArrays* arrays, int64_t index, int64_t partitions);

// Whether all rows have the same numbers of operand k.
bool are_shared(const OperandAxes& rows, int k);

// Whether operand k is aligned, and whether kernels can read its numbers where they lie.
bool is_aligned(const StridedOperands& operands, int k);
bool is_readable(const StridedOperands& operands, int k);

// Bytes between neighbours along the last axis.
inline int64_t last_step(const OperandAxes& axes, int k) {
  return axes.count ? std::abs(axes.stride[k][axes.count - 1]) : 0;
}

// Elements with their weights, both in double: [terms][n], kStaged of them at most.
struct ElementStager {
  enum { kX, kWeights, kWhere, kInputs };

  alignas(64) double x[kStaged];
  alignas(64) double weights[kStaged];
  alignas(64) double mask[kStaged];
  const StridedOperands& s;
  const ReduceTable& table;
  const int pair;  // what is added of x and weights (common/reductions/pairs.h)
  int64_t held_first = -1, held_term, held_terms;  // what `stage` left

  ElementStager(const StridedOperands& operands, const ReduceTable& kernels, int of_both)
      : s(operands), table(kernels), pair(of_both) {}

  bool has_weights() const { return s.data[kWeights] || s.data[kWhere]; }
  void read(int k, int64_t first, int64_t n, int64_t term, int64_t terms, double* to) const;
  // Reads weights: masked elements have weight 0, and without weights all are 1.
  void read_weights(int64_t first, int64_t n, int64_t term, int64_t terms);
  // Stages elements; for a pair, x becomes its term.
  void stage(int64_t first, int64_t n, int64_t term, int64_t terms);
};

// The scratch that a reduction of x has use for, and its run; `prepare` plans it.
template <class Plan, class Call>
int64_t planned_workspace(const Call& call, const ArrayArgument& x, const KernelTable* kernels) {
  if (resolve_threads(size_of(x)) == 1) return 0;
  Plan plan;
  prepare(&plan, *kernels, call);
  return workspace_size(&plan);
}
template <class Plan, class Call>
void reduce_planned(void (*partition)(const Plan*, int64_t, int64_t), const Call& call,
                    const ArrayArgument& x, Execution* execution, int* is_degenerate = nullptr) {
  Plan plan;
  prepare(&plan, *execution->kernels, call);
  plan.is_degenerate = is_degenerate;
  run_reduction(&plan, partition, execution->workspace, execution->bytes,
                resolve_threads(size_of(x)));
}

// Moments. is_degenerate: as Reducer's. No label is wrong, for there are none.
int64_t moments_workspace(const MomentsCall& call, const KernelTable* kernels);
bool run_moments(const MomentsCall& call, Execution* execution, int* is_degenerate);

// The gradient of a statistic with respect to x, or to the weights. Returns whether a label was out
// of range, before it writes anything.
bool run_weighted_gradient(const WeightedGradientCall& call, const KernelTable* kernels);

// Statistics by groups. Returns whether a label was out of range, before it writes anything.
int64_t grouped_workspace(const MomentsCall& call, const KernelTable* kernels);
bool run_grouped(const MomentsCall& call, Execution* execution, int* is_degenerate);

}  // namespace fastact
