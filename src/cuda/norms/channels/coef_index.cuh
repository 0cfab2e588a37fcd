// The coefficient index: where a vector of a dense array finds the coefficients of its channels.
//
// What holds for the whole call is decided once on the host (Order), so that a vector asks for
// nothing twice: one division gives its segment and one its channel, each done by a multiplication
// (Divisor). A segment is what lies together of one channel.
//
//   kOneChannel    segments are whole numbers of aligned vectors: a vector meets one channel, whose
//                  coefficients are loaded by 16 bytes before the vector arrives
//   kTwoChannels   other segments of a vector or more: the channel of the first lane and the next,
//                  between which each lane selects
//   kVecOfEach     channels last, a whole number of aligned vectors: a vector of each coefficient
//   kLaneByLane    anything else: each lane steps on from the channel of the lane before
//
// Instruction counts: docs/design/cuda.md, "batch_norm and channels last".
#pragma once

#include "cuda/norms/channels/coefficients.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Powers of two: nvcc makes a jump table of a choice among consecutive numbers, which
// tools/cuda_static.py cannot follow.
enum Order : int {
  kOneChannel = 1,
  kTwoChannels = 2,
  kVecOfEach = 4,
  kLaneByLane = 8,
  kGivenIndex = 16,  // of strided arrays: it is an operand
};

template <int coefficient>
constexpr unsigned kBit = 1u << coefficient;
constexpr unsigned kOfForward = kBit<kHigh> | kBit<kLow> | kBit<kScale> | kBit<kOffset>;

// The coefficients of one index that `needs` names, where they lie together.
template <class T, unsigned needs>
struct CoefSet {
  using C = Compute<T>;
  C n[kCoefficients];

  FASTACT_DEVICE void load_from(const Coefficients<T>& coefs, int64_t coef) {
    constexpr int kSize = Vec<C>::kSize;
    const C* p = coefs.data + coef * kCoefficients;
#pragma unroll
    for (int i = 0; i < kCoefficients; i += kSize) {
      const unsigned wanted = needs >> i & ((1u << kSize) - 1);
      if ((wanted & (wanted - 1)) != 0) {
        const Vec<C> vec = load_vec(p + i);
#pragma unroll
        for (int j = 0; j < kSize; ++j) n[i + j] = vec.lane[j];
      } else {
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          if (wanted >> j & 1) n[i + j] = load(p + i + j);
      }
    }
  }
  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    const C some[] = {n[which]...};
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) use(j, some);
  }
};

// The same, read when they are used: across a call they would take registers.
template <class T>
struct OneChannel {
  const Coefficients<T>& coefs;
  int64_t coef;

  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    CoefSet<T, (kBit<which> | ...)> set;
    set.load_from(coefs, coef);
    set.template with<which...>(use);
  }
};

template <class T>
struct TwoChannels {
  using C = Compute<T>;
  const Coefficients<T>& coefs;
  int64_t coef, next;
  int split;  // lanes of the first

  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    CoefSet<T, (kBit<which> | ...)> first, second;
    first.load_from(coefs, coef);
    second.load_from(coefs, next);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const C some[] = {(j < split ? first.n[which] : second.n[which])...};
      use(j, some);
    }
  }
};

template <class T>
struct VecOfEach {
  using C = Compute<T>;
  const Coefficients<T>& coefs;
  int64_t coef;

  FASTACT_DEVICE Wide<T> get(int k) const {
    constexpr int kPart = Vec<C>::kSize;
    Wide<T> wide;
#pragma unroll
    for (int i = 0; i < Vec<T>::kSize; i += kPart) {
      const Vec<C> part = load_vec(coefs.data + k * coefs.pitch + coef + i);
#pragma unroll
      for (int j = 0; j < kPart; ++j) wide.lane[i + j] = part.lane[j];
    }
    return wide;
  }
  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    const Wide<T> all[] = {get(which)...};
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      C some[sizeof...(which)];
#pragma unroll
      for (int k = 0; k < int(sizeof...(which)); ++k) some[k] = all[k].lane[j];
      use(j, some);
    }
  }
};

