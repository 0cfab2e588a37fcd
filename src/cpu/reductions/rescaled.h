// Moments of numbers whose squares, or whose sums, leave the range of double: of the numbers times
// a power of two, which is exact (common/reductions/range.h).
//
// Whoever has finished a sum looks whether it is in range. The rest is rare: the terms are read
// once more for their largest magnitude, and twice for the moments, one by one and compensated, so
// that the last roundings alone make the error, whatever the number of terms. An infinity or a NaN
// among them, or nothing but zeros, leaves what was found as it is.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/reductions/moments.h"
#include "common/reductions/range.h"

// On a function that hardly ever runs: its arrays are no part of its caller's frame.
#if defined(__GNUC__)
#define FASTACT_RARE __attribute__((noinline, cold))
#else
#define FASTACT_RARE
#endif

namespace fastact {

constexpr int64_t kRescaledTerms = 512;  // that are read at a time,
constexpr int64_t kFirstTerms = 16;      // and at first: NaN seldom comes alone

// Distances from a mean as far from 0 are too large for their squares to vanish.
constexpr double kFarFromZero = 0x1p-450;

// Whether m2, of some terms, left the range.
inline bool is_far_moment(double mean, double m2) {
  return !is_in_range(m2) && !(m2 <= 1 && std::abs(mean) > kFarFromZero);
}

// Moments of terms over `up`. count: of the terms, or the sum of their weights.
struct Rescaled {
  double mean, mean_low, m2, count, up;
};

struct CompensatedSum {
  double high = 0, low = 0;
  void add(double x) { high = add_exactly(high, x, &low); }
  double value() const { return high + low; }
};

// The largest magnitude of n numbers; NaN where one is not finite.
inline double peak_of(const double* x, int64_t n) {
  uint64_t bits = 0;
#pragma omp simd reduction(| : bits)
  for (int64_t i = 0; i < n; ++i) bits |= bit_cast<uint64_t>(x[i]);
  if (bits << 1 == 0) return 0;  // soon said of an array of zeros
  double peak = 0, rest = 0;
  for (int64_t i = 0; i < n; ++i) {
    peak = std::max(peak, std::abs(x[i]));
    rest += x[i] - x[i];
  }
  return peak + rest;
}

// Whether there are such moments: about the mean, or about 0.
// read(term, n, x, weights): x OUT = terms term .. term + n, and how often each counts; 0 both
// where one does not.
template <class Read>
bool rescale(int64_t terms, bool is_centred, Read read, Rescaled* to) {
  double x[kRescaledTerms], weights[kRescaledTerms];
  const auto for_pieces = [&](auto visit) {
    for (int64_t term = 0, n; term < terms; term += n) {
      n = std::min(term == 0 ? kFirstTerms : kRescaledTerms, terms - term);
      read(term, n, x, weights);
      if (!visit(n)) return false;
    }
    return true;
  };
  double peak = 0;
  const bool is_finite_all = for_pieces([&](int64_t n) {
    peak = std::max(peak_of(x, n), peak);
    return is_finite(peak) && is_finite(peak_of(weights, n));
  });
  if (!is_finite_all || peak == 0) return false;

  const double scale = scale_of(peak);
  const auto for_terms = [&](auto visit) {
    for_pieces([&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) visit(x[i] * scale, weights[i]);
      return true;
    });
  };
  CompensatedSum count, sum, rest, squares;
  for_terms([&](double v, double w) {
    count.add(w);
    sum.add(w * v);
  });
  to->up = inverse_power(scale);
  to->count = count.value();
  const double centre = is_centred ? sum.value() / to->count : 0.0;
  for_terms([&](double v, double w) {
    const double d = v - centre;
    rest.add(w * d);
    squares.add(w * d * d);
  });
  const double low = is_centred ? rest.value() / to->count : 0.0;
  to->mean_low = 0;
  to->mean = add_exactly(centre, low, &to->mean_low);
  to->m2 = std::max(squares.value() - low * (is_centred ? rest.value() : 0.0), 0.0);
  return true;
}

}  // namespace fastact
