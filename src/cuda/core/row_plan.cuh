// Rows: from the axes of a call's arrays to rows and their elements, on the host.
//
// A row is a set of elements that share a statistic. The axes are sorted into the classes of a
// family, those that count rows before those inside a row, and within a class by the strides of one
// array, which leads. Arrays of a call are numbered by their roles.
#pragma once

#include <algorithm>
#include <utility>

#include "cuda/core/indexing.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kRowAxes = 32;  // that do not merge: more take over 2^32 elements

// Where an element of a row is in arrays of any strides.
template <int roles>
struct RowTable {
  int row_axes, count;  // axes that count rows, and all axes
  int64_t length[kRowAxes];
  int64_t stride[roles][kRowAxes];  // bytes
};

// The part of the kernels' parameters that all families over rows have.
template <int roles>
struct RowArrays {
  static constexpr bool kDense = true;  // a row's elements are neighbours; rows are a pitch apart

  char* data[roles];
  int64_t pitch[roles];  // bytes from row to row
  bool fast[roles];      // rows of data begin at multiples of 16 bytes
  bool repeated[roles];  // one element stands for all
  bool windows[roles];   // nobody writes what neighbours hold

  int64_t count, length;
  int lanes;     // threads of a row
  int teams;     // rows of a block at a time
  int per_lane;  // vectors of a thread
  int resident;  // of those, cached in shared memory
};

// The axes of several arrays of one rank: sorted, and merged where all of the arrays step as one.
// Axes along which the leading array runs backwards are reversed in all.
template <int roles>
struct RowAxes {
  struct Axis {
    int64_t length;
    int64_t stride[roles];  // bytes; 0 where an array has length 1
    int kind;               // its class
  };

  int count = 0;
  char* data[roles];  // null: an array that is not there
  Axis axes[kMaxAxes];

  // kind_of(i): the class of the i-th axis.
  template <class Kind>
  RowAxes(const Operand* const (&operands)[roles], const int64_t (&item)[roles], int lead,
          Kind kind_of) {
    for (int k = 0; k < roles; ++k) data[k] = operands[k]->data;
    const Operand& shape = *operands[lead];
    for (int i = 0; i < shape.ndim; ++i) {
      if (shape.shape[i] == 1) continue;
      Axis axis{shape.shape[i], {}, kind_of(i)};
      for (int k = 0; k < roles; ++k)
        if (data[k] && operands[k]->shape[i] != 1)
          axis.stride[k] = byte_stride(*operands[k], i, item[k]);
      if (axis.stride[lead] < 0) {
        for (int k = 0; k < roles; ++k) {
          if (data[k]) data[k] += (axis.length - 1) * axis.stride[k];
          axis.stride[k] = -axis.stride[k];
        }
      }
      axes[count++] = axis;
    }
    const auto comes_before = [&](const Axis& a, const Axis& b) {
      const int64_t x = a.stride[lead], y = b.stride[lead];
      if (a.kind != b.kind) return a.kind < b.kind;
      return (x == 0) != (y == 0) ? x == 0 : x > y;
    };
    for (int i = 1; i < count; ++i)
      for (int j = i; j > 0 && comes_before(axes[j], axes[j - 1]); --j)
        std::swap(axes[j], axes[j - 1]);
    int merged = 0;
    for (int i = 0; i < count; ++i) {
      bool merge = merged > 0 && axes[merged - 1].kind == axes[i].kind;
      for (int k = 0; k < roles && merge; ++k)
        merge = axes[merged - 1].stride[k] == axes[i].stride[k] * axes[i].length;
      const int64_t outer = merge ? axes[merged - 1].length : 1;
      const int at = merge ? merged - 1 : merged++;
      axes[at] = axes[i];
      axes[at].length *= outer;
    }
    count = merged;
    if (count > kRowAxes)
      throw std::invalid_argument("fastact: the axes of rows are more than the kernels know");
  }

  // The end of a class, and how many elements its axes have.
  int end_of(int kind) const {
    return int(std::count_if(axes, axes + count, [&](const Axis& a) { return a.kind <= kind; }));
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
    return std::all_of(axes, axes + count, [&](const Axis& a) { return a.stride[role] == 0; });
  }
  // Of the first roles.
  template <int of>
  void fill(RowTable<of>* table, int row_axes) const {
    table->row_axes = row_axes, table->count = count;
    for (int i = 0; i < count; ++i) {
      table->length[i] = axes[i].length;
      for (int k = 0; k < of; ++k) table->stride[k][i] = axes[i].stride[k];
    }
  }
};

}  // namespace
FASTACT_END_NAMESPACE
