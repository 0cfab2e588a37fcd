// Rows in registers: how they are laid over threads, and what their kernels read, write and fold.
//
// A thread reads all of its vectors of a row before it uses the first, so that their latencies
// overlap, and keeps them in registers. The number of its vectors is a template parameter. Nothing
// but the folds of a row's warps goes through shared memory.
//
// The threads of a row are its lanes. Vector q of a row belongs to lane q % lanes, whatever the
// memory layout. A short row has 1 to 32 lanes, all in one warp, and several rows share a block. A
// longer row has a block of up to kRowThreads for itself. A row that is longer still is cut into
// chunks, one block each. row_shape() decides. The order of every addition follows from the row's
// length and dtype alone, so the bits depend on neither the device nor the number of rows.
//
// Columns are rows whose elements are a step apart while neighbouring rows touch. A vector then has
// one element of each of several neighbouring rows, and kStripVecs vectors lie side by side.
#pragma once

#include <type_traits>

#include "cuda/core/device.h"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kStripVecs = 8;  // vectors of columns side by side: 128 bytes of each element
constexpr int kColumnLanes = kThreadsOfNarrow / kStripVecs;  // threads of a column, at most

// Vectors of a thread, at most. 16 bits have fewer: their vectors are eight numbers each.
template <class T>
constexpr int kMostVecs = sizeof(T) == 2 ? 4 : 8;
// Vectors of a row that a block holds.
template <class T>
constexpr int64_t kHeldRow = kMostVecs<T> * kRowThreads;

// The shape of the blocks for rows of so many vectors: vectors of a thread, lanes of a row, threads
// of a block. A warp is enough for a short row and needs no barrier; many short rows share a block.
// A thread takes four vectors as long as that is enough and some lanes are left, for what is done
// once for a row costs each lane as much as several vectors. Measurements: docs/design/cuda.md,
// "Norms over rows".
template <class T>
RowShape row_shape(int64_t vecs) {
  constexpr int kMost = kMostVecs<T>;
  if (vecs <= 8) return {2, power_of_two_from(ceil_div(vecs, 2), kWarp), 256};
  if (vecs <= 4 * kWarp)
    return {4, power_of_two_from(ceil_div(vecs, 4), kWarp), sizeof(T) == 2 ? 128 : 256};
  if (vecs <= kMost * kWarp) return {kMost, kWarp, 128};
  const int of_thread = vecs <= 1024 ? 4 : kMost;
  const int lanes = int(ceil_div(ceil_div(vecs, of_thread), kWarp)) * kWarp;
  return {of_thread, lanes, lanes};
}

// Threads of a block, at most, and resident blocks on a multiprocessor, at least. With two blocks a
// thread has 64 registers; with two of columns, which are smaller, 128.
template <class Rows>
constexpr int kThreadsOf = Rows::kColumns ? kThreadsOfNarrow : kRowThreads;
template <class T, class Rows>
constexpr int kBlocksOf = (Rows::kQuick && sizeof(T) < 8) || Rows::kColumns ? 2 : 1;

// The number of rows that one vector has elements of.
template <class T, class Rows>
constexpr int kRowsOfVec = Rows::kColumns ? Vec<T>::kSize : 1;
template <class Rows>
FASTACT_DEVICE int row_in_vec(int j) {
  return Rows::kColumns ? j : 0;
}

// How many of the vectors [0, all) a lane has; at most `vecs` (0: any number).
template <int vecs>
FASTACT_DEVICE int count_of(int64_t all, int lane, int lanes) {
  if constexpr (vecs == 0) return lane < all ? int(quotient(all - 1 - lane, lanes)) + 1 : 0;
  int count = 0;
#pragma unroll
  for (int i = 0; i < vecs; ++i)
    if (lane + i * lanes < int(all)) count = i + 1;
  return count;
}

// Finds the neighbouring columns that the v-th vector of all columns has.
template <class T, class Rows>
FASTACT_DEVICE RowPart columns_at(const Rows& rows, int64_t v) {
  constexpr int kSize = Vec<T>::kSize;
  RowPart part{};
  const int64_t wide = quotient(rows.inner + kSize - 1, kSize), outer = quotient(v, wide);
  part.idle = outer * rows.inner >= rows.count;
  part.outer = part.idle ? 0 : outer, part.at = part.idle ? 0 : (v - outer * wide) * kSize;
  part.row = part.outer * rows.inner + part.at;
  part.columns = part.idle ? 0 : int(smaller(kSize, rows.inner - part.at));
  return part;
}

