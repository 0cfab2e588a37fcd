// The blocks of a row, and of a tile of rows, for the partitions of softmax/softmax.h, as z
// in the compute type, and their statistics.
#pragma once

#include <cmath>
#include <limits>

#include "common/softmax/softmax.h"
#include "cpu/core/scratch.h"
#include "cpu/softmax/softmax.h"

namespace fastact {

constexpr double kNothing = -std::numeric_limits<double>::infinity();  // z of what takes no part
constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kVectorBytes = 64;  // of a row that is read as it lies, at least

// One row at a time, or a tile of neighbours (core/chunk_reader.h)?
inline bool goes_by_tiles(const StridedOperands& s) {
  const int last = s.rows.count - 1;
  const bool are_neighbours =
      last >= 0 && s.rows.stride[0][last] == s.item && !s.has_unit_stride[0];
  const int64_t few = s.has_unit_stride[0] ? kVectorBytes / s.compute_item : kFewElements;
  const bool is_short = s.columns.size < few;
  return s.rows.size > 1 && (are_neighbours || is_short);
}

// Whether tiles of operand k are read and written where they lie: neighbours in memory are
// neighbouring rows, many of them, and all are of the first operand's dtype.
inline bool has_tiles(const StridedOperands& s, int k) {
  constexpr int64_t kMany = 128;
  const int last = s.rows.count - 1;
  if (last < 0 || s.columns.count > 1 || s.dtypes[k] != s.dtype) return false;
  if (last > 0 && s.rows.length[last] < kMany) return false;
  auto bits = reinterpret_cast<uintptr_t>(s.data[k]);
  for (int axis = 0; axis <= last; ++axis) bits |= uintptr_t(s.rows.stride[k][axis]);
  if (s.columns.count) bits |= uintptr_t(s.columns.stride[k][0]);
  return s.rows.stride[k][last] == s.item && bits % uintptr_t(s.item) == 0;
}

// The rows of a tile: kTileBytes hold a block of each of them, or all of it. A tile that is read
// where it lies and keeps nothing has kTileWidth: memory is faster by long pieces.
inline int64_t tile_width(const StridedOperands& s) {
  const int64_t length = std::min(s.columns.size, kSoftmaxBlock);
  return std::min(kTileBytes / s.compute_item / length / 32 * 32, kTileWidth);
}

// Rows of a band, where each is one block: what one of its loops writes is still in the first-level
// cache for the next. A buffer of kTileBytes holds a band.
constexpr int64_t kBandBytes = 16 << 10;
static_assert(kBand * kSoftmaxBlock * sizeof(double) <= kTileBytes);
inline int64_t band_of(const StridedOperands& s) {
  if (s.columns.size > kSoftmaxBlock) return 1;
  return std::clamp<int64_t>(kBandBytes / (s.columns.size * s.compute_item), 1, kBand);
}

inline RowsIn as_input(RowsOut rows) { return {rows.at, rows.stride}; }

// z is x itself.
inline bool is_plain(const Softmax& job) {
  return job.mask_kind == 0 && job.scale == 1.0 && job.cap == 0.0;
}

// A thread's blocks of z = scale x + mask. Where there is a cap, x is capped first: x stands for
// what it becomes.
//
// Where that leaves the range of its type, z is scale (x - pivot) + mask, the pivot being the x of
// the row's element with the largest scale x of those that take part: none of it is beyond the
// mask. softmax and log_softmax are the same, and logsumexp is less by scale pivot.
struct RowBlocks {
  const Softmax& job;
  const StridedOperands& s;
  const SoftmaxKernels& kernels;
  const int64_t size;  // elements of a row
  const int64_t row_bytes;
  const bool by_tiles;  // rows side by side are read as a tile, else one after the other
  ChunkReader reader;
  bool has_pivots = false;
  double pivots[kTileWidth];  // of the rows of a band or a tile; NaN: it has none
  alignas(64) char mask[kSoftmaxBlock * sizeof(double)];

  explicit RowBlocks(const Softmax& a)
      : job(a),
        s(a.operands),
        kernels(*a.kernels),
        size(s.columns.size),
        row_bytes(size * s.compute_item),
        by_tiles(goes_by_tiles(s)),
        reader(s) {}

  const SoftmaxTiles& tiles_of(bool is_stored) const {
    return job.tiles[is_stored ? s.dtype : s.compute_dtype];
  }
  void end() const { reader.fence(); }  // of a partition

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

