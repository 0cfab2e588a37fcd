// Maps a short span of the compute type; compiled once per instruction set, with the kernels that
// use it.
#pragma once

#include <cstring>

#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE

// to[i] = f(a[i], b[i]) for n elements, at least a cache line of them; `to` is a, b or disjoint
// from both. The last cache line of them is read before any is written: it overlaps the one before.
template <class T, class F>
FASTACT_HD void map_span(const T* a, const T* b, T* to, int64_t n, F f) {
  constexpr int kStep = int(kCacheLine / sizeof(T));
  const int64_t last = n - kStep;
  T last_a[kStep], last_b[kStep];
  memcpy(last_a, a + last, sizeof last_a);
  memcpy(last_b, b + last, sizeof last_b);
  for (int64_t i = 0; i < last; i += kStep)
#pragma omp simd
    for (int k = 0; k < kStep; ++k) to[i + k] = f(a[i + k], b[i + k]);
#pragma omp simd
  for (int k = 0; k < kStep; ++k) to[last + k] = f(last_a[k], last_b[k]);
}

FASTACT_END_NAMESPACE
