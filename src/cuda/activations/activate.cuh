// Any activation, chosen at run time, of a vector.
//
// Kernels that can bear a call for each vector (strided ones, and those that fuse more than an
// activation) use this instead of an instance for each activation: the build would otherwise grow
// with activations x layouts x directions. The cost: docs/design/cuda.md, "Activations".
#pragma once

#include "common/activations/list.h"
#include "cuda/core/api.h"
#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Runs visit(activation) with the one that a number stands for.
template <class T, class Visit>
FASTACT_DEVICE void with_activation(int which, const double* parameters, const Visit& visit) {
  switch (which) {
#define FASTACT_CASE(name, A) \
  case k_##name:              \
    return visit(A<Compute<T>, kApproximate<T>>(parameters));
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
}

template <class T>
FASTACT_DEVICE_CALL Wide<T> activate(int which, const double* parameters, Wide<T> z) {
  with_activation<T>(which, parameters, [&](const auto& activation) {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = activation.forward(z.lane[j]);
  });
  return z;
}

template <class T>
FASTACT_DEVICE_CALL Wide<T> slope_at(int which, const double* parameters, Wide<T> z) {
  with_activation<T>(which, parameters, [&](const auto& activation) {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = activation.derivative(z.lane[j]);
  });
  return z;
}

// The same, of what the activation's op saved.
template <class T>
FASTACT_DEVICE_CALL Wide<T> slope_by_saved_at(int which, const double* parameters, Wide<T> saved) {
  with_activation<T>(which, parameters, [&](const auto& activation) {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      saved.lane[j] = derivative_by_saved(activation, saved.lane[j]);
  });
  return saved;
}

// Both at once, for gradients that need them.
template <class T>
struct ValueAndSlope {
  Wide<T> value, slope;
};
template <class T>
FASTACT_DEVICE_CALL ValueAndSlope<T> value_and_slope(int which, const double* parameters,
                                                     Wide<T> z) {
  ValueAndSlope<T> both;
  with_activation<T>(which, parameters, [&](const auto& activation) {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      both.value.lane[j] = activation.forward(z.lane[j]);
      both.slope.lane[j] = activation.derivative(z.lane[j]);
    }
  });
  return both;
}

// The activation of a call, with its parameters.
struct ChosenActivation {
  int which;
  double parameters[kMaxParameters];

  template <class T>
  FASTACT_DEVICE Wide<T> value(const Wide<T>& z) const {
    return activate<T>(which, parameters, z);
  }
  template <class T>
  FASTACT_DEVICE Wide<T> slope(const Wide<T>& z) const {
    return slope_at<T>(which, parameters, z);
  }
  template <class T>
  FASTACT_DEVICE Wide<T> slope_by_saved(const Wide<T>& saved) const {
    return slope_by_saved_at<T>(which, parameters, saved);
  }
};
inline ChosenActivation chosen_activation(int which, const double* parameters) {
  ChosenActivation made{which, {}};
  std::copy(parameters, parameters + kMaxParameters, made.parameters);
  return made;
}

}  // namespace
FASTACT_END_NAMESPACE
