// The functors of bias.cu: the forward map, and dx, whose sum by channel is the bias's gradient. Of
// a function of a parameter of channels (common/bias/channel_functions.h) other terms are added up.
#pragma once

#include "cuda/activations/activate.cuh"
#include "cuda/core/channel_sums.cuh"
#include "cuda/core/elementwise.cuh"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// A channel's function of x and of its parameter, chosen at run time as activations are
// (cuda/activations/activate.cuh).
struct ChosenFunction {
  int which;
};
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

// The activation, and the bias in its own dtype.
template <class Activation>
struct Fused {
  Activation activation;
  NumberVector bias;  // IN
  int64_t channels, inner;
};

// The bias of the elements [index, index + Vec<T>::kSize) of a whole array.
template <class T, class Activation>
FASTACT_DEVICE Wide<T> bias_at(const Fused<Activation>& fused, int64_t index) {
  Wide<T> found;
  const int64_t row = fused.inner == 1 ? index : quotient(index, fused.inner);
  const int64_t within = index - row * fused.inner;
  const int64_t first = row - quotient(row, fused.channels) * fused.channels;
  with_type<T>(fused.bias.data, fused.bias.dtype, [&](const auto* bias) {
    int64_t left = fused.inner - within, channel = first;  // left: elements of the same channel
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const auto* p =
          reinterpret_cast<decltype(bias)>(fused.bias.data + channel * fused.bias.stride);
      found.lane[j] = Compute<T>(widen(load(p)));
      if (--left > 0) continue;
      left = fused.inner;
      channel = channel + 1 == fused.channels ? 0 : channel + 1;
    }
  });
  return found;
}

// y = f(x + bias + residual). For strided arrays `index` is the channel, and inner is 1.
template <class T, int inputs, class Activation>
struct BiasForward : Fused<Activation> {
  static constexpr int kUnroll = 1;  // a call leaves few registers for vectors in flight
  static constexpr Indexed kIndexed = kIndexedElements;
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[inputs], int64_t index) const {
    return fused_value<T>(this->activation, in[0], bias_at<T>(*this, index), inputs == 2,
                          in[inputs - 1]);
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[inputs], int64_t index) const {
    Wide<T> x{}, of_channel{}, residual{};
    x.lane[0] = in[0], residual.lane[0] = in[inputs - 1];
    of_channel.lane[0] = parameter_at<T>(this->bias, quotient(index, this->inner) % this->channels);
    return fused_value<T>(this->activation, x, of_channel, inputs == 2, residual).lane[0];
  }
};

// Writes dx = dy f'(x + bias + residual); its sums are the gradient of the bias. Or dx of f(x, w),
// and the sums are dw.
template <class T, class Activation>
struct BiasGradient : Fused<Activation> {
  enum { kDy, kX, kResidual, kDx, kArrays };  // residual may be absent
  static constexpr int kSums = 1, kTogether = 1, kNumbers = 1;
  static constexpr int kBlocks[] = {3, 1};
  static constexpr bool kByRow = false;
  SumArrays<kArrays> arrays;
  // Whether vectors may be read by windows: not where dx is an input too, for other threads write
  // the elements beside it.
  bool windows, accumulate;  // accumulate: dx is added to
  using C = Compute<T>;

  FASTACT_DEVICE C number(int, int64_t channel) const {
    return parameter_at<T>(this->bias, channel);
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
    Wide<T> own, dx, terms[1];
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) own.lane[j] = numbers(0, j);
    set_slopes(widen_vec(get(kX)), own, [&] { return widen_vec(get(kResidual)); }, dx, terms[0]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      dx.lane[j] *= dy.lane[j];
      terms[0].lane[j] = j < count ? dy.lane[j] * terms[0].lane[j] : 0;
    }

    T* const to = reinterpret_cast<T*>(arrays.data[kDx]) + index[0];
    const bool fast = arrays.aligned && whole;
    if (accumulate) accumulate_onto(fast ? load_vec(to) : load_some(to, count), dx);
    if (fast)
      store_vec(to, narrow_vec<T>(dx));
    else
      store_some(to, narrow_vec<T>(dx), count);
    add(terms);
  }

  template <class Numbers>
  FASTACT_DEVICE void element(const int64_t (&at)[kArrays], const Numbers& numbers,
                              C (&terms)[1]) const {
    const auto get = [&](int k) {
      return widen(load(reinterpret_cast<const T*>(arrays.data[k] + at[k])));
    };
    const auto one = [](C value) {
      Wide<T> wide{};
      wide.lane[0] = value;
      return wide;
    };
    Wide<T> by_x, of_terms;
    set_slopes(
        one(get(kX)), one(numbers(0, 0)), [&] { return one(get(kResidual)); }, by_x, of_terms);
    const C dy = get(kDy), dx = dy * by_x.lane[0];
    terms[0] = dy * of_terms.lane[0];
    T* const to = reinterpret_cast<T*>(arrays.data[kDx] + at[kDx]);
    store(to, narrow<T>(accumulate ? widen(load(to)) + dx : dx));
  }

 private:
  // The factors of dy in dx and in the terms. own: the number of each channel.
  template <class Residual>
  FASTACT_DEVICE void set_slopes(const Wide<T>& x, const Wide<T>& own, const Residual& residual,
                                 Wide<T>& of_dx, Wide<T>& of_terms) const {
    if constexpr (std::is_same_v<Activation, ChosenFunction>) {
      const ChannelSlopes<T> slopes = channel_slopes<T>(this->activation.which, x, own);
      of_dx = slopes.by_x, of_terms = slopes.by_w;
    } else {
      const bool has_residual = arrays.data[kResidual];
      const Wide<T> z = sum_of<T>(x, own, has_residual, has_residual ? residual() : Wide<T>{});
      of_dx = of_terms = this->activation.slope(z);
    }
  }
};

}  // namespace
FASTACT_END_NAMESPACE
