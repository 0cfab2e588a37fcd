// What the partitions of softmax/softmax.h share: the blocks of a row, and of a tile of rows, as z
// in the compute type.
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

}  // namespace fastact
