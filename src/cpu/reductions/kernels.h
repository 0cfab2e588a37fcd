// The kernels of the reductions, compiled once per instruction set as core/kernel_table.h.
//
// A reduction is an accumulator over elements x: the sum of a term of each, as x or x^2
// (common/reductions/terms.h), or their moments, mean and m2 (common/reductions/moments.h). There
// is one order, whatever the accumulator and the layout. The reduced index r runs from 0 to the
// product of the reduced lengths, and
//
//   - term r of a block belongs to lane r % kLanes, and a lane adds its terms one after the other,
//     in double; sums (not moments) of 16 bits add kFloatTerms of them in float, and then what that
//     gives in double;
//   - the lanes of a block are folded in halves: lane i += lane i + 16, then + 8, + 4, + 2, + 1;
//   - the results of the blocks, of kReduceBlock terms each, are joined one after the other,
//     compensated (`merge`): within a chunk in turn, and the chunks in turn.
//
// A reduction over contiguous terms has its lanes in vector registers; one of rows has them in
// memory, `lanes[lane][column]`. Both add the same numbers in the same order, so that the bits of a
// column do not depend on the number of columns beside it. Missing lanes hold -0, which changes
// nothing that it is added to: the sum of -0 is -0, as in NumPy.
//
// Sums. A term passes through at most kReduceBlock / kLanes - 1 = 63 additions in its lane and 5
// in the fold. `merge` is the compensated summation of Ogita, Rump and Oishi (Sum2: Knuth's
// two-sum, with the errors added up), which rounds once, and n blocks contribute in the second
// order only. With u = 2^-53
//
//   |hi + lo - exact| <= (68 u + u + (n u)^2) sum|x| < 2^-46 sum|x|     for n to 2^29, 2^40 terms
//
// and the last rounding to the array's dtype adds half a ULP. (16-bit results go through float
// rounded to odd, so that there is only one rounding.)
//
// Sums of 16 bits. Each of kFloatTerms - 1 = 7 additions in float rounds by v = 2^-24 of what it
// gives, and a square is exact before it is added:
//
//   |hi + lo - exact| <= (7 v (1 + v)^6 + 69 u + (n u)^2) sum|x| < 2^-21 sum|x|
//
// Float adds eight terms exactly where their exponents differ by 10 at most, of bfloat16 by 13: it
// has 24 bits, a term 11 or 8, and eight terms 3 more. A lane adds kFloatTerms in double instead
// where float does not hold
//
//   - their sum, which is not finite then: two of the largest bfloat16 overflow in float;
//   - their squares, of bfloat16, whose sum is below 2^-100 then: squares below 2^-126 lose digits
//     in float, and below 2^-150 all of them. From larger sums that takes 8 2^-150, or 2^-47 of
//     them, at most.
//
// Moments. Each lane sums d = x - shift and d^2 in one pass; a block's shift is its first term, or
// 0 where that is no number. Let c be the shift and m2 the block's; the sums of n <= 2048
// terms err by at most 69 u sum|d| and 70 u Q, and each d by u |d|. c is one of the data, so
// (c - mean)^2 <= m2 and
//
//   Q = m2 + n (c - mean)^2 <= (n + 1) m2          at most 11 of 53 bits can cancel
//   |m2 - exact| <= 212 u Q < 2^-34 m2             and for data near the mean, Q ~ 2 m2: 2^-44 m2
//   |mean - exact| <= u |mean| + 71 u avg|d|      and avg|d| <= avg|x| + |c|, |c| <= max|x|
//
// For float32, which has 24 bits, one rounding follows and little else is to be seen. float64
// keeps no such reserve: the block, still in the cache, is passed over again with the mean as
// shift. Then n (c - mean)^2 is of the order of rounding, and |m2 - exact| <= 212 u m2 < 2^-45 m2.
//
// Data with NaN that are skipped: the number of the others is added up as they are, and n is that
// number. A block whose first kShiftTerms terms hold none that is finite is passed over twice, as
// float64 is. Without NaN the results are the same as those for all terms, to the bit.
//
// Constant data have d = 0: m2 is exactly 0, and the mean is the constant. d^2 of float and
// narrower does not overflow in double. Merging is compensated: each of k merges adds to m2 and to
// mean one rounding of its increment, not of the sum.
#pragma once

#include <cstdint>

#include "common/core/macros.h"
#include "common/core/operand.h"
#include "common/reductions/terms.h"
#include "cpu/core/tuning.h"
#include "cpu/reductions/weighted_kernels.h"