template <class T>
struct LaneByLane {
  using C = Compute<T>;
  const Coefficients<T>& coefs;
  int64_t index;

  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    const int64_t segment = coefs.inner == 1 ? index : quotient(index, coefs.inner);
    const int64_t example = coefs.example == 0 ? 0 : quotient(index, coefs.example);
    int64_t within = index - segment * coefs.inner, left = (example + 1) * coefs.example - index;
    int64_t base = example * coefs.channels;
    int64_t channel = segment - quotient(segment, coefs.channels) * coefs.channels;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const C some[] = {load(coefs.at(which, base + channel))...};
      use(j, some);
      if (++within == coefs.inner) within = 0, ++channel;
      if (channel == coefs.channels) channel = 0;
      if (--left == 0) left = coefs.example, base += coefs.channels;
    }
  }
};

// The coefficients of one element, in lane 0.
template <class T>
struct OneElement {
  const Coefficients<T>& coefs;
  int64_t coef;
  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    with_coef<which...>(coefs, coef, use);
  }
};

// Of a call's arrays.
template <class T>
struct CoefIndex {
  Coefficients<T> coefs;
  Order order;
  Divisor segment, period;

  // n: elements; aligned: the first vector is the first element.
  void choose(int64_t n, bool aligned) {
    constexpr int64_t kSize = Vec<T>::kSize, kMost = int64_t(1) << 31;
    const bool side_by_side = coefs.step != 1, quick = n / kSize < kMost;
    if (side_by_side && aligned && quick && coefs.inner % kSize == 0) {
      order = kOneChannel;
      segment = {coefs.inner / kSize, n / kSize};
      period = {coefs.channels, n / kSize};
    } else if (side_by_side && coefs.inner >= kSize) {
      order = kTwoChannels;
      segment = {coefs.inner, n};
      period = {coefs.channels, n / coefs.inner};
    } else if (!side_by_side && aligned && quick && coefs.inner == 1 &&
               coefs.channels % kSize == 0) {
      order = kVecOfEach;
      segment = {coefs.channels / kSize, n / kSize};
      period = {coefs.example == 0 ? kMost : coefs.example / coefs.channels, n / kSize};
    } else {
      order = kLaneByLane;
    }
  }

  // Of one element.
  FASTACT_DEVICE OneElement<T> one(int64_t index) const {
    return {coefs, order == kGivenIndex ? index : coefs.coef_of(index)};
  }

  // needs: the coefficients that a map uses. has_segments: channels need not come last. early:
  // those of kOneChannel are read before the vector arrives.
  template <unsigned map_needs, bool map_has_segments, bool map_early>
  struct Prefetch {
    static constexpr unsigned needs = map_needs;
    static constexpr bool has_segments = map_has_segments, early = map_early;
    int64_t coef;
    CoefSet<T, needs> set;  // of kOneCell, early
  };
  template <class Here>
  FASTACT_DEVICE Here prefetch(int64_t index) const {
    constexpr int kSize = Vec<T>::kSize;
    Here made;
    const auto vec = uint32_t(index / kSize);
    if (Here::has_segments && order & kOneChannel) {
      const uint32_t at = segment.quick(vec);
      made.coef = at - period.quick(at) * uint32_t(coefs.channels);
      if constexpr (Here::early) made.set.load_from(coefs, made.coef);
    } else if (order & kVecOfEach) {
      const uint32_t at = segment.quick(vec);
      made.coef = int64_t(vec - (at - period.quick(at)) * uint32_t(segment.by)) * kSize;
    }
    return made;
  }

  // Calls use(lookup); lookup.with<which...>(f) calls f(lane, coefficients of that lane) for each
  // lane of the vector.
  template <class Here, class Use>
  FASTACT_DEVICE Wide<T> visit(int64_t index, const Here& prefetch, const Use& use) const {
    if (order & kVecOfEach) return use(VecOfEach<T>{coefs, prefetch.coef});
    if (!Here::has_segments || order & kLaneByLane) return use(LaneByLane<T>{coefs, index});
    if (order & kOneChannel) {
      if constexpr (Here::early) return use(prefetch.set);
      return use(OneChannel<T>{coefs, prefetch.coef});
    }
    const int64_t at = segment(index), coef = at - period(at) * coefs.channels;
    const int64_t left = coefs.inner - (index - at * coefs.inner);
    const int64_t next = coef + 1 == coefs.channels ? 0 : coef + 1;
    return use(TwoChannels<T>{coefs, coef, next, int(smaller(left, Vec<T>::kSize))});
  }
};

}  // namespace
FASTACT_END_NAMESPACE
