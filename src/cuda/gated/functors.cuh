// A gated activation of a vector, and its gradients (common/gated/gated.h derives them), as the
// functors of core/row_map.cuh and, with biases, of core/strided_map.cuh.
#pragma once

#include <algorithm>
#include <limits>

#include "common/gated/call.h"
#include "common/gated/gated.h"
#include "cuda/activations/fixed.cuh"
#include "cuda/core/row_map.cuh"
#include "cuda/core/strided_map.cuh"

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
  FASTACT_DEVICE void backward(const Wide<T>& dy, const Wide<T>& a, const Wide<T>& b,
                               Wide<T> (&gradients)[2]) const {
    const bool is_limited = limited();
    const ValueAndSlope<T> act = value_and_slope(activation, gate(a));
    if (is_limited) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const Compute<T> g = gating.to_a(dy.lane[j] * gating.factor(b.lane[j]), a.lane[j]);
        gradients[0].lane[j] = g * act.slope.lane[j];
        gradients[1].lane[j] = gating.to_b(dy.lane[j] * act.value.lane[j], b.lane[j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const Compute<T> g = dy.lane[j] * (b.lane[j] + gating.offset);
        gradients[0].lane[j] = g * act.slope.lane[j];
        gradients[1].lane[j] = dy.lane[j] * act.value.lane[j];
      }
    }
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

struct Nothing {};

// The biases of a and of b, both or neither; rows of vectors have none.
struct GatedBiases {
  NumberVector of[2];  // IN

  FASTACT_DEVICE Nothing keep(int64_t) const { return {}; }
  FASTACT_DEVICE IndexPlace keep(const IndexPlace& place) const { return place; }

 protected:
  template <class T>
  FASTACT_DEVICE Wide<T> with_bias(int, const Wide<T>& z, Nothing) const {
    return z;
  }
  template <class T>
  FASTACT_DEVICE Wide<T> with_bias(int k, Wide<T> z, const IndexPlace& place) const {
    if (!of[0].data) return z;
    const Wide<T> bias = numbers_of<T>(of[k], place);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += bias.lane[j];
    return z;
  }
};

template <class T, class Activation = ChosenActivation>
struct GatedForward : GatedBiases {
  static constexpr int kInputs = 2, kOutputs = 1, kMade = 1, kSums = 0;
  static constexpr int kUnroll = kIsFixed<Activation> ? 2 : 1, kBlocks = kMapBlocks<T>;
  Gated<T, Activation> gated;
  template <class Kept>
  FASTACT_DEVICE void vec(const Wide<T> (&in)[2], const bool (&)[2], const Kept& kept,
                          Wide<T> (&y)[1]) const {
    y[0] = gated.forward(with_bias<T>(0, in[0], kept), with_bias<T>(1, in[1], kept));
  }
};

template <class T, class Activation = ChosenActivation>
struct GatedBackward : GatedBiases {
  static constexpr int kInputs = 3, kOutputs = 2, kMade = 2, kSums = 0;
  static constexpr int kUnroll = kIsFixed<Activation> ? 2 : 1, kBlocks = sizeof(T) == 8 ? 2 : 3;
  Gated<T, Activation> gated;
  template <class Kept>
  FASTACT_DEVICE void vec(const Wide<T> (&in)[3], const bool (&)[3], const Kept& kept,
                          Wide<T> (&made)[2]) const {
    gated.backward(in[0], with_bias<T>(0, in[1], kept), with_bias<T>(1, in[2], kept), made);
  }
};
// Its sums are the gradients of the biases.
template <class T>
struct GatedSums : GatedBackward<T> {
  static constexpr int kSums = 2;
};

}  // namespace
FASTACT_END_NAMESPACE
