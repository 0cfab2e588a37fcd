// The functors of bias.cu, for the maps of core/row_map.cuh and core/strided_map.cuh: y, and dx,
// whose sum by channel is the bias's gradient. Of a function of a parameter of channels
// (common/bias/channel_functions.h) other terms are added up.
#pragma once

#include "cuda/activations/fixed.cuh"
#include "cuda/core/row_map.cuh"
#include "cuda/core/strided_map.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// A channel's function of x and of its parameter, chosen at run time as activations are
// (cuda/activations/activate.cuh).
struct ChosenFunction {
  int which;
};
template <>
constexpr bool kIsFixed<ChosenFunction> = false;
template <class T, class Visit>
FASTACT_DEVICE void with_channel_function(int which, const Visit& visit) {
  switch (which) {
#define FASTACT_CASE(name, F) \
  case k_##name:              \
    return visit(F<Compute<T>, kApproximate<T>>(nullptr));
    FASTACT_CHANNEL_FUNCTIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
}
template <class T>
FASTACT_DEVICE_CALL Wide<T> channel_value(int which, Wide<T> x, Wide<T> w) {
  with_channel_function<T>(which, [&](const auto& f) {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) x.lane[j] = f.forward(x.lane[j], w.lane[j]);
  });
  return x;
}
template <class T>
struct ChannelSlopes {
  Wide<T> by_x, by_w;
};
template <class T>
FASTACT_DEVICE_CALL ChannelSlopes<T> channel_slopes(int which, Wide<T> x, Wide<T> w) {
  ChannelSlopes<T> made{};
  with_channel_function<T>(which, [&](const auto& f) {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      made.by_x.lane[j] = f.slopes(x.lane[j], w.lane[j], &made.by_w.lane[j]);
  });
  return made;
}

// (x + bias) + residual
template <class T>
FASTACT_DEVICE Wide<T> sum_of(Wide<T> x, const Wide<T>& bias, bool has_residual,
                              const Wide<T>& residual) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    x.lane[j] += bias.lane[j];
    if (has_residual) x.lane[j] += residual.lane[j];
  }
  return x;
}

// y of x and of the numbers of their channels, the bias or the parameters.
template <class T, class Activation>
FASTACT_DEVICE Wide<T> fused_value(const Activation& activation, const Wide<T>& x,
                                   const Wide<T>& bias, bool has_residual,
                                   const Wide<T>& residual) {
  return activation.value(sum_of<T>(x, bias, has_residual, residual));
}
template <class T>
FASTACT_DEVICE Wide<T> fused_value(const ChosenFunction& function, const Wide<T>& x,
                                   const Wide<T>& w, bool, const Wide<T>&) {
  return channel_value<T>(function.which, x, w);
}

// The part of both directions. Rows of vectors are channels x inner elements, once or repeatedly.
template <class T, class Activation>
struct Fused {
  Activation activation;
  NumberVector bias;  // IN
  Divisor channels, inner;
  bool by_vector;  // each element of a vector has its own bias, which is read by vectors too

  FASTACT_DEVICE Wide<T> keep(const IndexPlace& place) const { return numbers_of<T>(bias, place); }
  FASTACT_DEVICE Wide<T> keep(int64_t column) const {
    if (by_vector && column < channels.by)
      return widen_vec(load_vec(reinterpret_cast<const T*>(bias.data) + column));
    int64_t channel = inner(column), left = inner.by - (column - channel * inner.by);
    channel -= channels(channel) * channels.by;
    Wide<T> kept;
    with_type<T>(bias.data, bias.dtype, [&](const auto* typed) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const auto* p = reinterpret_cast<decltype(typed)>(bias.data + channel * bias.stride);
        kept.lane[j] = Compute<T>(widen(load(p)));
        if (--left > 0) continue;
        left = inner.by;
        channel = channel + 1 == channels.by ? 0 : channel + 1;
      }
    });
    return kept;
  }
};

// y = f(x + bias + residual), or f(x, w).
template <class T, class Activation>
struct BiasForward : Fused<T, Activation> {
  static constexpr int kInputs = 2, kOutputs = 1, kMade = 1, kSums = 0;
  static constexpr int kUnroll = kIsFixed<Activation> ? 16 / Vec<T>::kSize : 1;
  static constexpr int kBlocks = kMapBlocks<T>;
  FASTACT_DEVICE void vec(const Wide<T> (&in)[2], const bool (&has)[2], const Wide<T>& kept,
                          Wide<T> (&y)[1]) const {
    y[0] = fused_value<T>(this->activation, in[0], kept, has[1], in[1]);
  }
};

// dx = dy f'(x + bias + residual); its sums are the gradient of the bias. Or dx of f(x, w), and the
// terms of dw.
template <class T, class Activation>
struct BiasBackward : Fused<T, Activation> {
  static constexpr bool kIsFunction = std::is_same_v<Activation, ChosenFunction>;
  static constexpr int kInputs = 3, kOutputs = 1, kMade = kIsFunction ? 2 : 1, kSums = 1;
  static constexpr int kUnroll = kIsFixed<Activation> ? 2 : 1, kBlocks = 3;
  FASTACT_DEVICE void vec(const Wide<T> (&in)[3], const bool (&has)[3], const Wide<T>& kept,
                          Wide<T> (&made)[kMade]) const {
    if constexpr (kIsFunction) {
      const ChannelSlopes<T> slopes = channel_slopes<T>(this->activation.which, in[1], kept);
      made[0] = slopes.by_x, made[1] = slopes.by_w;
    } else {
      made[0] = this->activation.slope(sum_of<T>(in[1], kept, has[2], in[2]));
    }
#pragma unroll
    for (int k = 0; k < kMade; ++k)
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) made[k].lane[j] = in[0].lane[j] * made[k].lane[j];
  }
};

}  // namespace
FASTACT_END_NAMESPACE
