// Vectors of 16 bytes: read from any address, and converted to and from the compute type.
//
// An array need not begin at a multiple of 16 bytes, and two arrays of one call need not be
// misaligned by the same amount. A vector at such an address is cut out of its window, the two
// aligned vectors that hold it. That takes two loads of 16 bytes, the second one mostly from the
// first-level cache, and some ten integer instructions, instead of 2 to 8 loads of single elements.
#pragma once

#include <type_traits>

#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

// 16-bit results hide the error of the fast exponential and division.
template <class T>
constexpr bool kApproximate = sizeof(T) == 2;

// A vector in the type that it is computed in.
template <class T>
struct Wide {
  Compute<T> lane[Vec<T>::kSize];
};

// A vector by words. In registers nvcc 13.0 would take eight numbers of 16 bits apart.
struct Words {
  uint32_t word[4];
};

template <class T>
FASTACT_DEVICE Wide<T> widen_vec(const Vec<T>& vec) {
  Wide<T> wide;
  if constexpr (std::is_same_v<T, bf16>) {  // one instruction an element, not two
    const Words words = bit_cast<Words>(vec);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize / 2; ++j) {
      wide.lane[2 * j] = bit_cast<float>(words.word[j] << 16);
      wide.lane[2 * j + 1] = bit_cast<float>(words.word[j] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) wide.lane[j] = widen(vec.lane[j]);
  }
  return wide;
}
template <class T>
FASTACT_DEVICE Wide<T> widen_words(const Words& words) {
  return widen_vec(bit_cast<Vec<T>>(words));
}

// Two 16-bit results as one word: one instruction, at four times the rate of two that convert one
// each.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
FASTACT_DEVICE uint32_t narrow_two(float low, float high, bf16) {
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}
FASTACT_DEVICE uint32_t narrow_two(float low, float high, f16) {
  uint32_t two;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}
#else
template <class T>
FASTACT_DEVICE uint32_t narrow_two(float low, float high, T) {
  return narrow<T>(low).bits | uint32_t(narrow<T>(high).bits) << 16;
}
#endif

template <class T>
FASTACT_DEVICE Vec<T> narrow_vec(const Wide<T>& wide) {
  if constexpr (sizeof(T) == 2) {
    Words words;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize / 2; ++j)
      words.word[j] = narrow_two(wide.lane[2 * j], wide.lane[2 * j + 1], T{});
    return bit_cast<Vec<T>>(words);
  } else {
    return bit_cast<Vec<T>>(wide);
  }
}

// One number in each lane.
template <class T>
FASTACT_DEVICE Wide<T> repeat(Compute<T> one) {
  Wide<T> wide;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) wide.lane[j] = one;
  return wide;
}

// values = before + values, where they are added to what an array holds.
template <class T>
FASTACT_DEVICE void accumulate_onto(const Vec<T>& before, Wide<T>& values) {
  const Wide<T> held = widen_vec(before);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) values.lane[j] = held.lane[j] + values.lane[j];
}

// Bytes by which an address misses a multiple of 16.
FASTACT_DEVICE unsigned misalignment(const void* p) {
  return unsigned(reinterpret_cast<uintptr_t>(p)) % kVecBytes;
}

// The first n elements from p on, element by element; zeros after them.
template <class T>
FASTACT_DEVICE Vec<T> load_some(const T* p, int64_t n) {
  Vec<T> vec{};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < n) vec.lane[j] = load(p + j);
  return vec;
}

template <class T>
FASTACT_DEVICE void store_some(T* p, const Vec<T>& vec, int64_t n) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < n) store(p + j, vec.lane[j]);
}

// A vector of an input that repeats itself: one element stands for all.
template <class T>
FASTACT_DEVICE Vec<T> repeat_element(const T* p) {
  Vec<T> vec;
  const T element = load(p);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) vec.lane[j] = element;
  return vec;
}

// The vector at p, a multiple of sizeof(T), out of the aligned vectors around it: by 8 bytes, by 4
// and, of 16-bit elements, by 2 (docs/design/cuda.md, "Misaligned arrays"). Of float64 two
// loads of 8 bytes do: they reach the same cache lines.
template <class T>
FASTACT_DEVICE Vec<T> cut_window(const T* p) {
  if constexpr (sizeof(T) == 8) return {{load(p), load(p + 1)}};
  const unsigned missed = misalignment(p);
  const T* low = p - missed / sizeof(T);
  const Words a = bit_cast<Words>(load_vec(low));
  const Words b = bit_cast<Words>(load_vec(low + Vec<T>::kSize));
  uint32_t word[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) word[i] = a.word[i], word[4 + i] = b.word[i];
  const bool by_8 = missed & 8, by_4 = missed & 4;
#pragma unroll
  for (int i = 0; i < 6; ++i) word[i] = by_8 ? word[i + 2] : word[i];
  if constexpr (sizeof(T) <= 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) word[i] = by_4 ? word[i + 1] : word[i];
  }
  if constexpr (sizeof(T) == 2) {
    const unsigned down = (missed & 2) * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = uint32_t((uint64_t(word[i + 1]) << 32 | word[i]) >> down);
  }
  return bit_cast<Vec<T>>(Words{{word[0], word[1], word[2], word[3]}});
}

// Whether both aligned vectors around p lie inside an array of elements [begin, end).
template <class T>
FASTACT_DEVICE bool has_window(const T* p, const T* begin, const T* end) {
  const T* low = p - misalignment(p) / sizeof(T);
  return low >= begin && low + 2 * kVecBytes / sizeof(T) <= end;
}

// A vector inside an array of elements [begin, end). Neither side of the array is read: the first
// and the last vector go element by element where a window would reach out.
template <class T>
FASTACT_DEVICE Vec<T> load_window(const T* p, const T* begin, const T* end) {
  if (misalignment(p) == 0) return load_vec(p);
  if (!has_window(p, begin, end)) return load_some(p, Vec<T>::kSize);
  return cut_window(p);
}

FASTACT_END_NAMESPACE
