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

// Element i belongs to lane i % kLanes.
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
  const T* const end = p + n;
  double total[2][kLanes] = {};
  while (p != end) {
    V sum[kParts] = {}, product[kParts] = {};
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
    memcpy(lanes[0], sum, sizeof lanes[0]);
    memcpy(lanes[1], product, sizeof lanes[1]);
    const int rest = rounds < kTermsOfLane ? int(end - p) : 0;
    for (int k = 0; k < rest; ++k, ++p, ++x) {
      lanes[0][k] += *p;
      lanes[1][k] += *p * centred(*x, high, low);
    }
#pragma omp simd
    for (int k = 0; k < kLanes; ++k) total[0][k] += double(lanes[0][k]);
#pragma omp simd
    for (int k = 0; k < kLanes; ++k) total[1][k] += double(lanes[1][k]);
  }
  for (int s = 0; s < 2; ++s) {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int k = 0; k < half; ++k) total[s][k] += total[s][k + half];
    sums[s] += total[s][0];
  }
}

template <class T>
void add_row(const char* p_, const char* x_, const char* const* all, int64_t n, char* to,
             int64_t pitch) {
  const Coefficient<T, true> high(all, kHigh), low(all, kLow);
  const T *p = reinterpret_cast<const T*>(p_), *x = reinterpret_cast<const T*>(x_);
  T *sum = reinterpret_cast<T*>(to), *product = sum + pitch;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    sum[i] += p[i];
    product[i] += p[i] * centred(x[i], high(i), low(i));
  }
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

#define FASTACT_BATCH(T)                                                          \
  {                                                                               \
    {normalise<T, false>, normalise<T, true>}, add_line<T>, add_row<T>, flush<T>, \
        {gradient<T, false>, gradient<T, true>}, {                                \
      scale<T, false>, scale<T, true>                                             \
    }                                                                             \
  }

extern const BatchTable batch_table;
const BatchTable batch_table = {{FASTACT_BATCH(float), FASTACT_BATCH(double)}};

FASTACT_END_NAMESPACE
