// What a thread of a softmax reads and writes, whatever the layout: vectors along a row, or across
// neighbouring rows, and numbers of rows.
#pragma once

#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_cache.cuh"
#include "cuda/softmax/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Resident blocks on a multiprocessor, at least: what reads a mask, as what is in double and what
// goes element by element, needs more registers.
template <class T, class Rows, bool masked = false>
constexpr int kSoftmaxBlocks = Rows::kDense && sizeof(T) < 8 && !Rows::kColumns && !masked ? 2 : 1;
template <class Rows>
constexpr int kSoftmaxThreads = Rows::kColumns ? kColumnBlock : kRowThreads;

// Rows that a vector has elements of.
template <class T, class Rows>
constexpr int kRowsOfVec = Rows::kColumns ? Vec<T>::kSize : 1;
template <class Rows>
FASTACT_DEVICE int row_in_vec(int j) {
  return Rows::kColumns ? j : 0;
}

// A thread's part of a row, or of the neighbouring rows from `row` on: then its i-th vector is that
// of element vec(i).
struct Part : Partition {
  int64_t outer, at;  // columns: the group of neighbours, and the first of them
  int columns;        // and how many
};

// Calls body(part, idle) for each row, or each vector of neighbouring rows, that a thread has a
// part of.
template <class T, class Rows, class Body>
FASTACT_DEVICE void for_each_part(const Rows& rows, Body body) {
  if constexpr (Rows::kColumns) {
    constexpr int kSize = Vec<T>::kSize;
    const int width = rows.teams, x = int(threadIdx.x) % width, y = int(threadIdx.x) / width;
    const int64_t vecs = (rows.inner + kSize - 1) / kSize;
    const int64_t all = quotient(rows.count, rows.inner) * vecs;
    for (int64_t first = int64_t(blockIdx.x) * width; first < all;
         first += int64_t(gridDim.x) * width) {
      const bool idle = first + x >= all;
      const int64_t v = idle ? 0 : first + x, outer = quotient(v, vecs);
      const int64_t at = (v - outer * vecs) * kSize;
      const Partition partition =
          partition_of(outer * rows.inner + at, 0, rows.length, y, rows.lanes, idle);
      body(Part{partition, outer, at, idle ? 0 : int(smaller(kSize, rows.inner - at))}, idle);
    }
  } else {
    for_each_row<T>(rows, [&](const Partition& partition, bool idle) {
      body(Part{partition, 0, 0, idle ? 0 : 1}, idle);
    });
  }
}

// How many lanes of the i-th vector are there.
template <class T, class Rows>
FASTACT_DEVICE int lanes_there(const Rows& rows, const Part& part, int i) {
  if constexpr (Rows::kColumns)
    return part.columns;
  else
    return valid_of<T>(rows, part, i);
}
template <class T, class Rows>
FASTACT_DEVICE int whole_vecs(const Rows& rows, const Part& part) {
  if constexpr (Rows::kColumns)
    return part.columns == Vec<T>::kSize ? part.count : 0;
  else
    return whole_of<T>(rows, part);
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
                                part.vec(i) * rows.step[role]) +
           part.at;
  else
    return row_of<T>(rows, role, part.row) + part.vec(i) * Vec<T>::kSize;
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
  } else {
    write<T>(rows, role, part.row, part.vec(i), valid, vec);
  }
}

// Calls visit(i, valid, vec) for each vector of a thread, `unroll` in flight where they are fast.
template <class T, int unroll = kLoadsInFlight, class Rows, class Visit>
FASTACT_DEVICE void for_vecs(const Rows& rows, int role, const Part& part, Visit visit) {
  constexpr int kSize = Vec<T>::kSize;
  int i = 0;
  if constexpr (Rows::kDense) {
    if (rows.fast[role] && part.count > 0) {
      const int whole = whole_vecs<T>(rows, part);
      const T* p = vec_at<T>(rows, role, part, 0);
      const int64_t step =
          part.lanes * (Rows::kColumns ? rows.step[role] / int64_t(sizeof(T)) : int64_t(kSize));
#pragma unroll 1
      for (; i + unroll <= whole; i += unroll, p += unroll * step) {
        Vec<T> in[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) in[u] = load_vec(p + u * step);
#pragma unroll
        for (int u = 0; u < unroll; ++u) visit(i + u, kSize, in[u]);
      }
    }
  }
#pragma unroll 1
  for (; i < part.count; ++i) {
    const int valid = lanes_there<T>(rows, part, i);
    visit(i, valid, read_vec<T>(rows, role, part, i, valid));
  }
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
template <class T, bool masked, class Rows>
FASTACT_DEVICE Wide<T> scores_of(const Rows& rows, const Part& part, int i, int valid,
                                 const Vec<T>& x) {
  using C = Compute<T>;
  Wide<T> z = widen_vec(x);
  const C scale = C(rows.scale_down);
  if constexpr (masked) {
    const Wide<T> mask = mask_of<T>(rows, part.row, element_at<T, Rows>(part, i, 0), valid);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const C value = madd(scale, z.lane[j], C(rows.down) * mask.lane[j]);
      z.lane[j] = mask.lane[j] == C(-__builtin_inf()) ? mask.lane[j] : value;
    }
  } else {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      z.lane[j] = j < valid ? scale * z.lane[j] : C(-__builtin_inf());
  }
  return z;
}

// The one array of all folds over columns of n rows side by side: in `fold` itself each Merge would
// have another.
template <int n>
FASTACT_DEVICE auto column_fold_buffer() {
  FASTACT_SHARED(double, numbers, kColumnBlock* n);
  return numbers;
}

// What a mask leaves out of a row that is NaN is not: it is as if it were not there.
template <class T, bool masked, class Rows>
FASTACT_DEVICE void leave_out(const Rows& rows, const Part& part, int i, int valid,
                              Compute<T> nothing, Wide<T>* y) {
  if constexpr (masked) {
    bool is_nan = false;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) is_nan |= y->lane[j] != y->lane[j];
    if (!is_nan) return;
    const Wide<T> mask = mask_of<T>(rows, part.row, element_at<T, Rows>(part, i, 0), valid);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      if (mask.lane[j] == Compute<T>(-__builtin_inf())) y->lane[j] = nothing;
  }
}

// Folds numbers of the lanes of a row, or of each of neighbouring rows, given to all of them.
template <class Rows, int n, class Merge>
FASTACT_DEVICE void fold(const Rows& rows, double (&value)[n], int& fold_index, Merge merge) {
  if constexpr (Rows::kColumns) {
    if (rows.lanes == 1) return;
    const auto numbers = column_fold_buffer<n>();
    const int width = rows.teams, x = int(threadIdx.x) % width, y = int(threadIdx.x) / width;
    const int mine = y * n * width + x;
#pragma unroll
    for (int k = 0; k < n; ++k) numbers[mine + k * width] = value[k];
    __syncthreads();
    for (int half = rows.lanes / 2; half > 0; half /= 2) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const int at = mine + k * width;
        if (y < half)
          numbers[at] = merge(double(numbers[at]), double(numbers[at + half * n * width]));
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < n; ++k) value[k] = numbers[k * width + x];
    __syncthreads();
  } else {
    team_fold(value, rows.lanes, fold_index, merge);
  }
}
template <class Rows, int n>
FASTACT_DEVICE void fold_sums(const Rows& rows, double (&value)[n], int& fold_index) {
  fold(rows, value, fold_index, [](double a, double b) { return a + b; });
}

}  // namespace
FASTACT_END_NAMESPACE
