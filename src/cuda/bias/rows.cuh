// The functors over rows of vectors (core/row_map.cuh): forward, and the gradient with its sums.
#pragma once

#include "cuda/activations/fixed.cuh"
#include "cuda/bias/fused.cuh"
#include "cuda/core/row_map.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <>
constexpr bool kIsFixed<ChosenFunction> = false;

// A row is channels x inner elements, once or several times.
template <class T, class Activation>
struct BiasRows {
  using Kept = Wide<T>;
  Activation activation;
  NumberVector bias;  // IN
  Divisor channels, inner;
  bool by_vector;  // each element of a vector has its own bias, which is read by vectors too

  FASTACT_DEVICE Kept keep(int64_t column) const {
    if (by_vector && column < channels.by)
      return widen_vec(load_vec(reinterpret_cast<const T*>(bias.data) + column));
    int64_t channel = inner(column), left = inner.by - (column - channel * inner.by);
    channel -= channels(channel) * channels.by;
    Kept kept;
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
struct BiasRowsForward : BiasRows<T, Activation> {
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
struct BiasRowsBackward : BiasRows<T, Activation> {
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
