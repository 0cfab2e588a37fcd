// A gated activation of a vector, and its gradients: what all kernels of the family compute.
#pragma once

#include <algorithm>
#include <limits>

#include "common/gated/gated.h"
#include "cuda/activations/activate.cuh"
#include "cuda/core/elementwise.cuh"
#include "cuda/gated/gated.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The activation is chosen at run time, by one call a vector; backward's gives value and slope.
template <class T>
struct Gated {
  ChosenActivation activation;
  bool is_limited;  // or else the clamps are left out, which change nothing
  Gating<Compute<T>> gating;

  explicit Gated(const GatedFunction& function)
      : activation(chosen_activation(function.which, function.parameters)),
        is_limited(function.limit < std::numeric_limits<double>::infinity()),
        gating(function.limit, function.offset) {}

  FASTACT_DEVICE Wide<T> forward(const Wide<T>& a, const Wide<T>& b) const {
    Wide<T> y = activation.template value<T>(gate(a));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      y.lane[j] *= is_limited ? gating.factor(b.lane[j]) : b.lane[j] + gating.offset;
    return y;
  }

  // da, then db.
  FASTACT_DEVICE Results<Wide<T>, 2> backward(const Wide<T>& dy, const Wide<T>& a,
                                              const Wide<T>& b) const {
    const ValueAndSlope<T> act =
        value_and_slope<T>(activation.which, activation.parameters, gate(a));
    Results<Wide<T>, 2> gradients;
    if (is_limited) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const Compute<T> g = gating.to_a(dy.lane[j] * gating.factor(b.lane[j]), a.lane[j]);
        gradients.of[0].lane[j] = g * act.slope.lane[j];
        gradients.of[1].lane[j] = gating.to_b(dy.lane[j] * act.value.lane[j], b.lane[j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const Compute<T> g = dy.lane[j] * (b.lane[j] + gating.offset);
        gradients.of[0].lane[j] = g * act.slope.lane[j];
        gradients.of[1].lane[j] = dy.lane[j] * act.value.lane[j];
      }
    }
    return gradients;
  }

 private:
  FASTACT_DEVICE Wide<T> gate(Wide<T> a) const {
    if (is_limited) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) a.lane[j] = gating.gate(a.lane[j]);
    }
    return a;
  }
};

// The maps over contiguous arrays.
template <class T>
struct GatedForward {
  static constexpr int kUnroll = 1;  // a call leaves few registers to what would be in flight
  Gated<T> gated;
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[2], int64_t) const {
    return gated.forward(in[0], in[1]);
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[2], int64_t) const {
    return gated.forward({{in[0]}}, {{in[1]}}).lane[0];
  }
};

template <class T>
struct GatedBackward {
  static constexpr int kUnroll = 1;
  static constexpr int kOutputs = 2;
  static constexpr int kLeastBlocks = sizeof(T) == 8 ? 2 : 3;  // with four or three it spills
  Gated<T> gated;
  FASTACT_DEVICE Results<Wide<T>, 2> vec(const Wide<T> (&in)[3], int64_t) const {
    return gated.backward(in[0], in[1], in[2]);
  }
  FASTACT_DEVICE Results<Compute<T>, 2> at(const Compute<T> (&in)[3], int64_t) const {
    const Results<Wide<T>, 2> gradients = gated.backward({{in[0]}}, {{in[1]}}, {{in[2]}});
    return {{gradients.of[0].lane[0], gradients.of[1].lane[0]}};
  }
};

}  // namespace
FASTACT_END_NAMESPACE
