// The serial loops of mean and m2 (common/moments.h), compiled once per instruction set.
//
// Blocks, lanes and their order are those of a sum (reductions/kernels.h): term r of a block
// belongs to lane r % kLanes. Each lane sums d = x - shift and d^2 in one pass; a block's shift is
// its first term, or 0 where that is no number. Blocks merge in turn within a chunk, chunks in
// turn.
//
// Error. Let u = 2^-53, c the shift and m2 that of the block; the sums of n <= 2048 terms err by at
// most 69 u sum|d| and 70 u Q, and each d by u |d|. c is one of the data, so (c - mean)^2 <= m2 and
//
//   Q = m2 + n (c - mean)^2 <= (n + 1) m2          at most 11 of 53 bits can cancel
//   |m2 - exact| <= 212 u Q < 2^-34 m2             and for data near the mean, Q ~ 2 m2: 2^-44 m2
//   |mean - exact| <= u |mean| + 71 u avg|d|      and avg|d| <= avg|x| + |c|, |c| <= max|x|
//
// For float32, which has 24 bits, one rounding follows and little else is to be seen. float64
// keeps no such reserve: the block, still in the cache, is passed over again with the mean as
// shift. Then n (c - mean)^2 is of the order of rounding, and |m2 - exact| <= 212 u m2 < 2^-45 m2.
//
// Constant data have d = 0: m2 is exactly 0, and the mean is the constant. d^2 of float and
// narrower does not overflow in double. Merging is compensated: each of k merges adds to m2 and to
// mean one rounding of what it adds, not of what is there.
#pragma once

#include "common/reductions/moments.h"
#include "cpu/reductions/kernels.h"

namespace fastact {

// Of many outputs: arrays of one double an output. Null mean_low and m2_low are zeros.
struct MomentArrays {
  double *mean, *m2, *mean_low, *m2_low;
};

// Passes over a block: the second has the first one's mean as shift.
inline int moment_passes(int dtype) { return dtype == kF64 ? 2 : 1; }

// The unfinished block of one output.
struct UnfinishedBlock {
  alignas(64) double sums[kLanes], squares[kLanes];
  double shift;
};

// For one dtype; x points to elements of that dtype, offsets are bytes, n is not 0.
struct MomentKernels {
  // mean, m2 OUT (one): of a whole row of n contiguous terms.
  void (*row)(const char* x, int64_t n, double* mean, double* m2);

  // mean, m2 OUT (count): of blocks of n <= kReduceBlock contiguous terms, each at x + offsets[i].
  void (*along)(const char* x, const int64_t* offsets, int64_t count, int64_t n, double* mean,
                double* m2);

  // The same of terms each of which lies before the one that comes before it.
  void (*along_backward)(const char* x, const int64_t* offsets, int64_t count, int64_t n,
                         double* mean, double* m2);

  // sums, squares IN/OUT (kLanes) += d and d^2 of n contiguous terms, the first of them onto lane
  // `phase`.
  void (*add_terms)(const char* x, int64_t n, int64_t phase, double shift, double* sums,
                    double* squares);

  // n contiguous terms onto an unfinished block IN/OUT, which holds the first `at` of their block
  // already. Where a block ends its moments go to mean, m2 OUT, one `stride` after the other, and
  // it begins anew. In one pass: not for float64, whose blocks are to be passed over again.
  void (*add_segment)(const char* x, int64_t n, int64_t at, UnfinishedBlock* open, double* mean,
                      double* m2, int64_t stride);

  // sums, squares IN/OUT (columns): the terms of `rows` rows of contiguous columns. Row i lies at
  // x + offsets[i * step]. shift IN (columns). fresh: the lanes are written, not read.
  void (*add_rows)(const char* x, const int64_t* offsets, int64_t step, int64_t rows,
                   int64_t columns, const double* shift, double* sums, double* squares, bool fresh);

  // sums, squares OUT (n): of whole blocks of 1 to kFewTerms terms, which never leave the
  // registers. shift IN (n).
  //   few_rows     down columns: row i is contiguous at x + offsets[i]
  //   short_rows   along short rows that touch each other
  using Few = void (*)(const char* x, const int64_t* offsets, int64_t n, const double* shift,
                       double* sums, double* squares);
  Few few_rows[kFewTerms], short_rows[kFewTerms];
};

struct MomentTable {
  MomentKernels dtypes[kDTypes];

  // mean, m2 OUT (columns) from the sums of n terms. shift IN (columns); it may be mean.
  void (*settle)(const double* shift, const double* sums, const double* squares, int64_t n,
                 int64_t columns, double* mean, double* m2);

  // sums IN/OUT, squares OUT [rows][columns]: d and d^2 of the terms in sums. shift IN (columns).
  void (*deviate)(const double* shift, int64_t rows, int64_t columns, double* sums,
                  double* squares);

  // low IN/OUT (n) becomes what mean + low loses when it is rounded to the dtype. mean IN (n).
  void (*lose)(int dtype, const double* mean, double* low, int64_t n);

  // x IN/OUT (n): what is no number becomes 0.
  void (*make_finite)(double* x, int64_t n);

  // to IN/OUT (n), moments of to_count values each, become those of to_count + from_count.
  void (*merge)(const MomentArrays& from, int64_t from_count, const MomentArrays& to,
                int64_t to_count, int64_t n);
};

}  // namespace fastact