  // to OUT (n) = x IN (n), capped; `to` is x or disjoint from it.
  void cap(const char* x, int64_t n, char* to) const {
    char* const operands[] = {const_cast<char*>(x), to};
    job.capped(operands, n, &job.cap, 0);
  }

  double x_at(int x, int64_t row, int64_t column) const {
    const double stored = element(x, row, column);
    if (job.cap == 0.0) return stored;
    alignas(double) char value[sizeof(double)];
    store_as(s.compute_dtype, value, stored);
    cap(value, 1, value);
    return number_at(s.compute_dtype, value);
  }
  double number_or_0(int k, int64_t row) const { return s.data[k] ? reader.number(k, row) : 0.0; }
  double element(int k, int64_t row, int64_t column) const {
    return number_at(s.dtypes[k], s.row(k, row) + s.columns.offset(k, column));
  }

  // An element that a mask leaves out is as if it were not there, whatever its value.
  bool takes_part(int x, int64_t row, int64_t column) const {
    if (job.mask_kind == 0) return true;
    if (job.mask_kind == 1) return s.row(x + 1, row)[s.columns.offset(x + 1, column)] != 0;
    return element(x + 1, row, column) != kNothing;
  }

  // Not finite: there is none.
  double pivot_of(int x, int64_t row) const {
    const double sign = job.scale < 0 ? -1.0 : 1.0;
    double most = kNothing;
    for (int64_t column = 0; column < size; ++column)
      if (takes_part(x, row, column)) most = std::fmax(most, sign * x_at(x, row, column));
    return sign * most;
  }

  // Writes z beside a pivot, elements `step` bytes apart. By halves, which overflow nowhere.
  void z_beside(double pivot, int x, int64_t row, int64_t column, int64_t n, char* to,
                int64_t step) const {
    for (int64_t i = 0; i < n; ++i) {
      double value = kNothing;
      if (takes_part(x, row, column + i)) {
        const double above = 0.5 * x_at(x, row, column + i) - 0.5 * pivot;
        const double added = job.mask_kind == 2 ? element(x + 1, row, column + i) : 0.0;
        value = 2.0 * madd(job.scale, above, 0.5 * added);
      }
      store_as(s.compute_dtype, to + i * step, value);
    }
  }
  // Applies pivots to what `z` and its kin made of m rows, if these have any.
  void apply_pivots(int x, int64_t first, int64_t m, int64_t column, int64_t n, char* to,
                    int64_t row_step, int64_t step) const {
    for (int64_t j = 0; has_pivots && j < m; ++j)
      if (std::isfinite(pivots[j]))
        z_beside(pivots[j], x, first + j, column, n, to + j * row_step, step);
  }

  // Gives z of one row's block, to which the reader went.
  const char* z_of_row(int x, int64_t row, int64_t column, int64_t n, char* buffer) {
    const char* found = z(x, n, buffer);
    apply_pivots(x, row, 1, column, n, buffer, row_bytes, s.compute_item);
    return found;
  }

  // Gives z of operand `x`, which the mask follows where there is one; in `buffer`, or where x
  // lies.
  const char* z(int x, int64_t n, char* buffer) {
    const char* at = reader.load(x, buffer);
    if (is_plain(job)) return at;
    if (job.cap != 0.0) cap(at, n, buffer), at = buffer;
    const char* m = nullptr;
    if (job.mask_kind == 1) m = reader.load_stored(x + 1, mask);
    if (job.mask_kind == 2) m = reader.load(x + 1, mask);
    kernels.prepare[job.mask_kind](at, m, job.scale, buffer, n);
    return buffer;
  }

  // The rows of operand k from `first` on where they lie, if they need no buffer.
  RowsOut rows_at(int k, int64_t first, char* buffer) const {
    if (!s.is_direct[k] || s.rows.count > 1 || reader.bypasses(k)) return {buffer, row_bytes};
    return stored_rows(k, first);
  }
  RowsOut stored_rows(int k, int64_t first) const {
    return {s.row(k, first), s.rows.count ? s.rows.stride[k][0] : 0};
  }

  // visit(offset in a buffer) of the parts of a band that the reader takes at once, to which it
  // goes.
  template <class Visit>
  void for_parts(int64_t first, int64_t m, Visit visit) {
    const int64_t most = std::max<int64_t>(kPiece / size, 1);
    for (int64_t j = 0, n; j < m; j += n) {
      n = std::min(most, m - j);
      reader.go(first + j, 0, n * size);
      visit(j * row_bytes, n * size);
    }
  }