// This thread's part of a row, of a chunk of a row, or of neighbouring columns. A block takes one
// set of rows and ends: a loop over sets would keep addresses in registers. There is no division
// but for chunks and for columns. backwards: the last rows come first, for they were read last.
template <class T, int vecs, bool in_chunks = false, class Rows>
FASTACT_DEVICE RowPart row_part(const Rows& rows, bool backwards = false) {
  const int64_t end = Rows::kColumns ? rows.length : vecs_of<T>(rows);
  int64_t group = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x, begin = 0, all = end;
  int64_t chunk = 0;
  if constexpr (in_chunks) {
    if (rows.chunks.count > 1) {
      const int64_t task = group;
      group = quotient(task, rows.chunks.count), chunk = task - group * rows.chunks.count;
      begin = chunk * rows.chunks.size, all = smaller(rows.chunks.size, end - begin);
    }
  }
  RowPart part{};
  int thread = int(threadIdx.x);
  if constexpr (Rows::kColumns) {
    const int x = thread % kStripVecs, y = thread / kStripVecs;
    part = columns_at<T>(rows, group * rows.teams + (y >> rows.lane_bits) * kStripVecs + x);
    part.lane = y & (rows.lanes - 1);
  } else {
    part.row = group;
    if (rows.teams > 1) {
      part.row = group * rows.teams + (thread >> rows.lane_bits);
      thread &= rows.lanes - 1;
    }
    part.lane = thread;
    part.idle = part.row >= rows.count;
    part.columns = part.idle ? 0 : 1;
  }
  part.lanes = rows.lanes, part.chunk = chunk, part.first = begin + part.lane;
  part.count = part.idle ? 0 : count_of<vecs>(all, part.lane, rows.lanes);
  return part;
}

// The address of the i-th vector; not of strided arrays.
template <class T, class Rows>
FASTACT_DEVICE T* vec_at(const Rows& rows, int role, const RowPart& part, int i) {
  if constexpr (Rows::kColumns)
    return reinterpret_cast<T*>(rows.data[role] + part.outer * rows.pitch[role] +
                                part.first * rows.step[role] + i * (part.lanes * rows.step[role])) +
           part.at;
  else
    return row_of<T>(rows, role, part.row) + part.first * Vec<T>::kSize +
           i * part.lanes * Vec<T>::kSize;
}

// p: the vector's address, `at` elements into its line of neighbours.
template <class T, class Rows>
FASTACT_DEVICE_CALL Vec<T> read_column_slow_path(const Rows& rows, int role, const T* p, int64_t at,
                                                 int columns) {
  if (rows.repeated[role]) {
    return repeat_element(reinterpret_cast<const T*>(rows.data[role]));
  }
  if (columns < Vec<T>::kSize || !rows.windows[role]) return load_some(p, columns);
  return load_window(p, p - at, p - at + rows.inner);
}
template <class T, class Rows>
FASTACT_DEVICE Vec<T> read_vec(const Rows& rows, int role, const RowPart& part, int i) {
  if constexpr (Rows::kColumns) {
    const T* p = vec_at<T>(rows, role, part, i);
    if (rows.fast[role] && part.columns >= Vec<T>::kSize) return load_vec(p);
    return read_column_slow_path<T>(rows, role, p, part.at, part.columns);
  } else if constexpr (Rows::kQuick) {
    return load_vec(vec_at<T>(rows, role, part, i));
  } else {
    return read<T>(rows, role, part.row, part.vec(i), valid_of<T>(rows, part, i));
  }
}
template <class T, class Rows>
FASTACT_DEVICE void write_vec(const Rows& rows, int role, const RowPart& part, int i,
                              const Vec<T>& vec) {
  if constexpr (Rows::kColumns) {
    T* p = vec_at<T>(rows, role, part, i);
    rows.fast[role] && part.columns >= Vec<T>::kSize ? store_vec(p, vec)
                                                     : store_some(p, vec, part.columns);
  } else if constexpr (Rows::kQuick) {
    store_vec(vec_at<T>(rows, role, part, i), vec);
  } else {
    write(rows, role, part.row, part.vec(i), valid_of<T>(rows, part, i), vec);
  }
}

