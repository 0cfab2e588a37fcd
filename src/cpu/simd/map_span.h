// Maps a span of any dtype; compiled once per instruction set, with the kernels that use it.
#pragma once

#include <cstring>

#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE

// to[i] = f(a[i], b[i]), in the type that T is computed in, for n >= kStep elements; kStep: a cache
// line of that type, unless it is given. `to` is a, b or disjoint from both: the last kStep
// elements may overlap those before, so they are read before any is written.
template <int kStep, class T, class F>
FASTACT_HD void map_span(const T* a, const T* b, T* to, int64_t n, F f) {
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
template <class T, class F>
FASTACT_HD void map_span(const T* a, const T* b, T* to, int64_t n, F f) {
  map_span<int(kCacheLine / sizeof(Compute<T>))>(a, b, to, n, f);
}

// to[i] = f(i, a[i], b[i]), or f(i, a[i]), in the type that T is computed in, for any n elements,
// `length` of them at a time; `to` is a, b or disjoint from both.
template <int64_t length = kChunk, class T, class Out, class F>
FASTACT_HD void map_indexed(const T* a, const T* b, Out* to, int64_t n, F f) {
  Wide<T, length> wide_a, wide_b;
  Wide<Out, length> wide;
  for_chunks<length>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const Compute<T>*x = wide_a.read(a + i, m), *y = wide_b.read(b + i, m);
    Compute<T>* const z = wide.to(to + i);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) z[k] = f(i + k, x[k], y[k]);
    wide.finish(to + i, m);
  });
}
template <int64_t length = kChunk, class T, class F>
FASTACT_HD void map_indexed(const T* a, T* to, int64_t n, F f) {
  Wide<T, length> wide_a, wide;
  for_chunks<length>(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const Compute<T>* x = wide_a.read(a + i, m);
    Compute<T>* const z = wide.to(to + i);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k) z[k] = f(i + k, x[k]);
    wide.finish(to + i, m);
  });
}

FASTACT_END_NAMESPACE
