// The lanes of a reduction (reduce_blocks.h) in vector registers: reading, prefetching, folding.
#pragma once

#include "reduce_blocks.h"
#include "widen.h"

FASTACT_BEGIN_NAMESPACE

constexpr int kVectors = kLanes / kVector;
constexpr size_t kLine = 64;      // bytes of a cache line
constexpr int64_t kAhead = 2048;  // bytes, of prefetches
typedef int64_t Indices __attribute__((vector_size(kVector * sizeof(int64_t))));

template <class T>
FASTACT_HD double wide(T x) {
  return double(widen(x));
}

// Asks for count elements `ahead` bytes past x. The hardware's own prefetcher follows neither short
// rows nor eight rows at once.
template <int count, class T>
FASTACT_HD void prefetch(const T* x, int64_t ahead) {
#pragma GCC unroll 8
  for (size_t line = 0; line < count * sizeof(T); line += kLine)
    __builtin_prefetch(reinterpret_cast<const char*>(x) + ahead + line);
}

// The sum of kLanes lanes: in halves, as the table's `fold`.
FASTACT_HD double fold_vectors(Vector (&v)[kVectors]) {
#pragma GCC unroll 4
  for (int half = kVectors / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int k = 0; k < half; ++k) v[k] += v[half + k];
  double lanes[kVector];
  store(v[0], lanes);
#pragma GCC unroll 4
  for (int half = kVector / 2; half > 0; half /= 2)
#pragma GCC unroll 4
    for (int k = 0; k < half; ++k) lanes[k] += lanes[half + k];
  return lanes[0];
}

// The sum of n lanes, each with one term, in the order of `fold`.
template <int n, class V>
FASTACT_HD V fold_terms(V (&lanes)[n]) {
  int count = n;
#pragma GCC unroll 4
  for (int half = 4; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int i = 0; i < count - half; ++i) lanes[i] += lanes[half + i];
    count = count < half ? count : half;
  }
  return lanes[0];
}

// Lane j of the result is a[mask[j]], or b[mask[j] - kVector]. The masks are constants.
FASTACT_HD Vector shuffle(Vector a, Vector b, Indices mask) {
#if defined(__clang__)
  Vector made;
  for (int j = 0; j < kVector; ++j) made[j] = mask[j] < kVector ? a[mask[j]] : b[mask[j] - kVector];
  return made;
#else
  return __builtin_shuffle(a, b, mask);
#endif
}

// Term k of kVector rows of n terms, which lie one after the other in `rows`.
template <int n, int k>
FASTACT_HD Vector every_nth(const Vector (&rows)[n]) {
  Vector picked = rows[0];
#pragma GCC unroll 8
  for (int m = 0; m < n; ++m) {
    Indices mask;
#pragma GCC unroll 8
    for (int j = 0; j < kVector; ++j) {
      const int at = j * n + k, from = m == 0 ? 0 : kVector;
      mask[j] = at / kVector == m ? from + at % kVector : j;
    }
    picked = shuffle(picked, rows[m], mask);
  }
  return picked;
}

FASTACT_END_NAMESPACE
