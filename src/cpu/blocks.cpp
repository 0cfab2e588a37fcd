// The serial loops over one block, compiled once per instruction set (FASTACT_ISA).
//
// One loop an arity, the functor passed in. GCC vectorises all of them (-fopt-info-vec says so)
// and makes the loop's tail with the same IEEE operations: an element's bits do not depend on its
// position.
//
// 16-bit data passes through chunks of float that stay in the first-level cache. With the
// conversions inside the loop GCC unrolled it to the 16-bit vector length and spilled: 4096
// bfloat16 of mish took 3.7 us on AVX-512 and 7.5 us on AVX2, by chunks 2.3 and 4.3 (float32: 1.8
// and 3.3).
#include "blocks.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int64_t kChunk = 512;  // three of them as float fill 6 KiB

template <class T>
void widen_chunk(const T* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

template <class T>
void narrow_chunk(const float* from, T* to, int64_t n) {
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
void widen_chunk(const f16* from, float* to, int64_t n) {
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
void narrow_chunk(const float* from, f16* to, int64_t n) {
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

// y[i] = f(x[i])
template <class T, class F>
void map1(const T* x, T* y, int64_t n, F f) {
  if constexpr (sizeof(T) >= sizeof(float)) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
  } else {
    float wide[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = n - i < kChunk ? n - i : kChunk;
      widen_chunk(x + i, wide, m);
      map1<float>(wide, wide, m, f);
      narrow_chunk(wide, y + i, m);
    }
  }
}

// dx[i] = dy[i] f'(x[i]), or dx[i] += of the same
template <bool accumulate, class T, class F>
void map2(const T* dy, const T* x, T* dx, int64_t n, F f) {
  if constexpr (sizeof(T) >= sizeof(float)) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T product = dy[i] * f(x[i]);
      dx[i] = accumulate ? dx[i] + product : product;
    }
  } else {
    float wide_dy[kChunk], wide_x[kChunk], wide_dx[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = n - i < kChunk ? n - i : kChunk;
      widen_chunk(dy + i, wide_dy, m);
      widen_chunk(x + i, wide_x, m);
      if (accumulate) widen_chunk(dx + i, wide_dx, m);
      map2<accumulate, float>(wide_dy, wide_x, wide_dx, m, f);
      narrow_chunk(wide_dx, dx + i, m);
    }
  }
}

template <class T, template <class> class A>
void forward(char* const* operands, int64_t n, const double* parameters) {
  const A<Compute<T>> a(parameters);
  map1(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<T*>(operands[1]), n,
       [&](Compute<T> x) { return a.forward(x); });
}

template <class T, template <class> class A, bool accumulate>
void backward(char* const* operands, int64_t n, const double* parameters) {
  const A<Compute<T>> a(parameters);
  map2<accumulate>(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<const T*>(operands[1]),
                   reinterpret_cast<T*>(operands[2]), n,
                   [&](Compute<T> x) { return a.derivative(x); });
}

template <class T>
void exponential(char* const* operands, int64_t n, const double*) {
  map1(reinterpret_cast<const T*>(operands[0]), reinterpret_cast<T*>(operands[1]), n,
       [](T x) { return exp_scaled<0>(x).value(); });
}

}  // namespace

#define FASTACT_FORWARD(name, A) \
  {forward<f16, A>, forward<bf16, A>, forward<float, A>, forward<double, A>},
#define FASTACT_BACKWARD(name, A)                         \
  {{backward<f16, A, false>, backward<f16, A, true>},     \
   {backward<bf16, A, false>, backward<bf16, A, true>},   \
   {backward<float, A, false>, backward<float, A, true>}, \
   {backward<double, A, false>, backward<double, A, true>}},
#define FASTACT_QUOTE_(text) #text
#define FASTACT_QUOTE(text) FASTACT_QUOTE_(text)

extern const BlockTable table;
const BlockTable table = {
    FASTACT_QUOTE(FASTACT_ISA),
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD)},
    {exponential<float>, exponential<double>},
};

FASTACT_END_NAMESPACE
