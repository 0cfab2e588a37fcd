// Any activation, chosen at run time, of a vector.
//
// Kernels that can bear a call for each vector (strided ones, and those that fuse more than an
// activation) use this instead of an instance for each activation: the build would otherwise grow
// with activations x layouts x directions. The cost: docs/design/cuda.md, "Activations".
#pragma once

#include "common/activations/list.h"
#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
FASTACT_DEVICE_CALL Wide<T> activate(int which, const double* parameters, Wide<T> z) {
  switch (which) {
#define FASTACT_CASE(name, A)                                             \
  case k_##name: {                                                        \
    const A<Compute<T>, kApproximate<T>> activation(parameters);          \
    _Pragma("unroll") for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = \
        activation.forward(z.lane[j]);                                    \
    break;                                                                \
  }
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  return z;
}

template <class T>
FASTACT_DEVICE_CALL Wide<T> slope_at(int which, const double* parameters, Wide<T> z) {
  switch (which) {
#define FASTACT_CASE(name, A)                                             \
  case k_##name: {                                                        \
    const A<Compute<T>, kApproximate<T>> activation(parameters);          \
    _Pragma("unroll") for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = \
        activation.derivative(z.lane[j]);                                 \
    break;                                                                \
  }
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  return z;
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
  switch (which) {
#define FASTACT_CASE(name, A)                                    \
  case k_##name: {                                               \
    const A<Compute<T>, kApproximate<T>> activation(parameters); \
    _Pragma("unroll") for (int j = 0; j < Vec<T>::kSize; ++j) {  \
      both.value.lane[j] = activation.forward(z.lane[j]);        \
      both.slope.lane[j] = activation.derivative(z.lane[j]);     \
    }                                                            \
    break;                                                       \
  }
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
  return both;
}

}  // namespace
FASTACT_END_NAMESPACE
