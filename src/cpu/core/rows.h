// The rows engine: arrays of one shape, seen as rows of elements that are computed together.
//
// `columns` are the axes along a row, in the order of the caller's axes, so that the order of its
// elements depends on no stride; `rows` are all others. A thread takes its rows one after the
// other, in chunks, or, where neighbouring rows lie side by side in memory or are short, a tile of
// them at a time: [element of the row][row], so that vectors run over the rows. Operands may differ
// in dtype; one that has one element a row has strides of 0 along it.
//
// A span of a row that is contiguous and needs no conversion is read where it lies, else it passes
// through a buffer.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/core/tensor_iterator.h"
#include "cpu/simd/convert_kernels.h"

namespace fastact {

constexpr int kRowOperands = 6;      // at most
constexpr int64_t kRowChunk = 1024;  // elements that one call converts

struct RowAxes {
  int count = 0;
  int64_t size = 1;
  int64_t length[kMaxAxes], stride[kRowOperands][kMaxAxes];  // outermost first, in bytes

  int64_t offset(int k, int64_t index) const {
    if (count == 1) return index * stride[k][0];
    int64_t bytes = 0;
    for (int axis = count; axis-- > 1; index /= length[axis])
      bytes += index % length[axis] * stride[k][axis];
    return count ? bytes + index * stride[k][0] : 0;
  }
};

// data null: an operand that is not there.
struct RowOperand {
  char* data = nullptr;
  int dtype = 0;
  int64_t item = 0;
  bool is_contiguous = false;  // along a row, and aligned
  bool is_direct = false;      // and of the compute type
};

struct Rows {
  const ConvertKernels* convert;
  int count = 0, compute_dtype = 0;
  int64_t compute_item = 0;
  RowOperand operand[kRowOperands];
  RowAxes rows, columns;
  bool are_neighbours;  // rows lie side by side along the innermost of `rows`

  int64_t size() const { return rows.size * columns.size; }
};

// arrays, dtypes (count of each): the operands, the first of which has the shape. reduced: a flag
// an axis, of those along a row. in_order: rows are numbered in the order of the caller's axes;
// else by the first operand's strides, so that it is read as it lies.
void plan_rows(Rows* rows, const ConvertKernels* convert, int count, const Operand* arrays,
               const int* dtypes, const bool* reduced, bool in_order);

// One number at any address, of a dtype that is computed, rounded once.
void store_as(int dtype, char* at, double value);
double number_at(int dtype, const char* at);

// A thread's means to read and write rows. Buffers are of the compute type; `stage` is its own.
class RowReader {
 public:
  explicit RowReader(const Rows& rows) : s(rows) {}

  char* address(int k, int64_t row) const { return s.operand[k].data + s.rows.offset(k, row); }

  // n elements, at most kRowChunk unless it is direct, of a row: in `buffer` unless they need not
  // be copied.
  const char* load(int k, int64_t row, int64_t column, int64_t n, char* buffer);
  // Without conversion.
  const char* load_raw(int k, int64_t row, int64_t column, int64_t n, char* buffer);
  void store(int k, int64_t row, int64_t column, int64_t n, const char* from, bool accumulate);

  // n elements of each of `width` rows.
  void load_tile(int k, int64_t row, int64_t width, int64_t column, int64_t n, char* buffer);
  void load_raw_tile(int k, int64_t row, int64_t width, int64_t column, int64_t n, char* buffer);
  void store_tile(int k, int64_t row, int64_t width, int64_t column, int64_t n, const char* from,
                  bool accumulate);

  // One number a row, of a dtype that is computed.
  double number(int k, int64_t row) const { return number_at(s.operand[k].dtype, address(k, row)); }
  void store_number(int k, int64_t row, double value) const {
    store_as(s.operand[k].dtype, address(k, row), value);
  }

 private:
  // Pieces along the innermost axis of n neighbours: address, stride, how many.
  template <class Visit>
  static void for_pieces(const RowAxes& axes, int k, char* base, int64_t first, int64_t n,
                         Visit visit);
  void gather(const RowAxes& axes, int k, char* base, int64_t first, int64_t n, char* to) const;
  void scatter(const RowAxes& axes, int k, char* base, int64_t first, int64_t n, const char* from);
  void load_from(const RowAxes& axes, int k, char* base, int64_t first, int64_t n, char* to);
  void store_to(const RowAxes& axes, int k, char* base, int64_t first, int64_t n, const char* from,
                bool accumulate);

  const Rows& s;
  alignas(64) char stage[kRowChunk * sizeof(double)];
};

}  // namespace fastact
