// Weighted moments (weighted.cpp) and statistics by groups (grouped.cpp) share how they read
// elements, weights, masks and labels of any dtype and strides. Here are their native functions,
// too.
#pragma once

#include <cmath>

#include "common/reductions/call.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/native_function.h"
#include "cpu/reductions/reduce.h"

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

// Whether operand k is aligned, and whether kernels can read its numbers where they lie.
bool is_aligned(const StridedOperands& operands, int k);
bool is_readable(const StridedOperands& operands, int k);

// Bytes between neighbours along the last axis.
inline int64_t last_step(const OperandAxes& axes, int k) {
  return axes.count ? std::abs(axes.stride[k][axes.count - 1]) : 0;
}

// visit(address, stride, how many, their place in [terms][n], column) for pieces of operand k:
// terms term .. term + terms of outputs first .. first + n, where rows are outputs.
template <class Visit>
void for_term_pieces(const StridedOperands& s, int k, int64_t first, int64_t n, int64_t term,
                     int64_t terms, Visit visit) {
  int64_t done = 0;
  if (n == 1)
    return for_pieces(s.columns, k, s.row(k, first), term, terms,
                      [&](const char* from, int64_t stride, int64_t size) {
                        visit(from, stride, size, done, int64_t{0});
                        done += size;
                      });
  for_pieces(s.rows, k, s.data[k], first, n, [&](const char* base, int64_t stride, int64_t size) {
    for (int64_t i = 0; i < terms; ++i)
      visit(base + s.columns.offset(k, term + i), stride, size, i * n + done, done);
    done += size;
  });
}

// to OUT [terms][n]: these elements in double.
void read_terms(const StridedOperands& operands, const ReduceTable& table, int k, int64_t first,
                int64_t n, int64_t term, int64_t terms, double* to);

// Moments of elements with weights or a mask, or of integers. is_degenerate: as Reducer's.
int64_t weighted_workspace(const MomentsCall& call, const KernelTable* kernels);
void run_weighted(const MomentsCall& call, Execution* execution, int* is_degenerate);

// The gradient of a statistic with respect to x, or to the weights. Returns whether a label was out
// of range, before it writes anything; so does the next one.
bool run_weighted_gradient(const WeightedGradientCall& call, const KernelTable* kernels);

// Statistics by groups.
int64_t grouped_workspace(const MomentsCall& call, const KernelTable* kernels);
bool run_grouped(const MomentsCall& call, Execution* execution, int* is_degenerate);

}  // namespace fastact
