// softmax, log_softmax, logsumexp and cross_entropy on the rows engine (core/row_pass.h).
//
// A row is read in blocks of kSoftmaxBlock elements, each with a maximum of its own
// (common/softmax/softmax.h), and the blocks' statistics are merged in their order. Blocks depend
// on nothing but the row's length: neither do bits.
//
//   softmax      exponentials go to a buffer of the thread, of at most kTileBytes, and are scaled
//                from there: one read of memory, one write. Those of longer rows are computed
//                twice, once for the sum and once for y: two reads
//   log_softmax  the statistic, then (z - max) - log1p(s), from the cache where the row fits
//   logsumexp, cross_entropy   one read. No probability is ever stored
//   backward     a sum over the row, then its gradient; of logsumexp and cross_entropy one pass
//
// A row belongs to one thread, and rows are read as bands, one by one where they have several
// blocks, or as tiles. Measurements: docs/design/softmax.md.
#pragma once

#include <cmath>
#include <initializer_list>
#include <limits>

#include "common/softmax/call.h"
#include "common/softmax/softmax.h"
#include "cpu/core/native_function.h"
#include "cpu/core/row_pass.h"
#include "cpu/softmax/kernels.h"

namespace fastact {

constexpr int64_t kFewElements = 32;  // of a row: of shorter rows many are computed at a time

struct Softmax {
  enum Forward { kX, kMask, kY, kLse, kSink, kShare };  // kLse: of logsumexp, beside kShare
  enum Backward { kDy, kOut, kDx, kOfShare, kDSinks, kOfX };
  enum LseBackward { kIn, kInMask, kDLse, kOfLse, kDIn, kOfRest };

  StridedOperands operands;
  const SoftmaxKernels* kernels;
  const SoftmaxLoops *bands, *tiles;  // [kDTypes]
  int kind;
  int mask_kind;  // of SoftmaxKernels::prepare
  double scale;
  bool accumulate;
  bool has_sink;  // forward
  double cap;     // of x; 0: none
  // By it, of the compute type: forward and backward of ElementwiseTable.
  ElementwiseKernel capped, times_slope;
};

// Plans a call that is not empty. roles: of its operands, in their order. in_order: the rows are
// counted as they lie in the call.
constexpr int kSoftmaxOperands = 7;  // at most
void prepare(Softmax* job, const KernelTable* table, const SoftmaxCall& call,
             std::initializer_list<int> roles, bool in_order = false);

inline int64_t size_of_rows(const SoftmaxCall& call) {
  return size_of(call.arrays[softmax_roles::kX]);
}

// The native functions of cross_entropy.
void add_cross_entropy(std::vector<NativeFunction>* functions);

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

// z is x itself.
inline bool is_plain(const Softmax& job) {
  return job.mask_kind == 0 && job.scale == 1.0 && job.cap == 0.0;
}

// A block of m rows from `row` on: n elements of each, from `column` on. A band is several rows of
// one block; a row of several blocks goes by itself, unless it is in a tile.
struct RowsBlock {
  int64_t row, m, column, n;
};

// A thread's blocks of z = scale x + mask. Where there is a cap, x is capped first: x stands for
// what it becomes.
//
// Where that leaves the range of its type, z is scale (x - pivot) + mask, the pivot being the x of
// the row's element with the largest scale x of those that take part: none of it is beyond the
// mask. softmax and log_softmax are the same, and logsumexp is less by scale pivot.
struct RowBlocks : RowPass {
  const Softmax& job;
  const SoftmaxKernels& kernels;
  const int64_t size;  // elements of a row
  const int64_t row_bytes;
  const bool is_single;  // a row is one block
  const bool by_tiles;   // rows side by side are read as a tile, else one after the other
  const bool is_stored;  // all is read and written where it lies, else in the compute type
  const SoftmaxLoops& loops;
  bool has_pivots = false;
  int64_t first_pivot = 0;    // the row of
  double pivots[kTileWidth];  // of the rows of a band or a tile; NaN: it has none
  alignas(64) char mask[kSoftmaxBlock * sizeof(double)];

  RowBlocks(const Softmax& a, bool lies)
      : RowPass(a.operands),
        job(a),
        kernels(*a.kernels),
        size(s.columns.size),
        row_bytes(size * s.compute_item),
        is_single(size <= kSoftmaxBlock),
        by_tiles(goes_by_tiles(s)),
        is_stored(lies),
        loops((by_tiles ? a.tiles : a.bands)[is_stored ? s.dtype : s.compute_dtype]) {
    step = by_tiles ? 32 : 1;
  }

  // Rows of a gradient that go together: what is read twice, by two loops, stays in the first-level
  // cache.
  int64_t few_rows() const {
    constexpr int64_t kReadBytes = 4 << 10;  // of each operand
    static_assert(kReadBytes <= kSoftmaxBlock * int64_t(sizeof(float)), "one row of many blocks");
    return std::clamp<int64_t>(kReadBytes / row_bytes, 1, kBand / 2);
  }

