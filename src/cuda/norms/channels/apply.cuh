// The maps from coefficients to y and dx.
//
// Dense arrays go through core/elementwise.cuh, whose vectors know their index, and find their
// coefficients by CoefIndex. Strided arrays go through apply_strided, where the coefficient index
// is an operand like any other: its "address" is the index.
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
  CoefIndex<T> coef_index;
  ChosenActivation activation;
  using Prefetch = typename CoefIndex<T>::template Prefetch<kOfForward, true, is_identity>;

  template <class Lookup>
  FASTACT_DEVICE Wide<T> value(const Wide<T>& x, const Lookup& lookup) const {
    const Wide<T> z = normalised_vec<T>(x, lookup);
    if constexpr (is_identity)
      return z;
    else
      return activate<T>(activation.which, activation.parameters, z);
  }
  FASTACT_DEVICE Prefetch prefetch(int64_t index) const {
    return coef_index.template prefetch<Prefetch>(index);
  }
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[1], int64_t index,
                             const Prefetch& prefetch) const {
    return coef_index.visit(index, prefetch,
                            [&](const auto& lookup) { return value(in[0], lookup); });
  }
  FASTACT_DEVICE Compute<T> at_coef(const Compute<T> (&in)[1], int64_t coef) const {
    Wide<T> x{};
    x.lane[0] = in[0];
    return value(x, OneElement<T>{coef_index.coefs, coef}).lane[0];
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[1], int64_t index) const {
    return at_coef(in, coef_index.coefs.coef_of(index));
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
      Wide<T> p = slope_at<T>(activation.which, activation.parameters, z);
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
  FASTACT_DEVICE C at_coef(const C (&in)[2], int64_t coef) const {
    Wide<T> dy{}, x{};
    dy.lane[0] = in[0], x.lane[0] = in[1];
    return gradient(dy, x, OneElement<T>{coef_index.coefs, coef}).lane[0];
  }
  FASTACT_DEVICE C at(const C (&in)[2], int64_t index) const {
    return at_coef(in, coef_index.coefs.coef_of(index));
  }
};

// out OUT = f(in IN ...), or IN/OUT += of the same; the last input of the map
// is no array: its address is the coefficient index of an element.
template <class T, int inputs, class F>
FASTACT_KERNEL(kMapThreads)
void apply_strided(FASTACT_GRID_CONSTANT const StridedMap<inputs + 1> map,
                   FASTACT_GRID_CONSTANT const F f) {
  const int64_t index = int64_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (index >= map.tasks) return;
  int64_t at[inputs + 2];
  if (map.tasks <= int64_t(0xffffffff))
    locate(map, uint32_t(index), at);
  else
    locate(map, index, at);
  Compute<T> in[inputs];
#pragma unroll
  for (int k = 0; k < inputs; ++k)
    in[k] = widen(load(reinterpret_cast<const T*>(map.in[k] + at[k])));
  const int64_t coef = int64_t(reinterpret_cast<intptr_t>(map.in[inputs])) + at[inputs];
  T* out = reinterpret_cast<T*>(map.out[0] + at[inputs + 1]);
  Compute<T> value = f.at_coef(in, coef);
  if (map.accumulate) value = widen(load(out)) + value;
  store(out, narrow<T>(value));
}

// The coefficient index counts along the axes of `of_coef`, the last axis fastest.
struct CoefStrides {
  int64_t stride[kMaxAxes];
};
CoefStrides coef_strides(const Operand& x, const bool* of_coef) {
  CoefStrides made{};
  int64_t step = 1;
  for (int i = x.ndim - 1; i >= 0; --i)
    if (of_coef[i]) made.stride[i] = step, step *= x.shape[i];
  return made;
}

// arrays: the inputs, then the output; dense: they have the layout of `f.coef_index.coefs`.
template <class T, int inputs, bool accumulates, class F>
void apply(const Operand (&arrays)[inputs + 1], bool dense, const bool* of_coef, bool accumulate,
           F f, cudaStream_t stream) {
  ElementwisePlan plan;
  if (dense) {
    plan_elementwise(&plan, sizeof(T), inputs + 1, arrays);
    const auto out = reinterpret_cast<uintptr_t>(plan.data[inputs]);
    f.coef_index.choose(plan.size, out % kVecBytes == 0);
    return run_contiguous<T, inputs, accumulates>(plan, accumulate, f, stream);
  }
  const CoefStrides coefs = coef_strides(arrays[inputs], of_coef);
  Operand with_coefs[inputs + 2];
  for (int k = 0; k < inputs; ++k) with_coefs[k] = arrays[k];
  with_coefs[inputs] = {nullptr, arrays[inputs].ndim, arrays[inputs].shape, coefs.stride, 1};
  with_coefs[inputs + 1] = arrays[inputs];
  plan_elementwise(&plan, sizeof(T), inputs + 2, with_coefs);
  StridedMap<inputs + 1> map{};
  map.tasks = plan.size;
  map.accumulate = accumulate;
  map.ndim = plan.ndim;
  for (int k = 0; k <= inputs; ++k) map.in[k] = plan.data[k];
  map.out[0] = plan.data[inputs + 1];
  for (int axis = 0; axis < plan.ndim; ++axis) {
    map.shape[axis] = plan.shape[axis];
    for (int k = 0; k < inputs + 2; ++k) map.strides[k][axis] = plan.strides[k][axis];
  }
  launch(apply_strided<T, inputs, F>, {ceil_div(plan.size, kMapThreads), kMapThreads}, stream, map,
         f);
}

}  // namespace
FASTACT_END_NAMESPACE