  // m rows of operand k, copied unless they lie as a band.
  RowsIn load_band(int k, int64_t first, int64_t m, char* buffer) {
    const RowsOut found = rows_at(k, first, buffer);
    if (found.at == buffer)
      for_parts(first, m, [&](int64_t offset, int64_t n) {
        const char* from = reader.load(k, buffer + offset);
        if (from != buffer + offset) memcpy(buffer + offset, from, n * s.compute_item);
      });
    return {found.at, found.stride};
  }

  // Gives z of a band.
  RowsIn z_band(int x, int64_t first, int64_t m, char* buffer) {
    if (is_plain(job)) return load_band(x, first, m, buffer);
    for_parts(first, m, [&](int64_t offset, int64_t n) {
      const char* at = z(x, n, buffer + offset);
      if (at != buffer + offset) memcpy(buffer + offset, at, n * s.compute_item);
    });
    apply_pivots(x, first, m, 0, size, buffer, row_bytes, s.compute_item);
    return {buffer, row_bytes};
  }

  // m rows of operand k OUT = the rows of `buffer`.
  void store_band(int k, int64_t first, int64_t m, const char* buffer, bool accumulate) {
    for_parts(first, m,
              [&](int64_t offset, int64_t) { reader.store(k, buffer + offset, accumulate); });
  }

  // Finds what comes after a block, or after a band of m rows, of up to two operands; nothing if
  // all of it stays in a cache.
  NextRows next(int64_t row, int64_t column, int64_t m, int first, int second = -1) const {
    NextRows found{{{nullptr, nullptr}, s.item}, {0, 0}};
    const bool is_end = column + kSoftmaxBlock >= size;
    if (is_end) row += m, column = 0;
    if (s.size() * s.item <= kNear || row + m > s.rows.size) return found;
    const int operands[] = {first, second};
    for (int i = 0; i < 2; ++i) {
      const int k = operands[i];
      if (k < 0 || !s.has_unit_stride[k] || s.rows.count > 1) continue;
      found.first.at[i] = s.row(k, row) + (is_end ? 0 : column + kSoftmaxBlock) * s.item;
      found.stride[i] = s.rows.count ? s.rows.stride[k][0] : 0;
    }
    return found;
  }

  // Finds that, and beside each block or row of x the one of operand k that will be written where
  // it lies: a line that is not in a cache is read before it is written.
  NextRows next_and_target(int64_t row, int64_t column, int64_t m, int x, int k) const {
    NextRows found = next(row, column, m, x);
    if (k < 0 || !found.first.at[0] || !s.has_unit_stride[k] || reader.bypasses(k)) return found;
    found.first.at[1] = s.row(k, row) + column * s.item;
    found.stride[1] = s.rows.count ? s.rows.stride[k][0] : 0;
    return found;
  }

  // The RowsIn and RowsOut of a tile: [n][width] in a buffer, and operand k where it
  // has_tiles.
  RowsOut tile_in(char* buffer, int64_t width) const { return {buffer, width * s.compute_item}; }
  RowsOut stored_tile(int k, int64_t row, int64_t column) const {
    const int64_t stride = s.columns.count ? s.columns.stride[k][0] : 0;
    return {s.row(k, row) + column * stride, stride};
  }
  // Counts the rows, of m from the first on, that are neighbours in memory.
  int64_t neighbours(int64_t first, int64_t m) const {
    const int last = s.rows.count - 1;
    return last < 1 ? m : std::min(m, s.rows.length[last] - first % s.rows.length[last]);
  }

  // In `buffer` [n][width].
  void z_tile(int x, int64_t row, int64_t width, int64_t column, int64_t n, char* buffer) {
    reader.load_tile(x, row, width, column, n, buffer);
    if (is_plain(job)) return;
    if (job.cap != 0.0) cap(buffer, n * width, buffer);
    for (int64_t i = 0; i < n; ++i) {
      char* at = buffer + i * width * s.compute_item;
      if (job.mask_kind == 1) reader.load_stored_tile(x + 1, row, width, column + i, 1, mask);
      if (job.mask_kind == 2) reader.load_tile(x + 1, row, width, column + i, 1, mask);
      kernels.prepare[job.mask_kind](at, mask, job.scale, at, width);
    }
    apply_pivots(x, row, width, column, n, buffer, s.compute_item, width * s.compute_item);
  }

