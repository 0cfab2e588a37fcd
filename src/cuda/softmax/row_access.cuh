// What a thread of a softmax reads and writes, whatever the layout: vectors along a row, or across
// neighbouring rows, and numbers of rows.
#pragma once

#include "cuda/core/parameter_io.cuh"
#include "cuda/softmax/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Threads of a block, at most, and resident blocks on a multiprocessor, at least: two leave a
// thread 64 registers, of columns 128, which shares of classes are too many for.
template <class Rows>
constexpr int kSoftmaxThreads = Rows::kColumns ? kThreadsOfNarrow : kRowThreads;
template <class T, class Rows, bool has_shares = false>
constexpr int kSoftmaxBlocks =
    (Rows::kQuick && sizeof(T) < 8) || (Rows::kColumns && !has_shares) ? 2 : 1;

// Rows that a vector has elements of.
template <class T, class Rows>
constexpr int kRowsOfVec = Rows::kColumns ? Vec<T>::kSize : 1;
template <class Rows>
FASTACT_DEVICE int row_in_vec(int j) {
  return Rows::kColumns ? j : 0;
}

// A thread's part of a row or of a chunk of it, or of the neighbouring rows from `row` on: then its
// i-th vector is that of element vec(i).
struct Part : Partition {
  int64_t chunk;
  int64_t outer, at;  // columns: the group of neighbours, and the first of them
  int columns;        // and how many
};

// The vectors [0, all) that a lane of so many has, which are at most `vecs` (0: any number).
template <int vecs>
FASTACT_DEVICE int count_of(int64_t all, int lane, int lanes) {
  if constexpr (vecs == 0) return lane < all ? int(quotient(all - 1 - lane, lanes)) + 1 : 0;
  int count = 0;
#pragma unroll
  for (int i = 0; i < vecs; ++i) count += lane + i * lanes < int(all);
  return count;
}

// Calls body(part, idle) for each row or chunk, or each vector of neighbouring rows, that a thread
// has a part of. backwards: from the last one on, which was read last.
template <class T, int vecs, bool backwards = false, class Rows, class Body>
FASTACT_DEVICE void for_each_part(const Rows& rows, const RowChunks& chunks, Body body) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t end = Rows::kColumns ? rows.length : vecs_of<T>(rows);
  for (int64_t task = blockIdx.x; task < rows.tasks; task += gridDim.x) {
    int64_t group = backwards ? rows.tasks - 1 - task : task, chunk = 0, begin = 0, all = end;
    if (chunks.count > 1) {
      const int64_t index = group;
      group = quotient(index, chunks.count), chunk = index - group * chunks.count;
      begin = chunk * chunks.size, all = smaller(chunks.size, end - begin);
    }
    int thread = int(threadIdx.x);
    Part part{};
    part.chunk = chunk, part.lanes = rows.lanes;
    bool idle;
    if constexpr (Rows::kColumns) {
      const int x = thread % kStripVecs, y = thread / kStripVecs;
      const int64_t wide = quotient(rows.inner + kSize - 1, kSize);
      const int64_t v = group * rows.teams + (y >> rows.lane_bits) * kStripVecs + x;
      const int64_t outer = quotient(v, wide);
      part.lane = y & (rows.lanes - 1);
      idle = outer * rows.inner >= rows.count;
      part.outer = idle ? 0 : outer, part.at = idle ? 0 : (v - outer * wide) * kSize;
      part.row = part.outer * rows.inner + part.at;
      part.columns = idle ? 0 : int(smaller(kSize, rows.inner - part.at));
    } else {
      part.row = group;
      if (rows.teams > 1) {
        part.row = group * rows.teams + (thread >> rows.lane_bits);
        thread &= rows.lanes - 1;
      }
      part.lane = thread;
      idle = part.row >= rows.count;
      part.columns = idle ? 0 : 1;
    }
    part.first = begin + part.lane;
    part.count = idle ? 0 : count_of<vecs>(all, part.lane, rows.lanes);
    body(part, idle);
  }
}

