// What batch_norm's backward adds up of each channel (of each example, where channels-last norms
// call): p = dy f'(z) and p (x - mean).
//
// Two vectors of each array are in flight, or one around a call of an activation, which leaves few
// registers. The terms are rounded to the compute type and added in double.
#pragma once

#include "cuda/core/channel_sums.cuh"
#include "cuda/norms/channels/coef_index.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, bool is_identity>
struct NormSums {
  enum { kDy, kX, kArrays };
  static constexpr int kSums = 2, kTogether = is_identity ? 2 : 1, kNumbers = is_identity ? 2 : 4;
  static constexpr int kBlocks[] = {is_identity || sizeof(T) < sizeof(double) ? 3 : 2, 2, 2};
  static constexpr bool kByRow = false;
  using C = Compute<T>;
  Coefficients<T> coefs;
  ChosenActivation activation;
  SumArrays<kArrays> arrays;

  // kHigh, kLow, and around an activation kScale, kOffset.
  FASTACT_DEVICE C number(int k, int64_t coef) const { return load(coefs.at(k, coef)); }
  // Of coefficients that lie together.
  FASTACT_DEVICE auto of_channel(int64_t channel) const {
    if constexpr (is_identity) {
      CoefSet<T, kBit<kHigh> | kBit<kLow>> set;
      set.load_from(coefs, channel);
      return [set](int k, int) { return set.n[k]; };
    } else {
      return [this, channel](int k, int) { return number(k, channel); };
    }
  }
  template <class Staged>
  FASTACT_DEVICE auto of_columns(const Staged& staged, int64_t) const {
    return staged;
  }

  // Lanes from `valid` on are 0, unless is_full.
  template <bool is_full, class Numbers, class Add>
  FASTACT_DEVICE void one(const Vec<T>& dy, const Vec<T>& x, int valid, const Numbers& numbers,
                          const Add& add) const {
    Wide<T> p[kSums];
    if constexpr (is_identity) {
      p[0] = widen_vec(dy);
    } else {
      p[0] = widen_vec(x);
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j)
        p[0].lane[j] = batch_normalised(p[0].lane[j], numbers(kHigh, j), numbers(kLow, j),
                                        numbers(kScale, j), numbers(kOffset, j));
      p[0] = activation.template slope<T>(p[0]);
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) p[0].lane[j] = widen(dy.lane[j]) * p[0].lane[j];
    }
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      p[1].lane[j] = p[0].lane[j] * centred(widen(x.lane[j]), numbers(kHigh, j), numbers(kLow, j));
      if (!is_full && j >= valid) p[1].lane[j] = p[0].lane[j] = 0;
    }
    add(p);
  }

  // `valid` elements, and anything in the lanes after them.
  FASTACT_DEVICE Vec<T> get(int k, int64_t index, int valid) const {
    const T *begin = reinterpret_cast<const T*>(arrays.data[k]), *p = begin + index;
    return has_window(p, begin, begin + arrays.n) ? cut_window(p) : load_some(p, valid);
  }

  // Where all lanes of aligned vectors count, all loads come before the first use.
  template <class Numbers, class Add>
  FASTACT_DEVICE void vecs(const int64_t (&index)[kTogether], const int (&valid)[kTogether],
                           const Numbers& numbers, const Add& add) const {
    bool whole = arrays.aligned;
#pragma unroll
    for (int u = 0; u < kTogether; ++u) whole &= valid[u] >= Vec<T>::kSize;
    if (whole) {
      Vec<T> dy[kTogether], x[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        dy[u] = load_vec(reinterpret_cast<const T*>(arrays.data[kDy]) + index[u]);
        x[u] = load_vec(reinterpret_cast<const T*>(arrays.data[kX]) + index[u]);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) one<true>(dy[u], x[u], valid[u], numbers, add);
      return;
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      if (valid[u] > 0)
        one<false>(get(kDy, index[u], valid[u]), get(kX, index[u], valid[u]), valid[u], numbers,
                   add);
  }

  template <class Numbers>
  FASTACT_DEVICE void element(const int64_t (&at)[kArrays], const Numbers& numbers,
                              C (&p)[kSums]) const {
    const C x = widen(load(reinterpret_cast<const T*>(arrays.data[kX] + at[kX])));
    p[0] = widen(load(reinterpret_cast<const T*>(arrays.data[kDy] + at[kDy])));
    const C high = numbers(kHigh, 0), low = numbers(kLow, 0);
    if constexpr (!is_identity) {
      Wide<T> z{};
      z.lane[0] = batch_normalised(x, high, low, numbers(kScale, 0), numbers(kOffset, 0));
      p[0] *= activation.template slope<T>(z).lane[0];
    }
    p[1] = p[0] * centred(x, high, low);
  }
};

// Queues them, and returns the number of chunks of each channel's in `partials`.
template <class T, bool has_segments = true>
int64_t run_norm_sums(const Operand& dy, const Operand& x, const ChannelLayout& layout,
                      const bool* of_coef, const Coefficients<T>& coefs,
                      const ChosenActivation& activation, double* partials, cudaStream_t stream) {
  const auto run = [&](const auto& f) {
    return run_channel_sums<T, has_segments>(f, {&dy, &x}, layout, of_coef, partials, stream);
  };
  if (activation.which == k_identity) return run(NormSums<T, true>{coefs, activation, {}});
  return run(NormSums<T, false>{coefs, activation, {}});
}

}  // namespace
FASTACT_END_NAMESPACE