  // A block of operand k of a tile of m rows, in `buffer`, or of one row, which is a tile of width
  // 1, may stay where it lies, and is where the reader went.
  const char* load_block(int k, int64_t row, int64_t m, int64_t column, int64_t n, char* buffer) {
    if (!by_tiles) return reader.load(k, buffer);
    reader.load_tile(k, row, m, column, n, buffer);
    return buffer;
  }
  // z of such a block of x.
  const char* z_of_block(int x, int64_t row, int64_t m, int64_t column, int64_t n, char* buffer) {
    if (!by_tiles) return z_of_row(x, row, column, n, buffer);
    z_tile(x, row, m, column, n, buffer);
    return buffer;
  }
  // Where such a block of operand k is made; finish_block stores it.
  char* target_of_block(int k, char* buffer) const {
    return by_tiles ? buffer : reader.target(k, buffer, job.accumulate);
  }
  void finish_block(int k, int64_t row, int64_t m, int64_t column, int64_t n, char* block,
                    char* buffer) {
    if (by_tiles)
      reader.store_tile(k, row, m, column, n, block, job.accumulate);
    else
      reader.finish(k, block, buffer, job.accumulate);
  }
};

// The statistics of rows, and what they say of them.
struct RowStatistics : RowBlocks {
  static constexpr int64_t kMostBlocks = kTileBytes / (int64_t(sizeof(float)) * kSoftmaxBlock);

  const bool is_stored;   // tiles are read and written where they lie, else in the compute type
  const bool keeps_tile;  // the exponentials of a tile's only block stay in `tile`
  const SoftmaxTiles& tiles;
  const int64_t width;  // rows whose statistics are finished together
  TileStats stats, block_stats;
  TileRows rows;
  RowsIn z_rows;                  // of a band whose exponentials are not kept
  double block_max[kMostBlocks];  // of the exponentials that are kept of a row of several blocks
  double own_max[kTileWidth];     // of rows with a sink: the maximum of the rest
  LateProducts products = {};     // of the rows before, whose exponentials lie in the other half
  int64_t half = 0;               // of `tile`, in bytes from its beginning, that keeps exponentials
  alignas(64) char tile[kTileBytes];
  alignas(64) char buffer[kSoftmaxBlock * sizeof(double)];

  // lies: tiles can be read and written where they lie. keeps: of rows of one block the
  // exponentials are wanted.
  RowStatistics(const Softmax& a, int64_t most, bool lies, bool keeps)
      : RowBlocks(a),
        is_stored(by_tiles && lies),
        keeps_tile(keeps && size <= kSoftmaxBlock),
        tiles(tiles_of(is_stored)),
        width(std::min(!by_tiles                  ? band_of(s)
                       : is_stored && !keeps_tile ? kTileWidth
                                                  : tile_width(s),
                       most)) {}

  // The place where the exponentials of a row are kept, from a column on.
  char* kept(int64_t column) { return tile + half + column * s.compute_item; }

  // Finds statistics of a band of m rows, or of one row; the first m of `products` are stored
  // beside it. apart: as of SoftmaxKernels::block. keeps: the exponentials are kept. y: an operand
  // whose rows are written next, or -1.
  void find(int x, int64_t first, int64_t m, bool apart, bool keeps, int y) {
    find_beside_pivots(x, first, m, [&](const LateProducts& late) {
      find_once(x, first, m, apart, keeps, y, late);
    });
  }

  // once(products): finds the statistics, again where z leaves the range.
  template <class Once>
  void find_beside_pivots(int x, int64_t first, int64_t m, Once once) {
    has_pivots = false;
    once(products);
    if (!set_pivots(x, first, m)) return;
    once({});
    raise_lse(m);
  }

  void find_once(int x, int64_t first, int64_t m, bool apart, bool keeps, int y,
                 const LateProducts& late) {
    if (size <= kSoftmaxBlock) {
      z_rows = z_band(x, first, m, kept(0));
      kernels.block[apart](z_rows, m, size, next_and_target(first, 0, m, x, y), late, kept(0),
                           &stats);
    } else {
      for_blocks_of(first, [&](int64_t column, int64_t n) {
        const char* at = z_of_row(x, first, column, n, buffer);
        TileStats& found = column ? block_stats : stats;
        kernels.block[apart]({at, 0}, 1, n, next_and_target(first, column, 1, x, y),
                             late.block(column, n, s.compute_item), keeps ? kept(column) : buffer,
                             &found);
        if (keeps) block_max[column / kSoftmaxBlock] = found.max[0];
        if (column) kernels.merge(&stats, block_stats, 1);
      });
    }
    finish(first, m, apart);
  }

