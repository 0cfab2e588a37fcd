// The lanes of a reduction (reductions/kernels.h) in vector registers: loading, prefetching,
// folding.
//
// Why float32 takes vectors of 256 bits and a multiplication by one: docs/design/reductions.md.
#pragma once

#include "cpu/core/tuning.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE

constexpr int kVectors = kLanes / kVector;
typedef int64_t Indices __attribute__((vector_size(kVector * sizeof(int64_t))));

template <class T>
FASTACT_HD double to_double(T x) {
  return double(widen(x));
}

// The vectors that hold the lanes of a sum of contiguous terms of T. Of float32 they are no wider
// than 256 bits: Zen 4 runs 512-bit operations in two halves, and converts fewer floats in them.
// What does more with a term than convert and add it gains by whole vectors.
template <class T>
struct SumLanes {
  typedef Vector type;
};
#if defined(__AVX512F__)
typedef double HalfVector __attribute__((vector_size(kVector / 2 * sizeof(double))));
template <>
struct SumLanes<float> {
  typedef HalfVector type;
};
FASTACT_HD void store(HalfVector v, double* to) { memcpy(to, &v, sizeof v); }
FASTACT_HD HalfVector madd(HalfVector a, HalfVector b, HalfVector c) {
  return (HalfVector)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
FASTACT_HD void load_to(HalfVector& v, const double* x) { memcpy(&v, x, sizeof v); }
FASTACT_HD void load_to(HalfVector& v, const float* x) {
  v = (HalfVector)_mm256_cvtps_pd(_mm_loadu_ps(x));
}
FASTACT_HD void load_some_to(HalfVector& v, const float* x, int64_t n, HalfVector rest) {
  const __mmask8 some = first(n);
  const __m256d terms = _mm256_cvtps_pd(_mm_maskz_loadu_ps(some, x));
  v = (HalfVector)_mm256_mask_blend_pd(some, (__m256d)rest, terms);
}
#endif
template <class T>
FASTACT_HD void load_to(Vector& v, const T* x) {
  v = load(x);
}
template <class T>
FASTACT_HD void load_some_to(Vector& v, const T* x, int64_t n, Vector rest) {
  v = load_some(x, n, rest);
}

// A vector of floats, in which terms of 16 bits are added a few at a time, and its halves as
// doubles.
constexpr int kFloats = 2 * kVector;
typedef float Floats __attribute__((vector_size(kFloats * sizeof(float))));
typedef int32_t FloatMask __attribute__((vector_size(kFloats * sizeof(int32_t))));
template <class T>
FASTACT_HD void load_to(Floats& v, const T* x) {
  float terms[kFloats];
  chunk_to_float(x, terms, kFloats);
  memcpy(&v, terms, sizeof v);
}
#if defined(__AVX512F__)
FASTACT_HD void widen_to(Vector (&v)[2], Floats x) {
  v[0] = floats_to_doubles((__m256)__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7));
  v[1] = floats_to_doubles(_mm512_maskz_extractf32x8_ps(__mmask8(-1), (__m512)x, 1));
}
FASTACT_HD bool all(FloatMask mask) { return _mm512_movepi32_mask((__m512i)mask) == 0xffff; }
#elif defined(__AVX2__)
FASTACT_HD void widen_to(Vector (&v)[2], Floats x) {
  v[0] = (Vector)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
  v[1] = (Vector)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
}
FASTACT_HD bool all(FloatMask mask) { return _mm256_movemask_ps((__m256)mask) == 0xff; }
#else
FASTACT_HD void widen_to(Vector (&v)[2], Floats x) {
#pragma GCC unroll 8
  for (int i = 0; i < kFloats; ++i) v[i / kVector][i % kVector] = double(x[i]);
}
FASTACT_HD bool all(FloatMask mask) {
  uint64_t halves[sizeof(FloatMask) / sizeof(uint64_t)], every = -1;
  memcpy(halves, &mask, sizeof mask);
  for (uint64_t half : halves) every &= half;
  return every == uint64_t(-1);
}
#endif
#if defined(__AVX512F__)
FASTACT_HD Floats madd(Floats a, Floats b, Floats c) {
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__FMA__)
FASTACT_HD Floats madd(Floats a, Floats b, Floats c) {
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#elif defined(FASTACT_FMA)
FASTACT_HD Floats madd(Floats a, Floats b, Floats c) {
  for (int i = 0; i < kFloats; ++i) c[i] = madd(a[i], b[i], c[i]);
  return c;
}
#else
FASTACT_HD Floats madd(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

// One lane, by the same names.
FASTACT_HD void store(double v, double* to) { *to = v; }
template <class T>
FASTACT_HD void load_to(double& v, const T* x) {
  v = to_double(*x);
}

// Terms that a sum converts to double: of all dtypes but double itself.
template <class T>
constexpr bool is_converted = sizeof(T) < sizeof(double);

// 1, which the compiler must not know: x * one + sum is sum + x, rounded once, in the pipes of
// multiplication. Zen converts float to double in the same two pipes that add, which are the
// bottleneck of a sum of converted terms.
FASTACT_HD double hidden_one() {
  volatile double one = 1;
  return one;
}
template <class V>
FASTACT_HD V add_converted(V x, V one, V sum) {
#if defined(__FMA__)
  return madd(x, one, sum);
#else
  (void)one;
  return sum + x;
#endif
}

FASTACT_HD Floats add_converted(Floats x, Floats, Floats sum) { return sum + x; }

// Whether a vector holds a NaN.
#if defined(__AVX512F__)
FASTACT_HD bool has_nan(Vector v) {
  return _mm512_cmp_pd_mask((__m512d)v, (__m512d)v, _CMP_UNORD_Q) != 0;
}
#elif defined(__AVX__)
FASTACT_HD bool has_nan(Vector v) {
  return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)v, (__m256d)v, _CMP_UNORD_Q)) != 0;
}
#else
FASTACT_HD bool has_nan(Vector v) {
  bool any = false;
  for (int k = 0; k < kVector; ++k) any |= v[k] != v[k];
  return any;
}
#endif

// Prefetches count elements `ahead` bytes past x, where the hardware's own prefetcher does not
// follow.
template <int count, int locality = 3, class T>
FASTACT_HD void prefetch(const T* x, int64_t ahead) {
#pragma GCC unroll 8
  for (size_t line = 0; line < count * sizeof(T); line += kCacheLine)
    __builtin_prefetch(reinterpret_cast<const char*>(x) + ahead + line, 0, locality);
}

// Prefetches the cache line `ahead` bytes past x into the second-level cache. Of Zen 4's first
// level two dozen lines may be under way at a time, which is half of what memory gives.
template <class T>
FASTACT_HD void prefetch_far(const T* x, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const char*>(x) + ahead, 0, 2);
}

// The sum of kLanes lanes: in halves, as the table's `fold`.
template <class V, int n>
FASTACT_HD double fold_vectors(V (&v)[n]) {
  constexpr int kWidth = kLanes / n;
#pragma GCC unroll 4
  for (int half = n / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int k = 0; k < half; ++k) v[k] += v[half + k];
  double lanes[kWidth];
  store(v[0], lanes);
#pragma GCC unroll 4
  for (int half = kWidth / 2; half > 0; half /= 2)
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
