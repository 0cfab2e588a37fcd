// The kernels of statistics by groups, compiled once per instruction set as core/kernel_table.h.
//
// A lane is a group of one output. Elements come in any order of lanes, one by one, in double: a
// lane is read, added to and written for each. Elements that belong to no group, or do not count,
// have a lane of their own, behind the others, so that nothing branches on them.
//
// A lane has an open batch, and what the batches before it came to. Open batches lie side by side,
// so that many groups have theirs in the caches. With u = 2^-53:
//
// Sums. Elements of double, and those with weights, join their lane compensated (Knuth's two-sum,
// as in reductions/kernels.h). Of narrower data a batch is the plain sum of n <= 127 elements,
// which errs by 126 u sum|x| at most, and ends compensated. A sum and the number of its elements
// are one vector of two doubles, so that an element takes one addition, or seven. A batch's number
// begins at 64: from 128 on it has a bit for which 64 elements together are searched.
//
// Moments. A batch is the sums of d = x - shift and d^2. It merges with the ones before by Chan's
// formula, compensated (common/reductions/moments.h). A batch of n elements errs by
//
//   |m2 - exact| <= (3 n + 2) u Q, Q = sum d^2 = m2 + n (shift - mean)^2
//
// - Narrower data than double: the shift is the batch's first element, and n <= 256. So
//   Q <= (n + 1) m2, and the error is below 2^-35 m2.
// - Double: at first eight elements about the first of them: 26 u 9 m2 < 2^-45 m2. Where Q <= 4 m2
//   by then, the batch goes on to 32. The later ones, about a mean of their own, are at most
//   three times as many as the first: Q <= 4 m2, and 98 u Q < 2^-44 m2. From 32 elements on the
//   shift is the mean of those before, k of them: the merge adds (mean - shift)^2 k n / (k + n)
//   with k >= n, which is at least half of what Q has more than m2, and n <= 64: 194 u Q < 2^-44
//   of what the batch adds.
// - Weights may concentrate anywhere: an element of more than twice the weight of the shift's
//   begins a batch about itself, so that Q <= (2 n + 1) m2; of double n <= 8, else 64.
//
// d is rounded by u |d|, and a batch's mean hands on what its own rounding lost. So no error grows
// with |mean| / std.
//
// A run of elements of one lane is a block of the ungrouped reduction.
//
// Rows. Where a label is one of a whole row of outputs, their lanes lie side by side, and a row is
// added to them in vectors. Sums of any dtype are compensated. A batch of moments has the same rows
// in all columns. Of narrower data than double it has 256, about the first element. Of double it
// has 8, about the first element, while a column has less than 8 elements; then as many as each
// column has before, 64 at most, about the mean of these: 388 u < 2^-44 of what the batch adds.
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

constexpr int64_t kLaneStep = 8;  // lanes that are merged together, a cache line of numbers

enum LaneKind : int { kLaneSum, kLaneMoments, kLaneKinds };

// The kernels of lanes of one kind. lanes: `memory` of `count` of them.
struct LaneKernels {
  int64_t bytes, shared;  // of a lane; of the lanes of a row together

  // Lanes OUT, before their first element. tile: as many of them are a row.
  void (*clear)(char* memory, int64_t count, int64_t tile);

  // n elements, contiguous as their labels are, onto the lanes of their groups; those that count
  // nowhere, such as NaN (skips), go to the last of the lanes. Returns whether a label is not from
  // -1 to groups - 1. [elements as they lie, of float or double; in double][labels of int32, int64]
  using Add = bool (*)(const char* x, const char* labels, int64_t n, int64_t groups, bool skips,
                       char* memory, int64_t count);
  Add add[2][2];

  // Rows of n elements of a dtype, `step` bytes apart, onto the lanes of their groups at[i], of
  // which the last one counts nowhere. NaN are skipped (skips).
  void (*add_rows[kDTypes])(const char* x, int64_t step, const int64_t* at, int64_t terms,
                            int64_t n, bool skips, char* memory);

  // Elements x IN (n), which count as often as their weights say, onto the lanes at[i].
  void (*add_weighted)(const double* x, const double* weights, const int64_t* at, int64_t n,
                       char* memory, int64_t count);

  // n elements onto one lane: their sum, or their mean, m2 and what the mean's rounding lost.
  void (*add_block)(const double* block, double n, int64_t at, char* memory, int64_t count);

  // Lanes first .. first + n of `to` IN/OUT take in the ones of `from`, whose batches it ends.
  // first: a multiple of kLaneStep; n as well, but at the end of lanes of elements.
  void (*merge)(char* from, char* to, int64_t count, int64_t first, int64_t n);

  // values, errors OUT [sets][pitch]: the results of lanes first .. first + n, whose batches it
  // ends: sum and count, or mean, m2 and count.
  void (*read)(char* memory, int64_t count, int64_t first, int64_t n, double* values,
               double* errors, int64_t pitch);
};

struct GroupedKernels {
  // lanes[0] take elements, lanes[1] rows; [..][..][1] are for data with more digits than float.
  LaneKernels lanes[2][kLaneKinds][2];

  // at IN/OUT (n) becomes `none` where an element has the weight 0, or is NaN (skips).
  void (*choose)(const double* x, const double* weights, bool skips, int64_t n, int64_t none,
                 int64_t* at);

  // to OUT (n): the lanes of elements whose labels, of int32 or int64, are `step` bytes apart:
  // label * width + first + i * next, and `none` of those that are of no group. Returns as `add`.
  bool (*find_lanes[2])(const char* labels, int64_t step, int64_t n, int64_t groups, int64_t width,
                        int64_t first, int64_t next, int64_t none, int64_t* to);
};

}  // namespace fastact
