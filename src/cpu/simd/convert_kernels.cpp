// The serial loops of simd/convert_kernels.h.
#include "cpu/simd/convert_kernels.h"

#include "cpu/simd/vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

FASTACT_BEGIN_NAMESPACE
namespace {

// The next chunk is prefetched, as far ahead as this one is long: the next chunk is converted when
// this one has been computed, and by then the hardware's prefetcher has lost the thread.
template <class T>
void to_compute_all(const char* from, char* to, int64_t n) {
  const T* x = pointer<T>(from);
  if constexpr (sizeof(T) >= sizeof(float)) {
    memcpy(to, from, n * sizeof(T));
  } else {
    constexpr int64_t kLine = kCacheLine / sizeof(T);
    float* wide = pointer<float>(to);
    int64_t i = 0;
    for (; i + kLine <= n; i += kLine) {
      __builtin_prefetch(x + i + n);
      chunk_to_float(x + i, wide + i, kLine);
    }
    chunk_to_float(x + i, wide + i, n - i);
  }
}

template <class T, bool accumulate>
void from_compute_all(const char* from, char* to, int64_t n) {
  using C = Compute<T>;
  const C* wide = pointer<C>(from);
  T* y = pointer<T>(to);
  if constexpr (sizeof(T) < sizeof(float)) {
    constexpr int64_t kLine = kCacheLine / sizeof(T);
    float sum[kChunk];
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t m = n - i < kChunk ? n - i : kChunk;
      for (int64_t k = 0; k < m; k += kLine) __builtin_prefetch(y + i + k + n);
      if (accumulate) {
        chunk_to_float(y + i, sum, m);
#pragma omp simd
        for (int64_t k = 0; k < m; ++k) sum[k] += wide[i + k];
      }
      chunk_from_float(accumulate ? sum : wide + i, y + i, m);
    }
  } else if (accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] += wide[i];
  } else {
    memcpy(to, from, n * sizeof(T));
  }
}

void round_all(const char* from, char* to, int64_t n) {
  const double* x = pointer<double>(from);
  float* y = pointer<float>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = float(x[i]);
}

template <class T>
void add(const char* from, const char* bias, const char* residual, char* to, int64_t n) {
  const T *x = pointer<T>(from), *b = pointer<T>(bias);
  const T* r = pointer<T>(residual);
  T* z = pointer<T>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) z[i] = (x[i] + b[i]) + r[i];
}

template <class T>
void plus(const char* from, const char* other, char* to, int64_t n) {
  const T *x = pointer<T>(from), *z = pointer<T>(other);
  T* y = pointer<T>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] + z[i];
}

// Stores that bypass the caches. An ordinary store first reads the cache line that it writes to.
// For an array that will have left the cache before it is read again, that is half of all the
// traffic for nothing. Such a result is computed into a buffer that stays in the first-level cache,
// and the buffer is then stored in whole cache lines.
//
// Vectors as wide as the instruction set has them: the one instruction of this kind that GCC 12 has
// no other word for.
#if defined(__AVX512F__)
typedef __m512i Streamed;
void stream(char* to, Streamed v) { _mm512_stream_si512(reinterpret_cast<Streamed*>(to), v); }
#elif defined(__AVX__)
typedef __m256i Streamed;
void stream(char* to, Streamed v) { _mm256_stream_si256(reinterpret_cast<Streamed*>(to), v); }
#elif defined(__SSE2__)
typedef __m128i Streamed;
void stream(char* to, Streamed v) { _mm_stream_si128(reinterpret_cast<Streamed*>(to), v); }
#endif

// to OUT, a cache line at its beginning, = from IN.
void stream_line(const char* from, char* to) {
#if defined(__SSE2__)
#pragma GCC unroll 4
  for (int64_t k = 0; k < kCacheLine; k += int64_t(sizeof(Streamed))) {
    Streamed v;
    memcpy(&v, from + k, sizeof v);
    stream(to + k, v);
  }
#else
  memcpy(to, from, kCacheLine);
#endif
}

// to OUT (bytes) = from IN (bytes). Whoever lets others read it has to fence first: these stores
// are not ordered with any that follow.
void store_nontemporal(const char* from, char* to, int64_t bytes) {
  int64_t done = 0;
  const int64_t head = int64_t(-reinterpret_cast<uintptr_t>(to) % kCacheLine);
  if (head + kCacheLine <= bytes) {
    memcpy(to, from, head);
    for (done = head; done + kCacheLine <= bytes; done += kCacheLine)
      stream_line(from + done, to + done);
  }
  memcpy(to + done, from + done, bytes - done);
}

}  // namespace

extern const ConvertKernels convert_kernels;
const ConvertKernels convert_kernels = {
    {to_compute_all<f16>, to_compute_all<bf16>, to_compute_all<float>, to_compute_all<double>},
    {{from_compute_all<f16, false>, from_compute_all<f16, true>},
     {from_compute_all<bf16, false>, from_compute_all<bf16, true>},
     {from_compute_all<float, false>, from_compute_all<float, true>},
     {from_compute_all<double, false>, from_compute_all<double, true>}},
    round_all,
    {add<float>, add<double>},
    {plus<float>, plus<double>},
    store_nontemporal,
};

FASTACT_END_NAMESPACE
