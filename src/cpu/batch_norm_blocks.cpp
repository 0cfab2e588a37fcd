// The serial loops of batch_norm_blocks.h.
#include "batch_norm_blocks.h"

#include "../common/batch_norm.h"
#include "lanes.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// One coefficient of element i.
template <class T, bool row>
struct Coefficient {
  const T* at;
  T one;
  Coefficient(const char* const* all, int k) : at(reinterpret_cast<const T*>(all[k])), one(*at) {}
  FASTACT_HD T operator()(int64_t i) const { return row ? at[i] : one; }
};

template <class T, bool row>
void normalise(const char* from, const char* const* all, char* to, int64_t n) {
  const Coefficient<T, row> high(all, kHigh), low(all, kLow), factor(all, kScale),
      offset(all, kOffset);
  const T* x = reinterpret_cast<const T*>(from);
  T* z = reinterpret_cast<T*>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    z[i] = batch_normalised(x[i], high(i), low(i), factor(i), offset(i));
}

template <class T, bool row>
void gradient(const char* p_, const char* x_, const char* const* all, char* to, int64_t n) {
  const Coefficient<T, row> high(all, kHigh), low(all, kLow), factor(all, kScale),
      mean_p(all, kMeanP), slope(all, kSlope);
  const T* p = reinterpret_cast<const T*>(p_);
  const T* x = reinterpret_cast<const T*>(x_);
  T* dx = reinterpret_cast<T*>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    dx[i] = batch_gradient(p[i], centred(x[i], high(i), low(i)), factor(i), mean_p(i), slope(i));
}

template <class T, bool row>
void scale(const char* from, const char* const* all, char* to, int64_t n) {
  const Coefficient<T, row> factor(all, kScale);
  const T* p = reinterpret_cast<const T*>(from);
  T* dx = reinterpret_cast<T*>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = p[i] * factor(i);
}

// The number of a lane.
template <class T>
struct LaneNumbers {
  T at[kLanes];
  constexpr LaneNumbers() : at() {
    for (int k = 0; k < kLanes; ++k) at[k] = T(k);
  }
};
template <class T>
constexpr LaneNumbers<T> kLaneNumbers;

// Element i belongs to lane i % kLanes, but those of a rest to the last lanes: they are read with
// the elements before them, of which none counts twice. (Onto the first lanes one by one, a rest of
// 4 took as long as 96 elements: a vector's load waits for every one of the stores before it.)
template <class T>
void add_line(const char* p_, const char* x_, const char* const* all, int64_t n, double* sums) {
  constexpr int kCount = kVector * int(sizeof(double) / sizeof(T)), kParts = kLanes / kCount;
  typedef T V __attribute__((vector_size(kCount * sizeof(T))));
  const auto read = [](const T* at) FASTACT_INLINED {
    V v;
    memcpy(&v, at, sizeof v);
    return v;
  };
  const T high = *reinterpret_cast<const T*>(all[kHigh]);
  const T low = *reinterpret_cast<const T*>(all[kLow]);
  const T *p = reinterpret_cast<const T*>(p_), *x = reinterpret_cast<const T*>(x_);
  const T *const start = p, *const end = p + n;
  const V zero = {};
  Vector total[2][kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) total[0][k] = total[1][k] = Vector{};
  while (p != end) {
    V sum[kParts], product[kParts];
#pragma GCC unroll 16
    for (int k = 0; k < kParts; ++k) sum[k] = product[k] = zero;
    const int64_t whole = (end - p) / kLanes;
    const int rounds = whole < kTermsOfLane ? int(whole) : kTermsOfLane;
    for (int round = 0; round < rounds; ++round, p += kLanes, x += kLanes) {
#pragma GCC unroll 16
      for (int k = 0; k < kParts; ++k) {
        const V term = read(p + k * kCount);
        sum[k] += term;
        product[k] += term * ((read(x + k * kCount) - high) - low);
      }
    }
    T lanes[2][kLanes];
    const int rest = rounds < kTermsOfLane ? int(end - p) : 0;
    const int before = kLanes - rest;
    if (rest > 0 && p - start >= before) {
#pragma GCC unroll 16
      for (int k = 0; k < kParts; ++k) {
        const auto counts = read(kLaneNumbers<T>.at + k * kCount) >= T(before);
        const V term = read(p - before + k * kCount);
        const V centred_x = (read(x - before + k * kCount) - high) - low;
        sum[k] += counts ? term : zero;
        product[k] += counts ? term * centred_x : zero;
      }
      p += rest;
    }
#pragma GCC unroll 16
    for (int k = 0; k < kParts; ++k) {
      memcpy(lanes[0] + k * kCount, &sum[k], sizeof sum[k]);
      memcpy(lanes[1] + k * kCount, &product[k], sizeof product[k]);
    }
    if (rest > 0 && p != end) {  // of a line shorter than the lanes
      for (int k = 0; k < rest; ++k) {
        lanes[0][before + k] += p[k];
        lanes[1][before + k] += p[k] * centred(x[k], high, low);
      }
      p += rest;
    }
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) {
      total[0][k] += load(lanes[0] + k * kVector);
      total[1][k] += load(lanes[1] + k * kVector);
    }
  }
  for (int s = 0; s < 2; ++s) sums[s] += fold_vectors(total[s]);
}

