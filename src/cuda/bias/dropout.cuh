// The functor of dropout (common/bias/dropout.h).
#pragma once

#include "common/bias/dropout.h"
#include "cuda/core/elementwise.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The words of the elements of a vector, from the first-th on: of one block for each four of them,
// and of one more where they begin inside a block. That is the same for all vectors of a call.
template <class T>
struct VectorWords {
  static constexpr int kSize = Vec<T>::kSize;
  static constexpr int kBlocks = kSize < kBlockWords ? 1 : kSize / kBlockWords;
  uint32_t word[kSize];

  FASTACT_DEVICE VectorWords(uint64_t first, const PhiloxKeys& keys) {
    const int skipped = int(first % kBlockWords);
    if (skipped == 0)
      take<0>(first / kBlockWords, keys, 0);
    else
      take<1>(first / kBlockWords, keys, skipped);
  }

 private:
  // more: blocks besides.
  template <int more>
  FASTACT_DEVICE void take(uint64_t counter, const PhiloxKeys& keys, int skipped) {
    uint32_t all[(kBlocks + more) * kBlockWords];
#pragma unroll
    for (int b = 0; b < kBlocks + more; ++b) {
      const PhiloxBlock block = philox(counter + b, keys);
#pragma unroll
      for (int j = 0; j < kBlockWords; ++j) all[b * kBlockWords + j] = block.word[j];
    }
    if constexpr (more > 0) {
      skip<2>(all, skipped & 2);
      skip<1>(all, skipped & 1);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) word[j] = all[j];
  }
  template <int words, int count>
  static FASTACT_DEVICE void skip(uint32_t (&all)[count], bool does) {
#pragma unroll
    for (int j = 0; j + words < count; ++j) all[j] = does ? all[j + words] : all[j];
  }
};

template <class T, int inputs>
struct Dropped {
  static constexpr int kUnroll = 2;
  static constexpr bool kIndexed = true;
  using C = Compute<T>;
  PhiloxKeys keys;  // a round's is an operand of its instruction
  uint64_t offset;
  uint32_t threshold;
  bool drops_all;
  C scale;

  explicit Dropped(const Dropout& of)
      : keys(philox_keys(of.seed)),
        offset(of.offset),
        threshold(of.threshold),
        drops_all(of.drops_all),
        scale(C(of.scale)) {}

  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[inputs], int64_t index) const {
    const VectorWords<T> words(uint64_t(index) + offset, keys);
    Wide<T> y;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      if constexpr (inputs == 2)
        y.lane[j] = one(words.word[j], in[0].lane[j], in[1].lane[j]);
      else
        y.lane[j] = one(words.word[j], in[0].lane[j]);
    }
    return y;
  }
  FASTACT_DEVICE C at(const C (&in)[inputs], int64_t index) const {
    const uint32_t word = dropout_word(uint64_t(index) + offset, keys);
    if constexpr (inputs == 2)
      return one(word, in[0], in[1]);
    else
      return one(word, in[0]);
  }

 private:
  template <class... Residual>
  FASTACT_DEVICE C one(uint32_t word, C x, Residual... residual) const {
    return dropped(!drops_all & (word >= threshold), x, scale, residual...);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