  void finish(int64_t first, int64_t m, bool apart) {
    if (job.has_sink) add_sinks(first, m);
    kernels.finish[apart](stats, m, job.mask_kind != 0, &rows);
  }

  // A sink is one more block of its row.
  void add_sinks(int64_t first, int64_t m) {
    std::copy(stats.max, stats.max + m, own_max);
    for (int64_t j = 0; j < m; ++j)
      block_stats.max[j] = sink(first + j, j), block_stats.rest[j] = 0.0, block_stats.ones[j] = 1.0;
    kernels.merge(&stats, block_stats, m);
  }
  // The sink of row j of those at hand, as z is: beside the pivot, if there is one, and in range.
  double sink(int64_t row, int64_t j) const {
    double value = reader.number(Softmax::kSink, row);
    if (s.compute_dtype == kF32) value = double(float(value));
    if (!has_pivots || !std::isfinite(pivots[j]) || !std::isfinite(value)) return value;
    const double most = s.compute_dtype == kF32 ? double(std::numeric_limits<float>::max())
                                                : std::numeric_limits<double>::max();
    value = std::clamp(value - job.scale * pivots[j], -most, most);
    return s.compute_dtype == kF32 ? double(float(value)) : value;
  }

  // Whether z of one of m rows, whose statistics are known, left the range; each of them gets its
  // pivot. Below the range, an element matters where a kind kSeesFar, far below 0.
  bool set_pivots(int x, int64_t first, int64_t m) {
    constexpr double kFar[] = {-0x1p96, -0x1p992};
    if (job.mask_kind != 2 && std::abs(job.scale) <= 1.0) return false;
    const bool sees_far = with_softmax_kind(job.kind, [](auto kind) { return kind.kSeesFar; });
    const double far =
        sees_far ? kFar[s.compute_dtype == kF64] : std::numeric_limits<double>::lowest();
    for (int64_t j = 0; j < m; ++j) {
      pivots[j] = kUndefined;
      if (stats.max[j] >= far && stats.max[j] < -kNothing) continue;
      pivots[j] = pivot_of(x, first + j);
      has_pivots |= std::isfinite(pivots[j]);
    }
    return has_pivots;
  }

  // From logsumexp beside the pivots to logsumexp of z.
  void raise_lse(int64_t m) {
    for (int64_t j = 0; j < m; ++j)
      if (std::isfinite(pivots[j]))
        rows.lse[j] = 2.0 * madd(job.scale, 0.5 * pivots[j], 0.5 * rows.lse[j]);
  }

  // The rounding of a row's lse leaves this; nothing is known of one beside a pivot.
  double rest_of_lse(int64_t j) const {
    if (has_pivots && std::isfinite(pivots[j])) return 0.0;
    return s.compute_dtype == kF32 ? fastact::rest_of_lse<float>(rows.max[j], rows.log[j])
                                   : fastact::rest_of_lse<double>(rows.max[j], rows.log[j]);
  }

  // y OUT, exponentials of such a block beside the rows' maxima; y may be z.
  void exponentials(const char* z, int64_t n, int64_t m, const double* maxima,
                    const double* factors, char* y) const {
    if (by_tiles)
      tiles.exponentials({z, m * s.compute_item}, n, m, maxima, factors, tile_in(y, m));
    else
      kernels.exponentials(z, n, maxima[0], factors[0], y);
  }

  // Gives z of a block of a tile of m rows, where it lies or in `tile`.
  RowsIn z_of_tile(int x, int64_t first, int64_t m, int64_t column, int64_t n) {
    if (is_stored) return as_input(stored_tile(x, first, column));
    z_tile(x, first, m, column, n, tile);
    return as_input(tile_in(tile, m));
  }

  void find_in_tile(int x, int64_t first, int64_t m, bool apart) {
    find_beside_pivots(x, first, m, [&](const LateProducts&) {
      for_blocks([&](int64_t column, int64_t n) {
        const RowsIn z = z_of_tile(x, first, m, column, n);
        tiles.block[apart](z, n, m, keeps_tile ? tile_in(tile, m) : RowsOut{tile, 0},
                           column ? &block_stats : &stats);
        if (column) kernels.merge(&stats, block_stats, m);
      });
      finish(first, m, apart);
    });
  }
};

}  // namespace fastact
