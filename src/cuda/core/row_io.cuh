// Rows: what a thread of their kernels reads and writes.
//
// The threads of a row, its lanes, are 1 to 32 neighbours in a warp, or the whole block. Lane l has
// the vectors l, l + lanes, ... of the row, wherever they lie in memory, so what it adds up depends
// on the length of the row alone.
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/row_plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kRowThreads = 512;       // of a block, at most
constexpr int kThreadsOfNarrow = 256;  // of a block of one or several short rows

template <class T, class Rows>
FASTACT_HD int64_t vecs_of(const Rows& rows) {
  return (rows.length + Vec<T>::kSize - 1) / Vec<T>::kSize;
}

// Bytes from an array's base to an element of a row.
template <int roles>
FASTACT_DEVICE_CALL int64_t offset_of(const RowTable<roles>& table, int role, int64_t row,
                                      int64_t element) {
  int64_t at = 0;
  const auto step = [&](int axis, int64_t here) { at += here * table.stride[role][axis]; };
  unravel(element, table.length, table.row_axes, table.count, step);
  unravel(row, table.length, 0, table.row_axes, step);
  return at;
}

// Adds the bytes to which an index along the axes [first, end) comes, to the offset of each array.
template <int roles>
FASTACT_DEVICE void offset_all(const RowTable<roles>& table, int64_t index, int first, int end,
                               int64_t (&at)[roles]) {
  unravel(index, table.length, first, end, [&](int axis, int64_t here) {
#pragma unroll
    for (int k = 0; k < roles; ++k) at[k] += here * table.stride[k][axis];
  });
}

// A thread's part of a row, of a chunk of it, or of the neighbouring rows from `row` on: `count`
// vectors, the i-th being first + i lanes. Of columns, vector i has element i of each row.
struct RowPart {
  int64_t row, first;
  int count, lanes, lane;
  int64_t chunk;
  int64_t outer, at;  // columns: the group of neighbours, and the first of them
  int columns;        // how many neighbours
  bool idle;          // takes part in shuffles and barriers, and has no row
  FASTACT_HD int64_t vec(int i) const { return first + int64_t(i) * lanes; }
};

// How many elements of the i-th vector are there, and how many of them belong to one row.
template <class T, class Rows>
FASTACT_DEVICE int valid_of(const Rows& rows, const RowPart& part, int i) {
  constexpr int kSize = Vec<T>::kSize;
  return i + 1 < part.count ? kSize : int(smaller(rows.length - part.vec(i) * kSize, kSize));
}
template <class T, class Rows>
FASTACT_DEVICE int lanes_there(const Rows& rows, const RowPart& part, int i) {
  if constexpr (Rows::kColumns) return part.columns;
  if constexpr (Rows::kWhole) return Vec<T>::kSize;
  return valid_of<T>(rows, part, i);
}

// The address where a row begins in an array of data, and of its number in an array of statistics.
template <class T, class Rows>
FASTACT_DEVICE T* row_of(const Rows& rows, int role, int64_t row) {
  return reinterpret_cast<T*>(rows.data[role] + row * rows.pitch[role]);
}
template <class C, class Rows>
FASTACT_DEVICE C* number_of(const Rows& rows, int role, int64_t row) {
  if constexpr (Rows::kDense)
    return row_of<C>(rows, role, row);
  else
    return reinterpret_cast<C*>(rows.data[role] + offset_of(rows.table, role, row, 0));
}

// The q-th vector of a row: `valid` elements, then zeros. Only the read of a whole aligned vector
// is inlined: kernels read in many places and have no registers to spare.
template <class T, class Rows>
FASTACT_DEVICE_CALL Vec<T> read_slow_path(const Rows& rows, int role, int64_t row, int64_t q,
                                          int valid) {
  constexpr int kSize = Vec<T>::kSize;
  Vec<T> vec{};
  if constexpr (Rows::kDense) {
    const T* base = row_of<T>(rows, role, row);
    const T* p = base + q * kSize;
    if (!rows.repeated[role]) {
      if (valid < kSize || !rows.windows[role]) return load_some(p, valid);
      return load_window(p, base, base + rows.length);
    }
    vec = repeat_element(base);
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      if (j >= valid) vec.lane[j] = T{};
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      const int64_t at = offset_of(rows.table, role, row, q * kSize + j);
      vec.lane[j] = load(reinterpret_cast<const T*>(rows.data[role] + at));
    }
  }
  return vec;
}
template <class T, class Rows>
FASTACT_DEVICE Vec<T> read(const Rows& rows, int role, int64_t row, int64_t q, int valid) {
  if constexpr (Rows::kDense)
    if (rows.fast[role] && valid >= Vec<T>::kSize)
      return load_vec(row_of<T>(rows, role, row) + q * Vec<T>::kSize);
  return read_slow_path<T>(rows, role, row, q, valid);
}

template <class T, class Rows>
FASTACT_DEVICE_CALL void write_slow_path(const Rows& rows, int role, int64_t row, int64_t q,
                                         int valid, const Vec<T> vec) {
  constexpr int kSize = Vec<T>::kSize;
  if constexpr (Rows::kDense) {
    store_some(row_of<T>(rows, role, row) + q * kSize, vec, valid);
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      const int64_t at = offset_of(rows.table, role, row, q * kSize + j);
      store(reinterpret_cast<T*>(rows.data[role] + at), vec.lane[j]);
    }
  }
}
template <class T, class Rows>
FASTACT_DEVICE void write(const Rows& rows, int role, int64_t row, int64_t q, int valid,
                          const Vec<T>& vec) {
  if constexpr (Rows::kDense)
    if (rows.fast[role] && valid >= Vec<T>::kSize)
      return store_vec(row_of<T>(rows, role, row) + q * Vec<T>::kSize, vec);
  write_slow_path<T>(rows, role, row, q, valid, vec);
}

}  // namespace
FASTACT_END_NAMESPACE
