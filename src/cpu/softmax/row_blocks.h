// What the partitions of softmax/softmax.h share: the blocks of a row, and of a tile of rows, as z
// in the compute type, and their statistics.
#pragma once

#include "common/softmax/softmax.h"
#include "cpu/core/scratch.h"
#include "cpu/softmax/softmax.h"

namespace fastact {

// One row at a time, or a tile of neighbours (core/chunk_reader.h)?
inline bool goes_by_tiles(const StridedOperands& s) {
  const int last = s.rows.count - 1;
  const bool are_neighbours =
      last >= 0 && s.rows.stride[0][last] == s.item && !s.has_unit_stride[0];
  return s.rows.size > 1 && (are_neighbours || s.columns.size < kFewElements);
}

// Rows of which a tile of kTileBytes holds a block, or all that there is.
inline int64_t tile_width(const StridedOperands& s) {
  const int64_t length = std::min(s.columns.size, kSoftmaxBlock);
  return std::min(kTileBytes / s.compute_item / length / 32 * 32, kTileWidth);
}

// Rows that are read one after the other, and whose statistics are finished together: a logarithm
// and a division of many rows take little more time than those of one. A buffer of kTileBytes holds
// a band.
constexpr int64_t kBand = 32;
static_assert(kBand * kSoftmaxBlock * sizeof(double) <= kTileBytes);
inline int64_t band_of(const StridedOperands& s) {
  return s.columns.size <= kSoftmaxBlock ? kBand : 1;
}

// visit(row, width) for the tiles of a partition, or for its rows one by one. Cuts are at multiples
// of `step`.
template <class Visit>
void for_rows(const StridedOperands& s, int64_t width, int64_t step, int64_t index,
              int64_t partitions, Visit visit) {
  const int64_t steps = (s.rows.size + step - 1) / step;
  const int64_t end = std::min(steps * (index + 1) / partitions * step, s.rows.size);
  for (int64_t row = steps * index / partitions * step, n; row < end; row += n) {
    n = std::min(width, end - row);
    visit(row, n);
  }
}

// A thread's blocks of z = scale x + mask.
struct RowBlocks {
  const Softmax& job;
  const StridedOperands& s;
  const SoftmaxKernels& kernels;
  const int64_t size;  // elements of a row
  ChunkReader reader;
  alignas(64) char mask[kSoftmaxBlock * sizeof(double)];

  explicit RowBlocks(const Softmax& a)
      : job(a), s(a.operands), kernels(*a.kernels), size(s.columns.size), reader(s) {}

  template <class Visit>
  void for_blocks(Visit visit) const {
    for (int64_t column = 0; column < size; column += kSoftmaxBlock)
      visit(column, std::min(kSoftmaxBlock, size - column));
  }
  // To which the reader goes.
  template <class Visit>
  void for_blocks_of(int64_t row, Visit visit) {
    for_blocks([&](int64_t column, int64_t n) {
      reader.go(row, column, n);
      visit(column, n);
    });
  }

  // Where a gradient can be written directly, if it can.
  char* direct_gradient(int k) const { return job.accumulate ? nullptr : reader.direct(k); }

  // Of operand `x`, followed by the mask where there is one; in `buffer`, or where x lies.
  const char* z(int x, int64_t n, char* buffer) {
    const char* at = reader.load(x, buffer);
    if (job.mask_kind == 0 && job.scale == 1.0) return at;
    const char* m = nullptr;
    if (job.mask_kind == 1) m = reader.load_stored(x + 1, mask);
    if (job.mask_kind == 2) m = reader.load(x + 1, mask);
    kernels.prepare[job.mask_kind](at, m, job.scale, buffer, n);
    return buffer;
  }

  // In `buffer` [n][width].
  void z_tile(int x, int64_t row, int64_t width, int64_t column, int64_t n, char* buffer) {
    reader.load_tile(x, row, width, column, n, buffer);
    if (job.mask_kind == 0 && job.scale == 1.0) return;
    for (int64_t i = 0; i < n; ++i) {
      char* at = buffer + i * width * s.compute_item;
      if (job.mask_kind == 1) reader.load_stored_tile(x + 1, row, width, column + i, 1, mask);
      if (job.mask_kind == 2) reader.load_tile(x + 1, row, width, column + i, 1, mask);
      kernels.prepare[job.mask_kind](at, mask, job.scale, at, width);
    }
  }
};

// The statistics of rows, and what they say of them.
struct RowStatistics : RowBlocks {
  static constexpr int64_t kMostBlocks = kTileBytes / (int64_t(sizeof(float)) * kSoftmaxBlock);

  const bool by_tiles;
  const int64_t width;  // rows whose statistics are finished together
  TileStats stats, block_stats;
  TileRows rows;
  double block_max[kMostBlocks];  // of the exponentials that are kept: of each block of a row, or
                                  // of each row of a band
  alignas(64) char tile[kTileBytes];
  alignas(64) char buffer[kSoftmaxBlock * sizeof(double)];

  RowStatistics(const Softmax& a, int64_t most)
      : RowBlocks(a),
        by_tiles(goes_by_tiles(s)),
        width(std::min(by_tiles ? tile_width(s) : band_of(s), most)) {}

  // Where the exponentials of a row of a band are kept, from a column on.
  char* kept(int64_t j, int64_t column) { return tile + (j * size + column) * s.compute_item; }

  // Of a band of m rows. apart: as of SoftmaxKernels::block. keeps: their exponentials are kept.
  void find(int x, int64_t first, int64_t m, bool apart, bool keeps) {
    for (int64_t j = 0; j < m; ++j)
      for_blocks_of(first + j, [&](int64_t column, int64_t n) {
        const char* at = z(x, n, buffer);
        TileStats& found = column ? block_stats : stats;
        kernels.block[apart](at, n, keeps ? kept(j, column) : buffer, &found, j);
        if (keeps) block_max[j + column / kSoftmaxBlock] = found.max[j];
        if (column) kernels.merge(&stats, block_stats, 1);
      });
    kernels.finish[apart](stats, m, job.mask_kind != 0, &rows);
  }

  // Of a tile of m rows, of which the last block's exponentials stay in `tile`.
  void find_in_tile(int x, int64_t first, int64_t m, bool apart) {
    for_blocks([&](int64_t column, int64_t n) {
      z_tile(x, first, m, column, n, tile);
      kernels.tile_block[apart](tile, n, m, tile, column ? &block_stats : &stats);
      if (column) kernels.merge(&stats, block_stats, m);
    });
    kernels.finish[apart](stats, m, job.mask_kind != 0, &rows);
  }
};

}  // namespace fastact
