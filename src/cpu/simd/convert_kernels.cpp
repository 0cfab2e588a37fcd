// The serial loops of simd/convert_kernels.h.
#include "cpu/simd/convert_kernels.h"

#include "cpu/simd/nontemporal.h"
#include "cpu/simd/vector.h"

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

template <class T>
void fill(const char* from, char* to, int64_t n) {
  const T x = *pointer<T>(from);
  T* y = pointer<T>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = x;
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
    {fill<float>, fill<double>},
    store_nontemporal,
};

FASTACT_END_NAMESPACE
