// The kernels of batch_norm over a chunk (core/chunk_reader.h) of any dtype, compiled once per
// instruction set; common/norms/batch_norm.h has the formulas.
//
// A channel coefficient, of the compute type, is one number for the whole chunk, or [1] a row of
// them, one an element.
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

// The coefficients of a channel.
enum BatchCoefficient : int { kHigh, kLow, kScale, kOffset, kMeanP, kSlope, kCoefficients };

// Terms that a lane of the compute type takes before it is added to one of double.
constexpr int kTermsOfLane = 8;

constexpr int64_t kRowsAtOnce = 8;     // whose coefficients are read once, but for maps of 16 bits
constexpr int64_t kLeastSegment = 16;  // elements: a cache line of every compute type

// to OUT = f(a IN, b IN); it is a, b or disjoint from both; f takes one of them or both.
struct BatchNormMap {
  // n elements, of one channel.
  void (*chunk)(const char* a, const char* b, const char* const* coefficients, char* to, int64_t n);

  // [rows][n] elements. [0]: one coefficient a row, n at least kLeastSegment; [1]: of all rows the
  // same, one an element.
  void (*rows[2])(const char* a, const char* b, const char* const* coefficients, char* to,
                  int64_t rows, int64_t n);
};

struct BatchNormKernels {
  BatchNormMap normalise;  // z = (x - mean) scale + offset of a = x
  BatchNormMap gradient;   // dx of a = p and b = x
  BatchNormMap scale;      // dx = p scale of a = p

  // sums IN/OUT (2) += p and p (x - mean) of n elements, all of one channel.
  void (*add_segment)(const char* p, const char* x, const char* const* coefficients, int64_t n,
                      double* sums);

  // lanes IN/OUT [2][kLanes] likewise += the sums of a piece of a segment.
  void (*add_piece)(const char* p, const char* x, const char* const* coefficients, int64_t n,
                    double* lanes);

  // sums, products OUT (channels) = the sums over the segments of each channel, as whole pieces on
  // the same lanes: `segments` segments of n elements, `pitch` elements apart; of channels side by
  // side.
  void (*add_channels)(const char* p, const char* x, const char* const* coefficients,
                       int64_t channels, int64_t segments, int64_t pitch, int64_t n, double* sums,
                       double* products);

  // lanes IN/OUT [2][pitch], of the compute type, += p and p (x - mean) of `rows` rows, one after
  // the other; p, x IN [rows][n].
  void (*add_rows)(const char* p, const char* x, const char* const* coefficients, int64_t rows,
                   int64_t n, char* lanes, int64_t pitch);

  // sums IN/OUT (n) += lanes IN/OUT (n), which become 0.
  void (*flush)(char* lanes, double* sums, int64_t n);
};

struct BatchNormTable {
  BatchNormKernels kernels[kDTypes];
};

}  // namespace fastact
