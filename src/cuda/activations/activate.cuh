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

// Runs visit(activation) for the activation with a number.
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

// Calls f(lane, made) for each lane of the first vector, and stores `made` in that lane of each
// vector. A loop rotates the lanes and calls f for the first two, so that an activation's code is
// there once for all of them. (One lane at a time would wait for the lane before.)
template <class T, int n, class F>
FASTACT_DEVICE void map_pairs(Wide<T> (&vecs)[n], const F& f) {
  constexpr int kSize = Vec<T>::kSize;
#pragma unroll 1
  for (int done = 0; done < kSize; done += 2) {
    Compute<T> made[2][n];
#pragma unroll
    for (int i = 0; i < 2; ++i) f(vecs[0].lane[i], made[i]);
#pragma unroll
    for (int k = 0; k < n; ++k) {
#pragma unroll
      for (int j = 0; j + 2 < kSize; ++j) vecs[k].lane[j] = vecs[k].lane[j + 2];
#pragma unroll
      for (int i = 0; i < 2; ++i) vecs[k].lane[kSize - 2 + i] = made[i][k];
    }
  }
}

// Calls f(activation, lane) for each lane.
template <class T, class F>
FASTACT_DEVICE Wide<T> map_chosen(int which, const double* parameters, const Wide<T>& z,
                                  const F& f) {
  Wide<T> vecs[1] = {z};
  with_activation<T>(which, parameters, [&](const auto& activation) {
    map_pairs<T>(vecs, [&](Compute<T> x, Compute<T>(&y)[1]) { y[0] = f(activation, x); });
  });
  return vecs[0];
}
template <class T>
FASTACT_DEVICE_CALL Wide<T> activate(int which, const double* parameters, Wide<T> z) {
  return map_chosen<T>(which, parameters, z, [](const auto& f, auto x) { return f.forward(x); });
}
template <class T>
FASTACT_DEVICE_CALL Wide<T> slope_at(int which, const double* parameters, Wide<T> z) {
  return map_chosen<T>(which, parameters, z, [](const auto& f, auto x) { return f.derivative(x); });
}
// Does so from the array that the activation's op saved.
template <class T>
FASTACT_DEVICE_CALL Wide<T> slope_by_saved_at(int which, const double* parameters, Wide<T> saved) {
  return map_chosen<T>(which, parameters, saved,
                       [](const auto& f, auto x) { return derivative_by_saved(f, x); });
}
template <class T>
FASTACT_DEVICE_CALL Wide<T> second_by_saved_at(int which, const double* parameters, Wide<T> saved) {
  return map_chosen<T>(which, parameters, saved,
                       [](const auto& f, auto x) { return second_by_saved(f, x); });
}

// Both at once, for gradients that need them.
template <class T>
struct ValueAndSlope {
  Wide<T> value, slope;
};
template <class T>
FASTACT_DEVICE_CALL ValueAndSlope<T> value_and_slope(int which, const double* parameters,
                                                     Wide<T> z) {
  Wide<T> vecs[2] = {z, {}};
  with_activation<T>(which, parameters, [&](const auto& activation) {
    map_pairs<T>(vecs, [&](Compute<T> x, Compute<T>(&y)[2]) {
      y[0] = activation.forward(x), y[1] = activation.derivative(x);
    });
  });
  return {vecs[0], vecs[1]};
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
  template <class T>
  FASTACT_DEVICE Wide<T> second_by_saved(const Wide<T>& saved) const {
    return second_by_saved_at<T>(which, parameters, saved);
  }
};
inline ChosenActivation chosen_activation(int which, const double* parameters) {
  ChosenActivation made{which, {}};
  std::copy(parameters, parameters + kMaxParameters, made.parameters);
  return made;
}

}  // namespace
FASTACT_END_NAMESPACE