// How many lanes of the i-th vector are there.
template <class T, class Rows>
FASTACT_DEVICE int lanes_there(const Rows& rows, const Part& part, int i) {
  if constexpr (Rows::kColumns) return part.columns;
  if constexpr (Rows::kQuick) return Vec<T>::kSize;
  return valid_of<T>(rows, part, i);
}
// The row and the element within it of a vector's lane.
template <class Rows>
FASTACT_DEVICE int64_t row_at(const Part& part, int j) {
  return part.row + row_in_vec<Rows>(j);
}
template <class T, class Rows>
FASTACT_DEVICE int64_t element_at(const Part& part, int i, int j) {
  return Rows::kColumns ? part.vec(i) : part.vec(i) * Vec<T>::kSize + j;
}

// Where the i-th vector is; not of strided arrays.
template <class T, class Rows>
FASTACT_DEVICE T* vec_at(const Rows& rows, int role, const Part& part, int i) {
  if constexpr (Rows::kColumns)
    return reinterpret_cast<T*>(rows.data[role] + part.outer * rows.pitch[role] +
                                part.first * rows.step[role] + i * (part.lanes * rows.step[role])) +
           part.at;
  else
    return row_of<T>(rows, role, part.row) + part.first * Vec<T>::kSize +
           i * part.lanes * Vec<T>::kSize;
}

// p: the vector, `at` elements into its line of neighbours.
template <class T>
FASTACT_DEVICE_CALL Vec<T> read_column_slow_path(const SoftmaxColumns& rows, int role, const T* p,
                                                 int64_t at, int columns) {
  if (rows.repeated[role]) {
    return load_or_repeat(reinterpret_cast<const T*>(rows.data[role]), true);
  }
  if (columns < Vec<T>::kSize || !rows.windows[role]) return load_some(p, columns);
  return load_window(p, p - at, p - at + rows.inner);
}
template <class T, class Rows>
FASTACT_DEVICE Vec<T> read_vec(const Rows& rows, int role, const Part& part, int i, int valid) {
  if constexpr (Rows::kColumns) {
    const T* p = vec_at<T>(rows, role, part, i);
    if (rows.fast[role] && valid >= Vec<T>::kSize) return load_vec(p);
    return read_column_slow_path<T>(rows, role, p, part.at, part.columns);
  } else if constexpr (Rows::kQuick) {
    return load_vec(vec_at<T>(rows, role, part, i));
  } else {
    return read<T>(rows, role, part.row, part.vec(i), valid);
  }
}
template <class T, class Rows>
FASTACT_DEVICE void write_vec(const Rows& rows, int role, const Part& part, int i, int valid,
                              const Vec<T>& vec) {
  if constexpr (Rows::kColumns) {
    T* p = vec_at<T>(rows, role, part, i);
    rows.fast[role] && valid >= Vec<T>::kSize ? store_vec(p, vec) : store_some(p, vec, valid);
  } else if constexpr (Rows::kQuick) {
    store_vec(vec_at<T>(rows, role, part, i), vec);
  } else {
    write<T>(rows, role, part.row, part.vec(i), valid, vec);
  }
}

// All vectors of a thread, which are read before the first is used; `nothing` where there is none.
template <class T, int vecs, class Rows>
FASTACT_DEVICE void take(const Rows& rows, int role, const Part& part, T nothing, Held (&x)[vecs]) {
  constexpr int kSize = Vec<T>::kSize;
  bool is_plain = Rows::kDense && part.count == vecs;
  if constexpr (Rows::kDense && !Rows::kQuick)
    is_plain = is_plain && rows.fast[role] && lanes_there<T>(rows, part, vecs - 1) == kSize;
  if (is_plain) {  // nothing is asked of a vector, nor set and then overwritten
    const T* p = vec_at<T>(rows, role, part, 0);
    const int64_t step =
        part.lanes * (Rows::kColumns ? rows.step[role] / int64_t(sizeof(T)) : int64_t(kSize));
#pragma unroll
    for (int i = 0; i < vecs; ++i) x[i] = bit_cast<Held>(load_vec(p + i * step));
  } else {
    Vec<T> none;
#pragma unroll
    for (int j = 0; j < kSize; ++j) none.lane[j] = nothing;
#pragma unroll
    for (int i = 0; i < vecs; ++i)
      x[i] = bit_cast<Held>(
          i < part.count ? read_vec<T>(rows, role, part, i, lanes_there<T>(rows, part, i)) : none);
  }
  if (sizeof(T) == 2) forget_row(x);  // that they are numbers of 16 bits
}