namespace fastact {

constexpr int64_t kReduceBlock = 2048;
constexpr int64_t kMostChunks = 64;
constexpr int kFewTerms = 8;
constexpr int kMostSets = 3;
constexpr int kFloatTerms = 8;                        // of 16 bits, of a lane, in a row
constexpr int64_t kFloatBand = kFloatTerms * kLanes;  // the terms of all lanes meanwhile
constexpr int64_t kShiftTerms = kLanes;

// Many terms are cut into chunks of so many blocks, a function of their number alone.
FASTACT_HD int64_t blocks_a_chunk(int64_t terms) {
  const int64_t blocks = (terms + kReduceBlock - 1) / kReduceBlock;
  return (blocks + kMostChunks - 1) / kMostChunks;
}

// How elements are accumulated: the sum of a term of each, by its number in the list of
// terms (common/reductions/terms.h); their mean and m2; and of those that are not NaN, whose number
// is the last result: the sum; the mean and m2. And, for norms, their squares, which are added in
// double whatever their dtype.
enum Accumulation : int {
  kMoments = kTerms,
  kValidMean,
  kValidMoments,
  kSquaresInDouble,
  kAccumulations
};

// The lanes of one output, and the terms that wait behind them (`add_terms`).
struct OpenBlock {
  alignas(64) double lanes[kMostSets * kLanes + kFloatBand * sizeof(uint16_t) / sizeof(double)];
  double shift;
};

// The results of many outputs: number s of output i at values[s * pitch + i], and what its rounding
// lost at errors[s * pitch + i]. errors: null for none.
struct Results {
  double *values, *errors;
  int64_t pitch;
};

// The functions of one accumulator for one dtype; x points to elements of that dtype, offsets are
// bytes. Lanes are [sets][pitch], where a function has no pitch [sets][kLanes], and so are results.
// The shift of an output is read where the accumulator has one.
struct ReduceKernels {
  // results OUT [sets][pitch]: of blocks of n <= kReduceBlock contiguous terms, each at
  // x + offsets[i]; n is not 0. ahead: bytes from a term to one that is prefetched; 0: none is.
  void (*blocks)(const char* x, const int64_t* offsets, int64_t count, int64_t n, int64_t ahead,
                 double* results, int64_t pitch);

  // n contiguous terms onto lanes IN/OUT, which hold the first `at` terms of a block. Where terms
  // are added in float, those behind the last whole band lie behind the lanes, as they are in
  // memory, until it is whole. ahead: as above.
  void (*add_terms)(const char* x, int64_t n, int64_t at, double shift, int64_t ahead,
                    double* lanes);

  // results OUT [sets][pitch]: of these lanes IN/OUT of a block of n terms, which begin anew.
  void (*end_terms)(double* lanes, int64_t n, double shift, double* results, int64_t pitch);

  // lanes IN/OUT [sets][pitch]: the terms of `rows` rows of contiguous columns, one after the
  // other. Row i lies at x + offsets[i * step]. shift IN (columns). fresh: the lanes are written,
  // not read. Where terms are added in float, the first row is the first of kFloatTerms. beyond:
  // bytes from the last rows to those that are prefetched beside them; 0: none are.
  void (*add_rows)(const char* x, const int64_t* offsets, int64_t step, int64_t rows,
                   int64_t columns, const double* shift, double* lanes, int64_t pitch, bool fresh,
                   int64_t beyond);

  // lanes OUT [sets][pitch]: whole blocks of 1 to kFewTerms terms, folded, which never leave the
  // registers. shift IN (n).
  //   few_rows     down columns: row i is contiguous at x + offsets[i]
  //   short_rows   along short rows that touch each other
  using Few = void (*)(const char* x, const int64_t* offsets, int64_t n, const double* shift,
                       double* lanes, int64_t pitch);
  Few few_rows[kFewTerms], short_rows[kFewTerms];

  // lanes OUT [sets][pitch]: of one term each, `step` bytes apart. shift IN (n).
  void (*spread)(const char* x, int64_t step, int64_t n, const double* shift, double* lanes,
                 int64_t pitch);
};

struct Accumulator {
  ReduceKernels kernels[kDTypes];

  int sets;        // numbers of a lane, and of a result
  bool has_shift;  // terms count from a number amid them, at first the first one of their block
  bool retries;  // the shift is the first finite one of a block's first kShiftTerms; where there is
                 // none it is 0, and what is found with it the shift of a second pass
  int passes[kDTypes];  // over a block; the second has the first result of the one before as shift

  // results OUT [sets][to_pitch] of n terms, from their folded lanes IN [sets][pitch], of each of
  // `columns` outputs. Null: the lanes are the results.
  void (*settle)(const double* shift, const double* lanes, int64_t pitch, int64_t n,
                 int64_t columns, double* results, int64_t to_pitch);

  // to IN/OUT (n outputs), of to_terms terms each, become the results of to_terms + from_terms
  // terms.
  void (*merge)(const Results& from, int64_t from_terms, const Results& to, int64_t to_terms,
                int64_t n);
};

struct ReduceTable {
  Accumulator accumulators[kAccumulations];

  // lanes IN/OUT [min(count, kLanes)][columns]: lanes[0] becomes the sum of them all.
  void (*fold)(double* lanes, int64_t count, int64_t columns);

  // numbers OUT (n) = x, `step` bytes apart; of masks and integers, too.
  void (*widen[kViewDTypes])(const char* x, int64_t step, int64_t n, double* numbers);

  // y OUT (n) = hi + lo, rounded to the dtype. lo: null for none.
  void (*finish[kDTypes])(const double* hi, const double* lo, char* y, int64_t n);

  // x IN/OUT (n) /= counts (n), or, where that is null, /= count. Returns whether all of these are
  // positive.
  bool (*divide)(double* x, const double* counts, double count, int64_t n);

  const WeightingKernels* weighting;
};

}  // namespace fastact
