// The maps from coefficients to y and dx.
//
// Dense arrays go through core/elementwise.cuh, whose vectors know their index, and find their
// coefficients by CoefIndex. Of strided arrays the coefficient index is an operand like any other:
// its "address" is the index.
#pragma once

#include "cuda/core/elementwise.cuh"
#include "cuda/norms/channels/coef_index.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// z = (x - mean) scale + offset
template <class T, class Lookup>
FASTACT_DEVICE Wide<T> normalised_vec(const Wide<T>& x, const Lookup& lookup) {
  Wide<T> z{};
  lookup.template with<kHigh, kLow, kScale, kOffset>([&](int j, const Compute<T>(&n)[4]) {
    z.lane[j] = batch_normalised(x.lane[j], n[0], n[1], n[2], n[3]);
  });
  return z;
}

// y = f(z)
template <class T, bool is_identity>
struct NormForward {
  static constexpr int kUnroll = is_identity ? 2 : 1;
  static constexpr Indexed kIndexed = kIndexedElements;
  CoefIndex<T> coef_index;
  ChosenActivation activation;
  using Prefetch = typename CoefIndex<T>::template Prefetch<kOfForward, true, is_identity>;

  template <class Lookup>
  FASTACT_DEVICE Wide<T> value(const Wide<T>& x, const Lookup& lookup) const {
    const Wide<T> z = normalised_vec<T>(x, lookup);
    if constexpr (is_identity)
      return z;
    else
      return activation.template value<T>(z);
  }
  FASTACT_DEVICE Prefetch prefetch(int64_t index) const {
    return coef_index.template prefetch<Prefetch>(index);
  }
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[1], int64_t index,
                             const Prefetch& prefetch) const {
    return coef_index.visit(index, prefetch,
                            [&](const auto& lookup) { return value(in[0], lookup); });
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[1], int64_t index) const {
    return value({{in[0]}}, coef_index.one(index)).lane[0];
  }
};

// Which statistics dx accounts for, p = dy f'(z).
enum Statistics : int {
  kGiven,       // dx = scale p
  kOfChannels,  // batch_gradient
  kOfGroups,    // dx = rstd (p weight - mean - (x - mean of x) slope): weights differ in a group
};

constexpr unsigned needed_by(Statistics statistics, bool is_identity) {
  unsigned needs = kBit<kScale>;
  if (statistics == kOfChannels)
    needs = kBit<kHigh> | kBit<kLow> | kBit<kScale> | kBit<kMean> | kBit<kSlope>;
  if (statistics == kOfGroups)
    needs = kBit<kHigh> | kBit<kLow> | kBit<kMean> | kBit<kSlope> | kBit<kRstd> | kBit<kWeight>;
  return needs | (is_identity ? 0 : kOfForward);
}

template <class T, Statistics statistics, bool is_identity>
struct NormBackward {
  // Eight lanes of 16 bits need the registers of fewer blocks, or they spill: docs/design/cuda.md,
  // "batch_norm and channels last".
  static constexpr int kUnroll = is_identity && sizeof(T) > 2 ? 2 : 1;
  static constexpr bool kIsWide = sizeof(T) == 2 && (!is_identity || statistics == kOfGroups);
  static constexpr bool kIsWidest = kIsWide && !is_identity && statistics == kOfGroups;
  static constexpr int kLeastBlocks = kIsWidest ? 2 : kIsWide ? 3 : kMapBlocks<T>;
  static constexpr Indexed kIndexed = kIndexedElements;
  using C = Compute<T>;
  CoefIndex<T> coef_index;
  ChosenActivation activation;
  using Prefetch = typename CoefIndex<T>::template Prefetch<needed_by(statistics, is_identity),
                                                            statistics != kOfGroups, is_identity>;