// The address of an element's number in an array of any dtype: of the mask and of the weights.
template <class Rows>
FASTACT_DEVICE const char* element_address(const Rows& rows, int role, int64_t row,
                                           int64_t element) {
  if constexpr (!Rows::kDense) {
    return rows.data[role] + offset_of(rows.table, role, row, element);
  } else {
    const char* p = rows.data[role] + element * rows.step[role];
    if (role != kMask) return p;  // the weights are the same in each row
    unravel(row, rows.mask_length, 0, rows.mask_axes,
            [&](int axis, int64_t here) { p += here * rows.mask_stride[axis]; });
    return p;
  }
}

// The address of a row's number.
template <class Rows>
FASTACT_DEVICE char* number_address(const Rows& rows, int role, int64_t row) {
  return number_of<char>(rows, role, row);
}

// What the mask adds to a vector that begins at an element of a row: -infinity where nothing takes
// part, and past the end.
template <class T, class Rows>
FASTACT_DEVICE_CALL Wide<T> mask_of(const Rows& rows, int64_t row, int64_t element, int valid) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  Wide<T> mask;
  const char* p = element_address(rows, kMask, row, element);
  if (Rows::kDense && !Rows::kColumns && valid == kSize) {  // whole vectors of masks that touch
    const auto address = reinterpret_cast<uintptr_t>(p);
    if (rows.mask_dtype == kBool && rows.step[kMask] == 1 && address % kSize == 0) {
      using Flags = std::conditional_t<kSize == 8, uint64_t,
                                       std::conditional_t<kSize == 4, uint32_t, uint16_t>>;
      const Flags flags = load(reinterpret_cast<const Flags*>(p));
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        mask.lane[j] = (flags >> (8 * j) & 0xff) ? C(0) : C(-__builtin_inf());
      return mask;
    }
    if (rows.mask_dtype == kDTypeOf<T> && rows.step[kMask] == int64_t(sizeof(T)) &&
        address % kVecBytes == 0)
      return widen_vec(load_vec(reinterpret_cast<const T*>(p)));
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    mask.lane[j] = C(-__builtin_inf());
    if (j >= valid) continue;
    if (j > 0 && Rows::kColumns)
      p = element_address(rows, kMask, row + j, element);
    else if (j > 0 && !Rows::kDense)
      p = element_address(rows, kMask, row, element + j);
    else if (j > 0)
      p += rows.step[kMask];
    if (rows.mask_dtype == kBool)
      mask.lane[j] = load(reinterpret_cast<const uint8_t*>(p)) ? C(0) : C(-__builtin_inf());
    else
      mask.lane[j] = load_number<T>(p, rows.mask_dtype);
  }
  return mask;
}

// z = scale x + mask of a vector, down by what the plan says, -infinity past the end.
template <class T, class Rows>
FASTACT_DEVICE Wide<T> scores_of(const Rows& rows, const Part& part, int i, const Vec<T>& x) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  Wide<T> z = widen_vec(x);
  const C scale = C(rows.scale_down);
  const int valid = lanes_there<T>(rows, part, i);
  if (!Rows::kQuick && rows.data[kMask]) {
    const Wide<T> mask = mask_of<T>(rows, part.row, element_at<T, Rows>(part, i, 0), valid);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const C value = madd(scale, z.lane[j], C(rows.down) * mask.lane[j]);
      z.lane[j] = mask.lane[j] == C(-__builtin_inf()) ? mask.lane[j] : value;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) z.lane[j] = j < valid ? scale * z.lane[j] : C(-__builtin_inf());
  }
  return z;
}

