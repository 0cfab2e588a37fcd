// Reads and writes strided operands as chunks: of the compute type (simd/convert_kernels.h) or, for
// the tensor iterator, as they are stored.
//
// The axes of all operands are split in two, rows and columns. An element is a row and a column,
// and elements are counted row after row. Two plans say which axes are which: `plan_operands`, for
// fused element-wise kernels, makes the innermost axes columns; `plan_rows`, for statistics of
// rows, those that the statistic is over. Operands may differ in dtype; one that has one element a
// row has strides of 0 along it.
//
// A kernel asks for a span of elements, at most one chunk. Where the span is contiguous and needs
// no conversion, the kernel gets the array's own memory; otherwise the span passes through a
// buffer. Where neighbouring rows lie side by side in memory, or are short, it asks for a tile
// instead, [element of the row][row], so that its vectors run over the rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/core/axes.h"
#include "cpu/core/tuning.h"
#include "cpu/simd/convert_kernels.h"

namespace fastact {

constexpr int kReaderOperands = 14;  // at most: of the norms backward

// One number a channel.
struct ChannelArray {
  char* data;  // null: not there
  int64_t stride;
  int dtype;
};

// Axes of all operands, outermost first; strides in bytes.
struct OperandAxes {
  int count = 0;
  int64_t size = 1;
  int64_t length[kMaxAxes], stride[kReaderOperands][kMaxAxes];

  uint64_t reciprocal[kMaxAxes];  // ceil(2^64 / length)

  void append(const Axis<kReaderOperands>& axis, int operands = kReaderOperands);
  // index / length[axis]. A division takes longer than all else that an offset does: below 2^32 it
  // is a product, exactly (Lemire, Kaser and Kurz, "Faster remainder by direct computation", 2019,
  // https://arxiv.org/abs/1902.01961).
  int64_t divide(int64_t index, int axis) const {
    __extension__ typedef unsigned __int128 Wide;
    return (index | length[axis]) >> 32 ? index / length[axis]
                                        : int64_t(Wide(reciprocal[axis]) * uint64_t(index) >> 64);
  }
  int64_t offset(int k, int64_t index) const { return offset(k, index, count); }
  // The offset of an index along the outer `axes` axes alone.
  int64_t offset(int k, int64_t index, int axes) const {
    return axes == 1 ? index * stride[k][0] : axes > 1 ? offset_of_many(k, index, axes) : 0;
  }

