// The kernels of the norms over one chunk, compiled once per instruction set as
// core/kernel_table.h.
//
// Chunks are of the compute type (core/chunk_reader.h), or of 16 bits as they lie in arrays;
// parameters and their sums are of the compute type. common/norms/norms.h has the formulas. A
// parameter is one number for the whole chunk (a channel's) or one an element (a row of them).
#pragma once

#include <cstdint>

#include "common/core/operand.h"
#include "common/norms/rows.h"
#include "cpu/core/next_chunk.h"

namespace fastact {

constexpr int kNormLanes = 32;  // of float; half of them of double
constexpr int kQuad = 4;        // rows that `finish` goes through side by side, at most
constexpr int kRoots = 8;       // rows whose rstd one call of `roots` makes, at most

// The statistics of one row.
struct RowStats {
  double mean, rstd;
};

// A row of backward: p, x and dx from its first element on, or from a chunk's; the means of g
// and of g xhat. It is written and read number by number: a vector of several numbers that were
// just stored waits for all stores before them.
struct BackwardRow {
  const char *p, *x;
  char* dx;
  RowStats stats;
  double means[2];
  NextChunk next;  // of a row that is read later
};

// One row's part of a call of `normalise`: n elements of x and z.
struct NormRow {
  const char* x;
  char* z;
  RowStats stats;
  NextChunk next;
};

// One number a span: span r's lies at `at` + r * step bytes.
struct SpanValues {
  const char* at;
  int64_t step;
};

constexpr int64_t kLeastSpan = 32;  // elements; of shorter ones the parameters are spread instead

struct NormKernels {
  // squares IN/OUT (n of kRoots, all of which are written) becomes rstd_of of each.
  void (*roots[kRowNorms])(double* squares, int64_t n, double count, double eps);

  // For `count` rows, z OUT (n) = ((x IN (n) - mean) rstd) weight + bias; z is x or disjoint from
  // every x.
  //   [weight is a row][bias is a row]: IN (n) each, or IN (1).
  void (*normalise[2][2])(const NormRow* rows, int64_t count, int64_t n, const char* weight,
                          const char* bias);

  // Normalises a row of `spans` spans of n elements each, at least kLeastSpan, one after the
  // other. x and z as above.
  void (*normalise_spans)(const NormRow& row, int64_t spans, int64_t n, const SpanValues& weight,
                          const SpanValues& bias);

  // means OUT of `count` rows: the sums of p w and of p w xhat of n elements, on kNormLanes lanes
  // that are folded as a reduction's are. weight: [1] IN (n), or [0] none.
  // prefetches_dx: which is written next, n elements a row.
  void (*sum_rows[2])(BackwardRow* rows, int64_t count, int64_t n, const char* weight,
                      bool prefetches_dx);

  // For n elements of `count` rows, from `column` on, dx OUT = rstd (p w - mean_g - xhat
  // mean_g_xhat); dx is p, x or disjoint from them. weight: [1] IN (n), or [0] IN (1).
  //   dweight, dbias IN/OUT (n) += the sums over the rows of p xhat and of p; null: no sums. They
  //   lie as that chunk of the first row's dx does within 64 bytes, to which vectors are aligned;
  //   of 16 bits, at a multiple of 64.
  void (*finish[2])(const BackwardRow* rows, int64_t count, int64_t column, int64_t n,
                    const char* weight, char* dweight, char* dbias);

  // For spans of a row, from number `first` on: both sums OUT [spans][2] of each, without weights;
  // and dx, by the row's means, of spans that have kLeastSpan elements at least.
  void (*sum_spans)(const BackwardRow& row, int64_t first, int64_t spans, int64_t n, double* both);
  void (*finish_spans)(const BackwardRow& row, int64_t first, int64_t spans, int64_t n,
                       const SpanValues& weight);

  // total IN/OUT (n) += sums IN (n), such as `finish` makes.
  void (*add_band)(const char* sums, int64_t n, double* total);
};

struct NormTable {
  // 16-bit data is converted in registers: null without AVX2.
  NormKernels kernels[kDTypes];
};

}  // namespace fastact
