// The kernels of the reductions, compiled once per instruction set as core/kernel_table.h.
//
// There is one order of addition, whatever the layout. The reduced index r runs from 0 to the
// product of the reduced lengths, and
//
//   - term r of a block belongs to lane r % kLanes, and a lane adds its terms one after the other,
//     in double;
//   - the lanes of a block are folded in halves: lane i += lane i + 16, then + 8, + 4, + 2, + 1;
//   - the sums of the blocks, of kReduceBlock terms each, are added one after the other,
//     compensated (`merge`).
//
// A sum over contiguous terms has its lanes in vector registers; a sum of rows has them in memory,
// `lanes[lane][column]`. Both add the same numbers in the same order, so that the bits of a column
// do not depend on the number of columns beside it. Missing lanes hold -0, which changes nothing
// that it is added to: the sum of -0 is -0, as in NumPy.
//
// Error. A term passes through at most kReduceBlock / kLanes - 1 = 63 additions in its lane and 5
// in the fold. `merge` is the compensated summation of Ogita, Rump and Oishi (Sum2: Knuth's
// two-sum, with the errors added up), which rounds once, and n blocks contribute in the second
// order only. With u = 2^-53
//
//   |hi + lo - exact| <= (68 u + u + (n u)^2) sum|x| < 2^-46 sum|x|     for n to 2^29, 2^40 terms
//
// and the last rounding to the array's dtype adds half a ULP. (16-bit results go through float
// rounded to odd, so that there is only one rounding.)
#pragma once

#include <cstdint>

#include "common/core/macros.h"
#include "common/core/operand.h"

namespace fastact {

constexpr int kLanes = 32;
constexpr int64_t kReduceBlock = 2048;
constexpr int64_t kMostChunks = 64;
constexpr int kFewTerms = 8;

// Many terms are cut into chunks of so many blocks, a function of their number alone.
FASTACT_HD int64_t blocks_a_chunk(int64_t terms) {
  const int64_t blocks = (terms + kReduceBlock - 1) / kReduceBlock;
  return (blocks + kMostChunks - 1) / kMostChunks;
}

// What is summed of an element x: x, or x^2 (of float and narrower exactly).
enum ReduceInput : int { kIdentity, kSquare, kReduceInputs };
constexpr const char* kReduceInputNames[] = {"identity", "square"};

// What one reduction does to one dtype; x points to elements of that dtype, offsets are bytes.
struct ReduceKernels {
  // sums OUT (count): of blocks of n <= kReduceBlock contiguous terms, each at x + offsets[i].
  void (*sum_blocks)(const char* x, const int64_t* offsets, int64_t count, int64_t n, double* sums);

  // The same of terms each of which lies before the one that comes before it.
  void (*sum_blocks_backward)(const char* x, const int64_t* offsets, int64_t count, int64_t n,
                              double* sums);

  // n contiguous terms onto lanes IN/OUT (kLanes), the first of them onto lane `phase`.
  void (*add_terms)(const char* x, int64_t n, int64_t phase, double* lanes);

  // n contiguous terms onto lanes IN/OUT (kLanes), which hold the first `at` of their block
  // already. Where a block ends its sum goes to sums OUT, one `stride` after the other, and the
  // lanes begin anew.
  void (*add_segment)(const char* x, int64_t n, int64_t at, double* lanes, double* sums,
                      int64_t stride);

  // lane IN/OUT (columns): the terms of `rows` rows of contiguous columns, one after the other.
  // Row i lies at x + offsets[i * step]. fresh: the lane is written, not read.
  void (*add_rows)(const char* x, const int64_t* offsets, int64_t step, int64_t rows,
                   int64_t columns, double* lane, bool fresh);

  // sums OUT (n): whole sums of 1 to kFewTerms terms, which never leave the registers.
  //   sum_rows    down columns: row i is contiguous at x + offsets[i]
  //   sum_short   along short rows that touch each other
  using Few = void (*)(const char* x, const int64_t* offsets, int64_t n, double* sums);
  Few sum_rows[kFewTerms], sum_short[kFewTerms];

  // lane OUT (n): one term each, `stride` bytes apart.
  void (*spread)(const char* x, int64_t stride, int64_t n, double* lane);
};

// The kernels that do not depend on the dtype, and those that do.
struct ReduceTable {
  ReduceKernels kernels[kReduceInputs][kDTypes];

  // lanes IN/OUT [min(count, kLanes)][columns]: lanes[0] becomes the sum of them all.
  void (*fold)(double* lanes, int64_t count, int64_t columns);

  // sums OUT (count): of kLanes lanes each, those of the next one `step` doubles on.
  void (*fold_each)(const double* lanes, int64_t step, int64_t count, double* sums);

  // (hi, lo) IN/OUT (n) += (sums, errors); errors: null for none.
  void (*merge)(const double* sums, const double* errors, double* hi, double* lo, int64_t n);

  // y OUT (n) = hi + lo, rounded to the dtype. lo: null for none.
  void (*finish[kDTypes])(const double* hi, const double* lo, char* y, int64_t n);
};

}  // namespace fastact