 private:
  int64_t offset_of_many(int k, int64_t index, int axes) const;
};

// Visits the indices first .. first + n of operand k as pieces along the last axis: address,
// stride, how many.
template <class Visit>
void for_pieces(const OperandAxes& axes, int k, char* base, int64_t first, int64_t n, Visit visit) {
  const int last = axes.count - 1;
  if (last < 0) return visit(base, 0, n);
  const int64_t length = axes.length[last], stride = axes.stride[k][last];
  if (last == 0) return visit(base + first * stride, stride, n);
  int64_t outer = axes.divide(first, last), within = first - outer * length;
  for (int64_t m; n > 0; n -= m, ++outer, within = 0) {
    m = std::min(n, length - within);
    visit(base + axes.offset(k, outer, last) + within * stride, stride, m);
  }
}

// Bytes from a row to the next one, and from a column to the next one.
struct Steps {
  int64_t row, column;
};

// The arrays of a call: where they begin, and how their elements become numbers.
struct OperandArrays {
  const ConvertKernels* kernels;
  int count;
  int dtype, compute_dtype;        // of the first operand
  int64_t item, compute_item;      // bytes of an element of it, and of one in the compute type
  char* data[kReaderOperands];     // null: not there
  int dtypes[kReaderOperands];     // of each,
  int64_t items[kReaderOperands];  // and bytes of its elements
};

// These arrays along their axes: which are rows and columns, and which of them are contiguous.
struct StridedOperands : OperandArrays {
  OperandAxes rows, columns;
  bool is_channel_outer;     // the channel axis is the last of `rows`; else it is `columns`
  bool is_channel_reversed;  // the channels are read from their end: the leader runs backwards
  bool has_unit_stride[kReaderOperands];  // columns are contiguous, and all is aligned
  bool is_flat[kReaderOperands];          // as are rows and columns together
  bool is_direct[kReaderOperands];        // has_unit_stride, and the dtype is the compute type
  int64_t size() const { return rows.size * columns.size; }
  char* row(int k, int64_t index) const { return data[k] + rows.offset(k, index); }
};

// visit(address, stride, place in [n][width], how many) for the pieces of a tile of operand k: n
// elements of each of `width` rows. Pieces lie along the rows or, of one row, along its columns.
template <class Visit>
void for_tile(const StridedOperands& s, int k, int64_t first, int64_t width, int64_t from_column,
              int64_t n, Visit visit) {
  int64_t done = 0;
  if (width == 1)
    return for_pieces(s.columns, k, s.row(k, first), from_column, n,
                      [&](char* base, int64_t stride, int64_t m) {
                        visit(base, stride, done, m);
                        done += m;
                      });
  for_pieces(s.rows, k, s.data[k], first, width, [&](char* base, int64_t stride, int64_t m) {
    for (int64_t i = 0; i < n; ++i)
      visit(base + s.columns.offset(k, from_column + i), stride, i * width + done, m);
    done += m;
  });
}

// arrays, dtypes (count of each): of one shape, inputs and outputs; those with null data are
// absent. leader: the operand whose strides sort the axes. channel: the axis that is not merged
// with others; -1: all axes are columns. in_order: elements are read in the order of
// plan_reduction, but for the channels; else axes along which the leader runs backwards are
// reversed, so that more of it is contiguous. last_alone: without a channel, the innermost axis
// alone is columns: operands are then contiguous row by row, where they are not as a whole.
void plan_operands(StridedOperands* operands, const ConvertKernels* kernels, int count,
                   const Operand* arrays, const int* dtypes, int leader, int channel, bool in_order,
                   bool last_alone = false);

// arrays, dtypes (count of each): the first has the shape. reduced: a flag an axis, of those that
// are columns, in the order of the caller's axes, so that the order of a row's elements depends on
// no stride; null: all of them. in_order: so are rows; else they are sorted by the first operand's
// strides, so that it is read as it lies. as_sums: all axes are in the order of plan_reduction.
void plan_rows(StridedOperands* operands, const ConvertKernels* kernels, int count,
               const Operand* arrays, const int* dtypes, const bool* reduced, bool in_order,
               bool as_sums = false);

// The parts of a plan: no axes yet; and, once rows and columns have theirs, what is contiguous.
void begin_operands(StridedOperands* operands, const ConvertKernels* kernels, int count,
                    const Operand* arrays, const int* dtypes);
void find_contiguous(StridedOperands* operands);

// to OUT (n <= kPiece), of the compute type = n numbers of a dtype, `stride` bytes apart; and back,
// or added to what is there.
void read_strided(const ConvertKernels& kernels, int dtype, int compute_dtype, const char* from,
                  int64_t stride, int64_t n, char* to);
void write_strided(const ConvertKernels& kernels, int dtype, const char* from, char* to,
                   int64_t stride, int64_t n, bool accumulate);

// Whether operand k, which is written, is written where it lies, is no other operand's memory, and
// too big to stay in a cache, on a processor on which it then pays to store it past the caches.
bool bypasses_caches(const StridedOperands& s, int k);
bool exceeds_caches(int64_t bytes);  // of an operand that lies there
// Sets from how many bytes on that is, and returns from how many it was: for tests.
int64_t bypass_caches_from(int64_t bytes);

// Whether kernels of little arithmetic, bias_act, softmax's gradient, sums of contiguous terms and
// their gradients, and activations prefetch what comes next. It pays on Intel's processors and
// slows AMD's (docs/design: activations.md, bias.md, softmax.md, reductions.md, runtime.md);
// softmax and the norms, which compute more beside it, gain on both.
bool prefetches_next_chunk();

// All cache lines of so many bytes.
inline void prefetch_bytes(const char* first, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += kCacheLine) __builtin_prefetch(first + byte);
}

// One number at any address, of a dtype that is computed; rounded once.
void store_as(int dtype, char* at, double value);
double number_at(int dtype, const char* at);
// Reads a number of int32 or int64 as an integer.
inline int64_t integer_at(int dtype, const char* at) {
  int64_t wide;
  int32_t narrow;
  if (dtype == kI64) return memcpy(&wide, at, sizeof wide), wide;
  return memcpy(&narrow, at, sizeof narrow), int64_t(narrow);
}

// A span of elements of all operands, and a thread's means to read and write it.
class ChunkReader {
 public:
  explicit ChunkReader(const StridedOperands& operands) : s(operands) {}

  // Moves to the n elements from (row, column) on.
  void go(int64_t to_row, int64_t to_column, int64_t n) {
    row = to_row, column = to_column, count = n, width = 1;
  }
  // Moves to n elements of each of some rows. The span is then [n][rows].
  void go_to_tile(int64_t to_row, int64_t rows, int64_t to_column, int64_t n) {
    row = to_row, column = to_column, count = n * rows, width = rows;
  }

