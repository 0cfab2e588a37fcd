// The loops of gated/kernels.h. Each is written once, over chunks of the type that is computed in.
#include "cpu/gated/kernels.h"

#include "common/gated/gated.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
const T* of(const char* data) {
  return reinterpret_cast<const T*>(data);
}

// The form of the product: b alone as the factor, or clamps and an offset, or biases too.
enum Around : int { kAlone, kClamped, kBiased };

inline Around around(const char* bias, GatedNumbers numbers) {
  if (bias) return kBiased;
  return numbers.limit == __builtin_inf() && numbers.offset == 0 ? kAlone : kClamped;
}

template <int how, class T>
FASTACT_HD T biased(const T* x, const T* bias, int64_t i) {
  return how == kBiased ? x[i] + bias[i] : x[i];
}
template <int how, class T>
FASTACT_HD T factor_of(const Gating<T>& gating, T b) {
  return how == kAlone ? b : gating.factor(b);
}
template <int how, class T>
FASTACT_HD T to_a_of(const Gating<T>& gating, T g, T a) {
  return how == kAlone ? g : gating.to_a(g, a);
}
template <int how, class T>
FASTACT_HD T to_b_of(const Gating<T>& gating, T db, T b) {
  return how == kAlone ? db : gating.to_b(db, b);
}

template <class C, int how>
void gate_of(const char* from, const char* along, char* to, int64_t n, GatedNumbers numbers) {
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C *a = of<C>(from), *bias = of<C>(along);
  C* gate = reinterpret_cast<C*>(to);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) gate[i] = gating.gate(biased<how>(a, bias, i));
}

template <class T, int how>
void product_of(const char* value, const char* from, const char* along, char* to, int64_t n,
                GatedNumbers numbers) {
  using C = Compute<T>;
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C* bias = of<C>(along);
  Wide<T> of_b, of_y;
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const C *b = of_b.read(of<T>(from) + i, m), *t = of<C>(value) + i;
    T* y = reinterpret_cast<T*>(to) + i;
    C* wide = of_y.to(y);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k)
      wide[k] = t[k] * factor_of<how>(gating, biased<how>(b, bias + i, k));
    of_y.finish(y, m);
  });
}

template <class T, int how>
void to_gate_of(const char* gradient, const char* from_a, const char* along_a, const char* from_b,
                const char* along_b, char* to, int64_t n, GatedNumbers numbers) {
  using C = Compute<T>;
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C *bias_a = of<C>(along_a), *bias_b = of<C>(along_b);
  Wide<T> of_dy, of_b;
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const C* dy = of_dy.read(of<T>(gradient) + i, m);
    const C *b = of_b.read(of<T>(from_b) + i, m), *a = of<C>(from_a) + i;
    C* g = reinterpret_cast<C*>(to) + i;
#pragma omp simd
    for (int64_t k = 0; k < m; ++k)
      g[k] = to_a_of<how>(gating, dy[k] * factor_of<how>(gating, biased<how>(b, bias_b + i, k)),
                          biased<how>(a, bias_a + i, k));
  });
}

// Out: T, or its compute type.
template <class T, class Out, int how>
void to_b_of(const char* gradient, const char* value, const char* from, const char* along, char* to,
             int64_t n, GatedNumbers numbers) {
  using C = Compute<T>;
  const Gating<C> gating(numbers.limit, numbers.offset);
  const C* bias = of<C>(along);
  Wide<T> of_dy, of_b;
  Wide<Out> of_db;
  for_chunks(n, [&](int64_t i, int64_t m) FASTACT_INLINED {
    const C* dy = of_dy.read(of<T>(gradient) + i, m);
    const C *b = of_b.read(of<T>(from) + i, m), *t = of<C>(value) + i;
    Out* db = reinterpret_cast<Out*>(to) + i;
    C* wide = of_db.to(db);
#pragma omp simd
    for (int64_t k = 0; k < m; ++k)
      wide[k] = to_b_of<how>(gating, dy[k] * t[k], biased<how>(b, bias + i, k));
    of_db.finish(db, m);
  });
}

template <class C>
void gate(const char* a, const char* bias, char* to, int64_t n, GatedNumbers numbers) {
  (bias ? gate_of<C, kBiased> : gate_of<C, kClamped>)(a, bias, to, n, numbers);
}

template <class T>
void product(const char* value, const char* b, const char* bias, char* y, int64_t n,
             GatedNumbers numbers) {
  constexpr decltype(&product_of<T, kAlone>) of[] = {product_of<T, kAlone>, product_of<T, kClamped>,
                                                     product_of<T, kBiased>};
  of[around(bias, numbers)](value, b, bias, y, n, numbers);
}

template <class T>
void to_gate(const char* dy, const char* a, const char* bias_a, const char* b, const char* bias_b,
             char* g, int64_t n, GatedNumbers numbers) {
  constexpr decltype(&to_gate_of<T, kAlone>) of[] = {to_gate_of<T, kAlone>, to_gate_of<T, kClamped>,
                                                     to_gate_of<T, kBiased>};
  of[around(bias_a, numbers)](dy, a, bias_a, b, bias_b, g, n, numbers);
}

template <class T, class Out>
void to_b(const char* dy, const char* value, const char* b, const char* bias, char* db, int64_t n,
          GatedNumbers numbers) {
  constexpr decltype(&to_b_of<T, Out, kAlone>) of[] = {
      to_b_of<T, Out, kAlone>, to_b_of<T, Out, kClamped>, to_b_of<T, Out, kBiased>};
  of[around(bias, numbers)](dy, value, b, bias, db, n, numbers);
}

}  // namespace

extern const GatedKernels gated_kernels;
const GatedKernels gated_kernels = {
    {gate<float>, gate<double>},
    {product<f16>, product<bf16>, product<float>, product<double>},
    {to_gate<f16>, to_gate<bf16>, to_gate<float>, to_gate<double>},
    {{to_b<f16, f16>, to_b<f16, float>},
     {to_b<bf16, bf16>, to_b<bf16, float>},
     {to_b<float, float>, to_b<float, float>},
     {to_b<double, double>, to_b<double, double>}},
};

FASTACT_END_NAMESPACE