  // Rows of tiles that are read and written in place must be neighbours in memory.
  int64_t together(int64_t first, int64_t m) const {
    const int last = s.rows.count - 1;
    if (!by_tiles || !is_stored || last < 1) return m;
    return std::min(m, s.rows.length[last] - first % s.rows.length[last]);
  }

  template <class Visit>
  void for_blocks(int64_t row, int64_t m, Visit visit) const {
    for (int64_t column = 0; column < size; column += kSoftmaxBlock)
      visit(RowsBlock{row, m, column, std::min(kSoftmaxBlock, size - column)});
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
  double known_pivot(int64_t row) const {
    return has_pivots ? pivots[row - first_pivot] : kUndefined;
  }

  // Element i of row j of a block in the compute type.
  template <class Rows>
  auto at(const Rows& rows, int64_t j, int64_t i) const {
    return rows.at + (by_tiles ? i : j) * rows.stride + (by_tiles ? j : i) * s.compute_item;
  }

  // Writes z of a block's rows that have pivots beside these. By halves, which overflow nowhere.
  void apply_pivots(int x, const RowsBlock& b, BlockRows to) const {
    for (int64_t j = 0; has_pivots && j < b.m; ++j) {
      const int64_t row = b.row + j;
      const double pivot = known_pivot(row);
      for (int64_t i = 0; std::isfinite(pivot) && i < b.n; ++i) {
        double value = kNothing;
        if (takes_part(x, row, b.column + i)) {
          const double above = 0.5 * x_at(x, row, b.column + i) - 0.5 * pivot;
          const double added = job.mask_kind == 2 ? element(x + 1, row, b.column + i) : 0.0;
          value = 2.0 * madd(job.scale, above, 0.5 * added);
        }
        store_as(s.compute_dtype, at(to, j, i), value);
      }
    }
  }

  // A block of m rows that fills a buffer from its beginning on; and of operand k where it lies.
  BlockRows in_buffer(char* buffer, int64_t m) const {
    return {buffer, by_tiles ? m * s.compute_item : row_bytes};
  }
  BlockRows stored(int k, const RowsBlock& b) const {
    const OperandAxes& axes = by_tiles ? s.columns : s.rows;
    return {s.row(k, b.row) + s.columns.offset(k, b.column), axes.count ? axes.stride[k][0] : 0};
  }
  // Finds the rows in place if they need no buffer.
  BlockRows rows_at(int k, const RowsBlock& b, char* buffer) const {
    const bool lies = !by_tiles && s.is_direct[k] && (b.m == 1 || s.rows.count <= 1);
    return lies && !reader.bypasses(k) ? stored(k, b) : in_buffer(buffer, b.m);
  }

  // visit(offset in a buffer, elements) of the parts of a block that the reader takes at once, to
  // which it goes: of a band some rows, of a tile some elements of all rows.
  template <class Visit>
  void for_parts(const RowsBlock& b, Visit visit) {
    const int64_t lines = by_tiles ? b.n : b.m, length = by_tiles ? b.m : b.n;
    const int64_t most = std::max<int64_t>(kPiece / length, 1);
    for (int64_t i = 0, n; i < lines; i += n) {
      n = std::min(most, lines - i);
      by_tiles ? reader.go_to_tile(b.row, b.m, b.column + i, n)
               : reader.go(b.row + i, b.column, n * length);
      visit(i * length * s.compute_item, n * length);
    }
  }

  // Gives operand k of a block, in `buffer` unless it need not be copied: it is not to be written.
  BlockRows load(int k, const RowsBlock& b, char* buffer) {
    if (is_stored) return stored(k, b);
    const BlockRows found = rows_at(k, b, buffer);
    if (found.at == buffer)
      for_parts(b, [&](int64_t offset, int64_t n) {
        const char* from = reader.load(k, buffer + offset);
        if (from != buffer + offset) memcpy(buffer + offset, from, n * s.compute_item);
      });
    return found;
  }

  // Gives z of operand `x`, which the mask follows where there is one, as `load` does.
  BlockRows z(int x, const RowsBlock& b, char* buffer) {
    if (is_plain(job)) return load(x, b, buffer);
    for_parts(b, [&](int64_t offset, int64_t n) {
      char* const to = buffer + offset;
      const char *from = reader.load(x, to), *added = nullptr;
      if (job.cap != 0.0) cap(from, n, to), from = to;
      if (job.mask_kind == 1) added = reader.load_stored(x + 1, mask);
      if (job.mask_kind == 2) added = reader.load(x + 1, mask);
      kernels.prepare[job.mask_kind](from, added, job.scale, to, n);
    });
    apply_pivots(x, b, in_buffer(buffer, b.m));
    return in_buffer(buffer, b.m);
  }

  // The place where a block of operand k is made: its own, or `buffer`, from which `finish` stores
  // it.
  BlockRows target(int k, const RowsBlock& b, char* buffer) const {
    if (is_stored) return stored(k, b);
    return job.accumulate ? in_buffer(buffer, b.m) : rows_at(k, b, buffer);
  }
  void finish(int k, const RowsBlock& b, BlockRows made, const char* buffer) {
    if (made.at != buffer) return;
    for_parts(b,
              [&](int64_t offset, int64_t) { reader.store(k, buffer + offset, job.accumulate); });
  }

  // Finds what comes after a block of m rows, of up to two operands; nothing if all of it stays in
  // a cache.
  NextRows next(const RowsBlock& b, int first, int second = -1) const {
    NextRows found{{{nullptr, nullptr}, s.item}, {0, 0}};
    const bool is_end = b.column + kSoftmaxBlock >= size;
    const int64_t row = is_end ? b.row + b.m : b.row;
    if (s.size() * s.item <= kNear || row + b.m > s.rows.size) return found;
    const int operands[] = {first, second};
    for (int i = 0; i < 2; ++i) {
      const int k = operands[i];
      if (k < 0 || !s.has_unit_stride[k] || s.rows.count > 1) continue;
      found.first.at[i] = s.row(k, row) + (is_end ? 0 : b.column + kSoftmaxBlock) * s.item;
      found.stride[i] = s.rows.count ? s.rows.stride[k][0] : 0;
    }
    return found;
  }

  // Finds that, and beside each block or row of x the one of operand k that will be written where
  // it lies: a line that is not in a cache is read before it is written.
  NextRows next_and_target(const RowsBlock& b, int x, int k) const {
    NextRows found = next(b, x);
    if (k < 0 || !found.first.at[0] || !s.has_unit_stride[k] || reader.bypasses(k)) return found;
    found.first.at[1] = s.row(k, b.row) + b.column * s.item;
    found.stride[1] = s.rows.count ? s.rows.stride[k][0] : 0;
    return found;
  }
};

// The statistics of rows, and what they say of them.
struct RowStatistics : RowBlocks {
  static constexpr int64_t kMostBlocks = kTileBytes / (int64_t(sizeof(float)) * kSoftmaxBlock);

