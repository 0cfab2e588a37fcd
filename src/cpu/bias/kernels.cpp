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

// The biases of a chunk: `period` of them, a multiple of kLanes, come round again.
template <class T>
struct Biases {
  const T* all;
  int64_t period, at = 0;

  Biases(const char* bias, int64_t p) : all(reinterpret_cast<const T*>(bias)), period(p) {}
  FASTACT_HD const T* here() const { return all + at; }
  FASTACT_HD void pass(int64_t n) {
    at += n;
    if (at >= period) at -= period;
  }
};

// to[i + k] = f(i + k, bias) from i on, in groups of kLanes; before(i) and after(i) of each group.
// Returns the end of the last whole one.
template <class T, class F, class Before, class After>
FASTACT_HD int64_t map_groups(T* to, int64_t i, int64_t n, Biases<T>* biases, F f, Before before,
                              After after) {
  for (; i + kLanes <= n; i += kLanes) {
    const T* b = biases->here();
    before(i);
#pragma omp simd
    for (int k = 0; k < kLanes; ++k) to[i + k] = f(i + k, b[k]);
    after(i);
    biases->pass(kLanes);
  }
  return i;
}

// The same of fewer than kLanes.
template <class T, class F>
FASTACT_HD void map(T* to, int64_t i, int64_t n, Biases<T>* biases, F f) {
  const T* b = biases->here();
#pragma omp simd
  for (int64_t k = 0; k < n - i; ++k) to[i + k] = f(i + k, b[k]);
  biases->pass(n - i);
}

template <class T, template <class, bool> class A>
void forward(const char* from, const char* bias, int64_t period, char* to, int64_t n, int64_t ahead,
             const double* parameters) {
  const A<T, false> a(parameters);
  const T* x = reinterpret_cast<const T*>(from);
  T* y = reinterpret_cast<T*>(to);
  Biases<T> biases(bias, period);
  const auto f = [&](int64_t i, T b) FASTACT_INLINED { return a.forward(x[i] + b); };
  const auto ask = [&](int64_t i) FASTACT_INLINED {
    if (ahead == 0) return;
    prefetch(x + i, ahead);
    prefetch(y + i, ahead);
  };
  const int64_t whole = map_groups(y, 0, n, &biases, f, ask, [](int64_t) FASTACT_INLINED {});
  map(y, whole, n, &biases, f);
}

template <class T, template <class, bool> class A>
void backward(const char* gradient, const char* from, const char* bias, int64_t period, char* to,
              int64_t n, int64_t ahead, const double* parameters, int64_t phase, double* lanes) {
  const A<T, false> a(parameters);
  const T *dy = reinterpret_cast<const T*>(gradient), *x = reinterpret_cast<const T*>(from);
  T* dx = reinterpret_cast<T*>(to);
  Biases<T> biases(bias, period);
  const auto f = [&](int64_t i, T b) FASTACT_INLINED { return dy[i] * a.derivative(x[i] + b); };
  const auto ask = [&](int64_t i) FASTACT_INLINED {
    if (ahead == 0) return;
    prefetch(dy + i, ahead);
    prefetch(x + i, ahead);
    prefetch(dx + i, ahead);
  };
  if (!lanes) {
    const int64_t whole = map_groups(dx, 0, n, &biases, f, ask, [](int64_t) FASTACT_INLINED {});
    map(dx, whole, n, &biases, f);
    return;
  }
  int64_t i = 0;
  if (phase > 0) {
    i = kLanes - phase < n ? kLanes - phase : n;
    map(dx, 0, i, &biases, f);
    for (int64_t k = 0; k < i; ++k) lanes[phase + k] += double(dx[k]);
  }
  Vector v[kVectors];
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) v[k] = load(lanes + k * kVector);
  i = map_groups(dx, i, n, &biases, f, ask, [&](int64_t group) FASTACT_INLINED {
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) v[k] += load(dx + group + k * kVector);
  });
#pragma GCC unroll 16
  for (int k = 0; k < kVectors; ++k) store(v[k], lanes + k * kVector);
  map(dx, i, n, &biases, f);
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
