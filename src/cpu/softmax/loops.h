// Parts of softmax's kernels, compiled once per instruction set with them: loops over the
// elements of a row, which the compiler vectorises, sums on lanes, and the gradient of an element.
#pragma once

#include "common/softmax/kinds.h"
#include "cpu/simd/accumulators.h"
#include "cpu/softmax/kernels.h"

FASTACT_BEGIN_NAMESPACE

static_assert(kVectors * kVector == kSoftmaxLanes);
constexpr double kInfinity = __builtin_inf();

extern const SoftmaxLoops softmax_tiles[kDTypes];  // tile_kernels.cpp

constexpr NextChunk kNoNext = {};

// Elements of a cache line, by which loops go.
template <class T>
constexpr int kStepOf = int(kCacheLine / sizeof(T));
// Two exponentials are added before they count in double.
template <class T>
constexpr bool kAddsPairs = sizeof(T) < sizeof(double);

// y[i] = f(i), of elements that are y or disjoint from it. The incomplete last vector is computed
// first, by one that overlaps the vectors before it, and written last.
//
// y is __restrict although it may be what f reads: an element is read before it is written, and
// nobody else reads it. Otherwise a store holds the loads of the next vector back, and the steps of
// several can't be mixed (FASTACT_MIXED).
//
// Meanwhile `next` is prefetched: lines of the first array into the first-level cache, lines of the
// second one into the second-level cache. Their number is a constant, although it is twice what
// 16-bit elements need: a loop over it takes as long as some of the exponentials beside it.
template <class T, class F>
FASTACT_HD void each(T* y, int64_t n, F f, const NextChunk& next = kNoNext) {
  constexpr int kStep = kStepOf<T>, kMixed = 4 * kStep;
  const auto over = [&](int64_t first, auto count, T* __restrict to) FASTACT_INLINED {
#pragma omp simd
    for (int k = 0; k < count; ++k) to[k] = f(first + k);
  };
  constexpr std::integral_constant<int, kStep> step;
  constexpr std::integral_constant<int, kMixed> mixed;
  if (n < kStep) return over(0, int(n), y);
  const int64_t whole = n / kStep * kStep;
  T last[kStep];
  if (whole < n) over(n - kStep, step, last);
  const char *const first_next = next.at[0], *const second_next = next.at[1];
  int64_t i = 0;
  for (; i + kMixed <= whole; i += kMixed) {
    if (first_next) prefetch<kMixed * sizeof(T)>(first_next + i * next.item, 0);
    if (second_next) prefetch<kMixed * sizeof(T), 2>(second_next + i * next.item, 0);
    over(i, mixed, y + i);
  }
  for (; i < whole; i += kStep) over(i, step, y + i);
  if (whole < n) memcpy(y + n - kStep, last, sizeof last);
}

// A sum on fixed lanes (softmax/kernels.h).
template <class T>
struct LaneSum {
  static constexpr int kAtOnce = kAddsPairs<T> ? 2 * kSoftmaxLanes : kSoftmaxLanes;
  Vector lanes[kVectors];

  // kAtOnce exponentials.
  FASTACT_HD void add(const T* a) {
    if constexpr (kAddsPairs<T>) {
#pragma GCC unroll 8
      for (int k = 0; k < kSoftmaxLanes; k += kFloats) {
        Floats x, y;
        memcpy(&x, a + k, sizeof x);
        memcpy(&y, a + kSoftmaxLanes + k, sizeof y);
        Vector wide[2];
        widen_to(wide, x + y);
        lanes[k / kVector] += wide[0], lanes[k / kVector + 1] += wide[1];
      }
    } else {
#pragma GCC unroll 16
      for (int k = 0; k < kVectors; ++k) lanes[k] += load(a + k * kVector);
    }
  }

  // Elements i to n, one by one, and then the sum of all.
  template <class Load>
  FASTACT_HD double end(const T* a, int64_t i, int64_t n, Load load_terms) {
    for (; i + kSoftmaxLanes <= n; i += kSoftmaxLanes)
#pragma GCC unroll 16
      for (int k = 0; k < kVectors; ++k) lanes[k] = load_terms(a, i + k * kVector, lanes[k]);
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k, i += kVector)
      if (i + kVector <= n)
        lanes[k] = load_terms(a, i, lanes[k]);
      else if (i < n)
        lanes[k] = load_terms.some(a, i, n - i, lanes[k]);
    return fold_vectors(lanes);
  }
};

template <class T, class Load>
FASTACT_HD double sum_of(const T* a, int64_t n, Load load_terms) {
  return LaneSum<T>{}.end(a, 0, n, load_terms);
}

template <class T>
struct Terms {
  FASTACT_HD Vector operator()(const T* a, int64_t i, Vector lane) const {
    return lane + load(a + i);
  }
  FASTACT_HD Vector some(const T* a, int64_t i, int64_t n, Vector lane) const {
    return lane + load_some(a + i, n);
  }
};

// The sum of n exponentials.
template <class T>
FASTACT_HD double sum_of_exponentials(const T* a, int64_t n) {
  LaneSum<T> sum = {};
  int64_t i = 0;
  for (; i + sum.kAtOnce <= n; i += sum.kAtOnce) sum.add(a + i);
  return sum.end(a, i, n, Terms<T>{});
}

template <class T>
struct Products {
  const T* b;
  FASTACT_HD Vector operator()(const T* a, int64_t i, Vector lane) const {
    return madd(load(a + i), load(b + i), lane);
  }
  FASTACT_HD Vector some(const T* a, int64_t i, int64_t n, Vector lane) const {
    return madd(load_some(a + i, n, Vector{}), load_some(b + i, n, Vector{}), lane);
  }
};

// By what exponentials are multiplied. Beside a factor that would vanish, were it 2^-kScale times
// as large, they are not scaled: what is subnormal of them does not count.
template <class T>
struct ExponentialFactor {
  T factor;
  T zero_at;  // of reference_of
  T down;     // by what exp_far is multiplied besides

  static FASTACT_HD ExponentialFactor of(double given) {
    constexpr double kDown = Tail<T>::kDown;
    if (magnitude(given) < kDown) return {T(given), T(ExpTraits<T>::kBias), T(kDown)};
    return {T(given * kDown), kZeroAt<T>, T(1)};
  }
};

// exp(y) of a y up to 0, as s + s t.
struct ExpOfLog {
  template <class T>
  FASTACT_HD Exp<T> operator()(T y) const {
    constexpr SoftmaxReference<T> zero = {-kZeroAt<T> * T(0.69314718055994530942),
                                          ExpTraits<T>::kRoundMagic + kZeroAt<T>};
    const Exp<T> up = exp_near_held(no_less(y, zero.limit), zero);
    return {up.s * Tail<T>::kDown, up.t};
  }
};

// dx, 0 where y took no part.
template <class Kind, class T>
FASTACT_HD T gradient_of(T dy, T y, const GradientSum<T>& sum, T scale) {
  const T dx = scale * Kind::slope(dy, y, sum, ExpOfLog{});
  return y == T(Kind::kNothing) ? T(0) : dx;
}

// An element whose y is 0 takes no part, whatever its dy: infinite or a NaN, too. A sum that these
// made NaN is made anew without them.
template <class T>
FASTACT_HD double sum_of_parts(const T* dy, const T* y, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double of_y = double(widen(y[i]));
    sum += of_y == 0.0 ? 0.0 : double(widen(dy[i])) * of_y;
  }
  return sum;
}

FASTACT_END_NAMESPACE
