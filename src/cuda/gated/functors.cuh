// A gated activation of a vector, and its gradients (common/gated/gated.h derives them): all
// kernels of the family are made of these.
#pragma once

#include <algorithm>
#include <limits>

#include "common/gated/call.h"
#include "common/gated/gated.h"
#include "cuda/activations/fixed.cuh"
#include "cuda/core/row_map.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

inline bool has_limit(const GatedCall& function) {
  return function.limit < std::numeric_limits<double>::infinity();
}

// An activation that is chosen at run time is called once for a vector; backward, that one call
// gives value and slope.
template <class T, class Activation = ChosenActivation>
struct Gated {
  Activation activation;
  bool may_be_limited;  // else the clamps would change nothing, and are left out
  Gating<Compute<T>> gating;

  Gated(const GatedCall& function, const Activation& of)
      : activation(of),
        may_be_limited(has_limit(function)),
        gating(function.limit, function.offset) {}
  explicit Gated(const GatedCall& function)
      : Gated(function, chosen_activation(function.which, function.parameters)) {}

  FASTACT_DEVICE Wide<T> forward(const Wide<T>& a, const Wide<T>& b) const {
    const bool is_limited = limited();
    Wide<T> y = activation.value(gate(a));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      y.lane[j] *= is_limited ? gating.factor(b.lane[j]) : b.lane[j] + gating.offset;
    return y;
  }

  // da, then db.
  FASTACT_DEVICE Results<Wide<T>, 2> backward(const Wide<T>& dy, const Wide<T>& a,
                                              const Wide<T>& b) const {
    const bool is_limited = limited();
    const ValueAndSlope<T> act = value_and_slope(activation, gate(a));
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
  // A fixed activation is used without a limit alone.
  FASTACT_DEVICE bool limited() const { return !kIsFixed<Activation> && may_be_limited; }
  FASTACT_DEVICE Wide<T> gate(Wide<T> a) const {
    if (limited()) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) a.lane[j] = gating.gate(a.lane[j]);
    }
    return a;
  }
};

// The maps over rows of vectors.
struct Nothing {};

template <class T, class Activation>
struct GatedRowsForward {
  static constexpr int kInputs = 2, kOutputs = 1, kMade = 1, kSums = 0;
  static constexpr int kUnroll = kIsFixed<Activation> ? 2 : 1, kBlocks = kMapBlocks<T>;
  using Kept = Nothing;
  Gated<T, Activation> gated;
  FASTACT_DEVICE Kept keep(int64_t) const { return {}; }
  FASTACT_DEVICE void vec(const Wide<T> (&in)[2], const bool (&)[2], Kept, Wide<T> (&y)[1]) const {
    y[0] = gated.forward(in[0], in[1]);
  }
};

template <class T, class Activation>
struct GatedRowsBackward {
  static constexpr int kInputs = 3, kOutputs = 2, kMade = 2, kSums = 0;
  static constexpr int kUnroll = kIsFixed<Activation> ? 2 : 1, kBlocks = sizeof(T) == 8 ? 2 : 3;
  using Kept = Nothing;
  Gated<T, Activation> gated;
  FASTACT_DEVICE Kept keep(int64_t) const { return {}; }
  FASTACT_DEVICE void vec(const Wide<T> (&in)[3], const bool (&)[3], Kept,
                          Wide<T> (&made)[2]) const {
    const Results<Wide<T>, 2> gradients = gated.backward(in[0], in[1], in[2]);
    made[0] = gradients.of[0], made[1] = gradients.of[1];
  }
};

}  // namespace
FASTACT_END_NAMESPACE
