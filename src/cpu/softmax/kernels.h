// The kernels of the softmax family over one block of a row or of neighbouring rows, compiled once
// per instruction set as core/kernel_table.h.
// All data are of the compute type, but in SoftmaxGradients and SoftmaxTiles. A row is n contiguous
// elements; of a tile of `width` rows, neighbours in memory are elements of neighbouring rows. Both
// give the same bits: element i of a block is added to lane i mod kSoftmaxLanes, lanes are of
// double, and fold in halves. Exponentials of float are added in pairs first: of each 64 of a
// block, i and i + 32.
#pragma once

#include <cstdint>

#include "common/core/operand.h"
#include "common/softmax/kinds.h"
#include "cpu/core/next_chunk.h"

namespace fastact {

constexpr int64_t kSoftmaxBlock = 1024;  // elements of a row with a maximum of their own
constexpr int kSoftmaxLanes = 32;
constexpr int64_t kTileWidth = 256;  // rows of a tile, at most
constexpr int64_t kBand = 32;        // rows of a band: read one after the other, finished together

// The statistics of the rows of a tile, or of one row (common/softmax/softmax.h, SoftmaxStat), and
// what follows from them (SoftmaxLevel).
struct TileStats {
  double max[kTileWidth], rest[kTileWidth], ones[kTileWidth];
};
struct TileRows {
  double max[kTileWidth], log[kTileWidth], lse[kTileWidth], factor[kTileWidth];
};

// A target that is not one class: element i counts t_i = scale * target_i + floor, or floor alone,
// times weight_i. Null pointers are not there.
struct SoftmaxTarget {
  const char *target, *weight;
  double scale, floor;
};

// Rows that begin `stride` bytes apart, each of contiguous elements.
struct RowsIn {
  const char* at;
  int64_t stride;
};
struct RowsOut {
  char* at;
  int64_t stride;
};

// Rows of y that are still to be stored, past the caches: y OUT = a factor times exponentials IN, n
// elements and one factor a row.
//
// All at once they would hold the processor up until memory had taken them. So softmax forward puts
// the products of a band of rows off until it computes the next band, whose exponentials go to the
// other half of the thread's buffer:
//
//   - `block` of the next band stores row j of these, a few lines at a time, beside the
//   exponentials
//     of its own row j; of a row of several blocks, the n elements of block c beside block c
//   - `store` then stores what is left of a band that has more rows than the next one
//   - at the end of a partition `store` stores the last band
struct LateProducts {
  RowsIn exponentials;
  RowsOut y;
  int64_t rows, n;
  const double* factors;

  LateProducts after(int64_t j) const {  // without the first j rows
    return {{exponentials.at + j * exponentials.stride, exponentials.stride},
            {y.at + j * y.stride, y.stride},
            rows - j,
            n,
            factors + j};
  }
  // The products of `size` elements from `column` on, of a row that has a factor a block.
  LateProducts block(int64_t column, int64_t size, int64_t item) const {
    if (rows == 0) return *this;
    return {{exponentials.at + column * item, 0},
            {y.at + column * item, 0},
            rows,
            size,
            factors + column / kSoftmaxBlock};
  }
};

struct SoftmaxKernels {
  // z OUT (n) = scale x IN (n) + mask IN (n); z is x or disjoint from it. [0]: no mask, [1]: bool,
  // -inf where it is false, [2]: of the compute type.
  void (*prepare[3])(const char* x, const char* mask, double scale, char* z, int64_t n);

  // Takes a block of each of m <= kBand rows, z IN (n): exponentials OUT [m][n], which may be z,
  // and the statistics OUT; [1]: the elements that are the maximum are counted apart, their
  // exponentials are left out of the sum, and none is kept. products: the first m of them are
  // stored, what is left by `store`.
  void (*block[2])(RowsIn z, int64_t m, int64_t n, const NextRows& next,
                   const LateProducts& products, char* exponentials, TileStats* stats);

  // total IN/OUT (n), each with one more block IN (n).
  void (*merge)(TileStats* total, const TileStats& block, int64_t n);
  // rows OUT (n) of stats IN (n); [1]: of maxima that are counted apart, else log and lse are not
  // computed.
  void (*finish[2])(const TileStats& stats, int64_t n, bool has_mask, TileRows* rows);
  // By what the exponentials of a block are multiplied to be those beside the row's maximum; 0:
  // they have to be computed anew.
  double (*lower)(double block_max, double max);

  // y OUT of a kind's y_of, of exponentials IN or of z IN (kinds.h), and of one or two numbers a
  // row; y may be what it is made of.
  void (*apply[kSoftmaxMaps])(RowsIn from, int64_t m, int64_t n, const double* first,
                              const double* second, RowsOut y);
  void (*store)(const LateProducts& products);

  // Exponentials that are kept, and their sums, are this power of two times as large.
  double scale_of_terms;
  // y OUT = a factor times exp(z IN) beside `max`, which no z exceeds but by rounding; y may be z.
  void (*exponentials)(const char* z, int64_t n, double max, double factor, char* y);
  // The factor that makes exp(z - lse - rest) of these, where max is lse: of its reference.
  double (*factor_of)(double lse, double rest);
  // The slope of the target's logit, `distance` above lse: share (p - 1) + others p.
  double (*slope_of_target)(double distance, double share, double others);

  // sums OUT (2): of t w (max - z) and of t w, of z IN (n).
  void (*weigh)(const char* z, const SoftmaxTarget& target, int64_t n, double max, double* sums);
  // dz IN/OUT (n) -= factor t w.
  void (*subtract)(const SoftmaxTarget& target, int64_t n, double factor, char* dz);
};

// Kernels for a block of each of m <= kBand rows, of one dtype, by kind (common/softmax/kinds.h).
struct SoftmaxGradients {
  // sums IN/OUT, one a row, += the sum of dy IN (n), or where a kind kSumsProducts of dy IN y IN.
  void (*sum[kSoftmaxMaps])(RowsIn dy, RowsIn y, int64_t m, int64_t n, double* sums);

  // dx OUT = scale times the slope of dy IN, y IN and their sum, one a row; dx may be dy or y.
  void (*gradient[kSoftmaxMaps])(RowsIn dy, RowsIn y, int64_t m, int64_t n, const double* sums,
                                 double scale, const NextRows& next, RowsOut dx);
};

// Kernels as SoftmaxKernels and SoftmaxGradients have them, for a block of each of `width` rows
// that lie side by side, of one dtype: element i of all rows is what RowsIn and RowsOut call a row.
struct SoftmaxTiles {
  // exponentials: of the compute type; with a stride of 0 they are not kept.
  void (*block[2])(RowsIn z, int64_t n, int64_t width, RowsOut exponentials, TileStats* stats);
  void (*apply[kSoftmaxMaps])(RowsIn from, int64_t n, int64_t width, const double* first,
                              const double* second, RowsOut y);
  void (*exponentials)(RowsIn z, int64_t n, int64_t width, const double* maxima,
                       const double* factors, RowsOut y);
  void (*sum[kSoftmaxMaps])(RowsIn dy, RowsIn y, int64_t n, int64_t width, double* sums);
  void (*gradient[kSoftmaxMaps])(RowsIn dy, RowsIn y, int64_t n, int64_t width, const double* sums,
                                 double scale, RowsOut dx);
};

struct SoftmaxTable {
  const SoftmaxKernels* kernels;      // of float, double
  const SoftmaxGradients* gradients;  // [kDTypes]
  const SoftmaxTiles* tiles;          // [kDTypes]
};

}  // namespace fastact