// As many calls with 8 rows as there are, the others one by one.
template <class Visit8, class Visit1>
FASTACT_HD void for_rows(int64_t rows, Visit8 eight, Visit1 one) {
  int64_t r = 0;
  for (; r + kRowsAtOnce <= rows; r += kRowsAtOnce) eight(r);
  for (; r < rows; ++r) one(r);
}

template <class T, int kRows>
void add_some(const T* p, const T* x, const char* const* all, int64_t n, T* sum, T* product) {
  const Coefficient<T, true> high(all, kHigh), low(all, kLow);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T s = sum[i], q = product[i];
#pragma GCC unroll 8
    for (int k = 0; k < kRows; ++k) {
      const T term = p[k * n + i];
      s += term;
      q += term * centred(x[k * n + i], high(i), low(i));
    }
    sum[i] = s, product[i] = q;
  }
}

template <class T>
void add_rows(const char* p_, const char* x_, const char* const* all, int64_t rows, int64_t n,
              char* to, int64_t pitch) {
  const T *p = reinterpret_cast<const T*>(p_), *x = reinterpret_cast<const T*>(x_);
  T *sum = reinterpret_cast<T*>(to), *product = sum + pitch;
  for_rows(
      rows,
      [&](int64_t r) { add_some<T, kRowsAtOnce>(p + r * n, x + r * n, all, n, sum, product); },
      [&](int64_t r) { add_some<T, 1>(p + r * n, x + r * n, all, n, sum, product); });
}

template <class T, int kRows>
void normalise_some(const T* x, const char* const* all, T* z, int64_t n) {
  const Coefficient<T, true> high(all, kHigh), low(all, kLow), factor(all, kScale),
      offset(all, kOffset);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < kRows; ++k)
      z[k * n + i] = batch_normalised(x[k * n + i], high(i), low(i), factor(i), offset(i));
  }
}

template <class T>
void normalise_rows(const char* from, const char* const* all, char* to, int64_t rows, int64_t n) {
  const T* x = reinterpret_cast<const T*>(from);
  T* z = reinterpret_cast<T*>(to);
  for_rows(
      rows, [&](int64_t r) { normalise_some<T, kRowsAtOnce>(x + r * n, all, z + r * n, n); },
      [&](int64_t r) { normalise_some<T, 1>(x + r * n, all, z + r * n, n); });
}

template <class T, int kRows>
void gradient_some(const T* p, const T* x, const char* const* all, T* dx, int64_t n) {
  const Coefficient<T, true> high(all, kHigh), low(all, kLow), factor(all, kScale),
      mean_p(all, kMeanP), slope(all, kSlope);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < kRows; ++k)
      dx[k * n + i] = batch_gradient(p[k * n + i], centred(x[k * n + i], high(i), low(i)),
                                     factor(i), mean_p(i), slope(i));
  }
}

template <class T>
void gradient_rows(const char* p_, const char* x_, const char* const* all, char* to, int64_t rows,
                   int64_t n) {
  const T *p = reinterpret_cast<const T*>(p_), *x = reinterpret_cast<const T*>(x_);
  T* dx = reinterpret_cast<T*>(to);
  for_rows(
      rows,
      [&](int64_t r) { gradient_some<T, kRowsAtOnce>(p + r * n, x + r * n, all, dx + r * n, n); },
      [&](int64_t r) { gradient_some<T, 1>(p + r * n, x + r * n, all, dx + r * n, n); });
}

template <class T>
void flush(char* from, double* sums, int64_t n) {
  T* lanes = reinterpret_cast<T*>(from);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sums[i] += double(lanes[i]);
    lanes[i] = 0;
  }
}

}  // namespace

#define FASTACT_BATCH(T)                         \
  {                                              \
      {normalise<T, false>, normalise<T, true>}, \
      add_line<T>,                               \
      add_rows<T>,                               \
      flush<T>,                                  \
      {gradient<T, false>, gradient<T, true>},   \
      normalise_rows<T>,                         \
      gradient_rows<T>,                          \
      {scale<T, false>, scale<T, true>},         \
  }

extern const BatchTable batch_table;
const BatchTable batch_table = {{FASTACT_BATCH(float), FASTACT_BATCH(double)}};

FASTACT_END_NAMESPACE
