// Cells: what shares a mean, an rstd, a weight and a bias, and the numbers that go with each.
//
// A cell is a channel (batch_norm), or a channel of one example (the norms of arrays whose channels
// come last). Its numbers are made once a call, of the compute type, in rows of one number for all
// cells; a pack of an array takes them by packs where its lanes lie in neighbouring cells, one for
// all lanes where they lie in one cell, and lane by lane anywhere else.
#pragma once

#include <algorithm>

#include "../common/batch_norm.h"
#include "../common/moments.h"
#include "../common/norms.h"
#include "activate.cuh"
#include "kernels.h"
#include "sums.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Of a cell. scale = weight rstd; the last two of the norms by examples alone.
enum CellNumber : int { kHigh, kLow, kScale, kOffset, kMean, kSlope, kRstd, kWeight, kCellNumbers };

// numbers: [kCellNumbers][pitch] of the compute type, at a multiple of 16 bytes as the pitch is.
template <class T>
struct Cells {
  Compute<T>* numbers;
  int64_t pitch;
  int64_t channels;
  int64_t inner;    // elements of one channel that follow each other
  int64_t example;  // elements of an example; 0: examples share their cells

  FASTACT_DEVICE Compute<T>* row(int k) const { return numbers + k * pitch; }

  FASTACT_DEVICE int64_t cell_of(int64_t index) const {
    const int64_t line = inner == 1 ? index : quotient(index, inner);
    const int64_t channel = line - quotient(line, channels) * channels;
    return example == 0 ? channel : quotient(index, example) * channels + channel;
  }
};

// Calls use(j, n) for each lane j of the pack at `index` of dense arrays, n being the numbers
// `which` of its cell.
template <int... which, class T, class Use>
FASTACT_DEVICE void with_numbers(const Cells<T>& cells, int64_t index, const Use& use) {
  using C = Compute<T>;
  constexpr int kSize = Pack<T>::kSize, kCount = sizeof...(which);
  const int64_t cell = cells.cell_of(index);
  if (cells.inner == 1 && (cells.channels | cell) % kSize == 0) {
    constexpr int kPacks = kSize / Pack<C>::kSize;
    const auto get = [&](int k) {
      Wide<T> wide;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const Pack<C> part = load_pack(cells.row(k) + cell + i * Pack<C>::kSize);
#pragma unroll
        for (int j = 0; j < Pack<C>::kSize; ++j) wide.lane[i * Pack<C>::kSize + j] = part.lane[j];
      }
      return wide;
    };
    const Wide<T> all[kCount] = {get(which)...};
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      C n[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) n[k] = all[k].lane[j];
      use(j, n);
    }
  } else if (cells.inner >= kSize && cells.cell_of(index + kSize - 1) == cell) {
    const C n[kCount] = {load(cells.row(which) + cell)...};
#pragma unroll
    for (int j = 0; j < kSize; ++j) use(j, n);
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int64_t at = cells.cell_of(index + j);
      const C n[kCount] = {load(cells.row(which) + at)...};
      use(j, n);
    }
  }
}

// The same for one element, in lane 0.
template <int... which, class T, class Use>
FASTACT_DEVICE void with_number(const Cells<T>& cells, int64_t cell, const Use& use) {
  const Compute<T> n[sizeof...(which)] = {load(cells.row(which) + cell)...};
  use(0, n);
}

// One number a channel, in a dtype of its own.
struct ChannelArray {
  char* data;  // null: there is none
  int64_t stride;
  int dtype;
};

FASTACT_DEVICE double read_channel(const ChannelArray& from, int64_t channel, double neutral) {
  if (!from.data) return neutral;
  const char* p = from.data + channel * from.stride;
  switch (from.dtype) {
    case kF16:
      return widen(load(reinterpret_cast<const f16*>(p)));
    case kBF16:
      return widen(load(reinterpret_cast<const bf16*>(p)));
    case kF32:
      return load(reinterpret_cast<const float*>(p));
  }
  return load(reinterpret_cast<const double*>(p));
}

template <class T>
FASTACT_DEVICE void write_as(char* p, double value, bool accumulate) {
  T* to = reinterpret_cast<T*>(p);
  store(to, narrow_once<T>(accumulate ? double(widen(load(to))) + value : value));
}

FASTACT_DEVICE void write_channel(const ChannelArray& to, int64_t channel, double value,
                                  bool accumulate) {
  if (!to.data) return;
  char* p = to.data + channel * to.stride;
  switch (to.dtype) {
    case kF16:
      return write_as<f16>(p, value, accumulate);
    case kBF16:
      return write_as<bf16>(p, value, accumulate);
    case kF32:
      return write_as<float>(p, value, accumulate);
  }
  write_as<double>(p, value, accumulate);
}

// The numbers of a cell that forward needs.
template <class T>
FASTACT_DEVICE void set_cell(const Cells<T>& cells, int64_t cell, double mean, double rstd,
                             double weight, double bias) {
  using C = Compute<T>;
  const C high = C(mean);
  store(cells.row(kHigh) + cell, high);
  store(cells.row(kLow) + cell, is_finite(double(high)) ? C(mean - double(high)) : C(0));
  store(cells.row(kScale) + cell, C(weight * rstd));
  store(cells.row(kOffset) + cell, C(bias));
}

// The activation that follows.
struct ChosenActivation {
  int which;
  double parameters[kMaxParameters];
};

}  // namespace
FASTACT_END_NAMESPACE
