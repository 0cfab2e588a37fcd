// The kernels of bias/kernels.h.
#include "cpu/bias/kernels.h"

#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kVectors = kLanes / kVector;
constexpr size_t kCacheLine = 64;  // bytes of a cache line

template <class T>
FASTACT_HD void prefetch(const T* x, int64_t ahead) {
#pragma GCC unroll 4
  for (size_t line = 0; line < kLanes * sizeof(T); line += kCacheLine)
    __builtin_prefetch(reinterpret_cast<const char*>(x) + ahead + line);
}

// to[i] = f(i) from i on, in groups of kLanes; before(i) and after(i) of each group. Returns the
// end of the last whole one.
template <class T, class F, class Before, class After>
FASTACT_HD int64_t map_groups(T* to, int64_t i, int64_t n, F f, Before before, After after) {
  for (; i + kLanes <= n; i += kLanes) {
    before(i);
#pragma omp simd
    for (int k = 0; k < kLanes; ++k) to[i + k] = f(i + k);
    after(i);
  }
  return i;
}

template <class T, class F>
FASTACT_HD void map(T* to, int64_t i, int64_t n, F f) {
#pragma omp simd
  for (int64_t k = i; k < n; ++k) to[k] = f(k);
}

template <class T, template <class, bool> class A>
void forward(const char* from, const char* bias, char* to, int64_t n, int64_t ahead,
             const double* parameters) {
  const A<T, false> a(parameters);
  const T *x = reinterpret_cast<const T*>(from), *b = reinterpret_cast<const T*>(bias);
  T* y = reinterpret_cast<T*>(to);
  const auto f = [&](int64_t i) FASTACT_INLINED { return a.forward(x[i] + b[i]); };
  const auto ask = [&](int64_t i) FASTACT_INLINED {
    if (ahead == 0) return;
    prefetch(x + i, ahead);
    prefetch(y + i, ahead);
  };
  map(y, map_groups(y, 0, n, f, ask, [](int64_t) FASTACT_INLINED {}), n, f);
}

template <class T, template <class, bool> class A>
void backward(const char* gradient, const char* from, const char* bias, char* to, int64_t n,
              int64_t ahead, const double* parameters, int64_t phase, double* lanes) {
  const A<T, false> a(parameters);
  const T *dy = reinterpret_cast<const T*>(gradient), *x = reinterpret_cast<const T*>(from);
  const T* b = reinterpret_cast<const T*>(bias);
  T* dx = reinterpret_cast<T*>(to);
  const auto f = [&](int64_t i) FASTACT_INLINED { return dy[i] * a.derivative(x[i] + b[i]); };
  const auto ask = [&](int64_t i) FASTACT_INLINED {
    if (ahead == 0) return;
    prefetch(dy + i, ahead);
    prefetch(x + i, ahead);
    prefetch(dx + i, ahead);
  };
  if (!lanes) {
    map(dx, map_groups(dx, 0, n, f, ask, [](int64_t) FASTACT_INLINED {}), n, f);
    return;
  }
  int64_t i = 0;
  if (phase > 0) {
    i = kLanes - phase < n ? kLanes - phase : n;
    map(dx, 0, i, f);
    for (int64_t k = 0; k < i; ++k) lanes[phase + k] += double(dx[k]);
  }
  Vector v[kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) v[k] = load(lanes + k * kVector);
  i = map_groups(dx, i, n, f, ask, [&](int64_t group) FASTACT_INLINED {
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) v[k] += load(dx + group + k * kVector);
  });
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) store(v[k], lanes + k * kVector);
  map(dx, i, n, f);
  for (int64_t k = 0; i + k < n; ++k) lanes[k] += double(dx[i + k]);
}

#define FASTACT_FORWARD(name, A) {forward<float, A>, forward<double, A>},
#define FASTACT_BACKWARD(name, A) {backward<float, A>, backward<double, A>},

}  // namespace

extern const BiasKernels bias_kernels;
const BiasKernels bias_kernels = {
    {FASTACT_ACTIVATIONS(FASTACT_FORWARD)},
    {FASTACT_ACTIVATIONS(FASTACT_BACKWARD)},
};

FASTACT_END_NAMESPACE
