// What a thread of a norm's kernels reads and writes: packs of a unit, packs of parameters, sums
// over the threads of a unit.
//
// The threads of a unit, its lanes, are 1 to 32 neighbours in a warp or the whole block. Lane l has
// the unit's packs l, l + lanes, and so on, wherever they lie in memory: what it adds up depends on
// the unit's length alone.
#pragma once

#include "../common/moments.h"
#include "../common/norms.h"
#include "activate.cuh"
#include "norm_plan.cuh"
#include "reduce.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kNormThreads = 512;      // at most, in a block
constexpr int kThreadsOfNarrow = 256;  // of rows that share one, or are short
// Blocks of kNormThreads that share a multiprocessor, at least: kernels for any strides and those
// of float64 need more registers.
template <class T, class Rows>
constexpr int kNormBlocks = Rows::kDense && sizeof(T) < 8 ? 2 : 1;

template <class T>
FASTACT_HD int64_t packs_of(const NormRows& rows) {
  return (rows.row + Pack<T>::kSize - 1) / Pack<T>::kSize;
}

// Bytes from an array's base to an element of a unit.
FASTACT_DEVICE_CALL int64_t place_of(const NormTable& table, int role, int64_t unit,
                                     int64_t element) {
  int64_t at = 0;
  int axis = table.count;
  for (; axis-- > table.units;) {
    const int64_t rest = quotient(element, table.length[axis]);
    at += (element - rest * table.length[axis]) * table.stride[role][axis];
    element = rest;
  }
  for (axis = table.units; axis-- > 0;) {
    const int64_t rest = quotient(unit, table.length[axis]);
    at += (unit - rest * table.length[axis]) * table.stride[role][axis];
    unit = rest;
  }
  return at;
}

// A thread's share of some packs of a unit: `count` of them, the i-th being first + i lanes.
struct Share {
  int64_t unit, first;
  int count, lanes, lane;
  FASTACT_HD int64_t pack(int i) const { return first + int64_t(i) * lanes; }
};

// Of the packs [begin, end); an idle thread has none.
FASTACT_DEVICE Share share_of(int64_t unit, int64_t begin, int64_t end, int lane, int lanes,
                              bool idle) {
  const int64_t first = begin + lane;
  const bool has = first < end && !idle;
  return {unit, first, has ? int(quotient(end - 1 - first, lanes)) + 1 : 0, lanes, lane};
}

// The elements of its i-th pack that are there.
template <class T>
FASTACT_DEVICE int valid_of(const NormRows& rows, const Share& share, int i) {
  constexpr int kSize = Pack<T>::kSize;
  return i + 1 < share.count ? kSize : int(smaller(rows.row - share.pack(i) * kSize, kSize));
}

// Where a unit's row begins in an array of data, and a unit's number in one of statistics.
template <class T>
FASTACT_DEVICE T* row_of(const NormRows& rows, int role, int64_t unit) {
  return reinterpret_cast<T*>(rows.data[role] + unit * rows.pitch[role]);
}
template <class C, class Rows>
FASTACT_DEVICE C* number_of(const Rows& rows, int role, int64_t unit) {
  if constexpr (Rows::kDense)
    return row_of<C>(rows, role, unit);
  else
    return reinterpret_cast<C*>(rows.data[role] + place_of(rows.table, role, unit, 0));
}

// The q-th pack of a unit, of which `valid` elements are there, and zeros after them. What is
// rarer than a whole aligned pack is not inlined: the kernels have many of these, and too few
// registers.
template <class T, class Rows>
FASTACT_DEVICE_CALL Pack<T> read_slowly(const Rows& rows, int role, int64_t unit, int64_t q,
                                        int valid) {
  constexpr int kSize = Pack<T>::kSize;
  Pack<T> pack{};
  if constexpr (Rows::kDense) {
    const T* row = row_of<T>(rows, role, unit);
    const T* p = row + q * kSize;
    if (!rows.repeated[role]) {
      if (valid < kSize || !rows.windows[role]) return load_some(p, valid);
      return load_window(p, row, row + rows.row);
    }
    const T one = load(row);
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      if (j < valid) pack.lane[j] = one;
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      const int64_t at = place_of(rows.table, role, unit, q * kSize + j);
      pack.lane[j] = load(reinterpret_cast<const T*>(rows.data[role] + at));
    }
  }
  return pack;
}
template <class T, class Rows>
FASTACT_DEVICE Pack<T> read(const Rows& rows, int role, int64_t unit, int64_t q, int valid) {
  if constexpr (Rows::kDense)
    if (rows.fast[role] && valid >= Pack<T>::kSize)
      return load_pack(row_of<T>(rows, role, unit) + q * Pack<T>::kSize);
  return read_slowly<T>(rows, role, unit, q, valid);
}

template <class T, class Rows>
FASTACT_DEVICE_CALL void write_slowly(const Rows& rows, int role, int64_t unit, int64_t q,
                                      int valid, const Pack<T> pack) {
  constexpr int kSize = Pack<T>::kSize;
  if constexpr (Rows::kDense) {
    store_some(row_of<T>(rows, role, unit) + q * kSize, pack, valid);
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      const int64_t at = place_of(rows.table, role, unit, q * kSize + j);
      store(reinterpret_cast<T*>(rows.data[role] + at), pack.lane[j]);
    }
  }
}
template <class T, class Rows>
FASTACT_DEVICE void write(const Rows& rows, int role, int64_t unit, int64_t q, int valid,
                          const Pack<T>& pack) {
  if constexpr (Rows::kDense)
    if (rows.fast[role] && valid >= Pack<T>::kSize)
      return store_pack(row_of<T>(rows, role, unit) + q * Pack<T>::kSize, pack);
  write_slowly<T>(rows, role, unit, q, valid, pack);
}

