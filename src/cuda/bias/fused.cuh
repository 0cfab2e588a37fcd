// The functors of bias.cu: the forward map, and dx, whose sum by channel is the bias's gradient.
#pragma once

#include "cuda/activations/activate.cuh"
#include "cuda/core/channel_sums.cuh"
#include "cuda/core/elementwise.cuh"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The activation, and the bias in its own dtype.
struct Fused {
  ChosenActivation activation;
  NumberVector bias;  // IN
  int64_t channels, inner;
};

// Adds the bias to the elements [index, index + Vec<T>::kSize) of a whole array.
template <class T>
FASTACT_DEVICE void add_bias(const Fused& fused, int64_t index, Wide<T>& z) {
  const int64_t row = fused.inner == 1 ? index : quotient(index, fused.inner);
  const int64_t within = index - row * fused.inner;
  const int64_t first = row - quotient(row, fused.channels) * fused.channels;
  with_type<T>(fused.bias.data, fused.bias.dtype, [&](const auto* bias) {
    int64_t left = fused.inner - within, channel = first;  // left: elements of the same channel
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const auto* p =
          reinterpret_cast<decltype(bias)>(fused.bias.data + channel * fused.bias.stride);
      z.lane[j] += Compute<T>(widen(load(p)));
      if (--left > 0) continue;
      left = fused.inner;
      channel = channel + 1 == fused.channels ? 0 : channel + 1;
    }
  });
}

// y = f(x + bias + residual). For strided arrays `index` is the channel, and inner is 1.
template <class T, int inputs>
struct BiasForward : Fused {
  static constexpr int kUnroll = 1;  // a call leaves few registers for vectors in flight
  static constexpr Indexed kIndexed = kIndexedElements;
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[inputs], int64_t index) const {
    Wide<T> z = in[0];
    add_bias<T>(*this, index, z);
    if constexpr (inputs == 2) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += in[1].lane[j];
    }
    return activation.value<T>(z);
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[inputs], int64_t index) const {
    Wide<T> z{};
    z.lane[0] = in[0] + parameter_at<T>(bias, quotient(index, inner) % channels);
    if constexpr (inputs == 2) z.lane[0] += in[1];
    return activation.value<T>(z).lane[0];
  }
};

// Writes dx = dy f'(x + bias + residual); its sums are the gradient of the bias.
template <class T>
struct BiasGradient : Fused {
  enum { kDy, kX, kResidual, kDx, kArrays };  // residual may be absent
  static constexpr int kSums = 1, kTogether = 1, kNumbers = 1;
  static constexpr int kBlocks[] = {sizeof(T) < sizeof(double) ? 4 : 3, 3, 1};
  static constexpr bool kByRow = false;
  SumArrays<kArrays> arrays;
  // Whether vectors may be read by windows: not where dx is an input too, for other threads write
  // the elements beside it.
  bool windows, accumulate;  // accumulate: dx is added to
  using C = Compute<T>;

  FASTACT_DEVICE C number(int, int64_t channel) const { return parameter_at<T>(bias, channel); }
  FASTACT_DEVICE auto of_channel(int64_t channel) const {
    return [one = number(0, channel)](int, int) { return one; };
  }
  template <class Staged>
  FASTACT_DEVICE auto of_columns(const Staged& staged, int64_t) const {
    Wide<T> all;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) all.lane[j] = staged(0, j);
    return [all](int, int j) { return all.lane[j]; };
  }

  template <class Numbers, class Add>
  FASTACT_DEVICE void vecs(const int64_t (&index)[1], const int (&valid)[1], const Numbers& numbers,
                           const Add& add) const {
    const int count = valid[0];
    if (count <= 0) return;
    const bool whole = count >= Vec<T>::kSize;
    const auto get = [&](int k) {
      const T *begin = reinterpret_cast<const T*>(arrays.data[k]), *p = begin + index[0];
      if (arrays.aligned && whole) return load_vec(p);
      if (windows && whole) return load_window(p, begin, begin + arrays.n);
      return load_some(p, count);
    };
    const Wide<T> dy = widen_vec(get(kDy));
    Wide<T> z = widen_vec(get(kX));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += numbers(0, j);
    if (arrays.data[kResidual]) {
      const Wide<T> residual = widen_vec(get(kResidual));
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] += residual.lane[j];
    }
    Wide<T> dx[1] = {activation.slope<T>(z)};
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      dx[0].lane[j] = j < count ? dy.lane[j] * dx[0].lane[j] : 0;

    T* const to = reinterpret_cast<T*>(arrays.data[kDx]) + index[0];
    const bool fast = arrays.aligned && whole;
    Wide<T> result = dx[0];
    if (accumulate) accumulate_onto(fast ? load_vec(to) : load_some(to, count), result);
    if (fast)
      store_vec(to, narrow_vec<T>(result));
    else
      store_some(to, narrow_vec<T>(result), count);
    add(dx);
  }

  template <class Numbers>
  FASTACT_DEVICE void element(const int64_t (&at)[kArrays], const Numbers& numbers,
                              C (&dx)[1]) const {
    const auto get = [&](int k) {
      return widen(load(reinterpret_cast<const T*>(arrays.data[k] + at[k])));
    };
    Wide<T> z{};
    z.lane[0] = get(kX) + numbers(0, 0);
    if (arrays.data[kResidual]) z.lane[0] += get(kResidual);
    dx[0] = get(kDy) * activation.slope<T>(z).lane[0];
    T* const to = reinterpret_cast<T*>(arrays.data[kDx] + at[kDx]);
    store(to, narrow<T>(accumulate ? widen(load(to)) + dx[0] : dx[0]));
  }
};

}  // namespace
FASTACT_END_NAMESPACE