  template <class Lookup>
  FASTACT_DEVICE Wide<T> gradient(const Wide<T>& dy, const Wide<T>& x, const Lookup& lookup) const {
    if constexpr (is_identity) {
      return finish(dy, x, lookup);
    } else {
      const Wide<T> z = normalised_vec<T>(x, lookup);
      // dy and x stay in storage type across the call, where they take fewer registers.
      const Vec<T> dy_before = narrow_vec<T>(dy), x_before = narrow_vec<T>(x);
      Wide<T> p = activation.template slope<T>(z);
      const Wide<T> again = widen_vec(dy_before);
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) p.lane[j] = again.lane[j] * p.lane[j];
      return finish(p, widen_vec(x_before), lookup);
    }
  }

  // A few coefficients at a time: eight lanes of six are more than there are registers.
  template <class Lookup>
  FASTACT_DEVICE Wide<T> finish(Wide<T> p, Wide<T> x, const Lookup& lookup) const {
    if constexpr (statistics == kGiven) {
      lookup.template with<kScale>([&](int j, const C(&n)[1]) { p.lane[j] *= n[0]; });
      return p;
    }
    lookup.template with<kHigh, kLow>(
        [&](int j, const C(&n)[2]) { x.lane[j] = centred(x.lane[j], n[0], n[1]); });
    if constexpr (statistics == kOfChannels) {
      lookup.template with<kScale, kMean, kSlope>([&](int j, const C(&n)[3]) {
        p.lane[j] = batch_gradient(p.lane[j], x.lane[j], n[0], n[1], n[2]);
      });
    } else {
      lookup.template with<kWeight, kMean>(
          [&](int j, const C(&n)[2]) { p.lane[j] = madd(p.lane[j], n[0], -n[1]); });
      lookup.template with<kRstd, kSlope>(
          [&](int j, const C(&n)[2]) { p.lane[j] = n[0] * madd(-x.lane[j], n[1], p.lane[j]); });
    }
    return p;
  }

  FASTACT_DEVICE Prefetch prefetch(int64_t index) const {
    return coef_index.template prefetch<Prefetch>(index);
  }
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[2], int64_t index,
                             const Prefetch& prefetch) const {
    return coef_index.visit(index, prefetch,
                            [&](const auto& lookup) { return gradient(in[0], in[1], lookup); });
  }
  FASTACT_DEVICE C at(const C (&in)[2], int64_t index) const {
    return gradient({{in[0]}}, {{in[1]}}, coef_index.one(index)).lane[0];
  }
};

// arrays: the inputs, then the output; dense: they have the layout of `f.coef_index.coefs`.
template <class T, int inputs, bool accumulates, class F>
void apply(const Operand (&arrays)[inputs + 1], bool dense, const bool* of_coef, bool accumulate,
           F f, cudaStream_t stream) {
  if (!dense) {
    f.coef_index.order = kGivenIndex;
    return run_indexed<T, inputs, accumulates>(arrays, of_coef, accumulate, f, stream);
  }
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), inputs + 1, arrays);
  const auto out = reinterpret_cast<uintptr_t>(plan.data[inputs]);
  f.coef_index.choose(plan.size, out % kVecBytes == 0);
  run_contiguous<T, inputs, accumulates>(plan, accumulate, f, stream);
}

// The map from x to y.
template <class T>
void apply_forward(const Operand (&arrays)[2], bool dense, const bool* of_coef,
                   const Coefficients<T>& coefs, const ChosenActivation& activation,
                   cudaStream_t stream) {
  const auto run = [&](auto f) {
    f.coef_index.coefs = coefs, f.activation = activation;
    apply<T, 1, false>(arrays, dense, of_coef, false, f, stream);
  };
  activation.which == k_identity ? run(NormForward<T, true>{}) : run(NormForward<T, false>{});
}

// And from dy and x to dx, or onto it.
template <class T, Statistics statistics>
void apply_backward(const Operand (&arrays)[3], bool dense, const bool* of_coef,
                    const Coefficients<T>& coefs, const ChosenActivation& activation,
                    bool accumulate, cudaStream_t stream) {
  const auto run = [&](auto f) {
    f.coef_index.coefs = coefs, f.activation = activation;
    apply<T, 2, true>(arrays, dense, of_coef, accumulate, f, stream);
  };
  if (activation.which == k_identity)
    run(NormBackward<T, statistics, true>{});
  else
    run(NormBackward<T, statistics, false>{});
}

}  // namespace
FASTACT_END_NAMESPACE
