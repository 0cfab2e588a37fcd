// Reads and writes strided operands as chunks of the compute type, for fused kernels
// (simd/convert_kernels.h).
//
// The axes of all operands are sorted by the strides of one of them and split in two: `columns` are
// the innermost axes and `rows` all others. An element is a row and a column, and elements are
// counted row after row. A kernel asks for a span of elements, at most one chunk. Where the span is
// contiguous and needs no conversion, the kernel gets the array's own memory; otherwise the span
// passes through a buffer.
#pragma once

#include <algorithm>

#include "common/core/reduction_plan.h"
#include "cpu/simd/convert_kernels.h"

namespace fastact {

constexpr int64_t kPiece = 1024;    // elements of a chunk: of double, five buffers fill 40 KiB
constexpr int64_t kShortRow = 64;   // columns: below, rows share a chunk
constexpr int kReaderOperands = 5;  // operands, at most

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

  int64_t offset(int k, int64_t index) const;
};

struct StridedOperands {
  const ConvertKernels* kernels;
  int count;
  int dtype, compute_dtype;
  int64_t item, compute_item;  // bytes of an element, and of one in the compute type
  char* data[kReaderOperands];
  OperandAxes rows, columns;
  bool is_channel_outer;     // the channel axis is the last of `rows`; else it is `columns`
  bool is_channel_reversed;  // the channels are read from their end: the leader runs backwards
  bool has_unit_stride[kReaderOperands];  // columns are contiguous, and all is aligned
  bool is_flat[kReaderOperands];          // as are rows and columns together
  bool is_direct[kReaderOperands];        // has_unit_stride, and the dtype is the compute type
  int64_t size() const { return rows.size * columns.size; }
};

// arrays: of one shape and dtype, inputs and outputs; those with null data are absent.
// leader: the operand whose strides sort the axes.
// channel: the axis that is not merged with others; -1: all axes are columns.
// in_order: elements are read in the order of plan_reduction, but for the channels; else axes along
// which the leader runs backwards are reversed, so that more of it is contiguous.
void plan_operands(StridedOperands* operands, const ConvertKernels* kernels, int dtype, int count,
                   const Operand* arrays, int leader, int channel, bool in_order);

// All columns but the innermost become rows: operands are then contiguous row by row, where they
// are not as a whole.
void keep_last_column(StridedOperands* operands);

// Sets has_unit_stride, is_flat and is_direct of operand k, for plans that set the axes themselves.
void find_contiguous(StridedOperands* operands, int k);

// A span of elements of all operands, and a thread's means to read and write it.
class ChunkReader {
 public:
  explicit ChunkReader(const StridedOperands& operands) : s(operands) {}

  // Moves to the n elements from (row, column) on.
  void go(int64_t to_row, int64_t to_column, int64_t n);

  // The span of operand k in the compute type, in `buffer` (kPiece) unless it need not be copied.
  const char* load(int k, char* buffer);

  // The span of operand k where it lies in one piece, in its own dtype; else null. Of any length.
  char* stored(int k) const { return is_one_piece(k) ? piece(k) : nullptr; }

  // The span of operand k in its own dtype, in `buffer` (kPiece) unless it lies in one piece.
  const char* load_stored(int k, char* buffer);
  // Operand k OUT = from IN, of its own dtype, where it does not lie in one piece.
  void scatter(int k, const char* from);

  // Where the span of operand k can be written in the compute type; null: by `store`.
  char* direct(int k) const;
  // Operand k OUT, or IN/OUT += with accumulate, = from IN.
  void store(int k, const char* from, bool accumulate);

 private:
  bool is_one_piece(int k) const;
  char* piece(int k) const;
  void gather(int k, char* to) const;
  template <class Visit>
  void for_pieces(int k, Visit visit) const;

  const StridedOperands& s;
  int64_t row = 0, column = 0, count = 0;
  alignas(64) char stage[kPiece * sizeof(double)];
};

}  // namespace fastact