  // The span of operand k in the compute type, in `buffer` (kPiece) unless it need not be copied.
  const char* load(int k, char* buffer) {
    const char* at = direct(k);
    return at ? at : load_converted(k, buffer);
  }

  // Operand k, which is written, goes past the caches where it is too big to stay in them: through
  // `target` and `store`, or `scatter`. A partition that is done with them calls `fence`.
  void bypass_caches(int k) { streamed |= unsigned(bypasses_caches(s, k)) << k; }
  bool bypasses(int k) const { return streamed >> k & 1; }
  void fence() const {
    if (streamed) std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  // The span of operand k where it lies in one piece, in its own dtype; else null. Of any length.
  char* stored(int k) const { return is_one_piece(k) ? piece(k) : nullptr; }

  // The span of operand k in its own dtype, in `buffer` (kPiece) unless it lies in one piece.
  const char* load_stored(int k, char* buffer);
  // Operand k OUT = from IN, of its own dtype, where it does not lie in one piece or bypasses the
  // caches.
  void scatter(int k, const char* from);

  // The place where the span of operand k can be written in the compute type; null: by `store`.
  char* direct(int k) const { return s.is_direct[k] && is_one_piece(k) ? piece(k) : nullptr; }
  // Operand k OUT, or IN/OUT += with accumulate, = from IN; past the caches where it bypasses them.
  void store(int k, const char* from, bool accumulate);

  // The place where the span of operand k is made: its own, or `buffer`, from which `finish` stores
  // it. One that is not there is only made.
  char* target(int k, char* buffer, bool accumulate) const {
    char* const at = accumulate || bypasses(k) ? nullptr : direct(k);
    return at ? at : buffer;
  }
  void finish(int k, const char* at, const char* buffer, bool accumulate) {
    if (at == buffer && s.data[k]) store(k, at, accumulate);
  }
  // These do what target and finish do, in operand k's own dtype.
  char* stored_target(int k, char* buffer) const {
    char* const at = stored(k);
    return at ? at : buffer;
  }
  void finish_stored(int k, const char* at, const char* buffer) {
    if (at == buffer) scatter(k, at);
  }

  // move(address, steps, elements before, rows, columns) for the pieces of operand k's span, which
  // is no tile, along its two innermost axes.
  template <class Move>
  void for_tiles(int k, Move move) const {
    const int inner = s.columns.count - 1, along = inner > 0 ? inner - 1 : s.rows.count - 1;
    const OperandAxes& outer = inner > 0 ? s.columns : s.rows;
    const int64_t length = inner < 0 ? 1 : s.columns.length[inner];
    const int64_t lines = inner > 0 ? s.columns.size / length : 1;  // of a row
    const int64_t side_by_side = along < 0 ? 1 : outer.length[along];
    const Steps steps{along < 0 ? 0 : outer.stride[k][along],
                      inner < 0 ? s.items[k] : s.columns.stride[k][inner]};
    const int64_t before = inner > 0 ? s.columns.divide(column, inner) : 0;
    int64_t line = row * lines + before, at = column - before * length;
    for (int64_t done = 0, m, n; done < count; done += m * n, line += m, at = 0) {
      n = std::min(count - done, length - at);
      m = n < length ? 1 : std::min((count - done) / n, side_by_side - line % side_by_side);
      const int64_t first = inner > 0 ? line / lines : line;
      char* const from = s.row(k, first) + s.columns.offset(k, line - first * lines, inner);
      move(from + at * steps.column, steps, done, m, n);
    }
  }

  // to OUT = n elements of operand k's dtype.
  void to_compute(int k, const char* from, char* to, int64_t n) const;

  // One number a row, of a dtype that is computed.
  double number(int k, int64_t index) const { return number_at(s.dtypes[k], s.row(k, index)); }
  void store_number(int k, int64_t index, double value) const {
    store_as(s.dtypes[k], s.row(k, index), value);
  }

 private:
  bool is_one_piece(int k) const {
    const bool is_in_row = s.has_unit_stride[k] && column + count <= s.columns.size;
    return width == 1 && (s.is_flat[k] || is_in_row);
  }
  char* piece(int k) const {
    return (s.is_flat[k] ? s.data[k] + row * s.columns.size * s.items[k] : s.row(k, row)) +
           column * s.items[k];
  }
  const char* load_converted(int k, char* buffer);
  template <class Move>
  void for_moves(int k, Move move) const;

  const StridedOperands& s;
  int64_t row = 0, column = 0, count = 0, width = 1;
  unsigned streamed = 0;  // a bit an operand
  alignas(64) char stage[kPiece * sizeof(double)];
};

}  // namespace fastact
