// 16-bit data as chunks of float that stay in the first-level cache.
//
// With the conversions inside the loop GCC unrolled it to the 16-bit vector length and spilled:
// 4096 bfloat16 of mish took 3.7 us on AVX-512 and 7.5 us on AVX2, by chunks 2.3 and 4.3 (float32:
// 1.8 and 3.3).
#pragma once

#include "../common/dtypes.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE

constexpr int64_t kChunk = 512;  // three of them as float fill 6 KiB

template <class T>
inline void widen_chunk(const T* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

template <class T>
inline void narrow_chunk(const float* from, T* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = narrow<T>(from[i]);
}

#if defined(__F16C__)
// The one place with intrinsics. The hardware converts a vector of halves at once, which GCC 12
// does not know how to ask for: 4096 float16 of mish take 2.2 us on AVX-512 and 3.6 on AVX2, where
// the integer code inside the loop took 4.0 and 11.2. A rest shorter than a vector passes through a
// vector too: NaNs, whose payload the two ways treat differently, then do not depend on their
// position.
constexpr int64_t kHalves = 8;
inline void widen_vector(const f16* from, float* to) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  _mm256_storeu_ps(to, _mm256_cvtph_ps(halves));
}
inline void narrow_vector(const float* from, f16* to) {
  const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}

template <>
inline void widen_chunk(const f16* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kHalves <= n; i += kHalves) widen_vector(from + i, to + i);
  if (i == n) return;
  f16 rest[kHalves] = {};
  float wide[kHalves];
  memcpy(rest, from + i, (n - i) * sizeof(f16));
  widen_vector(rest, wide);
  memcpy(to + i, wide, (n - i) * sizeof(float));
}

template <>
inline void narrow_chunk(const float* from, f16* to, int64_t n) {
  int64_t i = 0;
  for (; i + kHalves <= n; i += kHalves) narrow_vector(from + i, to + i);
  if (i == n) return;
  float rest[kHalves] = {};
  f16 halves[kHalves];
  memcpy(rest, from + i, (n - i) * sizeof(float));
  narrow_vector(rest, halves);
  memcpy(to + i, halves, (n - i) * sizeof(f16));
}
#endif

// A vector of doubles, as wide as the instruction set has them, and how any dtype becomes one. GCC
// 12 makes of __builtin_convertvector two conversions of half the width and a shuffle: 2048 float32
// summed in the first-level cache took 269 ns so, and take 124 by one instruction a vector.
#if defined(__AVX512F__)
constexpr int kVector = 8;
#elif defined(__AVX__)
constexpr int kVector = 4;
#else
constexpr int kVector = 2;
#endif
typedef double Vector __attribute__((vector_size(kVector * sizeof(double))));

FASTACT_HD void store(Vector v, double* to) { memcpy(to, &v, sizeof v); }
FASTACT_HD Vector load(const double* x) {
  Vector v;
  memcpy(&v, x, sizeof v);
  return v;
}
#if defined(__AVX512F__)
// The masked forms: GCC 12 warns of an uninitialised value inside the plain ones, wrongly.
FASTACT_HD Vector widen_floats(__m256 x) { return (Vector)_mm512_maskz_cvtps_pd(__mmask8(-1), x); }
FASTACT_HD __m256 widen_halves(__m128i x, f16) { return _mm256_cvtph_ps(x); }
FASTACT_HD __m256 widen_halves(__m128i x, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
FASTACT_HD Vector load(const float* x) { return widen_floats(_mm256_loadu_ps(x)); }
template <class T>
FASTACT_HD Vector load(const T* x) {
  return widen_floats(widen_halves(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)), T()));
}
#elif defined(__AVX2__)
FASTACT_HD Vector load(const float* x) { return (Vector)_mm256_cvtps_pd(_mm_loadu_ps(x)); }
FASTACT_HD __m128 widen_halves(__m128i x, f16) { return _mm_cvtph_ps(x); }
FASTACT_HD __m128 widen_halves(__m128i x, bf16) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(x), 16));
}
template <class T>
FASTACT_HD Vector load(const T* x) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
  return (Vector)_mm256_cvtps_pd(widen_halves(halves, T()));
}
#else
template <class T>
FASTACT_HD Vector load(const T* x) {
  Vector v;
  for (int i = 0; i < kVector; ++i) v[i] = double(widen(x[i]));
  return v;
}
#endif

// The first n < kVector elements at x; the others are those of `rest`: unless it is given, -0,
// which changes nothing it is added to.
#if defined(__AVX512F__)
FASTACT_HD __mmask8 first(int64_t n) { return __mmask8((1 << n) - 1); }
FASTACT_HD Vector fill_up(Vector v, int64_t n, Vector rest) {
  return (Vector)_mm512_mask_blend_pd(first(n), (__m512d)rest, (__m512d)v);
}
FASTACT_HD Vector load_some(const double* x, int64_t n, Vector rest = -Vector{}) {
  return fill_up((Vector)_mm512_maskz_loadu_pd(first(n), x), n, rest);
}
FASTACT_HD Vector load_some(const float* x, int64_t n, Vector rest = -Vector{}) {
  return fill_up(widen_floats(_mm256_maskz_loadu_ps(first(n), x)), n, rest);
}
template <class T>
FASTACT_HD Vector load_some(const T* x, int64_t n, Vector rest = -Vector{}) {
  return fill_up(widen_floats(widen_halves(_mm_maskz_loadu_epi16(first(n), x), T())), n, rest);
}
#else
template <class T>
FASTACT_HD Vector load_some(const T* x, int64_t n, Vector rest = -Vector{}) {
  Vector v;
  for (int i = 0; i < kVector; ++i) v[i] = i < n ? double(widen(x[i])) : rest[i];
  return v;
}
#endif

// a * b + c, as madd of macros.h.
#if defined(__AVX512F__)
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) {
  return (Vector)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__FMA__)
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) {
  return (Vector)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#else
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

FASTACT_END_NAMESPACE