// z of all vectors of a thread; -infinity where there is none.
template <class T, int vecs, class Rows>
FASTACT_DEVICE void take_scores(const Rows& rows, const Part& part, Wide<T> (&z)[vecs]) {
  using C = Compute<T>;
  Held x[vecs];
  take<T>(rows, kX, part, narrow<T>(C(-__builtin_inf())), x);
#pragma unroll
  for (int i = 0; i < vecs; ++i) z[i] = widen_held<T>(x[i]);
  const int last = part.count - 1;
  const bool is_whole =
      Rows::kQuick || last < 0 || lanes_there<T>(rows, part, last) == Vec<T>::kSize;
  if (rows.scale_down == 1 && is_whole && !rows.data[kMask]) return;
#pragma unroll
  for (int i = 0; i < vecs; ++i)
    if (i < part.count) z[i] = scores_of<T>(rows, part, i, bit_cast<Vec<T>>(x[i]));
}

// What a mask leaves out of a row that is NaN is not: it is as if it were not there.
template <class T, class Rows>
FASTACT_DEVICE void leave_out(const Rows& rows, const Part& part, int i, Compute<T> nothing,
                              Wide<T>* y) {
  if (Rows::kQuick || !rows.data[kMask]) return;
  bool is_nan = false;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) is_nan |= y->lane[j] != y->lane[j];
  if (!is_nan) return;
  const Wide<T> mask =
      mask_of<T>(rows, part.row, element_at<T, Rows>(part, i, 0), lanes_there<T>(rows, part, i));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (mask.lane[j] == Compute<T>(-__builtin_inf())) y->lane[j] = nothing;
}

// Numbers of the lanes of neighbouring columns folded into one a column, given to all lanes: those
// of a warp by shuffles, those of its warps by threads that have a column's number each.
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

// Numbers of the lanes of a row, or of each of neighbouring rows, given to all of them.
template <class Rows, class N, int n, class Merge>
FASTACT_DEVICE void fold(const Rows& rows, N (&value)[n], int& fold_index, Merge merge,
                         N neutral = N(0)) {
  if constexpr (Rows::kColumns)
    fold_columns(value, rows.lanes, merge);
  else
    fold_lanes(value, rows.lanes, fold_index, merge, neutral);
}
template <class Rows, int n>
FASTACT_DEVICE void fold_sums(const Rows& rows, double (&value)[n], int& fold_index) {
  fold(rows, value, fold_index, [](double a, double b) { return a + b; });
}

// Sums of the elements of rows in the compute type, vector by vector, as a tree of `vecs` leaves.
template <class T, int vecs, int n>
struct TreeSum {
  Compute<T> partial[4][n];

  // To be called for each i from 0 on, in an unrolled loop.
  FASTACT_DEVICE void add(int i, const Wide<T>& value) {
    constexpr int kSize = Vec<T>::kSize;
    Compute<T> sum[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) sum[j] = value.lane[j];
#pragma unroll
    for (int m = kSize / 2; m >= n; m /= 2)
#pragma unroll
      for (int j = 0; j < m; ++j) sum[j] += sum[j + m];
#pragma unroll
    for (int level = 0; level < 4; ++level) {
      const bool is_pair = i >> level & 1;
#pragma unroll
      for (int s = 0; s < n; ++s)
        is_pair ? sum[s] = partial[level][s] + sum[s] : partial[level][s] = sum[s];
      if (!is_pair) break;
    }
  }
  FASTACT_DEVICE double total(int s) const {
    constexpr int kLevel = vecs == 1 ? 0 : vecs == 2 ? 1 : vecs == 4 ? 2 : 3;
    return double(partial[kLevel][s]);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
