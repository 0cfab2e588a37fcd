// The lanes of mean and m2 (reductions/moment_kernels.h) in vector registers.
#pragma once

#include "cpu/reductions/moment_kernels.h"
#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE

// Sums of d = x - shift and of d^2. Of converted terms d is a multiply-add, in the pipes that
// conversion and addition leave idle (simd/accumulators.h): with 1, in a vector, and -shift.
template <class T, class V>
struct Deviations {
  V one, minus;

  FASTACT_HD explicit Deviations(double shift) : one(V{} + hidden_one()), minus(V{} - shift) {}
  FASTACT_HD Deviations(double hidden, V shift) : one(V{} + hidden), minus(-shift) {}

  FASTACT_HD void add(V x, V& sum, V& square) const {
    const V d = is_converted<T> ? add_converted(x, one, minus) : x + minus;
    sum += d;
    square = madd(d, d, square);
  }
};
FASTACT_HD void add_deviation(double d, double& sum, double& square) {
  sum += d;
  square = madd(d, d, square);
}

// The lanes of a block in registers.
template <class T>
struct MomentLanes {
  using V = typename LanesOf<T>::type;
  static constexpr int kWidth = sizeof(V) / sizeof(double), kCount = kLanes / kWidth;
  // Vectors at a time: with their squares they fill half of the registers.
  static constexpr int kGroup = kVector == 8 ? kCount : 4;
  V sums[kCount], squares[kCount];

  FASTACT_HD void clear() {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) sums[k] = squares[k] = V{};
  }
  FASTACT_HD void read(const double* all_sums, const double* all_squares) {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) {
      load_to(sums[k], all_sums + k * kWidth);
      load_to(squares[k], all_squares + k * kWidth);
    }
  }
  FASTACT_HD void write(double* all_sums, double* all_squares) const {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) {
      store(sums[k], all_sums + k * kWidth);
      store(squares[k], all_squares + k * kWidth);
    }
  }

  // So many times kLanes terms, of which the next one lies before x: lane 0 is the last.
  FASTACT_HD void add_backward(const T* x, int64_t times, double shift) {
    const Deviations<T, V> d(shift);
    const T* const first = x - (kLanes - 1);
#pragma GCC unroll 4
    for (int group = 0; group < kCount; group += kGroup) {
      V sum[kGroup], square[kGroup];
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sum[k] = sums[group + k], square[k] = squares[group + k];
      for (const T* at = first; at != first - times * kLanes; at -= kLanes) {
#pragma GCC unroll 8
        for (int k = 0; k < kGroup; ++k) {
          V terms;
          load_to(terms, at + (group + k) * kWidth);
          d.add(terms, sum[k], square[k]);
        }
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sums[group + k] = sum[k], squares[group + k] = square[k];
    }
  }

  // n terms, from lane 0 on; the hardware prefetches them, as those of a sum.
  FASTACT_HD void add(const T* x, int64_t n, double shift) {
    const Deviations<T, V> d(shift);
    const int64_t whole = n / kLanes * kLanes, rest = n % kLanes;
#pragma GCC unroll 4
    for (int group = 0; group < kCount; group += kGroup) {
      V sum[kGroup], square[kGroup];
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sum[k] = sums[group + k], square[k] = squares[group + k];
      for (const T* at = x; at != x + whole; at += kLanes) {
#pragma GCC unroll 8
        for (int k = 0; k < kGroup; ++k) {
          V terms;
          load_to(terms, at + (group + k) * kWidth);
          d.add(terms, sum[k], square[k]);
        }
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) {
        const int64_t left = rest - (group + k) * kWidth;
        const T* at = x + whole + (group + k) * kWidth;
        V terms;
        if (left >= kWidth)
          load_to(terms, at);
        else if (left > 0)
          load_some_to(terms, at, left, V{} + shift);
        else
          break;
        d.add(terms, sum[k], square[k]);
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sums[group + k] = sum[k], squares[group + k] = square[k];
    }
  }

  FASTACT_HD void settle(double shift, int64_t n, double* mean, double* m2) {
    const double sum = fold_vectors(sums), square = fold_vectors(squares);
    moments_of_sums(shift, sum, square, double(n), mean, m2);
  }
};

// The first of n terms, up to lane 0, where lane `phase` is next: onto lanes in memory.
template <class T>
FASTACT_HD int64_t add_head(const T* x, int64_t n, int64_t phase, double shift, double* sums,
                            double* squares) {
  using V = typename LanesOf<T>::type;
  constexpr int64_t kWidth = MomentLanes<T>::kWidth;
  const int64_t head = phase == 0 ? 0 : n < kLanes - phase ? n : kLanes - phase;
  const Deviations<T, V> d(shift);
  int64_t i = 0;
  for (; i + kWidth <= head; i += kWidth) {
    V terms, sum, square;
    load_to(terms, x + i);
    load_to(sum, sums + phase + i);
    load_to(square, squares + phase + i);
    d.add(terms, sum, square);
    store(sum, sums + phase + i);
    store(square, squares + phase + i);
  }
  for (; i < head; ++i) add_deviation(wide(x[i]) - shift, sums[phase + i], squares[phase + i]);
  return head;
}

FASTACT_END_NAMESPACE
