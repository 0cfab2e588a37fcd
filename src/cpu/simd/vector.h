// Vectors, and the conversion of 16-bit data in chunks of float that stay in the first-level cache.
//
// The conversion is a loop of its own: inside the loop of an activation, GCC unrolls it to the
// 16-bit vector length and spills registers. Chunks have a constant length, for which GCC leaves
// out all but the main loop. Chunks below 64 elements stall, because their loads and stores differ
// in width, unless all is unrolled and they never leave the registers. Measurements:
// docs/design/activations.md.
#pragma once

#include <type_traits>

#include "common/core/dtypes.h"
#include "cpu/core/tuning.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE

// The elements of T at an address, which kernels get as bytes.
template <class T>
FASTACT_HD const T* pointer(const char* at) {
  return reinterpret_cast<const T*>(at);
}
template <class T>
FASTACT_HD T* pointer(char* at) {
  return reinterpret_cast<T*>(at);
}

#if defined(__F16C__) && defined(__AVX2__)
// The hardware converts a vector of halves at once, which GCC 12 does not make of a loop, and its
// rounding to bfloat16 takes more instructions than necessary: hence intrinsics. A rest shorter
// than a vector passes through a vector too: the payload of a NaN, which the two ways treat
// differently, then does not depend on the position.
#if defined(__AVX512F__)
constexpr int64_t kHalves = 16;
FASTACT_HD __m256i load_halves(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
FASTACT_HD void vector_to_float(const f16* from, float* to) {
  _mm512_storeu_ps(to, _mm512_maskz_cvtph_ps(__mmask16(-1), load_halves(from)));
}
FASTACT_HD void vector_to_float(const bf16* from, float* to) {
  const __m512i bits = _mm512_maskz_cvtepu16_epi32(__mmask16(-1), load_halves(from));
  _mm512_storeu_si512(to, _mm512_maskz_slli_epi32(__mmask16(-1), bits, 16));
}
FASTACT_HD void vector_from_float(const float* from, f16* to) {
  const __m256i halves =
      _mm512_maskz_cvtps_ph(__mmask16(-1), _mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
}
// Rounded to bfloat16, in the upper halves; what is left in the lower ones means nothing.
FASTACT_HD __m512i rounded_to_bf16(const float* from) {
  const __m512i bits = _mm512_loadu_si512(from);
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_mask_add_epi32(sum, is_odd, sum, _mm512_set1_epi32(1));
  const __mmask16 is_nan =
      _mm512_cmp_ps_mask(_mm512_castsi512_ps(bits), _mm512_castsi512_ps(bits), _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
}
FASTACT_HD void vector_from_float(const float* from, bf16* to) {
  constexpr __mmask16 kAll = -1;
  const __m512i halves = _mm512_maskz_srli_epi32(kAll, rounded_to_bf16(from), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(kAll, halves));
}
// One permutation takes the upper halves of two vectors.
FASTACT_HD void two_vectors_from_float(const float* from, bf16* to) {
  const __m512i first = rounded_to_bf16(from), second = rounded_to_bf16(from + kHalves);
  // Words 1, 3, ... 63 of both.
  const __m512i upper =
      _mm512_setr_epi32(0x00030001, 0x00070005, 0x000b0009, 0x000f000d, 0x00130011, 0x00170015,
                        0x001b0019, 0x001f001d, 0x00230021, 0x00270025, 0x002b0029, 0x002f002d,
                        0x00330031, 0x00370035, 0x003b0039, 0x003f003d);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, upper, second));
}
#else
constexpr int64_t kHalves = 8;
FASTACT_HD __m128i load_halves(const void* from) {
  return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
FASTACT_HD void vector_to_float(const f16* from, float* to) {
  _mm256_storeu_ps(to, _mm256_cvtph_ps(load_halves(from)));
}
FASTACT_HD void vector_to_float(const bf16* from, float* to) {
  const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(from)), 16);
  _mm256_storeu_ps(to, _mm256_castsi256_ps(bits));
}
FASTACT_HD void vector_from_float(const float* from, f16* to) {
  const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}
