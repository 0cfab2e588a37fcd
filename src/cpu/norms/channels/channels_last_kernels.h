// The kernels of the norms whose channels come last, over some rows of a tile of columns, of any
// dtype; compiled once per instruction set as core/kernel_table.h.
//
// The coefficients of the channels are rows themselves, one element a column, of the compute type.
// They stay in registers for all rows of a call. 16-bit rows are converted, and so go one after the
// other. common/norms/norms.h has the formulas.
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

constexpr int64_t kColumnRows = 8;  // rows of a call, at most

// The coefficients of a channel; the mean as two numbers, high + low (backward: high alone).
enum ColumnCoefficient : int {
  kColumnHigh,
  kColumnLow,
  kColumnRstd,
  kColumnWeight,
  kColumnBias,
  kColumnMeanG,
  kColumnMeanGx,
  kColumnCoefficients
};

struct ChannelsLastKernels {
  // z OUT = ((x IN - mean) rstd) weight + bias; z is x or disjoint from it. Of each of `rows` rows,
  // n elements. apart: they go one after the other.
  void (*normalise)(const char* const* x, int64_t rows, int64_t n, const char* const* coefficients,
                    char* const* z, bool apart);

  // sums, products IN/OUT (n) += p and p xhat of the rows; kColumnRows of them meet in the compute
  // type first, fewer do not.
  void (*add_sums)(const char* const* p, const char* const* x, int64_t rows, int64_t n,
                   const char* const* coefficients, double* sums, double* products);

  // dx OUT = rstd (p weight - mean_g - xhat mean_gx); dx is p, x or disjoint from them.
  void (*finish)(const char* const* p, const char* const* x, int64_t rows, int64_t n,
                 const char* const* coefficients, char* const* dx, bool apart);
};

struct ChannelsLastTable {
  ChannelsLastKernels kernels[kDTypes];
};

}  // namespace fastact