template <class T>
constexpr int kDTypeOf = sizeof(T) == 8 ? kF64 : kF32;
template <>
constexpr int kDTypeOf<f16> = kF16;
template <>
constexpr int kDTypeOf<bf16> = kBF16;

// One number of a parameter, whose dtype is T's or a wider one.
template <class T>
FASTACT_DEVICE Compute<T> load_parameter(const char* p, int dtype) {
  if (dtype == kF64) return Compute<T>(load(reinterpret_cast<const double*>(p)));
  if (dtype == kF32) return Compute<T>(load(reinterpret_cast<const float*>(p)));
  return Compute<T>(widen(load(reinterpret_cast<const T*>(p))));
}

// The parameters that the q-th pack of a unit meets; `none` where there are none. base: of those
// of the unit's group.
template <class T, class Rows>
FASTACT_DEVICE_CALL Wide<T> parameters_slowly(const Rows& rows, int role, const char* base,
                                              int dtype, int64_t unit, int64_t q, int valid) {
  constexpr int kSize = Pack<T>::kSize;
  Wide<T> wide{};
  if constexpr (Rows::kDense) {
    const int64_t first = q * kSize;
    int64_t slot = quotient(first, rows.run);
    int64_t left = rows.run - (first - slot * rows.run);  // elements of the same slot
    const char* p = base + slot * rows.pitch[role];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      wide.lane[j] = load_parameter<T>(p, dtype);
      if (--left > 0) continue;
      left = rows.run;
      p += rows.pitch[role];
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      const int64_t at = place_of(rows.table, role, unit, q * kSize + j);
      wide.lane[j] = load_parameter<T>(rows.data[role] + at, dtype);
    }
  }
  return wide;
}
template <class T, class Rows>
FASTACT_DEVICE Wide<T> parameters_of(const Rows& rows, int role, int dtype, Compute<T> none,
                                     int64_t unit, int64_t q, int valid) {
  constexpr int kSize = Pack<T>::kSize;
  Wide<T> wide;
#pragma unroll
  for (int j = 0; j < kSize; ++j) wide.lane[j] = none;
  if (!rows.data[role]) return wide;
  const char* base = rows.data[role];
  if constexpr (Rows::kDense) {
    if (rows.groups > 1)
      base += (unit - quotient(unit, rows.groups) * rows.groups) * rows.params * rows.pitch[role];
    const int64_t first = q * kSize;
    if (rows.run > 1) {
      const int64_t slot = quotient(first, rows.run);
      if (rows.run - (first - slot * rows.run) >= valid) {  // one for all
        const Compute<T> one = load_parameter<T>(base + slot * rows.pitch[role], dtype);
#pragma unroll
        for (int j = 0; j < kSize; ++j) wide.lane[j] = one;
        return wide;
      }
    } else if (rows.fast[role] && valid >= kSize) {
      if (dtype == kDTypeOf<T>)
        return widen_pack(load_pack(reinterpret_cast<const T*>(base) + first));
      if (sizeof(T) == 2 && dtype == kF32) {
        const float* p = reinterpret_cast<const float*>(base) + first;
        const Pack<float> low = load_pack(p), high = load_pack(p + 4);
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          wide.lane[j] = Compute<T>(j < 4 ? low.lane[j % 4] : high.lane[j % 4]);
        return wide;
      }
    }
  }
  return parameters_slowly<T>(rows, role, base, dtype, unit, q, valid);
}

// Sums over the lanes of a unit, given to all of them. Every thread of the block takes part.
template <int n>
FASTACT_DEVICE void team_sum(double (&value)[n], int lanes) {
  FASTACT_SHARED(double, warps, n*(kNormThreads / kWarp));
  const int width = lanes < kWarp ? lanes : kWarp;
#pragma unroll
  for (int k = 0; k < n; ++k) value[k] = warp_sum(value[k], width);
  if (lanes <= kWarp) return;
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int count = lanes / kWarp;
#pragma unroll
  for (int k = 0; k < n; ++k)
    if (lane == 0) warps[k * (kNormThreads / kWarp) + warp] = value[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < n; ++k) {
    value[k] = lane < count ? double(warps[k * (kNormThreads / kWarp) + lane]) : 0.0;
    value[k] = warp_sum(value[k]);
  }
  __syncthreads();
}

// The sum of a pack's squares, in two chains.
template <class T>
FASTACT_DEVICE double squares_of(const Pack<T>& pack) {
  double sum[2] = {};
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    const double x = double(widen(pack.lane[j]));
    sum[j % 2] = madd(x, x, sum[j % 2]);
  }
  return sum[0] + sum[1];
}

// The lanes of a pack as one term. 16-bit numbers are added in float, by eighths so that no sum of
// finite ones overflows; reduce.cuh's way for the wider ones.
template <class T>
FASTACT_DEVICE double sum_of(const Pack<T>& pack) {
  if constexpr (sizeof(T) != 2) {
    return pack_sum<Itself>(pack);
  } else {
    float term[Pack<T>::kSize];
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) term[j] = widen(pack.lane[j]) * 0.125f;
#pragma unroll
    for (int n = Pack<T>::kSize / 2; n > 0; n /= 2)
#pragma unroll
      for (int j = 0; j < n; ++j) term[j] += term[j + n];
    return double(term[0]) * 8;
  }
}

}  // namespace
FASTACT_END_NAMESPACE