FASTACT_HD void vector_from_float(const float* from, bf16* to) {
  const __m256 x = _mm256_loadu_ps(from);
  const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i rounded = _mm256_srli_epi32(sum, 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i made = _mm256_blendv_epi8(rounded, quiet, is_nan);
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(made), _mm256_extracti128_si256(made, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}
#endif

template <class T>
FASTACT_HD void chunk_to_float(const T* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kHalves <= n; i += kHalves) vector_to_float(from + i, to + i);
  if (i == n) return;
  T rest[kHalves] = {};
  float wide[kHalves];
  memcpy(rest, from + i, (n - i) * sizeof(T));
  vector_to_float(rest, wide);
  memcpy(to + i, wide, (n - i) * sizeof(float));
}

template <class T>
FASTACT_HD void chunk_from_float(const float* from, T* to, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  if constexpr (std::is_same<T, bf16>::value)
    for (; i + 2 * kHalves <= n; i += 2 * kHalves) two_vectors_from_float(from + i, to + i);
#endif
  for (; i + kHalves <= n; i += kHalves) vector_from_float(from + i, to + i);
  if (i == n) return;
  float rest[kHalves] = {};
  T halves[kHalves];
  memcpy(rest, from + i, (n - i) * sizeof(float));
  vector_from_float(rest, halves);
  memcpy(to + i, halves, (n - i) * sizeof(T));
}
#else
template <class T>
FASTACT_HD void chunk_to_float(const T* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

template <class T>
FASTACT_HD void chunk_from_float(const float* from, T* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = narrow<T>(from[i]);
}
#endif

// Types of 16 bits are computed in float.
template <class T>
constexpr bool is_half = sizeof(T) < sizeof(float);

// A chunk that is read, or written, in the type that is computed in: where it lies, or in a buffer.
template <class T, int64_t most = kChunk>
struct Wide {
  alignas(64) Compute<T> buffer[most];  // GCC would peel loops over it to align them

  FASTACT_HD const Compute<T>* read(const T* x, int64_t n) {
    if constexpr (is_half<T>) {
      chunk_to_float(x, buffer, n);
      return buffer;
    } else {
      return x;
    }
  }
  FASTACT_HD Compute<T>* to(T* y) {
    if constexpr (is_half<T>)
      return buffer;
    else
      return y;
  }
  FASTACT_HD void finish(T* y, int64_t n) {
    if constexpr (is_half<T>) chunk_from_float(buffer, y, n);
  }
};

// chunk(i, m) for each chunk of n elements; all but the last have a length known to the compiler.
template <int64_t length = kChunk, class Chunk>
FASTACT_HD void for_chunks(int64_t n, Chunk chunk) {
  int64_t i = 0;
  for (; i + length <= n; i += length) chunk(i, length);
  if (i < n) chunk(i, n - i);
}

// A vector of doubles, as wide as the instruction set has them, and the conversion of any dtype to
// it. By intrinsics: GCC 12 makes of __builtin_convertvector two conversions of half the width and
// a shuffle (docs/design/reductions.md).
#if defined(__AVX512F__)
constexpr int kVector = 8;
#elif defined(__AVX__)
constexpr int kVector = 4;
#else
constexpr int kVector = 2;
#endif
typedef double Vector __attribute__((vector_size(kVector * sizeof(double))));

// A vector as wide, of the type that T is computed in.
template <class T>
struct ComputeVector {
  static constexpr int kCount = kVector * int(sizeof(double) / sizeof(Compute<T>));
  typedef Compute<T> type __attribute__((vector_size(kVector * sizeof(double))));
  template <class From>
  static FASTACT_HD type load(const From* x) {
    Wide<From, kCount> wide;
    type v;
    memcpy(&v, wide.read(x, kCount), sizeof v);
    return v;
  }
};

FASTACT_HD void store(Vector v, double* to) { memcpy(to, &v, sizeof v); }
FASTACT_HD Vector load(const double* x) {
  Vector v;
  memcpy(&v, x, sizeof v);
  return v;
}
#if defined(__AVX512F__)
// The masked forms: GCC 12 warns of an uninitialised value inside the plain ones, wrongly.
FASTACT_HD Vector floats_to_doubles(__m256 x) {
  return (Vector)_mm512_maskz_cvtps_pd(__mmask8(-1), x);
}
FASTACT_HD __m256 halves_to_floats(__m128i x, f16) { return _mm256_cvtph_ps(x); }
FASTACT_HD __m256 halves_to_floats(__m128i x, bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
FASTACT_HD Vector load(const float* x) { return floats_to_doubles(_mm256_loadu_ps(x)); }
template <class T>
FASTACT_HD Vector load(const T* x) {
  return floats_to_doubles(
      halves_to_floats(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)), T()));
}
#elif defined(__AVX2__)
FASTACT_HD Vector load(const float* x) { return (Vector)_mm256_cvtps_pd(_mm_loadu_ps(x)); }
FASTACT_HD __m128 halves_to_floats(__m128i x, f16) { return _mm_cvtph_ps(x); }
FASTACT_HD __m128 halves_to_floats(__m128i x, bf16) {
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(x), 16));
}
template <class T>
FASTACT_HD Vector load(const T* x) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x));
  return (Vector)_mm256_cvtps_pd(halves_to_floats(halves, T()));
}
#else
template <class T>
FASTACT_HD Vector load(const T* x) {
  Vector v;
#pragma GCC unroll 8  // -O2 would not, and take v through memory
  for (int i = 0; i < kVector; ++i) v[i] = double(widen(x[i]));
  return v;
}
#endif

// The first n < kVector elements at x; `rest` gives the others: unless it is given, -0,
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
  return fill_up(floats_to_doubles(_mm256_maskz_loadu_ps(first(n), x)), n, rest);
}
template <class T>
FASTACT_HD Vector load_some(const T* x, int64_t n, Vector rest = -Vector{}) {
  return fill_up(floats_to_doubles(halves_to_floats(_mm_maskz_loadu_epi16(first(n), x), T())), n,
                 rest);
}
#else
template <class T>
FASTACT_HD Vector load_some(const T* x, int64_t n, Vector rest = -Vector{}) {
  Vector v = {};  // not needed: warned about where loops are not unrolled (-O1)
#pragma GCC unroll 8  // as above
  for (int i = 0; i < kVector; ++i) v[i] = i < n ? double(widen(x[i])) : rest[i];
  return v;
}
#endif

// a * b + c, as madd of macros.h: lanes of a vector must have the bits of single operations.
#if defined(__AVX512F__)
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) {
  return (Vector)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__FMA__)
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) {
  return (Vector)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#elif defined(FASTACT_FMA)
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) {  // aarch64: one fmla
  for (int i = 0; i < kVector; ++i) c[i] = madd(a[i], b[i], c[i]);
  return c;
}
#else
FASTACT_HD Vector madd(Vector a, Vector b, Vector c) { return a * b + c; }
#endif

FASTACT_END_NAMESPACE
