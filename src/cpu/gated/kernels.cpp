// The loops of gated/kernels.h.
#include "cpu/gated/kernels.h"

#include "common/gated/gated.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
const T* of(const char* data) {
  return reinterpret_cast<const T*>(data);
}

// y[i] = f(i)
template <class T, class F>
FASTACT_HD void each(char* to, int64_t n, F f) {
  T* y = reinterpret_cast<T*>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = f(i);
}

// x and a bias, element by element; -0 added to a number is that number.
template <class T, bool has_bias>
struct Biased {
  const T *x, *bias;
  Biased(const char* data, const char* along) : x(of<T>(data)), bias(of<T>(along)) {}
  FASTACT_HD T operator[](int64_t i) const { return has_bias ? x[i] + bias[i] : x[i]; }
};

template <class T, bool has_bias>
void gate_of(const char* from, const char* bias, char* to, int64_t n, GatedNumbers numbers) {
  const Gating<T> gating(numbers.limit, numbers.offset);
  const Biased<T, has_bias> a(from, bias);
  each<T>(to, n, [&](int64_t i) FASTACT_INLINED { return gating.gate(a[i]); });
}

template <class T, bool has_bias>
void product_of(const char* value, const char* from, const char* bias, char* to, int64_t n,
                GatedNumbers numbers) {
  const Gating<T> gating(numbers.limit, numbers.offset);
  const Biased<T, has_bias> b(from, bias);
  const T* t = of<T>(value);
  each<T>(to, n, [&](int64_t i) FASTACT_INLINED { return t[i] * gating.factor(b[i]); });
}

template <class T, bool has_bias>
void to_gate_of(const char* gradient, const char* from_a, const char* bias_a, const char* from_b,
                const char* bias_b, char* to, int64_t n, GatedNumbers numbers) {
  const Gating<T> gating(numbers.limit, numbers.offset);
  const Biased<T, has_bias> a(from_a, bias_a), b(from_b, bias_b);
  const T* dy = of<T>(gradient);
  each<T>(to, n, [&](int64_t i) FASTACT_INLINED {
    return gating.to_a(dy[i] * gating.factor(b[i]), a[i]);
  });
}

template <class T, bool has_bias>
void to_b_of(const char* gradient, const char* value, const char* from, const char* bias, char* to,
             int64_t n, GatedNumbers numbers) {
  const Gating<T> gating(numbers.limit, numbers.offset);
  const Biased<T, has_bias> b(from, bias);
  const T *dy = of<T>(gradient), *t = of<T>(value);
  each<T>(to, n, [&](int64_t i) FASTACT_INLINED { return gating.to_b(dy[i] * t[i], b[i]); });
}

template <class T>
void gate(const char* a, const char* bias, char* to, int64_t n, GatedNumbers numbers) {
  (bias ? gate_of<T, true> : gate_of<T, false>)(a, bias, to, n, numbers);
}

template <class T>
void product(const char* value, const char* b, const char* bias, char* y, int64_t n,
             GatedNumbers numbers) {
  (bias ? product_of<T, true> : product_of<T, false>)(value, b, bias, y, n, numbers);
}

template <class T>
void to_gate(const char* dy, const char* a, const char* bias_a, const char* b, const char* bias_b,
             char* g, int64_t n, GatedNumbers numbers) {
  (bias_a ? to_gate_of<T, true> : to_gate_of<T, false>)(dy, a, bias_a, b, bias_b, g, n, numbers);
}

template <class T>
void to_b(const char* dy, const char* value, const char* b, const char* bias, char* db, int64_t n,
          GatedNumbers numbers) {
  (bias ? to_b_of<T, true> : to_b_of<T, false>)(dy, value, b, bias, db, n, numbers);
}

}  // namespace

extern const GatedKernels gated_kernels;
const GatedKernels gated_kernels = {
    {gate<float>, gate<double>},
    {product<float>, product<double>},
    {to_gate<float>, to_gate<double>},
    {to_b<float>, to_b<double>},
};

FASTACT_END_NAMESPACE
