// The kernels of the norms of channels over rows of elements (channels/pass.h), compiled once per
// instruction set: batch_norm, whose coefficients serve a whole call (common/norms/batch_norm.h has
// the formulas), and groups of channels that come last, whose coefficients serve an example
// (common/norms/norms.h).
//
// A coefficient, of the compute type, is one number a row, where a row is a channel, or one number
// an element, where channels are columns.
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

// The coefficients of a channel. The mean is the sum of two numbers, high + low.
enum ChannelCoefficient : int {
  kHigh,
  kLow,
  kScale,   // batch_norm: weight rstd; groups: rstd
  kOffset,  // the bias
  kWeight,  // groups alone: batch_norm has it in the scale
  kMeanP,   // the mean of p; groups: of p weight
  kSlope,   // batch_norm: rstd mean(p xhat); groups: mean(p weight xhat)
  kCoefficients
};

constexpr int64_t kRowsAtOnce = 8;     // whose coefficients are read once, but for maps of 16 bits
constexpr int64_t kLeastSegment = 16;  // elements: a cache line of every compute type

// Rows of elements: where the first one lies, and the elements from one row to the next.
struct StridedRows {
  char* first;
  int64_t pitch;
};

// to OUT = f(a IN, b IN) of n elements of each row; it is a, b or disjoint from both; f takes one
// of them or both. apart: the rows of columns go one after the other.
using ChannelMap = void (*)(StridedRows a, StridedRows b, const char* const* coefficients,
                            StridedRows to, int64_t rows, int64_t n, bool apart);

// Each map is for [0] one coefficient a row, [1] one an element.
struct ChannelFormula {
  ChannelMap normalise[2];  // z of a = x
  ChannelMap gradient[2];   // dx of a = p and b = x

  // sums, products IN/OUT (n) += p and p times (batch_norm) x - mean, (groups) xhat, of columns.
  // kRowsAtOnce rows meet in the compute type first; fewer do so for batch_norm alone. apart: they
  // are read one after the other.
  void (*add_rows)(StridedRows p, StridedRows x, const char* const* coefficients, int64_t rows,
                   int64_t n, bool apart, double* sums, double* products);
};

struct BatchNormKernels {
  ChannelFormula formula;
  ChannelMap scale[2];  // dx = p scale of a = p

  // lanes IN/OUT [2][kLanes] += p and p (x - mean) of n elements of one channel, a piece of a
  // segment.
  void (*add_piece)(const char* p, const char* x, const char* const* coefficients, int64_t n,
                    double* lanes);

  // sums, products IN/OUT (channels) += the same over the segments of each channel, as whole pieces
  // on the same lanes: `segments` segments of n elements, `pitch` elements apart; of channels side
  // by side.
  void (*add_channels)(const char* p, const char* x, const char* const* coefficients,
                       int64_t channels, int64_t segments, int64_t pitch, int64_t n, double* sums,
                       double* products);
};

struct ChannelTable {
  BatchNormKernels batch_norm[kDTypes];
  ChannelFormula groups[kDTypes];  // of channels that come last, as columns: no map is for rows
};

}  // namespace fastact
