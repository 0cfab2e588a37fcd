// How a thread of a softmax reads and writes, whatever the layout: vectors along a row or across
// neighbouring rows, and numbers of rows.
#pragma once

#include "common/softmax/softmax.h"
#include "cuda/core/parameter_io.cuh"
#include "cuda/softmax/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The row and the element within it of a vector's lane.
template <class Rows>
FASTACT_DEVICE int64_t row_at(const RowPart& part, int j) {
  return part.row + row_in_vec<Rows>(j);
}
template <class T, class Rows>
FASTACT_DEVICE int64_t element_at(const RowPart& part, int i, int j) {
  return Rows::kColumns ? part.vec(i) : part.vec(i) * Vec<T>::kSize + j;
}

// The address of an element's number in the mask or in the weights, which have dtypes of their own.
template <class Rows>
FASTACT_DEVICE const char* element_address(const Rows& rows, int role, int64_t row,
                                           int64_t element) {
  if constexpr (!Rows::kDense) {
    return rows.data[role] + offset_of(rows.table, role, row, element);
  } else {
    const char* p = rows.data[role] + element * rows.step[role];
    if (role != kMask) return p;  // the weights are the same in each row
    unravel(row, rows.by_axis.length, 0, rows.repeated_axes,
            [&](int axis, int64_t here) { p += here * rows.by_axis.mask[axis]; });
    return p;
  }
}

// The address of a row's number.
template <class Rows>
FASTACT_DEVICE char* number_address(const Rows& rows, int role, int64_t row) {
  return number_of<char>(rows, role, row);
}

// The mask's numbers for a vector that begins at an element of a row: -infinity where an element is
// left out, and past the end. Backward has x in the mask's place, where it was capped.
template <class T, class Rows>
FASTACT_DEVICE_CALL Wide<T> mask_of(const Rows& rows, int64_t row, int64_t element, int valid) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  Wide<T> mask;
  const char* p = element_address(rows, kMask, row, element);
  if (Rows::kDense && !Rows::kColumns && valid == kSize) {  // whole vectors of masks that touch
    const auto address = reinterpret_cast<uintptr_t>(p);
    if (rows.dtypes.mask == kBool && rows.step[kMask] == 1 && address % kSize == 0) {
      using Flags = std::conditional_t<kSize == 8, uint64_t,
                                       std::conditional_t<kSize == 4, uint32_t, uint16_t>>;
      const Flags flags = load(reinterpret_cast<const Flags*>(p));
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        mask.lane[j] = (flags >> (8 * j) & 0xff) ? C(0) : C(-__builtin_inf());
      return mask;
    }
    if (rows.dtypes.mask == kDTypeOf<T> && rows.step[kMask] == int64_t(sizeof(T)) &&
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
    if (rows.dtypes.mask == kBool)
      mask.lane[j] = load(reinterpret_cast<const uint8_t*>(p)) ? C(0) : C(-__builtin_inf());
    else
      mask.lane[j] = load_number<T>(p, rows.dtypes.mask);
  }
  return mask;
}

// The logit of a row's sink, scaled down as z is.
template <class T, class Rows>
FASTACT_DEVICE_CALL Compute<T> sink_of(const Rows& rows, int64_t row) {
  const char* p = rows.data[kSink];
  unravel(row, rows.by_axis.length, 0, rows.repeated_axes,
          [&](int axis, int64_t here) { p += here * rows.by_axis.sink[axis]; });
  return Compute<T>(rows.down) * load_number<T>(p, rows.dtypes.sink);
}

// The cap of x, of the compute type.
template <class C>
FASTACT_DEVICE const SoftCap<C>& cap_of(const SoftmaxRows& rows) {
  if constexpr (sizeof(C) == 8)
    return rows.cap_of_double;
  else
    return rows.cap;
}

// A vector of x, capped. A call, as what masks take: kernels without a cap keep their registers.
template <class T>
FASTACT_DEVICE_CALL Wide<T> capped(const SoftCap<Compute<T>>& cap, Wide<T> x) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) x.lane[j] = cap.forward(x.lane[j]);
  return x;
}
// dx, times the slope of the cap at x. What takes no part has a dx of 0, whatever its x.
template <class T>
FASTACT_DEVICE_CALL Wide<T> times_slope(const SoftCap<Compute<T>>& cap, Wide<T> dx, Wide<T> x) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (dx.lane[j] != 0) dx.lane[j] *= cap.derivative(x.lane[j]);
  return dx;
}

// z = scale x + mask of a vector x, scaled down as the plan says; -infinity past the end.
template <class T, class Rows>
FASTACT_DEVICE Wide<T> scores_of(const Rows& rows, const RowPart& part, int i, Wide<T> z) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  const C scale = C(rows.scale_down);
  const int valid = lanes_there<T>(rows, part, i);
  if (!Rows::kQuick && rows.data[kMask]) {
    const Wide<T> mask = mask_of<T>(rows, part.row, element_at<T, Rows>(part, i, 0), valid);
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      z.lane[j] = masked_score(scale, z.lane[j], mask.lane[j], C(rows.down));
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) z.lane[j] = j < valid ? scale * z.lane[j] : C(-__builtin_inf());
  }
  return z;
}

// z of all vectors of a thread; -infinity where there is no vector.
template <class T, int vecs, class Rows>
FASTACT_DEVICE void take_scores(const Rows& rows, const RowPart& part, Wide<T> (&z)[vecs]) {
  using C = Compute<T>;
  Words x[vecs];
  take_vecs<T>(rows, kX, part, narrow<T>(C(-__builtin_inf())), x);
#pragma unroll
  for (int i = 0; i < vecs; ++i) z[i] = widen_words<T>(x[i]);
  const int last = part.count - 1;
  const bool is_whole =
      Rows::kQuick || last < 0 || lanes_there<T>(rows, part, last) == Vec<T>::kSize;
  const bool has_cap = !Rows::kQuick && rows.has_cap;
  if (rows.scale_down == 1 && is_whole && !rows.data[kMask] && !has_cap) return;
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    if (i >= part.count) continue;
    if (has_cap) z[i] = capped<T>(cap_of<C>(rows), z[i]);
    z[i] = scores_of<T>(rows, part, i, z[i]);
  }
}

// In a row that is NaN, elements that the mask leaves out are not NaN: they get `nothing`.
template <class T, class Rows>
FASTACT_DEVICE void leave_out(const Rows& rows, const RowPart& part, int i, Compute<T> nothing,
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

// Sums of the elements of rows in the compute type, vector by vector, as a tree of `vecs` leaves.
template <class T, int vecs, int n>
struct TreeSum {
  Compute<T> partial[4][n];

  // Call it for each i from 0 on, in an unrolled loop.
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
  FASTACT_DEVICE Compute<T> rounded(int s) const {
    constexpr int kLevel = vecs == 1 ? 0 : vecs == 2 ? 1 : vecs == 4 ? 2 : 3;
    return partial[kLevel][s];
  }
  FASTACT_DEVICE double total(int s) const { return double(rounded(s)); }
};

}  // namespace
FASTACT_END_NAMESPACE
