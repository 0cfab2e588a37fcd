// Sums within a warp and within a block, in an order fixed by the number of threads.
#pragma once

#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE

// The sum over `width` neighbouring lanes, a power of two, given to all of them. Every lane of the
// warp takes part.
template <class T>
FASTACT_DEVICE T warp_sum(T value, int width = kWarp) {
  for (int step = width / 2; step > 0; step /= 2)
    value += __shfl_xor_sync(kAllLanes, value, step, width);
  return value;
}

// The sum over a block of `threads` threads, valid in its first warp. Every thread takes part; the
// caller puts a barrier between two uses.
template <int threads, class T>
FASTACT_DEVICE T block_sum(T value) {
  constexpr int kWarps = threads / kWarp;
  static_assert(kWarps <= kWarp && (kWarps & (kWarps - 1)) == 0, "one warp adds the warps' sums");
  FASTACT_SHARED(T, sums, kWarps);
  value = warp_sum(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = threadIdx.x < kWarps ? T(sums[threadIdx.x]) : T(0);
  return warp_sum(value, kWarps);
}

// What is added up: f(value), in double.
struct Itself {
  FASTACT_HD double operator()(double x) const { return x; }
};
struct Square {
  FASTACT_HD double operator()(double x) const { return x * x; }
};

// The lanes of a vector as one term, in double: exact for whatever is narrower, but for the
// additions. 16-bit data at 4.3 TB/s asks for 2.2e12 conversions a second; at 16 a clock and
// multiprocessor, which no measurement has confirmed yet, an H200 makes 3.7e12.
template <class F, class T>
FASTACT_DEVICE double vec_sum(const Vec<T>& vec) {
  double term[Vec<T>::kSize];
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) term[j] = F()(double(widen(vec.lane[j])));
#pragma unroll
  for (int n = Vec<T>::kSize / 2; n > 0; n /= 2)
#pragma unroll
    for (int j = 0; j < n; ++j) term[j] += term[j + n];
  return term[0];
}

FASTACT_END_NAMESPACE
