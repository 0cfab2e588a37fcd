// The functor of dropout (common/bias/dropout.h).
#pragma once

#include "common/bias/dropout.h"
#include "cuda/core/elementwise.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The words of the elements of a vector: of one block for each four of them, and of one more where
// they begin inside a block.
template <class T>
struct VectorWords {
  static constexpr int kSize = Vec<T>::kSize, kBlocks = (kSize + 2 * kBlockWords - 2) / kBlockWords;
  uint32_t word[kBlocks * kBlockWords];

  FASTACT_DEVICE VectorWords(uint64_t first, uint64_t seed) {
    const int skipped = int(first % kBlockWords);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      PhiloxBlock block{};
      if (b * kBlockWords < kSize + skipped) block = philox(first / kBlockWords + b, seed);
#pragma unroll
      for (int j = 0; j < kBlockWords; ++j) word[b * kBlockWords + j] = block.word[j];
    }
    skip<2>(skipped & 2);
    skip<1>(skipped & 1);
  }

 private:
  template <int words>
  FASTACT_DEVICE void skip(bool does) {
#pragma unroll
    for (int j = 0; j + words < kBlocks * kBlockWords; ++j)
      word[j] = does ? word[j + words] : word[j];
  }
};

template <class T, int inputs>
struct Dropped {
  static constexpr int kUnroll = 2;
  static constexpr Indexed kIndexed = kIndexedElements;
  using C = Compute<T>;
  Dropout of;

  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[inputs], int64_t index) const {
    const VectorWords<T> words(uint64_t(index) + of.offset, of.seed);
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
    const uint32_t word = dropout_word(uint64_t(index) + of.offset, of.seed);
    if constexpr (inputs == 2)
      return one(word, in[0], in[1]);
    else
      return one(word, in[0]);
  }

 private:
  template <class... Residual>
  FASTACT_DEVICE C one(uint32_t word, C x, Residual... residual) const {
    return dropped(of, x, of.drops_all ? 0 : word, C(of.scale), residual...);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
