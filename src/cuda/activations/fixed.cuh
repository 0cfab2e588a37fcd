// Activations that are compiled into their kernels: the ones that people put behind a bias or into
// a gate, where a call for each vector would cost time. Any other is chosen at run time
// (activate.cuh).
#pragma once

#include "cuda/activations/activate.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr bool is_common(int which) {
  for (const int one : {k_identity, k_relu, k_gelu, k_gelu_tanh, k_mish, k_silu, k_sigmoid, k_tanh})
    if (which == one) return true;
  return false;
}

// Around a call few registers are left for vectors in flight.
template <class Activation>
constexpr bool kIsFixed = true;
template <>
constexpr bool kIsFixed<ChosenActivation> = false;

// An activation that is compiled into its kernel, with the same interface.
template <template <class, bool> class A, class T>
struct FixedActivation {
  A<Compute<T>, kApproximate<T>> f;
  FASTACT_HD explicit FixedActivation(const double* parameters) : f(parameters) {}

  FASTACT_DEVICE Wide<T> value(Wide<T> z) const {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = f.forward(z.lane[j]);
    return z;
  }
  FASTACT_DEVICE Wide<T> slope(Wide<T> z) const {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = f.derivative(z.lane[j]);
    return z;
  }
};

// An activation by its number, which is compiled in.
template <int which, class T>
struct Numbered;
#define FASTACT_FIXED(name, A)                       \
  template <class T>                                 \
  struct Numbered<k_##name, T> {                     \
    using Function = A<Compute<T>, kApproximate<T>>; \
    using Type = FixedActivation<A, T>;              \
  };
FASTACT_ACTIVATIONS(FASTACT_FIXED)
#undef FASTACT_FIXED

template <class T>
FASTACT_DEVICE ValueAndSlope<T> value_and_slope(const ChosenActivation& activation,
                                                const Wide<T>& z) {
  return value_and_slope<T>(activation.which, activation.parameters, z);
}
template <template <class, bool> class A, class T>
FASTACT_DEVICE ValueAndSlope<T> value_and_slope(const FixedActivation<A, T>& activation,
                                                const Wide<T>& z) {
  return {activation.value(z), activation.slope(z)};
}
template <class T>
FASTACT_DEVICE ValueAndSlope<T> value_and_slope(const FixedActivation<Silu, T>& activation,
                                                const Wide<T>& z) {
  ValueAndSlope<T> both;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    both.value.lane[j] = activation.f.forward(z.lane[j], both.slope.lane[j]);
  return both;
}

// Runs visit(activation): a common one is fixed, any other is chosen at run time. So are all of
// float64, where memory is slow enough to leave time for a call.
template <class T, class Visit>
void with_common_activation(int which, const double* parameters, const Visit& visit) {
  switch (which) {
#define FASTACT_CASE(name, A)                                        \
  case k_##name:                                                     \
    if constexpr (sizeof(T) < sizeof(double) && is_common(k_##name)) \
      return visit(FixedActivation<A, T>(parameters));               \
    break;
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  visit(chosen_activation(which, parameters));
}

}  // namespace
FASTACT_END_NAMESPACE
