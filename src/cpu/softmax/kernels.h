// The kernels of the softmax family over one block of each of some rows, compiled once per
// instruction set as core/kernel_table.h.
//
// The rows are a band, each of contiguous elements, or a tile, where neighbours in memory are
// elements of neighbouring rows. Both give the same bits: element i of a block is added to lane i
// mod kSoftmaxLanes, lanes are of double, and fold in halves. Exponentials of float are added in
// pairs first: of each 64 of a block, i and i + 32.
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

// A block of each of several rows. Of a band: rows that begin `stride` bytes apart. Of a tile: the
// first elements of all rows, side by side, then `stride` bytes on the second ones, and so on.
struct BlockRows {
  char* at;
  int64_t stride;
};

// The loops over a block of each of m rows of n elements, all of one dtype; of a band at most kBand
// rows, of a tile kTileWidth. For a band of 16 bits there are the gradient and its sum alone. What
// is written may be what is read.
struct SoftmaxLoops {
  // The statistics OUT of z IN, and exponentials OUT, of the compute type; with a stride of 0 those
  // of a tile are not kept; [1]: the elements that are the maximum are counted apart, their
  // exponentials are left out of the sum, and those of a band are not kept.
  void (*block[2])(BlockRows z, int64_t m, int64_t n, const NextRows& next, BlockRows exponentials,
                   TileStats* stats);

  // y OUT of a kind's y_of, of exponentials IN or of z IN (kinds.h), and of one or two numbers a
  // row.
  void (*apply[kSoftmaxMaps])(BlockRows from, int64_t m, int64_t n, const double* first,
                              const double* second, BlockRows y);

  // y OUT = a factor times exp(z IN) beside a maximum, which no z exceeds but by rounding.
  void (*exponentials)(BlockRows z, int64_t m, int64_t n, const double* maxima,
                       const double* factors, BlockRows y);

  // sums IN/OUT, one a row, += the sum of dy IN (n), or where a kind kSumsProducts of dy IN y IN.
  void (*sum[kSoftmaxMaps])(BlockRows dy, BlockRows y, int64_t m, int64_t n, double* sums);

  // dx OUT = scale times the slope of dy IN, y IN and their sum, one a row.
  void (*gradient[kSoftmaxMaps])(BlockRows dy, BlockRows y, int64_t m, int64_t n,
                                 const double* sums, double scale, const NextRows& next,
                                 BlockRows dx);
};

// Kernels that belong neither to bands nor to tiles; all data are of the compute type.
struct SoftmaxKernels {
  // z OUT (n) = scale x IN (n) + mask IN (n); z is x or disjoint from it. [0]: no mask, [1]: bool,
  // -inf where it is false, [2]: of the compute type.
  void (*prepare[3])(const char* x, const char* mask, double scale, char* z, int64_t n);

  // total IN/OUT (n), each with one more block IN (n).
  void (*merge)(TileStats* total, const TileStats& block, int64_t n);
  // rows OUT (n) of stats IN (n); [1]: of maxima that are counted apart, else log and lse are not
  // computed.
  void (*finish[2])(const TileStats& stats, int64_t n, bool has_mask, TileRows* rows);
  // By what the exponentials of a block are multiplied to be those beside the row's maximum; 0:
  // they have to be computed anew.
  double (*lower)(double block_max, double max);

  // Exponentials that are kept, and their sums, are this power of two times as large.
  double scale_of_terms;
  // The factor that makes exp(z - lse - rest) of exponentials, where max is lse: of its reference.
  double (*factor_of)(double lse, double rest);
  // The slope of the target's logit, `distance` above lse: share (p - 1) + others p.
  double (*slope_of_target)(double distance, double share, double others);

  // sums OUT (2): of t w (max - z) and of t w, of z IN (n).
  void (*weigh)(const char* z, const SoftmaxTarget& target, int64_t n, double max, double* sums);
  // dz IN/OUT (n) -= factor t w.
  void (*subtract)(const SoftmaxTarget& target, int64_t n, double factor, char* dz);
};

struct SoftmaxTable {
  const SoftmaxKernels* kernels;      // of float, double
  const SoftmaxLoops *bands, *tiles;  // [kDTypes]
};

}  // namespace fastact
