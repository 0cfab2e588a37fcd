// Iterates over several axes as if they were one index, as spans along the last axis; and cuts such
// an index into parts.
#pragma once

#include <algorithm>

#include "common/core/reduction_plan.h"

namespace fastact {

// Visits elements first .. first + n of `axes` as spans along the last axis: their offsets in x and
// y, and how many they are.
template <class Visit>
void for_spans(const Axes& axes, int64_t first, int64_t n, Visit visit) {
  if (axes.count == 0) {
    visit(0, 0, n);
    return;
  }
  const int last = axes.count - 1;
  int64_t index[kMaxAxes], x = 0, y = 0;
  for (int axis = last; axis > 0; --axis) {
    index[axis] = first % axes.length[axis];
    first /= axes.length[axis];
  }
  index[0] = first;
  for (int axis = 0; axis <= last; ++axis) {
    x += index[axis] * axes.x[axis];
    y += index[axis] * axes.y[axis];
  }
  for (;;) {
    const int64_t m = std::min(n, axes.length[last] - index[last]);
    visit(x, y, m);
    n -= m;
    if (n == 0) return;
    x -= index[last] * axes.x[last];
    y -= index[last] * axes.y[last];
    index[last] = 0;
    for (int axis = last - 1;; --axis) {
      x += axes.x[axis], y += axes.y[axis];
      if (++index[axis] < axes.length[axis]) break;
      x -= index[axis] * axes.x[axis];
      y -= index[axis] * axes.y[axis];
      index[axis] = 0;
    }
  }
}

inline int64_t last_stride(const Axes& axes) { return axes.count ? axes.x[axes.count - 1] : 0; }

// Offsets in x of the elements first .. first + n.
inline void offsets_of(const Axes& axes, int64_t first, int64_t n, int64_t* offsets) {
  const int64_t step = last_stride(axes);
  for_spans(axes, first, n, [&](int64_t x, int64_t, int64_t m) {
    for (int64_t i = 0; i < m; ++i) offsets[i] = x + i * step;
    offsets += m;
  });
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The beginning of the index-th of `partitions` equal parts of `size` elements, a multiple of
// `step`: by default whole cache lines of every dtype. The last part ends where all do.
inline int64_t begin_of_part(int64_t size, int64_t index, int64_t partitions, int64_t step = 64) {
  return index == partitions ? size : size / partitions * index / step * step;
}

// visit(row, rows, column, n) for such a part of rows of columns: whole rows, or a part of one.
template <class Visit>
void for_rows(int64_t size, int64_t columns, int64_t index, int64_t partitions, Visit visit) {
  const int64_t end = begin_of_part(size, index + 1, partitions);
  for (int64_t first = begin_of_part(size, index, partitions), rows, n; first < end;) {
    const int64_t row = first / columns, column = first % columns;
    n = std::min(columns - column, end - first);
    rows = n < columns ? 1 : (end - first) / columns;
    visit(row, rows, column, n);
    first += rows * n;
  }
}

}  // namespace fastact
