// Rows: from the axes of a call's arrays to rows and their elements, on the host.
//
// A row is a set of elements that share a statistic. A family sorts the axes into classes: first
// the classes that count rows, then the classes inside a row. Within a class the axes are sorted by
// the strides of one array, the leading one. Arrays of a call are numbered by their roles.
#pragma once

#include <algorithm>

#include "common/core/call.h"
#include "cuda/core/indexing.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kRowAxes = 32;  // that do not merge, at most: 33 would take over 2^32 elements

// Axes and strides, which tell where an element of a row is in arrays of any strides.
template <int roles>
struct RowTable {
  int row_axes, count;  // axes that count rows, and all axes
  int64_t length[kRowAxes];
  int64_t stride[roles][kRowAxes];  // bytes

  int64_t size(int first, int end) const {
    int64_t product = 1;
    for (int i = first; i < end; ++i) product *= length[i];
    return product;
  }
  int64_t rows() const { return size(0, row_axes); }
  int64_t elements() const { return size(row_axes, count); }  // of a row
};

// Fills in a table of the first roles.
template <int of, int roles>
void fill_table(RowTable<of>* table, const Axis<roles>* axes, int row_axes, int count) {
  if (count > kRowAxes)
    throw std::invalid_argument("fastact: the axes of rows are more than the kernels know");
  table->row_axes = row_axes, table->count = count;
  for (int i = 0; i < count; ++i) {
    table->length[i] = axes[i].length;
    for (int k = 0; k < of; ++k) table->stride[k][i] = axes[i].stride[k];
  }
}

// The shape of the blocks for rows of one length: vectors of a thread, threads of a row, threads of
// a block.
struct RowShape {
  int vecs, lanes, threads;
};

// The part of the kernels' parameters that all families over rows have.
template <int roles>
struct RowArrays {
  static constexpr bool kDense = true;   // a row's elements are neighbours; rows are a pitch apart
  static constexpr bool kQuick = false;  // there are few tests at run time, and no calls
  static constexpr bool kWhole = false;  // all are whole, aligned vectors
  static constexpr bool kColumns = false;   // elements are a step apart; neighbouring rows touch
  static constexpr bool kClusters = false;  // long ones are taken by clusters of blocks

  char* data[roles];
  int64_t pitch[roles];  // bytes from row to row
  bool fast[roles];      // rows of data begin at multiples of 16 bytes
  bool repeated[roles];  // one element stands for all
  bool windows[roles];   // vectors may be read by windows: nobody writes the elements beside them

  int64_t count, length;
  int lanes;      // threads of a row
  int teams;      // rows of a block, or neighbouring columns of vectors
  int lane_bits;  // lanes = 2^lane_bits, where a block has several rows, and of columns
  Chunks chunks;

  void lay(const RowShape& shape, const Chunks& in) {
    lanes = shape.lanes, teams = shape.threads / shape.lanes, chunks = in;
    for (lane_bits = 0; 1 << lane_bits < lanes;) ++lane_bits;
  }
};

// The axes of several arrays of one rank: sorted, and merged where all of the arrays step as one.
template <int roles>
struct RowAxes {
  int count = 0;
  char* data[roles];  // null: an array that is not there
  Axis<roles> axes[kMaxAxes];

  // kind_of(i): the class of the i-th axis. reverses: axes along which the leading array runs
  // backwards are reversed in all arrays, so that more of them are dense. Without `reverses` the
  // order of the elements follows from which axes have the longer strides, and from nothing else.
  template <class Kind>
  RowAxes(const Operand (&operands)[roles], const int64_t (&item)[roles], int lead, bool reverses,
          Kind kind_of) {
    for (int k = 0; k < roles; ++k) data[k] = operands[k].data;
    count = find_axes(axes, operands[lead], roles, operands, item, kind_of);
    for (int i = 0; i < count; ++i)
      if (reverses && axes[i].stride[lead] < 0) reverse_axis(&axes[i], roles, data);
    sort_axes(axes, count, [](const auto& a, const auto& b) { return a.kind < b.kind; });
    for (int first = 0, end = 0; first < count; first = end) {
      end = end_of(axes[first].kind);
      order_axes(axes + first, end - first, lead);
    }
    count = merge_axes(axes, count);
  }

  // The end of a class; size_of: how many elements its axes count.
  int end_of(int kind) const {
    return int(std::count_if(axes, axes + count, [&](const auto& a) { return a.kind <= kind; }));
  }
  int64_t size_of(int kind) const {
    int64_t size = 1;
    for (int i = 0; i < count; ++i)
      if (axes[i].kind == kind) size *= axes[i].length;
    return size;
  }
  // Whether the axes [first, end) step as one of `step` bytes.
  bool is_linear(int first, int end, int role, int64_t* step) const {
    *step = end > first ? axes[end - 1].stride[role] : 0;
    int64_t expected = *step;
    for (int i = end; i-- > first; expected *= axes[i].length)
      if (axes[i].stride[role] != expected) return false;
    return true;
  }
  bool repeats(int role) const {
    return std::all_of(axes, axes + count, [&](const auto& a) { return a.stride[role] == 0; });
  }
  template <int of>
  void fill(RowTable<of>* table, int row_axes) const {
    fill_table(table, axes, row_axes, count);
  }
};

// The arrays of a call with the bytes of their elements.
template <int count>
struct CallArrays {
  Operand arrays[count];
  int64_t items[count];

  explicit CallArrays(const ArrayArgument (&of)[count]) {
    for (int k = 0; k < count; ++k) arrays[k] = of[k], items[k] = item_size(of[k].dtype);
  }
};

// Arrays of any strides, element by element.
template <int arrays>
struct StridedArrays : RowTable<arrays> {
  char* data[arrays];  // null: an array that is not there

  StridedArrays() = default;
  // of: `arrays` and `items`, as CallArrays has them. kind_of: 0 of the axes that count rows.
  template <class Arrays, class Kind>
  StridedArrays(const Arrays& of, int lead, Kind kind_of) : RowTable<arrays>{}, data{} {
    const RowAxes<arrays> axes(of.arrays, of.items, lead, false, kind_of);
    axes.fill(this, axes.end_of(0));
    std::copy(axes.data, axes.data + arrays, data);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
