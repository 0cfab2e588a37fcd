// Maps a short span; compiled once per instruction set, with the kernels that use it.
#pragma once

#include <cstring>

#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE

// to[i] = f(a[i], b[i]), in the type that T is computed in, for n elements: at least as many as
// fill a cache line of that. `to` is a, b or disjoint from both. As many at the end are read before
// any is written: they overlap those before.
template <class T, class F>
FASTACT_HD void map_span(const T* a, const T* b, T* to, int64_t n, F f) {
  constexpr int kStep = int(kCacheLine / sizeof(Compute<T>));
  const auto map = [&](const T* of_a, const T* of_b, T* made) FASTACT_INLINED {
    Wide<T, kStep> wide_a, wide_b, wide;
    const Compute<T>*x = wide_a.read(of_a, kStep), *y = wide_b.read(of_b, kStep);
    Compute<T>* const z = wide.to(made);
#pragma omp simd
    for (int k = 0; k < kStep; ++k) z[k] = f(x[k], y[k]);
    wide.finish(made, kStep);
  };
  const int64_t last = n - kStep;
  T last_a[kStep], last_b[kStep];
  memcpy(last_a, a + last, sizeof last_a);
  memcpy(last_b, b + last, sizeof last_b);
  for (int64_t i = 0; i < last; i += kStep) map(a + i, b + i, to + i);
  map(last_a, last_b, to + last);
}

FASTACT_END_NAMESPACE
