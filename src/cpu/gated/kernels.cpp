// The loops of gated/kernels.h. Each is written once, over chunks of the type that is computed in.
#include "cpu/gated/kernels.h"

#include "common/gated/gated.h"
#include "cpu/simd/map_span.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The form around the activation: b alone is the factor; or clamps and an offset; or also biases.
enum Form : int { kAlone, kClamped, kBiased };

template <class T, int form>
struct Around {
  const Gating<T> gating;

  explicit Around(GatedNumbers numbers) : gating(numbers.limit, numbers.offset) {}
  FASTACT_HD T biased(T x, const T* bias, int64_t i) const {
    return form == kBiased ? x + bias[i] : x;
  }
  FASTACT_HD T factor(T b) const { return form == kAlone ? b : gating.factor(b); }
  FASTACT_HD T to_a(T g, T a) const { return form == kAlone ? g : gating.to_a(g, a); }
  FASTACT_HD T to_b(T db, T b) const { return form == kAlone ? db : gating.to_b(db, b); }
};

// Runs run(Around<T, form>) of the form that a call needs.
template <class T, class Run>
FASTACT_HD void with_form(const char* bias, GatedNumbers numbers, Run run) {
  if (bias)
    run(Around<T, kBiased>(numbers));
  else if (numbers.limit == __builtin_inf() && numbers.offset == 0)
    run(Around<T, kAlone>(numbers));
  else
    run(Around<T, kClamped>(numbers));
}

template <class C>
void gate(const char* from, const char* along, char* to, int64_t n, GatedNumbers numbers) {
  const C *a = pointer<C>(from), *bias = pointer<C>(along);
  C* gate = pointer<C>(to);
  with_form<C>(along, numbers, [=](auto around) FASTACT_INLINED {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) gate[i] = around.gating.gate(around.biased(a[i], bias, i));
  });
}

template <class T>
void product(const char* value, const char* from, const char* along, char* to, int64_t n,
             GatedNumbers numbers) {
  using C = Compute<T>;
  const C *t = pointer<C>(value), *bias = pointer<C>(along);
  with_form<C>(along, numbers, [=](auto around) FASTACT_INLINED {
    map_indexed(pointer<T>(from), pointer<T>(to), n, [=](int64_t i, C b) FASTACT_INLINED {
      return t[i] * around.factor(around.biased(b, bias, i));
    });
  });
}

template <class T>
void to_gate(const char* gradient, const char* from_a, const char* along_a, const char* from_b,
             const char* along_b, char* to, int64_t n, GatedNumbers numbers) {
  using C = Compute<T>;
  const C *a = pointer<C>(from_a), *bias_a = pointer<C>(along_a), *bias_b = pointer<C>(along_b);
  with_form<C>(along_a, numbers, [=](auto around) FASTACT_INLINED {
    map_indexed(pointer<T>(gradient), pointer<T>(from_b), pointer<C>(to), n,
                [=](int64_t i, C dy, C b) FASTACT_INLINED {
                  const C g = dy * around.factor(around.biased(b, bias_b, i));
                  return around.to_a(g, around.biased(a[i], bias_a, i));
                });
  });
}

// Out: T, or its compute type.
template <class T, class Out>
void to_b(const char* gradient, const char* value, const char* from, const char* along, char* to,
          int64_t n, GatedNumbers numbers) {
  using C = Compute<T>;
  const C *t = pointer<C>(value), *bias = pointer<C>(along);
  with_form<C>(along, numbers, [=](auto around) FASTACT_INLINED {
    map_indexed(pointer<T>(gradient), pointer<T>(from), pointer<Out>(to), n,
                [=](int64_t i, C dy, C b)
                    FASTACT_INLINED { return around.to_b(dy * t[i], around.biased(b, bias, i)); });
  });
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
