// The serial loop of testing/compare_kernels.h, in one pass: NumPy needs ten over temporaries.
#include "cpu/testing/compare_kernels.h"

#include <algorithm>

#include "common/math/elementary.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kStep = 1024;  // elements between two looks at where the largest error is

struct Error {
  double absolute, ulp;
};

inline Error error_of(float y, double exact) {
  // The power of two at or below |exact|, but no less than the smallest normal float32; subtracted
  // from the exponents of 2 and -1 it gives 2^24 over it, exactly.
  constexpr uint64_t exponent = uint64_t(0x7ff) << 52, least = uint64_t(1023 - 126) << 52;
  const uint64_t power = bit_cast<uint64_t>(exact) & exponent;
  const uint64_t inverse = (uint64_t(2 * 1023 + 23) << 52) - (power < least ? least : power);
  const double absolute = magnitude(double(y) - exact);
  return {absolute, absolute * bit_cast<double>(inverse)};
}

// The first element whose error is the largest, among those that count.
int64_t find(const float* y, const double* exact, int64_t begin, int64_t end, double allowed,
             double ulp) {
  for (int64_t i = begin; i < end; ++i) {
    const Error error = error_of(y[i], exact[i]);
    if (error.absolute > allowed && error.ulp == ulp) return i;
  }
  return 0;
}

void compare(const float* y, const double* exact, int64_t n, double allowed, const double* edges,
             Comparison* found) {
  int64_t above[kErrorEdges] = {};
  int64_t strange = 0, ulp_from = 0, counted_from = 0;
  double absolute = 0, ulp = 0, counted = 0;
  for (int64_t begin = 0; begin < n; begin += kStep) {
    const int64_t end = begin + kStep < n ? begin + kStep : n;
    double most = 0, most_counted = 0;
#pragma omp simd reduction(max : absolute, most, most_counted) reduction(+ : strange)
    for (int64_t i = begin; i < end; ++i) {
      const Error error = error_of(y[i], exact[i]);
      absolute = error.absolute > absolute ? error.absolute : absolute;
      most = error.ulp > most ? error.ulp : most;
      const double counts = error.absolute > allowed ? error.ulp : 0.0;
      most_counted = counts > most_counted ? counts : most_counted;
      strange += !(error.ulp < 0x1p1000);
    }
    for (int k = 0; k < kErrorEdges && most > edges[k]; ++k) {  // they rise
      int64_t count = 0;
#pragma omp simd reduction(+ : count)
      for (int64_t i = begin; i < end; ++i) count += error_of(y[i], exact[i]).ulp > edges[k];
      above[k] += count;
    }
    if (most > ulp) ulp = most, ulp_from = begin;
    if (most_counted > counted) counted = most_counted, counted_from = begin;
  }
  const auto first = [&](int64_t from, double but, double error) {
    const int64_t end = from + kStep < n ? from + kStep : n;
    return error > 0 ? find(y, exact, from, end, but, error) : 0;
  };
  *found = {absolute,
            ulp,
            counted,
            first(ulp_from, 0.0, ulp),
            first(counted_from, allowed, counted),
            {},
            strange == 0};
  for (int k = 0; k < kErrorEdges; ++k) found->above[k] = above[k];
}

}  // namespace

extern const CompareKernels compare_kernels;
const CompareKernels compare_kernels = {compare};

FASTACT_END_NAMESPACE