  const bool keeps;  // the exponentials of all rows at hand, in `tile`
  TileStats stats, block_stats;
  TileRows rows;
  BlockRows z_rows;               // the block that was read last
  double block_max[kMostBlocks];  // of the exponentials that are kept of a row of several blocks
  double own_max[kTileWidth];     // of rows with a sink: the maximum of the rest
  alignas(64) char tile[kTileBytes];
  alignas(64) char buffer[kSoftmaxBlock * sizeof(double)];

  // lies: tiles can be read and written where they lie. wants: the exponentials, where they fit.
  RowStatistics(const Softmax& a, int64_t most, bool lies, bool wants)
      : RowBlocks(a, lies && goes_by_tiles(a.operands)),
        keeps(wants && (is_single || (!by_tiles && row_bytes <= kTileBytes))) {
    const int64_t fit = !by_tiles ? band_of(s) : is_stored && !keeps ? kTileWidth : tile_width(s);
    width = std::min(fit, most);
  }

  // The memory in which a block is read and made.
  char* place() { return by_tiles || is_single ? tile : buffer; }
  // The memory that keeps the exponentials of a block, at least until their sum is known.
  BlockRows kept(const RowsBlock& b) {
    if (by_tiles) return {tile, keeps ? b.m * s.compute_item : 0};
    return {keeps ? tile + b.column * s.compute_item : buffer, row_bytes};
  }

  // Finds statistics of m rows. apart: as of SoftmaxLoops::block. y: an operand whose rows are
  // written next, or -1. Where z leaves the range, they are found again.
  void find(int x, int64_t first, int64_t m, bool apart, int y) {
    has_pivots = false, first_pivot = first;
    find_once(x, first, m, apart, y);
    if (!set_pivots(x, first, m)) return;
    find_once(x, first, m, apart, y);
    raise_lse(m);
  }

  void find_once(int x, int64_t first, int64_t m, bool apart, int y) {
    for_blocks(first, m, [&](const RowsBlock& b) {
      z_rows = z(x, b, place());
      TileStats& found = b.column ? block_stats : stats;
      loops.block[apart](z_rows, m, b.n, next_and_target(b, x, y), kept(b), &found);
      if (keeps && !by_tiles) block_max[b.column / kSoftmaxBlock] = found.max[0];
      if (b.column) kernels.merge(&stats, block_stats, m);
    });
    if (job.has_sink) add_sinks(first, m);
    kernels.finish[apart](stats, m, job.mask_kind != 0, &rows);
  }

  // A sink is one more block of its row.
  void add_sinks(int64_t first, int64_t m) {
    std::copy(stats.max, stats.max + m, own_max);
    for (int64_t j = 0; j < m; ++j)
      block_stats.max[j] = sink(first + j), block_stats.rest[j] = 0.0, block_stats.ones[j] = 1.0;
    kernels.merge(&stats, block_stats, m);
  }
  // The sink of a row at hand, as z is: beside the pivot, if there is one, and in range.
  double sink(int64_t row) const {
    double value = reader.number(Softmax::kSink, row);
    if (s.compute_dtype == kF32) value = double(float(value));
    if (!std::isfinite(known_pivot(row)) || !std::isfinite(value)) return value;
    const double most = s.compute_dtype == kF32 ? double(std::numeric_limits<float>::max())
                                                : std::numeric_limits<double>::max();
    value = std::clamp(value - job.scale * known_pivot(row), -most, most);
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
};

}  // namespace fastact