template <int vecs>
FASTACT_DEVICE void forget_row(Words (&x)[vecs]) {
#pragma unroll
  for (int i = 0; i < vecs; ++i) forget(x[i].word);
}

// Reads all vectors of a thread before the first is used; `nothing` where there is no vector.
template <class T, int vecs, class Rows>
FASTACT_DEVICE void take_vecs(const Rows& rows, int role, const RowPart& part, T nothing,
                              Words (&x)[vecs]) {
  constexpr int kSize = Vec<T>::kSize;
  bool is_plain = Rows::kDense && part.count == vecs;
  if constexpr (Rows::kDense && !Rows::kQuick)
    is_plain = is_plain && rows.fast[role] && lanes_there<T>(rows, part, vecs - 1) == kSize;
  if (is_plain) {  // no tests for each vector, and nothing is set only to be overwritten
    const T* p = vec_at<T>(rows, role, part, 0);
    int64_t step = part.lanes * kSize;
    if constexpr (Rows::kColumns) step = part.lanes * rows.step[role] / int64_t(sizeof(T));
#pragma unroll
    for (int i = 0; i < vecs; ++i) x[i] = bit_cast<Words>(load_vec(p + i * step));
  } else {
    Vec<T> none;
#pragma unroll
    for (int j = 0; j < kSize; ++j) none.lane[j] = nothing;
#pragma unroll
    for (int i = 0; i < vecs; ++i)
      x[i] = bit_cast<Words>(i < part.count ? read_vec<T>(rows, role, part, i) : none);
  }
  if (sizeof(T) == 2) forget_row(x);  // that they are numbers of 16 bits
}

// The numbers of the lanes of neighbouring columns are folded into one a column, and all lanes get
// it. Shuffles fold the numbers of a warp; then a thread for each column folds the warps' numbers.
template <class N, int n, class Merge>
FASTACT_DEVICE void fold_columns(N (&value)[n], int lanes, Merge merge) {
  constexpr int kNumbers = n * kStripVecs, kOfWarp = kWarp / kStripVecs;
  FASTACT_SHARED(N, of_warps, kNumbers * kThreadsOfNarrow / kWarp);
#pragma unroll
  for (int k = 0; k < n; ++k)
    for (int step = kStripVecs; step < kWarp && step < kStripVecs * lanes; step *= 2)
      value[k] = merge(value[k], __shfl_xor_sync(kAllLanes, value[k], step));
  if (lanes <= kOfWarp) return;
  const int thread = int(threadIdx.x), x = thread % kStripVecs, threads = kStripVecs * lanes;
  const int mine = thread / kWarp * kNumbers, first = thread / threads * threads / kWarp * kNumbers;
  if (thread % kWarp < kStripVecs) {
#pragma unroll
    for (int k = 0; k < n; ++k) of_warps[mine + k * kStripVecs + x] = value[k];
  }
  __syncthreads();
  for (int column = thread % threads; column < kNumbers; column += threads) {
    N all = of_warps[first + column];
    for (int warp = 1; warp < lanes / kOfWarp; ++warp)
      all = merge(all, N(of_warps[first + warp * kNumbers + column]));
    of_warps[first + column] = all;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) value[k] = of_warps[first + k * kStripVecs + x];
  __syncthreads();
}

// Folds the numbers of a row's lanes, or of each of neighbouring rows, and gives all lanes the
// result.
template <class Rows, class N, int n, class Merge>
FASTACT_DEVICE void fold(const Rows& rows, N (&value)[n], int& fold_index, Merge merge,
                         N neutral = N(0)) {
  if constexpr (Rows::kColumns)
    fold_columns(value, rows.lanes, merge);
  else
    fold_team(value, rows.lanes, fold_index, merge, neutral);
}
template <class Rows, class N, int n>
FASTACT_DEVICE void fold_sums(const Rows& rows, N (&value)[n], int& fold_index) {
  fold(rows, value, fold_index, [](N a, N b) { return a + b; });
}

// Runs visit(vecs) with the number of vectors of a thread as a constant.
template <class T, class Visit>
void with_vecs(int vecs, Visit visit) {
  if (vecs == 2) return visit(std::integral_constant<int, 2>());
  if (vecs == 4) return visit(std::integral_constant<int, 4>());
  visit(std::integral_constant<int, kMostVecs<T>>());
}

}  // namespace
FASTACT_END_NAMESPACE
